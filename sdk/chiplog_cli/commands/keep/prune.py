"""`chiplog prune`: delete many runs at once, those that match conditions."""

from datetime import UTC, datetime
from typing import Any

import click

from chiplog_cli.commands.keep.rm import echo_deleted
from chiplog_cli.options import open_client, require_project, source_options
from chiplog_cli.runs_options import parse_since
from chiplog_cli.tables.format_values import UTC_ZONE, printable
from chiplog_cli.tables.plain_table import Column, plain_lines

_SHOWN_MAX = 50
_RUNNING_NAMED_MAX = 3  # in one line
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_POINT_BYTES = 14  # of a value in the database, measured on 16 million
# A run that is running has no end: what it stored last counts.
_CANDIDATES = f"""
WITH seen AS (SELECT run_id, max(last_seen_at) AS at FROM labels GROUP BY run_id)
SELECT r.run_id, r.name, r.project, r.state, coalesce(r.ended_at, s.at, r.created_at) AS last_at,
       r.state = 'running' OR r.n_running > 0 AS is_running, n.n_values,
       n.content_bytes AS file_bytes, n.content_bytes + {_POINT_BYTES} * n.n_values AS bytes,
       row_number() OVER (PARTITION BY r.project ORDER BY r.created_at DESC NULLS LAST, r.run_id DESC) AS place
FROM runs r LEFT JOIN seen s USING (run_id) JOIN reads.run_sizes n USING (run_id)
"""
_HEADINGS = (
    *(Column("run"), Column("name"), Column("project"), Column("state"), Column("last event")),
    *(Column("values", is_number=True), Column("files", is_number=True)),
)


@click.command()
@click.option("--older-than", metavar="AGE", help="Runs whose last event is older, as 12h, 90d, or before a date.")
@click.option("--project", metavar="NAME", help="Only runs of this project.")
@click.option("--state", "states", multiple=True, type=click.Choice(("finished", "failed", "crashed")))
@click.option("--larger-than", metavar="SIZE", help="Runs with more files, media and values, as 500MB or 10GiB.")
@click.option("--keep-last", metavar="N", type=click.IntRange(0), help="Keep the newest N runs of each project.")
@click.option("--force", is_flag=True, help="Also runs with labels that run.")
@click.option("-y", "--yes", is_flag=True, help="Delete. Without it, only show what would go.")
@source_options
def prune(
    older_than: str | None,
    project: str | None,
    states: tuple[str, ...],
    larger_than: str | None,
    keep_last: int | None,
    force: bool,
    yes: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """Delete the runs that match all conditions. Shows them first: nothing is deleted without --yes.

    Runs with a label that runs stay, unless --force is given. The size of a run is that of its saved files and
    media, each content once, and 14 bytes for each of its values. To prune regularly, set CHIPLOG_RETENTION_DAYS for
    the collector.
    """
    conditions: list[str] = []
    params: dict[str, Any] = {}
    if older_than is not None:
        conditions.append("last_at < $before::TIMESTAMP")
        now = datetime.now(UTC).replace(tzinfo=None)
        params["before"] = parse_since(older_than, now, is_local=False, option="--older-than")
    if project is not None:
        conditions.append("project = $project")
        params["project"] = project
    if states:
        conditions.append("list_contains($states::VARCHAR[], state)")
        params["states"] = list(states)
    if larger_than is not None:
        conditions.append("bytes > $bytes")
        params["bytes"] = parse_size(larger_than)
    if keep_last is not None:
        conditions.append("place > $keep_last")
        params["keep_last"] = keep_last
    if not conditions:
        options = "--older-than, --project, --state, --larger-than or --keep-last"
        raise click.UsageError(f"no condition is given, and that would be every run; give {options}")
    query = f"SELECT * FROM ({_CANDIDATES}) WHERE {' AND '.join(conditions)} ORDER BY last_at, run_id"
    with open_client(dir_, url) as client:
        if project is not None:
            require_project(client, project)
        rows = client.sql(query, params).rows()
        if not force:
            rows = _without_running(rows)  # safeguard: prune-leaves-running-runs
        for line in _table(rows, len(rows) if yes else _SHOWN_MAX):
            click.echo(line)
        if not rows:
            click.echo("no run matches")
        elif not yes:
            click.echo("nothing was deleted; add --yes to delete these runs", err=True)
        else:
            done = client.delete_runs([str(row["run_id"]) for row in rows], force=force, why="chiplog prune")
            echo_deleted(len(rows), done)


def parse_size(text: str) -> int:
    """Return the bytes of 500MB, 10GiB or 1000. Raises UsageError."""
    unit = text.strip().lstrip("0123456789.")
    number = text.strip().removesuffix(unit)
    try:
        return int(float(number) * ({"": 1, "B": 1} | _UNITS)[unit.strip().upper()])
    except (KeyError, ValueError, OverflowError) as error:
        raise click.UsageError(f"size {text!r} is not a number with a unit; write it as 500MB or 10GiB") from error


def _without_running(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs without a label that runs, and name the others. Raises UsageError if there are only others."""
    running = [str(row["run_id"]) for row in rows if row["is_running"]]
    if not running:
        return rows
    named = ", ".join(running[:_RUNNING_NAMED_MAX])
    more = f" and {len(running) - _RUNNING_NAMED_MAX:,} more" if len(running) > _RUNNING_NAMED_MAX else ""
    what = "1 run that matches is" if len(running) == 1 else f"{len(running):,} runs that match are"
    remedy = f"end {'it' if len(running) == 1 else 'them'} or add --force"
    line = f"{what} left out, because labels run: {named}{more}; {remedy}"
    if len(running) == len(rows):  # safeguard: prune-of-running-runs-refused
        raise click.UsageError(line)
    click.echo(line, err=True)
    return [row for row in rows if not row["is_running"]]


def _table(rows: list[dict[str, Any]], shown: int) -> list[str]:
    """Return the first runs as lines, and how much all of them hold."""
    if not rows:
        return []
    cells = [
        [
            printable(row["run_id"]),
            printable(row["name"] or ""),
            printable(row["project"] or ""),
            str(row["state"]),
            "" if row["last_at"] is None else UTC_ZONE.stamp(row["last_at"], "minutes"),
            f"{row['n_values']:,}",
            size_text(row["file_bytes"]),
        ]
        for row in rows[:shown]
    ]
    total = f"{len(rows):,} run{'s' if len(rows) != 1 else ''}"
    values, n_bytes = sum(row["n_values"] for row in rows), sum(row["file_bytes"] for row in rows)
    more = [f"… and {len(rows) - shown:,} more"] if len(rows) > shown else []
    return [*plain_lines(_HEADINGS, cells), *more, "", f"{total}, {values:,} values, {size_text(n_bytes)} of files"]


def size_text(n_bytes: int) -> str:
    """Return a size as people write it: 0, 512 B, 1.5 GB."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes} B" if n_bytes else "0"
