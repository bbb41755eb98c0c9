"""`chiplog compare`: two runs beside each other with what changed, or up to ten runs with a column each."""

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from chiplog_cli.commands.look.runs import duration_s, state_text
from chiplog_cli.completion import complete_runs
from chiplog_cli.options import local_option, open_client, require_key, resolve_run, source_options
from chiplog_cli.output import FORMATS, Output, output_options
from chiplog_cli.tables.fitted_table import Column, Sheet
from chiplog_cli.tables.format_values import Zone, common_timezone, duration_text, number_text, seconds_text
from chiplog_cli.tables.plain_table import NAME_WIDTH_MAX
from chiplog_cli.tables.side_by_side import (
    VALUE_COLUMNS,
    VALUE_TYPES,
    Section,
    run_letters,
    section_sheet,
    value_rows,
)
from chiplog_cli.tables.tables import plain_cell
from chiplog_cli.tables.writers import Rows, write_object, write_result
from chiplog_client.client import Client
from chiplog_client.reads.comparison.differences import PAIR_COLUMNS, PAIR_TYPES, compare_runs, pairs_of
from chiplog_client.reads.comparison.same_step import is_same_number, read_same_step
from chiplog_client.reads.comparison.side_by_side import read_described, read_phases, read_settings, read_whole
from chiplog_client.reads.parameters import STEP_MAX
from chiplog_client.reads.system.sample_names import sample_name

RUNS_MIN, RUNS_MAX = 2, 10  # as on the page
SHOWN = 20  # rows of each table without --all
ONLY_SHOWN = 5  # keys that one run lacks
_RATIO_MIN = 10.0  # a larger change is shown as a factor
_OF_METRICS = ("metrics", "final", "best")
_QUANTITIES = {"watts": "W"}


@click.command()
@click.argument("runs", metavar="A B [C]...", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Only this metric; may be repeated.")
@click.option("--step", type=int, metavar="STEP", help="Metrics at the last common step until this one.")
@output_options(*FORMATS)
@click.option("--all", "everything", is_flag=True, help=f"More than {SHOWN} rows of each table.")
@local_option
@source_options
def compare(
    runs: tuple[str, ...],
    keys: tuple[str, ...],
    step: int | None,
    output: Output,
    everything: bool,
    is_local: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """Compare 2 to 10 runs: config, metrics at the same step, seconds per phase, means of GPUs and processes.

    Each is an ID, the beginning of one, a name, or `latest`. More than two runs have a column each, and no changes.

    Of two runs, `step` is the last step that both runs have of a metric; A and
    B beside it are the means of their labels there. `best` is the lowest value of any label, or the highest, marked
    `max`, if define_metric(summary="max") says so. `final` is the mean of the last values of the labels. `change` is
    that of B from A, in percent or as a factor. Phases are seconds per step of a label.

    json is one object with everything. csv, jsonl, parquet and arrow have one row for each pair of values: kind (run,
    config, metric, phase, machine), key, figure, step, a, b, and change, which is b - a; of more than two runs one row
    for each value: kind, key, step, run_id, value.
    """
    if not RUNS_MIN <= len(runs) <= RUNS_MAX:
        given = f"{len(runs)} run{'s' * (len(runs) != 1)} given"
        remedy = (
            "name a run, or `latest` for the newest, for each of A and B" if len(runs) < RUNS_MIN else "leave some out"
        )
        raise click.UsageError(f"{given}, {RUNS_MIN} to {RUNS_MAX} can be compared; {remedy}")

    zone, until = common_timezone(is_local), STEP_MAX if step is None else step
    with open_client(dir_, url) as client:
        ids = _resolved(client, runs)
        if len(ids) > RUNS_MIN:
            found = read_columns(client, ids, keys, until)
        else:
            found = compare_runs(client, ids[0], ids[1], keys, step=until)
        for key in keys:
            _require_key(client, ids, key, found)
    shown = None if everything else SHOWN
    if output.form == "json":
        write_object(found, output.path, zone)
    elif len(ids) > RUNS_MIN:
        values = Rows(VALUE_COLUMNS, value_rows(sections(found), ids), VALUE_TYPES)
        write_result(values, output, zone, sheets=lambda: page_of_columns(found, shown, zone))
    else:
        rows = Rows(PAIR_COLUMNS, pairs_of(found), PAIR_TYPES)
        write_result(rows, output, zone, sheets=lambda: page(found, shown, zone))


def _resolved(client: Client, runs: Sequence[str]) -> list[str]:
    """Return the IDs of different runs. Raises UsageError."""
    names: dict[str, str] = {}
    for name in runs:
        run_id = resolve_run(client, name)
        if run_id in names:
            message = f"{names[run_id]!r} and {name!r} are the same run {run_id!r}"
            raise click.UsageError(f"{message}; give {'two' if len(runs) == RUNS_MIN else 'different'} runs")
        names[run_id] = name
    return list(names)


def _require_key(client: Client, runs: Sequence[str], key: str, found: dict[str, Any]) -> None:
    if all(row["key"] != key for row in found["metrics"]):
        for run in runs:
            require_key(client, run, key)


def page(found: dict[str, Any], shown: int | None, zone: Zone) -> list[Any]:
    """Return the tables, with empty lines between them."""
    tables = [_runs(found, zone), _config(found, shown), *_metrics(found, shown), _phases(found, shown), _system(found)]
    lines: list[Any] = []
    for table in tables:
        if table is not None:
            lines += ["", table] if lines else [table]
    return lines


def read_columns(client: Client, run_ids: list[str], keys: Sequence[str], step: int) -> dict[str, Any]:
    """Return what the page shows of several runs. keys: only these metrics. step: as of `read_same_step`."""
    found: dict[str, Any] = {"runs": read_described(client, run_ids)}
    found |= read_settings(client, run_ids) | read_phases(client, run_ids) | read_whole(client, run_ids)
    found["metrics"] = read_same_step(client, run_ids, step)
    if keys:
        found |= {name: [entry for entry in found[name] if entry["key"] in keys] for name in _OF_METRICS}
    return found


def sections(found: dict[str, Any]) -> list[Section]:
    """Return what `read_columns` found, in the order of the page."""
    metrics = {entry["key"] for entry in found["final"]}
    summary = [entry for entry in found["summary"] if entry["key"] not in metrics]  # the others are final values
    return [
        Section("config", "Config", "key", found["config"], _config_text, is_number=False, hides_same=True),
        Section("metric", "Metrics at the last common step", "key", found["metrics"], _number_text),
        Section("final", "Final values, mean of the labels", "key", found["final"], _number_text),
        Section("best", "Lowest value of any label, or the highest, marked max", "key", found["best"], _best_text),
        Section("summary", "Summary beside metrics", "key", summary, _config_text, is_number=False, hides_same=True),
        Section("phase", "Time per phase of a step", "phase", found["phases"], lambda _, seconds: _seconds(seconds)),
        Section("machine", "Machines", "mean of", found["machines"], _machine_text),
    ]


def page_of_columns(found: dict[str, Any], shown: int | None, zone: Zone) -> list[Any]:
    """Return the tables of several runs, with empty lines between them."""
    runs = found["runs"]
    columns = [Column("", is_whole=True), Column("run", is_name=True), Column("name", drop=4)]
    columns += [Column("state", is_whole=True), Column("started", is_whole=True, drop=1)]
    sheet = Sheet([*columns, Column("took", is_number=True, drop=2), Column("labels", is_number=True, drop=3)])
    now = datetime.now(UTC).replace(tzinfo=None)
    for letter, run in zip(run_letters(len(runs)), runs, strict=True):
        began, took = run["created_at"], duration_s(run["created_at"], run["ended_at"], run["state"], now)
        sheet.add(
            plain_cell(letter, "bold"),
            plain_cell(run["run_id"]),
            plain_cell(run["name"]),
            state_text(run["state"]),
            f"{zone.text(began, 'seconds')} {zone.name([began])}" if began else "",
            "" if took is None else duration_text(took),
            str(run["n_labels"]),
        )
    lines: list[Any] = [sheet]
    for section in sections(found):
        if (table := section_sheet(section, len(runs), shown)) is not None:
            lines += ["", table]
    return lines


def _config_text(_: dict[str, Any], value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number_text(_: dict[str, Any], value: Any) -> str:
    return _number(value) if isinstance(value, int | float) else str(value)


def _best_text(entry: dict[str, Any], value: Any) -> str:
    return _number_text(entry, value) + (" max" if entry["is_highest"] else "")


def _machine_text(entry: dict[str, Any], value: float) -> str:
    if entry["quantity"] == "share":
        return f"{value:.0%}"
    if entry["quantity"] == "bytes":
        return f"{value / (1 << 30):.2f} GiB"
    if entry["quantity"] == "cores":
        return f"{value:.0%} of a core"
    return f"{value:.4g} {_QUANTITIES.get(entry['quantity'], '')}".rstrip()


def _runs(found: dict[str, Any], zone: Zone) -> Sheet:
    sheet = Sheet([Column("", is_whole=True), Column("A"), Column("B")])
    runs = [found["runs"][side] for side in "ab"]
    now = datetime.now(UTC).replace(tzinfo=None)
    took = [duration_s(run["created_at"], run["ended_at"], run["state"], now) for run in runs]
    sheet.add(plain_cell("run", "dim"), *(plain_cell(run["run_id"], "bold") for run in runs))
    for name, label in (("project", "project"), ("name", "name"), ("run_group", "group")):
        if any(run[name] for run in runs):
            sheet.add(plain_cell(label, "dim"), *(plain_cell(run[name]) for run in runs))
    sheet.add(plain_cell("state", "dim"), *(state_text(run["state"]) for run in runs))
    started = [run["created_at"] for run in runs]
    zones = [f"{zone.text(moment, 'seconds')} {zone.name([moment])}" if moment else "" for moment in started]
    sheet.add(plain_cell("started", "dim"), *zones)
    sheet.add(plain_cell("took", "dim"), *(duration_text(seconds) if seconds is not None else "" for seconds in took))
    for name, label in (("n_labels", "labels"), ("n_attempts", "attempts"), ("last_step", "last step")):
        sheet.add(plain_cell(label, "dim"), *(str(run[name]) if run[name] is not None else "" for run in runs))
    paces = [_pace(run, seconds) for run, seconds in zip(runs, took, strict=True)]
    if any(paces):
        sheet.add(
            plain_cell("time per step", "dim"),
            *(duration_text(pace) if pace and pace >= 60 else _seconds(pace) for pace in paces),
        )
    return sheet


def _pace(run: dict[str, Any], took: float | None) -> float | None:
    """Return the run's time divided by its steps."""
    if took is None or run["last_step"] is None:
        return None
    n_steps: int = run["last_step"] - run["first_step"] + 1
    return took / n_steps


def _name(heading: str) -> Column:
    return Column(heading, is_name=True, width_max=NAME_WIDTH_MAX)


def _config(found: dict[str, Any], shown: int | None) -> Sheet | None:
    rows = found["config"]
    n_all = len(rows) + found["config_equal"]
    if not n_all:
        return None
    sheet = Sheet([_name("key"), Column("A"), Column("B")], f"Config: {len(rows)} of {n_all} keys differ")
    for row in rows[:shown]:
        sheet.add(
            plain_cell(row["key"]),
            *(_config_cell(row[side]) if row[f"in_{side}"] else plain_cell("(none)", "dim") for side in "ab"),
        )
    return _with_caption(sheet, len(rows), shown)


def _config_cell(value: Any) -> Any:
    return plain_cell(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _metrics(found: dict[str, Any], shown: int | None) -> list[Sheet]:
    """Return the table of what both runs logged, and of keys of one run a line each."""
    rows = [row for row in found["metrics"] if row["step"] is not None]
    tables = []
    columns = [
        _name("key"),
        Column("step", is_number=True, drop=4),
        *(Column(name, is_number=True) for name in ("A", "B", "change")),
        Column("best A, B", is_whole=True, drop=3),
        Column("final A, B", is_whole=True, drop=2),
    ]
    sheet = Sheet(columns, "Metrics at the last common step, best and final")
    for row in rows[:shown]:
        sheet.add(
            plain_cell(row["key"]),
            str(row["step"]),
            _number(row["a"]),
            _number(row["b"]),
            change_text(row["a"], row["b"]),
            _pair(row, "best") + (" max" if row["best"] == "max" else ""),
            _pair(row, "final"),
        )
    if rows:
        tables.append(_with_caption(sheet, len(rows), shown))
    apart = Sheet([Column("", is_whole=True), Column("")], "Metrics without a common step", has_header=False)
    for name, lacking in (("only in A", "b"), ("only in B", "a"), ("in both", None)):
        keys = [row["key"] for row in found["metrics"] if row["step"] is None and _lacking(row) == lacking]
        if keys:
            more = len(keys) - ONLY_SHOWN if shown is not None else 0
            apart.add(
                plain_cell(name, "dim"),
                plain_cell(
                    ", ".join(keys[: ONLY_SHOWN if shown is not None else None])
                    + (f" and {more} more" if more > 0 else "")
                ),
            )
    return [*tables, *[apart] * bool(apart.rows)]


def _lacking(row: dict[str, Any]) -> str | None:
    return next((side for side in "ab" if row[f"{side}_last_step"] is None), None)


def _phases(found: dict[str, Any], shown: int | None) -> Sheet | None:
    rows = sorted(found["phases"], key=lambda row: -max(row["a_label_s"] or 0, row["b_label_s"] or 0))
    if not rows:
        return None
    columns = [
        _name("phase"),
        *(Column(name, is_number=True) for name in ("A", "B", "change")),
        Column("total A, B", is_whole=True, drop=1),
    ]
    sheet = Sheet(columns, "Time per phase: of a step, and in total of a label")
    for row in rows[:shown]:
        sheet.add(
            plain_cell(row["phase"]),
            *(_seconds(row[f"{side}_mean_s"]) for side in "ab"),
            change_text(row["a_mean_s"], row["b_mean_s"]),
            ", ".join("none" if (total := row[f"{side}_label_s"]) is None else duration_text(total) for side in "ab"),
        )
    return _with_caption(sheet, len(rows), shown)


def _system(found: dict[str, Any]) -> Sheet | None:
    if not found["system"]:
        return None
    columns = [_name("mean of"), *(Column(name, is_number=True) for name in ("A", "B", "change"))]
    sheet = Sheet(columns, "Machines")
    for row in found["system"]:
        values, name = (row["a_mean"], row["b_mean"]), sample_name(row["name"])
        texts = ("" if value is None else _machine_text(name._asdict(), value) for value in values)
        sheet.add(plain_cell(name.title), *texts, change_text(*values))
    return sheet


def _pair(row: dict[str, Any], name: str) -> str:
    return ", ".join(_number(row[f"{side}_{name}"]) or "none" for side in "ab")


def _number(value: float | None) -> str:
    return "" if value is None else number_text(float(f"{value:.6g}"))


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else seconds_text(seconds)


def change_text(a: float | None, b: float | None) -> str:
    """Return the change from A to B: in percent, or as a factor if it is large; empty if neither makes sense."""
    if a is None or b is None or not a or not math.isfinite(a) or not math.isfinite(b):
        return "=" if a is not None and a == b else ""
    if a * b > 0 and not 1 / _RATIO_MIN < b / a < _RATIO_MIN:
        return f"x{b / a:.3g}"
    return "=" if is_same_number(a, b) else f"{(b - a) / abs(a):+.1%}"


def _with_caption(sheet: Sheet, n_all: int, shown: int | None) -> Sheet:
    if shown is not None and n_all > shown:
        sheet.caption = f"{n_all - shown} more; --all shows them"
    return sheet
