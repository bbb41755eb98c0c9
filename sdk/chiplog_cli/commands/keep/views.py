"""`chiplog views`: what people saved under a name on the page: views of the table of runs and of a run, and queries."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import click

from chiplog_cli.options import local_option, open_client, source_options
from chiplog_cli.output import FORMATS, Output, output_options
from chiplog_cli.suggestions import require_known
from chiplog_cli.tables.fitted_table import Sheet
from chiplog_cli.tables.format_values import Zone, common_timezone
from chiplog_cli.tables.plain_table import Column
from chiplog_cli.tables.tables import plain_cell
from chiplog_cli.tables.writers import Rows, write_result
from chiplog_client.reads.runs.saved_views import RUNS, SQL, describe_view, read_saved_views

_TYPES = {"name": "VARCHAR", "kind": "VARCHAR", "project": "VARCHAR", "address": "VARCHAR", "view": "JSON"}
_TYPES |= {"ts": "TIMESTAMP"}


@click.command()
@click.option("--delete", "deleted", metavar="NAME", help="Delete this one, for all readers of the collector.")
@output_options(*FORMATS)
@local_option
@source_options
def views(deleted: str | None, output: Output, is_local: bool, dir_: str | None, url: str | None) -> None:
    """List what people saved on the page: runs/NAME, run/PROJECT/NAME and sql/NAME.

    `chiplog runs --view NAME` shows the runs of runs/NAME, `chiplog sql --saved NAME` runs the query sql/NAME. The
    address is that of the page behind its host; of a view of a run it has RUN for the ID of the run.
    """
    zone = common_timezone(is_local)
    with open_client(dir_, url) as client:
        found = read_saved_views(client)
        if deleted is not None:
            require_known("view", deleted, [row["name"] for row in found], "chiplog views lists all")
            client.save_view(deleted, None)
            click.echo(f"deleted {deleted}", err=True)
            return
    rows = [row | {name: value for name, value in describe_view(row).items() if name != "name"} for row in found]
    table = Rows(list(_TYPES), ([row[name] for name in _TYPES] for row in rows), _TYPES, ["ts"])
    write_result(table, output, zone, sheets=lambda: _sheets(rows, zone))


def _sheets(rows: list[dict[str, Any]], zone: Zone) -> Iterator[Sheet | str]:
    if not rows:
        yield "nothing is saved; the page saves views by its menus Views and Saved queries"
        return
    named = zone.name(row["ts"] for row in rows)
    columns = [Column("name", is_name=True), Column("what"), Column(f"saved {named}".rstrip(), is_whole=True, drop=2)]
    sheet = Sheet([*columns, Column("address", drop=1)])
    for row in rows:
        saved = zone.text(row["ts"], "minutes")
        sheet.add(plain_cell(row["name"]), plain_cell(_what(row)), saved, plain_cell(row["address"]))
    yield sheet


def _what(row: dict[str, Any]) -> str:
    """Return what a view shows, in a few words."""
    view = row["view"] if isinstance(row["view"], dict) else {}
    if row["kind"] == SQL:
        return " ".join(str(view.get("query", "")).split())
    values = parse_qs(str(view.get("query", "")))
    parts = [f"{name} {', '.join(of)}" for name, of in values.items() if row["kind"] != RUNS or name != "run"]
    return "; ".join([str(view["tab"]), *parts] if "tab" in view else parts) or "all"
