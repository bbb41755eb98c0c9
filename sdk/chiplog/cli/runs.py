"""`chiplog runs`: all runs, the newest first."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from chiplog.cli.options import local_option, open_client, source_options
from chiplog.cli.output import (
    UTC_ZONE,
    Zone,
    common_timezone,
    duration_text,
    open_output,
    plain_cell,
    print_tables,
    write_csv,
    write_json,
)

if TYPE_CHECKING:
    from chiplog.cli.fitted_table import Cell, Sheet

STATES = ("running", "finished", "failed", "crashed")
LIMIT = 50  # a few screens
_NO_LIMIT = (1 << 63) - 1  # LIMIT of --all
COLUMNS = (
    *("run_id", "project", "name", "run_group", "tags", "state", "labels", "attempts", "exit_code"),
    *("created_at", "ended_at", "duration_s", "complete", "pending", "lost"),
)
_QUERY = """
WITH counted AS (
    SELECT run_id, CASE WHEN count(pending) = count(*) THEN sum(pending)::BIGINT END AS pending,
           sum(lost)::BIGINT AS lost
    FROM completeness GROUP BY run_id
), open AS (
    SELECT DISTINCT run_id FROM labels WHERE state = 'running'
)
SELECT r.run_id, r.project, r.name, r.run_group, r.tags, r.state, r.n_labels AS labels, r.n_attempts AS attempts,
       r.exit_code, r.created_at, r.ended_at, c.pending, coalesce(c.lost, 0) AS lost,
       o.run_id IS NULL AS is_over, count(*) OVER () AS n_all
FROM runs r LEFT JOIN counted c ON c.run_id = r.run_id LEFT JOIN open o ON o.run_id = r.run_id
WHERE ($project::VARCHAR IS NULL OR r.project = $project) AND ($state::VARCHAR IS NULL OR r.state = $state)
ORDER BY r.created_at DESC NULLS LAST, r.run_id DESC LIMIT $limit
"""


@click.command()
@click.option("--project", metavar="NAME", help="Only runs of this project.")
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(1), help=f"How many, at most.  [default: {LIMIT}]")
@click.option("--all", "everything", is_flag=True, help="All runs.")
@click.option("--format", "form", type=click.Choice(("table", "csv", "json")), default="table", show_default=True)
@local_option
@source_options
def runs(
    project: str | None,
    state: str | None,
    limit: int | None,
    everything: bool,
    form: str,
    is_local: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """List runs, the newest first.

    COMPLETE says whether every event is stored: `yes`; `so far` while a label runs, because it may have logged what it
    has not sent yet; `unknown` when a label was lost with its node; or how many are pending (may still come) and lost
    (never will). A run that is running counts its time until now.
    """
    if everything and limit is not None:
        raise click.UsageError(f"--all and --limit {limit} exclude each other; give one of them")
    limit = _NO_LIMIT if everything else limit or LIMIT
    with open_client(dir_, url) as client:
        rows = client.sql(_QUERY, {"project": project, "state": state, "limit": limit}).rows()
    now = datetime.now(UTC).replace(tzinfo=None)
    for row in rows:
        row["duration_s"] = duration_s(row["created_at"], row["ended_at"], row["state"], now)
        row["complete"] = row["is_over"] and row["pending"] == 0 and not row["lost"]
    zone = common_timezone(is_local)
    if form != "table":
        write = write_csv if form == "csv" else write_json
        with open_output(None) as target:
            write(COLUMNS, [[row[name] for name in COLUMNS] for row in rows], target, zone)
    elif rows:
        print_tables(table_of(rows, zone))
    else:
        click.echo("no runs match" if project or state else "no runs yet", err=True)
    if rows and len(rows) < rows[0]["n_all"]:  # safeguard: left-out-runs-counted
        click.echo(f"{len(rows)} of {rows[0]['n_all']} runs; --all or --limit N shows more", err=True)


def duration_s(started: datetime | None, ended: datetime | None, state: str, now: datetime) -> float | None:
    """Return how long a run or label has been running; None if unknown."""
    until = ended if ended is not None else now if state == "running" else None
    return max(0.0, (until - started).total_seconds()) if started is not None and until is not None else None


def complete_text(pending: int | None, lost: int, is_over: bool) -> str:
    """Return `yes`, or what is missing; `so far` if nothing is but more may come. pending: None if unknown."""
    missing = ["unknown"] if pending is None else []  # safeguard: lost-label-is-incomplete
    missing += [f"{n} {word}" for n, word in ((pending, "pending"), (lost, "lost")) if n]
    return ", ".join(missing) or ("yes" if is_over else "so far")


def state_text(state: str) -> "Cell":
    """Return a state in its colour."""
    return plain_cell(state, {"running": "cyan", "finished": "green"}.get(state, "bold red"))


def table_of(rows: list[dict[str, Any]], zone: Zone = UTC_ZONE) -> "Sheet":
    """Lay out runs. Columns without any value are omitted."""
    from chiplog.cli.fitted_table import Column, Sheet

    started = [row["created_at"] for row in rows if row["created_at"] is not None]
    year = datetime.now(UTC).year
    start = len("2026-") if {zone.shown(moment).year for moment in started} == {year} else 0
    named = {name for name in ("name", "run_group", "tags") if any(row[name] for row in rows)}
    has_tries = any(row["attempts"] != 1 for row in rows)
    # Narrow terminals first lose what `chiplog show` repeats.
    columns = {
        "run": Column("run", is_name=True),
        "project": Column("project", drop=7),
        **({"name": Column("name", drop=8)} if "name" in named else {}),
        **({"group": Column("group", drop=6)} if "run_group" in named else {}),
        **({"tags": Column("tags", drop=3)} if "tags" in named else {}),
        "state": Column("state", is_whole=True),
        "labels": Column("labels", is_number=True, drop=2),
        **({"tries": Column("tries", is_number=True, drop=1)} if has_tries else {}),
        "started": Column(f"started {zone.name(started)}".rstrip(), is_whole=True, drop=9),
        "took": Column("took", is_number=True, drop=4),
        "complete": Column("complete", drop=5),
    }
    sheet = Sheet(columns.values())
    for row in rows:
        missing = row["pending"] != 0 or row["lost"]
        cells = {
            "run": plain_cell(row["run_id"]),
            "project": plain_cell(row["project"]),
            "name": plain_cell(row["name"]),
            "group": plain_cell(row["run_group"]),
            "tags": plain_cell(", ".join(row["tags"] or ())),
            "state": state_text(row["state"]),
            "labels": plain_cell(str(row["labels"])),
            "tries": plain_cell(str(row["attempts"])),
            "started": plain_cell(
                zone.text(row["created_at"], "minutes")[start:] if row["created_at"] is not None else ""
            ),
            "took": plain_cell(duration_text(row["duration_s"]) if row["duration_s"] is not None else ""),
            "complete": plain_cell(
                complete_text(row["pending"], row["lost"], row["is_over"]), "yellow" if missing else ""
            ),
        }
        sheet.add(*(cells[name] for name in columns))
    return sheet
