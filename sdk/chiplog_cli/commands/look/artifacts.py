"""`chiplog artifacts`: the versions of artifacts as a table."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from chiplog_cli.options import open_client, source_options
from chiplog_cli.output import FORMATS, Output, output_options
from chiplog_cli.suggestions import require_known
from chiplog_cli.tables.format_values import UTC_ZONE
from chiplog_cli.tables.plain_table import Column
from chiplog_cli.tables.tables import plain_cell
from chiplog_cli.tables.writers import write_result
from chiplog_client.nearest_names import KNOWN_MAX

if TYPE_CHECKING:
    from chiplog_cli.tables.fitted_table import Sheet

_FILTERS = ("project", "name", "type")
_VERSIONS = """SELECT project, name, 'v' || version AS version, type, aliases, n_files, bytes, ts, made_by, used_by
FROM artifacts WHERE {} ORDER BY project, name, artifacts.version DESC"""


@click.command()
@click.argument("name", required=False)
@click.option("--project", metavar="NAME", help="Only those of this project.")
@click.option("--type", "type_", metavar="TYPE", help="Only those of this type.")
@output_options(*FORMATS)
@source_options
def artifacts(
    name: str | None, project: str | None, type_: str | None, output: Output, dir_: str | None, url: str | None
) -> None:
    """List versions of artifacts, of NAME or of all, the newest of each first.

    `chiplog get --artifact NAME:ALIAS` copies the files of one.
    """
    given = dict(zip(_FILTERS, (project, name, type_), strict=True))
    values = {column: value for column, value in given.items() if value is not None}
    with open_client(dir_, url) as client:
        for column, value in values.items():
            query = f"SELECT DISTINCT {column} AS known FROM artifacts ORDER BY known LIMIT {KNOWN_MAX}"
            known = [str(row["known"]) for row in client.sql(query).rows()]
            require_known(f"{column} of an artifact", value, known, "chiplog artifacts shows that of each")
        condition = " AND ".join(f"{column} = ${column}" for column in values) or "true"
        result = client.sql(_VERSIONS.format(condition), values or None)
    write_result(result, output, sheets=lambda: _sheets(result.rows()))


def _sheets(rows: list[dict[str, Any]]) -> "Iterator[Sheet]":
    from chiplog_cli.tables.fitted_table import Sheet

    columns = [
        Column("project", is_name=True, drop=6),
        Column("name", is_name=True),
        Column("version", is_whole=True),
        Column("aliases"),
        Column("type", drop=5),
        Column("files", is_number=True, drop=1),
        Column("bytes", is_number=True, drop=2),
        Column("logged UTC", is_whole=True, drop=3),
        Column("made by", is_name=True),
        Column("used by", is_name=True, drop=4),
    ]
    sheet = Sheet(columns)
    for row in rows:
        words = {name: plain_cell(", ".join(row[name])) for name in ("aliases", "made_by", "used_by")}
        sheet.add(
            plain_cell(row["project"]),
            plain_cell(row["name"]),
            row["version"] or "NULL",
            words["aliases"],
            plain_cell(row["type"]),
            str(row["n_files"]),
            f"{row['bytes']:,}",
            UTC_ZONE.text(row["ts"], "minutes"),
            words["made_by"],
            words["used_by"],
        )
    yield sheet
