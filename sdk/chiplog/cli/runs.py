"""`chiplog runs`: all runs, the newest first."""

import sys
from datetime import UTC, datetime
from typing import Any

import click

from chiplog.cli.output import (
    cell,
    duration_text,
    local,
    local_text,
    new_table,
    print_tables,
    printable,
    target_of,
    write_csv,
    write_json,
    zone_of,
)
from chiplog.cli.source import opened, source_options

STATES = ("running", "finished", "failed", "crashed")
COLUMNS = (
    *("run_id", "project", "name", "state", "labels", "attempts", "exit_code"),
    *("created_at", "ended_at", "duration_s", "complete", "pending", "lost"),
)
_ID_SHARE = 3  # one part of so many of a terminal is the ID's: a longer one is folded, and the rest stays in sight
_ID_CHARS_MIN = 24  # but no ID that chiplog makes up is
_QUERY = """
WITH counted AS (
    SELECT run_id, CASE WHEN count(pending) = count(*) THEN sum(pending)::BIGINT END AS pending,
           sum(lost)::BIGINT AS lost
    FROM completeness GROUP BY run_id
), open AS (
    SELECT DISTINCT run_id FROM labels WHERE state = 'running'
)
SELECT r.run_id, r.project, r.name, r.state, r.n_labels AS labels, r.n_attempts AS attempts, r.exit_code,
       r.created_at, r.ended_at, c.pending, coalesce(c.lost, 0) AS lost,
       o.run_id IS NULL AS is_over
FROM runs r LEFT JOIN counted c ON c.run_id = r.run_id LEFT JOIN open o ON o.run_id = r.run_id
WHERE ($project::VARCHAR IS NULL OR r.project = $project) AND ($state::VARCHAR IS NULL OR r.state = $state)
ORDER BY r.created_at DESC NULLS LAST, r.run_id DESC LIMIT $limit
"""


@click.command()
@click.option("--project", metavar="NAME", help="Only runs of this project.")
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many, at most.")
@click.option("--format", "form", type=click.Choice(("table", "csv", "json")), default="table", show_default=True)
@source_options
def runs(project: str | None, state: str | None, limit: int, form: str, dir_: str | None, url: str | None) -> None:
    """List runs, the newest first.

    COMPLETE says whether every event is stored: `yes`; `so far` while a label runs, because it may have logged what it
    has not sent yet; `unknown` when a label was lost with its node; or how many are pending (may still come) and lost
    (never will). A run that is running counts its time until now.
    """
    with opened(dir_, url) as client:
        rows = client.sql(_QUERY, {"project": project, "state": state, "limit": limit}).rows()
    now = datetime.now(UTC).replace(tzinfo=None)
    for row in rows:
        row["duration_s"] = duration_s(row["created_at"], row["ended_at"], row["state"], now)
        row["complete"] = row["is_over"] and row["pending"] == 0 and not row["lost"]
    if form != "table":
        write = write_csv if form == "csv" else write_json
        with target_of(None) as target:
            write(COLUMNS, [[row[name] for name in COLUMNS] for row in rows], target)
    elif rows:
        print_tables(table_of(rows, _width()))
    else:
        click.echo("no runs match" if project or state else "no runs yet", err=True)


def duration_s(started: datetime | None, ended: datetime | None, state: str, now: datetime) -> float | None:
    """Return for how long a run or label has been running; None when that is not known."""
    until = ended if ended is not None else now if state == "running" else None
    return max(0.0, (until - started).total_seconds()) if started is not None and until is not None else None


def complete_text(pending: int | None, lost: int, is_over: bool) -> str:
    """Return `yes`, or what is missing; `so far` when nothing is and more may come. pending: None when unknown."""
    missing = ["unknown"] if pending is None else []
    missing += [f"{n} {word}" for n, word in ((pending, "pending"), (lost, "lost")) if n]
    return ", ".join(missing) or ("yes" if is_over else "so far")


def state_text(state: str) -> Any:
    """Return a state in its colour."""
    from rich.text import Text

    return Text(state, style={"running": "cyan", "finished": "green"}.get(state, "bold red"))


def table_of(rows: list[dict[str, Any]], width: int | None) -> Any:
    """Lay out runs. width: of the terminal; None for a pipe, into which every ID goes in one piece."""
    from rich.text import Text

    started = [row["created_at"] for row in rows if row["created_at"] is not None]
    zone = zone_of(started)
    this_year = {local(moment).year for moment in started} == {datetime.now().astimezone().year}
    with_tries = any(row["attempts"] != 1 for row in rows)  # eighty columns are few
    chars = None if width is None else max(_ID_CHARS_MIN, width // _ID_SHARE)
    table = new_table()
    table.add_column("run", overflow="fold", no_wrap=True)  # it is what one copies: the others give way first
    table.add_column("project", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("labels", justify="right", no_wrap=True)
    if with_tries:
        table.add_column("tries", justify="right", no_wrap=True)
    table.add_column(f"started {zone}".rstrip(), no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("complete")
    for row in rows:
        missing = row["pending"] != 0 or row["lost"]
        when = local_text(row["created_at"], "minutes") if row["created_at"] is not None else ""
        table.add_row(
            Text(_folded(printable(row["run_id"]), chars)),
            cell(row["project"]),
            state_text(row["state"]),
            str(row["labels"]),
            *([str(row["attempts"])] if with_tries else []),
            when[len("2026-") :] if this_year else when,
            duration_text(row["duration_s"]) if row["duration_s"] is not None else "",
            Text(complete_text(row["pending"], row["lost"], row["is_over"]), style="yellow" if missing else ""),
        )
    return table


def _width() -> int | None:
    from rich.console import Console

    return Console().width if sys.stdout.isatty() else None


def _folded(text: str, chars: int | None) -> str:
    return text if chars is None else "\n".join(text[at : at + chars] for at in range(0, len(text), chars))
