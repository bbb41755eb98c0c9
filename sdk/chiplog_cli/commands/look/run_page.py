"""Build the page of one run: what fits on a screen, worst first, and the number of omitted rows."""

import json
import shlex
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from rich.text import Text

from chiplog_cli.commands.look.runs import age_text, complete_text, duration_s, state_text
from chiplog_cli.tables.fitted_table import Column, Sheet
from chiplog_cli.tables.format_values import UTC_ZONE, Zone, duration_text, number_text, seconds_text
from chiplog_cli.tables.plain_table import NAME_WIDTH_MAX
from chiplog_cli.tables.tables import plain_cell
from chiplog_client.reads.verdict import failure_of, names_text

# Rows of each table without --all: together they fit on a screen.
LABELS_SHOWN = 16  # two nodes of eight GPUs
ALERTS_SHOWN = 5
PHASES_SHOWN = 8
KEYS_SHOWN = 10
SUMMARY_SHOWN = 6
CONFIG_SHOWN = 8
FILES_SHOWN = 5
CONTENTS_SHOWN = 6  # keys of media, and versions of artifacts, each in one line
EVENTS_SHOWN = 8
EXIT_LINES_SHOWN = 3  # of one label on a terminal
LAST_VALUES_SHOWN = 3  # for more labels a table shows the range
DRIFT_SHOWN = 5  # labels whose config differs, and keys of each
_ENDED_BADLY = ("failed", "crashed")
_STYLES = {"error": "bold red", "warning": "yellow"}


def build_page(
    found: dict[str, Any], *, everything: bool = False, zone: Zone = UTC_ZONE, source: Sequence[str] = ()
) -> list[Any]:
    """Return the tables of a run's page, with empty lines between them.

    found: the data of `chiplog show`. source: its options --dir and --url, for the commands that the page shows.
    """
    found = _with_label_names(found)
    labels, events = found["labels"], found["events"]
    if not everything:
        labels = _by_severity(labels, found["first_failure"])[:LABELS_SHOWN] if len(labels) > LABELS_SHOWN else labels
        events = _without_ends(events, labels)[-EVENTS_SHOWN:]
    tables = (
        _summary_table(found, zone, _bound(CONTENTS_SHOWN, everything)),
        _labels(found["labels"], labels, 0 if everything else EXIT_LINES_SHOWN),
        _alerts(found["alerts"], _bound(ALERTS_SHOWN, everything), zone),
        _phases(found["phases"], _bound(PHASES_SHOWN, everything)),
        _keys(found["keys"], _bound(KEYS_SHOWN, everything)),
        _values("Summary", _non_metric_summary(found), _bound(SUMMARY_SHOWN, everything)),
        _values("Config", found["config"], _bound(CONFIG_SHOWN, everything)),
        _files(found["files"], _bound(FILES_SHOWN, everything)),
        events_table(events, zone, "Recent events"),
    )
    command = shlex.join(["chiplog", "show", found["run_id"], "--all", *source])
    page: list[Any] = []
    for table in tables:
        if table is not None:
            if table.is_partial:
                table.caption += f": {command}"
            page += ["", table] if page else [table]
    return page


def _with_label_names(found: dict[str, Any]) -> dict[str, Any]:
    """Return the data with the names to show in place of labels."""
    names = found["label_names"]
    if not names:
        return found

    def renamed(row: dict[str, Any], column: str = "label") -> dict[str, Any]:
        return {**row, column: names.get(row[column], row[column])}

    lists = {name: [renamed(row) for row in found[name]] for name in ("labels", "alerts", "events")}
    failure = found["first_failure"]
    drift = {names.get(label, label): keys for label, keys in found["config_drift"].items()}
    return {
        **renamed(found, "primary_label"),
        **lists,
        "first_failure": renamed(failure) if failure else None,
        "config_drift": drift,
    }


def _bound(shown: int, everything: bool) -> int | None:
    return None if everything else shown


def _with_more_caption(sheet: Sheet, n_all: int, shown: int | None, what: str) -> Sheet:
    """Add the number of omitted rows to the caption of a table."""
    if shown is not None and n_all > shown:
        sheet.caption, sheet.is_partial = f"{n_all - shown} more {what}", True
    return sheet


# -- about the run ----------------------------------------------------------------------------------------------------
def _summary_table(found: dict[str, Any], zone: Zone, bound: int | None) -> Sheet:
    now = datetime.now(UTC).replace(tzinfo=None)
    took = duration_s(found["created_at"], found["ended_at"], found["state"], now)
    counts = found["completeness"]
    times = [found[name] for name in ("created_at", "ended_at") if found[name] is not None]
    named = zone.name(times)
    failure = failure_of(found["first_failure"], found)
    facts = {
        "run": found["run_id"],
        "project": found["project"],
        "name": found["name"],
        "group": found["run_group"],
        "job type": found["job_type"],
        "tags": ", ".join(found["tags"] or ()),
        "notes": found["notes"],
        "collector": _places_text(found.get("places", ()), now),
        "state": state_text(found["state"]),
        "exit code": found["exit_code"],
        "started": f"{zone.text(times[0], 'seconds')} {named}" if found["created_at"] is not None else None,
        "ended": f"{zone.text(times[-1], 'seconds')} {named}" if found["ended_at"] is not None else None,
        "took": duration_text(took) if took is not None else None,
        "interrupted": _interrupted_text(found["first_failure"]),
        "failure": None if found["verdict"]["has_failed"] or failure is None else failure.sentence,
        "verdict": found["verdict"]["text"],
        "last event": _last_event(found["labels"]),
        "labels": f"{found['n_labels']}, primary {found['primary_label'] or 'not known yet'}",
        "attempts": found["n_attempts"],
        "events": _events_text(counts),
        "media": _list_text([f"{row['key']} ({row['n']})" for row in found["media"]], bound),
        "artifacts": _list_text([_artifact_text(row) for row in found["artifacts"]], bound),
    }
    facts |= _environment_rows(found["environment"] or {}) | _drift(found["config_drift"])
    sheet = Sheet([Column("", is_whole=True), Column("")], has_header=False)
    for name, value in facts.items():
        if value is not None and value != "":
            sheet.add(plain_cell(name, "dim"), value if isinstance(value, Text) else plain_cell(str(value)))
    return sheet


def _places_text(places: Sequence[Mapping[str, Any]], now: datetime) -> str:
    def text(place: Mapping[str, Any]) -> str:
        labels = f" ({place['n_labels']} label{'s' * (place['n_labels'] != 1)})" if len(places) > 1 else ""
        if place["is_here"]:
            return f"here{labels}"
        age = "" if place["seen_at"] is None else f", as of {age_text(place['seen_at'], now)}"
        return f"{place['collector']}{labels}{age}{', silent' if place['is_silent'] else ''}"

    return "; ".join(map(text, places))


def _events_text(counts: Mapping[str, int | None]) -> str:
    kept = f"{counts['stored']} stored + {counts['lost']} lost"
    if counts["produced"] is None:
        return f"{kept}; how many more there were is unknown: a label was lost with its node"
    return f"{counts['produced']} produced = {kept} + {counts['pending']} pending"


def _list_text(texts: list[str], shown: int | None) -> str:
    more = [f"{len(texts) - shown} more"] if shown is not None and len(texts) > shown else []
    return ", ".join([*texts[:shown], *more])


def _artifact_text(row: dict[str, Any]) -> str:
    return f"{row['name']}:{row['version'] or 'no number yet'}{'' if row['is_made'] else ' (used)'}"


def _environment_rows(environment: dict[str, Any]) -> dict[str, str | None]:
    branch = f" on {environment['branch']}" if environment.get("branch") else ""
    return {
        "commit": f"{environment['commit']}{branch}" if environment.get("commit") else None,
        "command": shlex.join(map(str, environment.get("command") or ())) or None,
        "launched by": shlex.join(map(str, environment.get("launched") or ())) or None,
    }


def _drift(drift: dict[str, list[str]]) -> dict[str, str | None]:
    if not drift:
        return {}
    shown = [f"{label}: {', '.join(keys[:DRIFT_SHOWN])}" for label, keys in list(drift.items())[:DRIFT_SHOWN]]
    more = len(drift) - len(shown)
    return {"config drift": "; ".join(shown) + (f"; and {more} more labels" if more else "")}


def _interrupted_text(failure: dict[str, Any] | None) -> str | None:
    """Return which labels ended when the user interrupted the run; None if that is not why it ended."""
    if failure is None or not failure.get("is_interrupted"):
        return None
    return f"by Ctrl-C (SIGINT): {names_text([failure['label'], *(other['label'] for other in failure['others'])])}"


def _last_event(labels: list[dict[str, Any]]) -> str | None:
    """Return the age of the last event of the running labels, and the label that has been silent for longest."""
    silent_for = {
        label["label"]: label["last_event_s"]
        for label in labels
        if label["state"] == "running" and label["last_event_s"] is not None
    }
    if not silent_for:
        return None
    last, silent = (
        min(silent_for, key=lambda name: silent_for[name]),
        max(silent_for, key=lambda name: silent_for[name]),
    )
    text = f"{duration_text(silent_for[last])} ago, of {last}"
    return text if last == silent else f"{text}; longest ago of {silent}, {duration_text(silent_for[silent])}"


# -- labels -----------------------------------------------------------------------------------------------------------
def _labels(labels: list[dict[str, Any]], rows: list[dict[str, Any]], exit_lines_max: int) -> Sheet:
    """Return the table of labels. rows: those to show."""
    with_tries = any(label["attempt"] for label in labels)  # save width: a terminal may have eighty columns
    with_ranks = any(label["rank"] is not None and label["label"] != f"rank{label['rank']}" for label in labels)
    columns = [
        Column("label", is_name=True),
        *[Column("try", is_number=True)] * with_tries,
        *[Column("rank", is_number=True, drop=2)] * with_ranks,
        Column("state", is_whole=True),
        Column("node", drop=3),
        Column("took", is_number=True, drop=1),
        Column("step", is_number=True),
        Column("last event", is_number=True, drop=5),
        Column("complete", drop=4),
        Column("exit"),
    ]
    table = Sheet(columns, "Labels")
    now = datetime.now(UTC).replace(tzinfo=None)
    for label in rows:
        took = duration_s(label["started_at"], label["ended_at"], label["state"], now)
        silent_s = label["last_event_s"]
        ended = plain_cell(exit_text(label))
        ended.lines_max = exit_lines_max
        table.add(
            plain_cell((label["label"] or "") + (" *" if label["is_primary"] else "")),
            *([str(label["attempt"])] if with_tries else []),
            *(["" if label["rank"] is None else str(label["rank"])] if with_ranks else []),
            state_text(label["state"]),
            plain_cell(label["node"]),
            duration_text(took) if took is not None else "",
            _step_text(label),
            f"{duration_text(silent_s)} ago" if silent_s is not None else "",
            complete_text(label["pending"], label["lost"] or 0, label["state"] != "running"),
            ended,
        )
    table.caption, table.is_partial = "* primary" + _omitted_counts(labels, rows), len(rows) < len(labels)
    return table


def _by_severity(labels: list[dict[str, Any]], failure: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Order labels by severity: the first failure, other failures, then those behind, then those silent for longest.

    Superseded attempts come last.
    """
    first = failure["label"] if failure else None

    def rank_of(label: dict[str, Any]) -> tuple[Any, ...]:
        ended_badly, runs = label["state"] in _ENDED_BADLY, label["state"] == "running"
        return (
            not label["is_newest"],
            not ended_badly,
            not (ended_badly and label["label"] == first),
            label["ended_at"] or datetime.max if ended_badly else datetime.max,
            not runs,
            -(label["steps_behind"] or 0) if runs else 0,
            -(label["last_event_s"] or 0) if runs else 0,
            -((label["lost"] or 0) + (label["pending"] or 0)),
        )

    return sorted(labels, key=rank_of)


def _omitted_counts(labels: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> str:
    """Return how many labels are not shown, by state."""
    if len(rows) == len(labels):
        return ""
    counts = Counter(label["state"] for label in labels)
    counts.subtract(Counter(label["state"] for label in rows))
    environment = ", ".join(f"{n} {state}" for state, n in sorted(counts.items()) if n)
    return f"; worst first, and {len(labels) - len(rows)} more ({environment})"


def _step_text(label: dict[str, Any]) -> Any:
    if label["last_step"] is None:
        return ""
    behind = label["steps_behind"]
    return plain_cell(f"{label['last_step']}" + (f" (-{behind})" if behind else ""), "yellow" if behind else "")


def exit_text(label: dict[str, Any]) -> str:
    """Return how a label ended: its exit code or signal, and the reason."""
    status, reason = label["exit_code"], label["reason"] or ""
    if label["exit_signal"]:
        try:
            status = signal.Signals(label["exit_signal"]).name
        except ValueError:
            status = f"signal {label['exit_signal']}"
        if status in reason:
            return reason
    return f"{'' if status is None else status} {reason}".strip()


# -- what happened, and where the time went ---------------------------------------------------------------------------
def _alerts(alerts: list[dict[str, Any]], shown: int | None, zone: Zone) -> Sheet | None:
    if not alerts:
        return None
    times = _time_column("last", (alert["last_at"] for alert in alerts), zone)
    columns = [
        times,
        Column("label"),
        Column("level", drop=2),
        Column("times", is_number=True, drop=1),
        Column("alert"),
    ]
    table = Sheet(columns, "Alerts")
    for alert in alerts[:shown]:
        text = f": {alert['text']}" if alert["text"] else ""
        table.add(
            zone.text(alert["last_at"], "seconds"),
            plain_cell(alert["label"]),
            plain_cell(alert["level"], _STYLES.get(alert["level"] or "", "")),
            str(alert["times"]),
            plain_cell(f"{alert['title']}{text}"),
        )
    return _with_more_caption(table, len(alerts), shown, "alerts")


def _time_column(name: str, moments: Iterable[datetime], zone: Zone) -> Column:
    named = zone.name(moments)
    return Column(f"{name} ({named})" if named else name, is_whole=True, drop=3)


def _phases(phases: list[dict[str, Any]], shown: int | None) -> Sheet | None:
    if not phases:
        return None
    with_shares = any(phase["share"] is not None for phase in phases)
    names = ("times", "mean", *(["of the step"] if with_shares else []))
    columns = [
        Column("phase", is_name=True, width_max=NAME_WIDTH_MAX),
        *(Column(name, is_number=True) for name in names),
        Column("slowest label"),
    ]
    table = Sheet(columns, "Time per phase")
    for phase in phases[:shown]:
        slowest = f"{phase['slowest_label']} {_seconds_text(phase['slowest_s'])}" if phase["labels"] > 1 else ""
        table.add(
            plain_cell(phase["phase"]),
            str(phase["times"]),
            _seconds_text(phase["mean_s"]),
            *([f"{phase['share']:.0%}"] if with_shares else []),
            plain_cell(slowest),
        )
    return _with_more_caption(table, len(phases), shown, "phases")


def _seconds_text(seconds: float) -> str:
    return duration_text(seconds) if seconds >= 60 else seconds_text(seconds)


def _without_ends(events: list[dict[str, Any]], labels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events that do not repeat how one of the labels ended."""
    ended = {(label["label"], label["attempt"]): label for label in labels if label["state"] in _ENDED_BADLY}

    def is_end(event: dict[str, Any]) -> bool:
        label = ended.get((event["label"], event["attempt"]))
        if label is None:
            return False
        return event["kind"] in _ENDED_BADLY or (event["kind"], event["message"]) == ("traceback", label["reason"])

    return [event for event in events if not is_end(event)]


def events_table(events: list[dict[str, Any]], zone: Zone, title: str = "") -> Sheet | None:
    """Return events as a table; None if there are none."""
    if not events:
        return None
    times = _time_column("when", (event["ts"] for event in events if event["ts"] is not None), zone)
    columns = [times, Column("label", drop=2), Column("kind"), Column("level", drop=1), Column("message")]
    table = Sheet(columns, title)
    for event in events:
        table.add(
            zone.text(event["ts"], "seconds") if event["ts"] is not None else "",
            plain_cell(event["label"] or event["node"]),
            plain_cell(event["kind"]),
            plain_cell(event["level"], _STYLES.get(event["level"] or "", "")),
            plain_cell(_event_text(event)),
        )
    return table


def _event_text(event: dict[str, Any]) -> str | None:
    """Return the message, with the text of an alert, what to do, or how many values could not be logged."""
    body, message = event.get("body"), cast("str | None", event["message"])
    if not isinstance(body, dict):
        return message
    if event["kind"] == "alert" and body.get("text"):
        return f"{message}: {body['text']}"
    if body.get("advice"):
        return f"{message}; to do: {body['advice']}"
    if event["kind"] in ("bad_values", "nonfinite_values"):
        counts = [f"{n} {what}".replace("_", " ") for what, n in body.items()]
        return f"{message}: {', '.join(counts)}"
    return message


# -- what was logged and saved ----------------------------------------------------------------------------------------
def _keys(keys: list[dict[str, Any]], shown: int | None) -> Sheet | None:
    if not keys:
        return None
    rows = sorted(keys, key=lambda key: key["key"].startswith("chiplog/"))[:shown]  # the training's own first
    environment = {key["key"]: _summary_text(key) for key in rows}
    columns = [
        Column("key", is_name=True, width_max=NAME_WIDTH_MAX),
        Column("points", is_number=True, drop=2),
        Column("labels", is_number=True, drop=1),
        Column("last step", is_number=True, drop=3),
        Column("last value"),
        *[Column("summary", drop=4)] * any(environment.values()),
    ]
    table = Sheet(columns, "Metrics")
    for key in rows:
        values = key["last_values"]
        if key["labels"] == 1:
            last = number_text(next(iter(values.values())))
        elif key["labels"] <= LAST_VALUES_SHOWN:
            last = ", ".join(f"{label} {number_text(value)}" for label, value in values.items())
        else:
            last = f"{number_text(key['lowest'])} … {number_text(key['highest'])}"
        cells = (str(key["points"]), str(key["labels"]), str(key["last_step"]), plain_cell(last))
        table.add(
            plain_cell(key["key"]),
            *cells,
            *([plain_cell(environment[key["key"]])] if any(environment.values()) else []),
        )
    return _with_more_caption(table, len(keys), shown, "keys")


def _summary_text(key: dict[str, Any]) -> str:
    """Return a metric's summary if it differs from the last values, because it was defined or set."""
    value = key["summary"]
    return "" if value is None or value in key["last_values"].values() else _value_text(value)


def _non_metric_summary(found: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of the summary that are not metrics."""
    logged = {key["key"] for key in found["keys"]}
    return {key: value for key, value in found["summary"].items() if key not in logged}


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return number_text(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _values(title: str, values: Mapping[str, Any], shown: int | None) -> Sheet | None:
    if not values:
        return None
    table = Sheet([Column("key", is_name=True, width_max=NAME_WIDTH_MAX), Column("value")], title)
    for key, value in list(values.items())[:shown]:
        table.add(plain_cell(key), plain_cell(_value_text(value)))
    return _with_more_caption(table, len(values), shown, "keys")


def _files(files: list[dict[str, Any]], shown: int | None) -> Sheet | None:
    if not files:
        return None
    columns = [
        Column("path", is_name=True, width_max=NAME_WIDTH_MAX),
        Column("bytes", is_number=True),
        Column("sha256", is_whole=True, drop=1),
        Column("at the collector", is_whole=True),
    ]
    table = Sheet(columns, "Files")
    for file in files[:shown]:
        arrived = plain_cell("yes") if file["stored"] else plain_cell("not yet", "yellow")
        table.add(plain_cell(file["path"]), f"{file['bytes']:,}", file["sha256"][:16], arrived)
    return _with_more_caption(table, len(files), shown, "files")
