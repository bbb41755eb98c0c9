"""`chiplog runs`: runs as a table, the newest first unless sorted otherwise."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from chiplog_cli.completion import complete_keys, words_of_list
from chiplog_cli.options import local_option, open_client, require_group, require_project, source_options
from chiplog_cli.output import FORMATS, Output, output_options
from chiplog_cli.runs_options import (
    COLUMNS,
    TableOptions,
    asked_columns,
    of_view,
    options_of_view,
    parse_columns,
    parse_since,
    parse_sort,
)
from chiplog_cli.tables.format_values import UTC_ZONE, Zone, common_timezone, duration_text
from chiplog_cli.tables.plain_table import Column
from chiplog_cli.tables.tables import NULL, plain_cell, table_value
from chiplog_cli.tables.writers import Rows, write_result
from chiplog_client.client import Client
from chiplog_client.nearest_names import KNOWN_MAX, unknown_name
from chiplog_client.reads.parameters import BadRequestError
from chiplog_client.reads.runs.run_filter import read_filtered
from chiplog_client.reads.runs.run_sparklines import read_sparklines
from chiplog_client.reads.runs.runs_query import MAPS, PLACES, RunsRequest, keyed, read_runs
from chiplog_client.results.result import unique_names
from chiplog_client.results.sparkline import sparkline

if TYPE_CHECKING:
    from chiplog_cli.tables.fitted_table import Cell, Sheet

STATES = ("running", "finished", "failed", "crashed", "unknown")
SPARK_BUCKETS = 24  # as many characters as a column of a table may take
PLACES_SHOWN = 2  # collectors of a run
PLACES_WIDTH_MAX = 24  # longer names are broken into lines
LIMIT = 50  # a few screens
_NO_LIMIT = (1 << 63) - 1  # LIMIT of --all
# What is asked for without --columns: csv and json have all of it, a table what has values.
DEFAULT_COLUMNS = (
    *("run_id", "project", "name", "run_group", "tags", "state", "labels", "attempts", "exit_code"),
    *("created_at", "ended_at", "duration_s", "complete", "pending", "lost"),
)
_NAMES = ("run_id", "name")  # of a run: a table for people has one of them
_TYPES = {
    "VARCHAR": ("project", "name", "run_group", "job_type", "notes", "primary_label"),
    "VARCHAR[]": ("tags", "collectors"),
}
_TYPE_OF = {column: kind for kind, columns in _TYPES.items() for column in columns}

_complete_columns = words_of_list(lambda: [*COLUMNS, "config.", "summary."])

EXAMPLES = """\b
Examples:
  chiplog runs --state failed --since 7d
  chiplog runs gpt --columns run_id,state,config.lr,summary.loss --sort summary.loss
  chiplog runs --project gpt --sparkline train/loss
  chiplog runs --filter 'lr<0.01 -tag:old loss<2'
  chiplog runs --all -o runs.parquet
"""


@click.command(epilog=EXAMPLES)
@click.argument("text", nargs=-1)
@click.option(
    "--columns",
    metavar="A,B,…",
    shell_complete=_complete_columns,
    help="Which columns; also config.KEY and summary.KEY.",
)
@click.option("--project", metavar="NAME", help="Only runs of this project.")
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only runs with this tag; repeat it for several.")
@click.option("--group", metavar="NAME", help="Only runs of this group.")
@click.option(
    "--filter", "filter_", default="", metavar="TEXT", help="A filter as the page has it: 'lr<0.01 -tag:old'."
)
@click.option("--view", metavar="NAME", help="Filter, order and columns of a view that the page saved.")
@click.option("--since", metavar="TIME", help="Only runs created since a time, or within an age such as 12h or 7d.")
@click.option(
    "--sort",
    metavar="COLUMN",
    shell_complete=_complete_columns,
    help="Smallest first; -COLUMN: largest first.  [default: -created_at]",
)
@click.option(
    "--sparkline",
    "spark_key",
    metavar="KEY",
    shell_complete=complete_keys,
    help="Add a curve of this metric: its mean over all labels.",
)
@click.option("--limit", type=click.IntRange(1), help=f"How many, at most.  [default: {LIMIT}]")
@click.option("--all", "everything", is_flag=True, help="All runs.")
@output_options(*FORMATS)
@local_option
@source_options
def runs(
    text: tuple[str, ...],
    columns: str | None,
    project: str | None,
    state: str | None,
    tags: tuple[str, ...],
    group: str | None,
    filter_: str,
    view: str | None,
    since: str | None,
    sort: str | None,
    spark_key: str | None,
    limit: int | None,
    everything: bool,
    output: Output,
    is_local: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """List runs, the newest first. Each TEXT must occur in the ID, project, name, group, job type, tags or notes.

    COMPLETE says whether every event is stored: `yes`; `so far` while a label runs, because it may have logged what it
    has not sent yet; `unknown` when a label was lost with its node; or how many are pending (may still come) and lost
    (never will). A run that is running counts its time until now.

    A filter has words, and conditions on columns and keys of config and summary: `state:failed` for a part of a text,
    `layers=12` for all of it, `lr<0.01`, `started>2026-01-02`; a minus in front negates one. `chiplog views` lists the
    saved views; other options win over those of a view, and both filters hold.

    With a store, COLLECTOR has the hosts whose collectors have a run, `here` for the one that answers, and how old the
    view of the others is; `unknown` is the state of a run whose collector is silent.

    A curve has the mean over all labels in each of 24 equal parts of the run's steps, without NaN; × is a part of NaN
    only, or infinity, · a part without points. csv and json have its numbers.
    """
    if everything and limit is not None:
        raise click.UsageError(f"--all and --limit {limit} exclude each other; give one of them")
    now = datetime.now(UTC).replace(tzinfo=None)
    options = TableOptions(parse_columns(columns) if columns is not None else None, sort, filter_, spark_key)
    order = parse_sort(sort or "-created_at")
    created = parse_since(since, now, is_local) if since else None
    zone = common_timezone(is_local)
    with open_client(dir_, url) as client:
        if view is not None:
            options = options.or_of(options_of_view(client, view))
            order = parse_sort(options.sort or "-created_at")
        chosen = options.columns
        is_shown = output.form == "table" and output.path is None
        places = PLACES if is_shown or "collectors" in (chosen or ()) else ()
        needed = list(dict.fromkeys([*(chosen or DEFAULT_COLUMNS), *_NAMES, *places]))
        request = RunsRequest(
            columns=asked_columns(needed),
            project=project,
            state=state,
            group=group,
            tags=tags,
            texts=text,
            since=created,
            sort=of_view(order[0]),
            descending=order[1],
            limit=_NO_LIMIT if everything else limit or LIMIT,
            now=now,
            has_total=True,
        )
        rows = [_row_of(found, needed) for found in _read(client, request, options.filter)]
        # A program may ask before the first run of a project begins: it gets an empty result.
        if not rows and is_shown:  # safeguard: unknown-project-refused
            _require_known_names(client, request)
        for column in [*needed, order[0]]:
            _require_values(client, rows, column)
        curve = _curve(client, rows, options.sparkline) if options.sparkline is not None else None
    names = [*(chosen or DEFAULT_COLUMNS)]
    if not rows and is_shown:
        click.echo("no runs match" if request.is_filtered or options.filter else "no runs yet", err=True)
        return
    # safeguard: table-names-its-runs
    shown = None if chosen is None else [*_missing_names(rows, chosen), *chosen]
    write_result(_values_of(rows, names, curve), output, zone, sheets=lambda: [table_of(rows, zone, shown, curve, now)])
    if rows and len(rows) < rows[0]["n_all"]:  # safeguard: left-out-runs-counted
        click.echo(f"{len(rows)} of {rows[0]['n_all']} runs; --all or --limit N shows more", err=True)


def _read(client: Client, request: RunsRequest, text: str) -> list[dict[str, Any]]:
    """Return the rows of a request that match a filter. Raises UsageError."""
    if not text:
        return read_runs(client, request)
    try:
        return read_filtered(client, request, text)
    except BadRequestError as error:
        raise click.UsageError(f"--filter: {error}") from error


def _missing_names(rows: list[dict[str, Any]], chosen: Sequence[str]) -> list[str]:
    """Return the columns that tell the rows of a table for people apart, if no chosen one does."""
    if set(_NAMES) & set(chosen):
        return []
    return [name for name in _NAMES if name == "run_id" or any(row[name] for row in rows)]


def _require_known_names(client: Client, request: RunsRequest) -> None:
    """Raise UsageError if no run at all has the project or the group that was asked for."""
    if request.project is not None:
        require_project(client, request.project)
    if request.group is not None:
        require_group(client, request.group)


def _row_of(found: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return a row of `read_runs` with the columns of the command."""
    row = found | {column: found[of_view(column)] for column in columns if column != "complete"}
    if "complete" in columns:
        row["complete"] = row["is_over"] and row["pending"] == 0 and not row["lost"]
    return row


def _require_values(client: Client, rows: list[dict[str, Any]], column: str) -> None:
    """Raise UsageError if no run at all has the key of a column."""
    found = keyed(column)
    if found is None or not rows or any(row.get(column) is not None for row in rows):
        return
    kind, key = found
    query = f"SELECT DISTINCT key FROM {MAPS[kind]} ORDER BY key LIMIT {KNOWN_MAX}"
    known = [str(row["key"]) for row in client.sql(query)]
    if key not in known:  # safeguard: unknown-keyed-column-refused
        raise click.UsageError(
            unknown_name("column", column, [f"{kind}.{key}" for key in known], f"no run has a {kind} {key!r}")
        )


class Curve(NamedTuple):
    """A metric of each run, as of `read_sparklines`; None for a run that did not log it."""

    key: str
    values: "list[list[float | None] | None]"


def _curve(client: Client, rows: list[dict[str, Any]], key: str) -> Curve:
    """Return the curve of a metric. Raises UsageError if no run logged it."""
    found = read_sparklines(client, key, [row["run_id"] for row in rows], SPARK_BUCKETS)
    if rows and not found:
        known = [str(row["key"]) for row in client.sql(f"SELECT DISTINCT key FROM keys ORDER BY key LIMIT {KNOWN_MAX}")]
        if key not in known:
            raise click.UsageError(unknown_name("key", key, known, "chiplog show RUN lists the keys of a run"))
    return Curve(key, [found.get(row["run_id"]) for row in rows])


def _values_of(rows: list[dict[str, Any]], names: Sequence[str], curve: Curve | None) -> Rows:
    """Return the chosen columns, and after them the curve, whose name has a number if a column has the same."""
    values = [[row[name] for name in names] for row in rows]
    types = {name: _TYPE_OF[name] for name in names if name in _TYPE_OF}
    if curve is None:
        return Rows(names, values, types)
    together = [[*row, points] for row, points in zip(values, curve.values, strict=True)]
    return Rows(unique_names([*names, curve.key]), together, types)


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
    return plain_cell(state, {"running": "cyan", "finished": "green", "unknown": "yellow"}.get(state, "bold red"))


class _Layout(NamedTuple):
    """The heading and the properties of a column of the table."""

    heading: str
    is_number: bool = False
    is_whole: bool = False
    is_name: bool = False
    drop: int = 0  # narrow terminals first lose what `chiplog show` repeats


_LAYOUTS = {
    "run_id": _Layout("run", is_name=True),
    "project": _Layout("project", is_name=True, drop=6),
    "name": _Layout("name", is_name=True, drop=9),
    "run_group": _Layout("group", is_name=True, drop=5),
    "tags": _Layout("tags", drop=3),
    "state": _Layout("state", is_whole=True),
    "labels": _Layout("labels", is_number=True, drop=2),
    "attempts": _Layout("tries", is_number=True, drop=1),
    "created_at": _Layout("started", is_whole=True, drop=8),
    "ended_at": _Layout("ended", is_whole=True),
    "duration_s": _Layout("took", is_number=True, drop=4),
    "complete": _Layout("complete", is_whole=True, drop=7),
    "collectors": _Layout("collector", drop=10),
}
_ONLY_WITH_VALUES = ("name", "run_group", "tags", "collectors")


def table_of(
    rows: list[dict[str, Any]],
    zone: Zone = UTC_ZONE,
    columns: Sequence[str] | None = None,
    curve: Curve | None = None,
    now: datetime | None = None,
) -> "Sheet":
    """Lay out runs. Without `columns` those without any value are omitted, and a narrow terminal has fewer.

    now: from when the age of what other collectors have counts.
    """
    from chiplog_cli.tables.fitted_table import Sheet

    shown = list(columns or (name for name in _LAYOUTS if name != "ended_at"))
    if columns is None:
        unused = {name for name in _ONLY_WITH_VALUES if not any(row.get(name) for row in rows)}
        unused |= {"attempts"} if all(row["attempts"] == 1 for row in rows) else set()
        shown = [name for name in shown if name not in unused]
    layouts = [_column(name, rows, zone, may_drop=columns is None) for name in shown]
    texts = [_texts(name, rows, zone, NULL if columns else "", now) for name in shown]
    if curve is not None:
        layouts.append(Column(curve.key, is_whole=True))
        texts.append([plain_cell("" if points is None else sparkline(points), "cyan") for points in curve.values])
    sheet = Sheet(layouts, has_blocks=columns is not None)
    for cells in zip(*texts, strict=True):
        sheet.add(*cells)
    return sheet


def _column(name: str, rows: list[dict[str, Any]], zone: Zone, *, may_drop: bool) -> Column:
    layout = _LAYOUTS.get(name, _Layout(name))
    heading, is_number = layout.heading, layout.is_number
    if name in ("created_at", "ended_at"):
        heading = f"{heading} {zone.name(_known(row[name] for row in rows))}".rstrip()
    elif name not in _LAYOUTS:
        known = _known(row[name] for row in rows)
        is_number = bool(known) and all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in known
        )
    is_whole = layout.is_whole
    if name == "collectors":
        is_whole = all(len(_places_text(row)) <= PLACES_WIDTH_MAX for row in rows)
    return Column(heading, is_number, is_whole, layout.is_name, layout.drop if may_drop else 0)


def _known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _texts(
    name: str, rows: list[dict[str, Any]], zone: Zone, missing: str, now: datetime | None = None
) -> "list[Cell]":
    """Return the cells of a column. missing: the text of a missing value."""

    def cells(text_of: Callable[[Any], str]) -> "list[Cell]":
        values = (row[name] for row in rows)
        return [plain_cell(missing, "dim italic") if value is None else plain_cell(text_of(value)) for value in values]

    if name == "state":
        return [state_text(row[name]) for row in rows]
    if name == "complete":
        return [_complete_cell(row) for row in rows]
    if name in ("created_at", "ended_at"):
        years = {zone.shown(row[name]).year for row in rows if row[name] is not None}
        start = len("2026-") if years == {datetime.now(UTC).year} else 0
        return cells(lambda time: zone.text(time, "minutes")[start:])
    if name == "duration_s":
        return cells(duration_text)
    if name == "tags":
        return cells(", ".join)
    if name == "collectors":
        return [plain_cell(_places_text(row, now), "" if row["collectors"] else "dim") for row in rows]
    return cells(lambda value: table_value(value, zone=zone))


def _places_text(row: dict[str, Any], now: datetime | None = None) -> str:
    """Return which collectors have a run, with the age of what others have at a time."""
    if not row["collectors"]:
        return "here"
    shown, n_more = row["collectors"][:PLACES_SHOWN], len(row["collectors"]) - PLACES_SHOWN
    names = ", ".join([*shown, *([f"{n_more} more"] if n_more > 0 else [])])
    return f"{names}, {age_text(row['seen_at'], now)}" if now is not None and row["seen_at"] is not None else names


def age_text(seen_at: datetime, now: datetime) -> str:
    """Return how long ago other collectors were heard of."""
    seconds = max(0.0, (now - seen_at).total_seconds())  # clocks may differ
    return f"{seconds:.0f}s ago" if seconds < 60 else f"{duration_text(seconds)} ago"


def _complete_cell(row: dict[str, Any]) -> "Cell":
    is_missing = row["pending"] != 0 or row["lost"]
    return plain_cell(complete_text(row["pending"], row["lost"], row["is_over"]), "yellow" if is_missing else "")
