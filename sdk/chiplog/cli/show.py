"""`chiplog show`: one run on a page."""

import json
import shlex
import signal
from datetime import UTC, datetime
from typing import Any

import click

from chiplog.cli.output import (
    duration_text,
    local_text,
    new_table,
    number_text,
    plain_value,
    print_tables,
    printable,
    target_of,
    zone_of,
)
from chiplog.cli.runs import complete_text, duration_s, state_text
from chiplog.cli.source import opened, resolve_run, source_options
from chiplog.client import Client

KEYS_SHOWN = 60  # in a table; json has up to KEYS_MAX_JSON
KEYS_MAX_JSON = 10_000  # as many as a run may have
LABELS_SHOWN = 128  # in a table; json has all
LAST_VALUES_MAX = 64  # labels whose last value stands beside a key
LAST_VALUES_SHOWN = 3  # above it a table shows the span
EVENTS_SHOWN = 20
DRIFT_SHOWN = 5  # labels whose config differs, and keys of each
_ECHOES_SHOWN = 5
FILES_SHOWN = 40  # in a table; json has all

_LABELS = """
SELECT l.*, c.produced, c.stored, c.lost, c.pending, c.reasons
FROM labels l LEFT JOIN completeness c ON c.run_id = l.run_id AND c.label = l.label AND c.attempt = l.attempt
WHERE l.run_id = $run ORDER BY l.rank NULLS LAST, l.label, l.attempt
"""
# Attempts of a label follow one another, so the last value is the highest attempt's, and there the highest seq's.
_KEYS = f"""
WITH per_label AS (
    SELECT key, label, min(rank) AS rank, count(*) AS points, max(step) AS last_step,
           arg_max(value, attempt::HUGEINT * 9223372036854775808 + seq) AS last_value
    FROM metrics WHERE run_id = $run GROUP BY key, label
)
SELECT key, sum(points)::BIGINT AS points, count(*) AS labels, max(last_step) AS last_step,
       min(last_value) AS lowest, max(last_value) AS highest,
       list({{'label': label, 'value': last_value}} ORDER BY rank NULLS LAST, label)[1:{LAST_VALUES_MAX}] AS last_values
FROM per_label GROUP BY key ORDER BY key LIMIT $limit
"""
_FILES = """
SELECT path, bytes, sha256, ts, sha256 IN (
    SELECT body->>'sha256' FROM events WHERE run_id = $run AND kind = 'file_stored'
) AS stored FROM files WHERE run_id = $run ORDER BY path
"""


@click.command()
@click.argument("run")
@click.option("--format", "form", type=click.Choice(("table", "json")), default="table", show_default=True)
@source_options
def show(run: str, form: str, dir_: str | None, url: str | None) -> None:
    """Show one run: its labels and how they ended, what was logged, config, files, recent events.

    RUN is a run ID, a unique beginning of one, or `latest`. json has one object for the run.
    """
    with opened(dir_, url) as client:
        found = _collect(client, resolve_run(client, run))
    if form == "json":
        with target_of(None) as target:
            target.write(json.dumps(plain_value(found), ensure_ascii=False, indent=1) + "\n")
    else:
        print_tables(*_page(found))


def _collect(client: Client, run: str) -> dict[str, Any]:
    """Ask for everything that is shown. Config values and bodies of events are decoded from their JSON."""
    named = {"run": run}
    labels = client.sql(_LABELS, named).rows()
    keys = client.sql(_KEYS, {"run": run, "limit": KEYS_MAX_JSON}).rows()
    for key in keys:
        key["last_values"] = {item["label"]: item["value"] for item in key["last_values"]}
    config = client.sql("SELECT key, value FROM config WHERE run_id = $run ORDER BY key", named).rows()
    failures = client.sql("SELECT * FROM first_failure WHERE run_id = $run ORDER BY attempt DESC LIMIT 1", named).rows()
    events = client.sql(
        "SELECT ts, label, attempt, node, kind, level, message, body FROM events WHERE run_id = $run "
        f"ORDER BY ts DESC, seq DESC LIMIT {EVENTS_SHOWN}",
        named,
    ).rows()
    for event in events:
        event["body"] = _decoded(event["body"])
    surroundings = client.sql(
        "SELECT body FROM events WHERE run_id = $run AND kind = 'environment' ORDER BY attempt DESC, seq DESC LIMIT 1",
        named,
    ).rows()
    drift = client.sql(
        "SELECT label, body->'$.keys' AS keys FROM events WHERE run_id = $run AND kind = 'config_drift' ORDER BY label",
        named,
    ).rows()
    return {
        **client.sql("SELECT * FROM runs WHERE run_id = $run", named).rows()[0],
        "completeness": {
            name: sum(label[name] or 0 for label in labels) for name in ("produced", "stored", "lost", "pending")
        },
        "labels": labels,
        "keys": keys,
        "config": {row["key"]: _decoded(row["value"]) for row in config},
        "environment": _decoded(surroundings[0]["body"]) if surroundings else None,
        "config_drift": {row["label"]: _decoded(row["keys"]) for row in drift},
        "files": client.sql(_FILES, named).rows(),
        "events": events[::-1],
        "first_failure": failures[0] if failures else None,
    }


def _decoded(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


# -- the page ---------------------------------------------------------------------------------------------------------
def _page(found: dict[str, Any]) -> list[Any]:
    page = [_facts(found), "", _labels(found["labels"])]
    if found["keys"]:
        page += ["", _keys(found["keys"])]
    if found["config"]:
        page += ["", _config(found["config"])]
    if found["files"]:
        page += ["", _files(found["files"])]
    if found["events"]:
        page += ["", _events(found["events"])]
    return page


def _facts(found: dict[str, Any]) -> Any:
    from rich.text import Text

    now = datetime.now(UTC).replace(tzinfo=None)
    took = duration_s(found["created_at"], found["ended_at"], found["state"], now)
    counts = found["completeness"]
    times = [found[name] for name in ("created_at", "ended_at") if found[name] is not None]
    zone = zone_of(times)
    facts = {
        "run": found["run_id"],
        "project": found["project"],
        "name": found["name"],
        "group": found["run_group"],
        "job type": found["job_type"],
        "tags": ", ".join(found["tags"] or ()),
        "notes": found["notes"],
        "state": state_text(found["state"]),
        "exit code": found["exit_code"],
        "started": f"{local_text(times[0], 'seconds')} {zone}" if found["created_at"] is not None else None,
        "ended": f"{local_text(times[-1], 'seconds')} {zone}" if found["ended_at"] is not None else None,
        "took": duration_text(took) if took is not None else None,
        "failed first": first_failure_text(found["first_failure"]),
        "labels": f"{found['n_labels']}, primary {found['primary_label'] or 'not known yet'}",
        "attempts": found["n_attempts"],
        "events": f"{counts['produced']} produced = {counts['stored']} stored + {counts['lost']} lost "
        f"+ {counts['pending']} pending",
    }
    facts |= _surroundings(found["environment"] or {}) | _drift(found["config_drift"])
    table = new_table()
    table.show_header = False
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value is not None and value != "":
            table.add_row(name, value if isinstance(value, Text) else Text(printable(str(value))))
    return table


def _surroundings(told: dict[str, Any]) -> dict[str, str | None]:
    branch = f" on {told['branch']}" if told.get("branch") else ""
    return {
        "commit": f"{told['commit']}{branch}" if told.get("commit") else None,
        "command": shlex.join(map(str, told.get("command") or ())) or None,
    }


def _drift(drift: dict[str, list[str]]) -> dict[str, str | None]:
    if not drift:
        return {}
    shown = [f"{label}: {', '.join(keys[:DRIFT_SHOWN])}" for label, keys in list(drift.items())[:DRIFT_SHOWN]]
    more = len(drift) - len(shown)
    return {"config drift": "; ".join(shown) + (f"; and {more} more labels" if more else "")}


def first_failure_text(failure: dict[str, Any] | None) -> str | None:
    """Return one line that says who failed first, and what the others are."""
    if failure is None:
        return None
    others = failure["others"]
    text = str(failure["label"])
    if others:
        after_s = others[0]["after_s"]
        text += f", {abs(after_s):.3g} s {'before' if after_s >= 0 else 'after'} {others[0]['label']}"
    if not failure["is_certain"]:
        text += f" (uncertain by {failure['uncertainty_s']:.3g} s)"
    text += f": {failure['reason'] or failure['state']}"
    if not failure["is_cause"]:
        return f"{text}; ended from outside, no cause among the labels"
    echoes = [other["label"] for other in others if other["is_echo"]]
    if not echoes:
        return text
    more = len(echoes) - _ECHOES_SHOWN
    named = ", ".join(echoes[:_ECHOES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"{text}; {named} {'is an echo' if len(echoes) == 1 else 'are echoes'}"


def _labels(labels: list[dict[str, Any]]) -> Any:
    from rich.text import Text

    table = new_table("Labels")
    for name in ("label", "try", "rank", "state", "node", "took", "complete", "exit"):
        is_number = name in ("try", "rank", "took")
        table.add_column(name, justify="right" if is_number else "left", overflow="fold", no_wrap=name == "label")
    now = datetime.now(UTC).replace(tzinfo=None)
    for label in labels[:LABELS_SHOWN]:
        took = duration_s(label["started_at"], label["ended_at"], label["state"], now)
        table.add_row(
            Text(printable(label["label"] or "") + (" *" if label["is_primary"] else "")),
            str(label["attempt"]),
            "" if label["rank"] is None else str(label["rank"]),
            state_text(label["state"]),
            Text(printable(label["node"] or "")),
            duration_text(took) if took is not None else "",
            complete_text(label["pending"] or 0, label["lost"] or 0, label["state"] != "running"),
            Text(_exit_text(label)),
        )
    more = len(labels) - LABELS_SHOWN
    table.caption = "* primary" + (f"; {more} more labels: chiplog sql 'FROM labels'" if more > 0 else "")
    table.caption_justify = "left"
    return table


def _exit_text(label: dict[str, Any]) -> str:
    parts = []
    if label["exit_signal"]:
        try:
            parts.append(signal.Signals(label["exit_signal"]).name)
        except ValueError:
            parts.append(f"signal {label['exit_signal']}")
    elif label["exit_code"] is not None:
        parts.append(str(label["exit_code"]))
    if label["reason"]:
        parts.append(printable(label["reason"]))
    return " ".join(parts)


def _keys(keys: list[dict[str, Any]]) -> Any:
    from rich.text import Text

    table = new_table("Metrics")
    table.add_column("key", overflow="fold")
    for name in ("points", "labels", "last step"):
        table.add_column(name, justify="right")
    table.add_column("last value", overflow="fold")
    for key in keys[:KEYS_SHOWN]:
        values = key["last_values"]
        if key["labels"] == 1:
            last = number_text(next(iter(values.values())))
        elif key["labels"] <= LAST_VALUES_SHOWN:
            last = ", ".join(f"{label} {number_text(value)}" for label, value in values.items())
        else:
            last = f"{number_text(key['lowest'])} … {number_text(key['highest'])}"
        cells = (str(key["points"]), str(key["labels"]), str(key["last_step"]), Text(printable(last)))
        table.add_row(Text(printable(key["key"])), *cells)
    if len(keys) > KEYS_SHOWN:
        table.caption = f"{len(keys) - KEYS_SHOWN} more keys: chiplog show --format json"
        table.caption_justify = "left"
    return table


def _config(config: dict[str, Any]) -> Any:
    from rich.text import Text

    table = new_table("Config")
    table.add_column("key", overflow="fold")
    table.add_column("value", overflow="fold")
    for key, value in config.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        table.add_row(Text(printable(key)), Text(printable(text)))
    return table


def _files(files: list[dict[str, Any]]) -> Any:
    from rich.text import Text

    table = new_table("Files")
    table.add_column("path", overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("sha256", overflow="ellipsis", no_wrap=True)
    table.add_column("at the collector")
    for file in files[:FILES_SHOWN]:
        arrived = Text("yes") if file["stored"] else Text("not yet", style="yellow")
        table.add_row(Text(printable(file["path"])), f"{file['bytes']:,}", file["sha256"][:16], arrived)
    if len(files) > FILES_SHOWN:
        table.caption = f"{len(files) - FILES_SHOWN} more files: chiplog sql 'FROM files'"
        table.caption_justify = "left"
    return table


def _events(events: list[dict[str, Any]]) -> Any:
    from rich.text import Text

    zone = zone_of(event["ts"] for event in events if event["ts"] is not None)
    table = new_table("Recent events")
    table.add_column(f"when ({zone})" if zone else "when")
    for name in ("label", "kind", "level", "message"):
        table.add_column(name, overflow="fold")
    styles = {"error": "bold red", "warning": "yellow"}
    for event in events:
        table.add_row(
            local_text(event["ts"], "seconds") if event["ts"] is not None else "",
            Text(printable(event["label"] or event["node"] or "")),
            Text(printable(event["kind"] or "")),
            Text(printable(event["level"] or ""), style=styles.get(event["level"] or "", "")),
            Text(printable(event["message"] or "")),
        )
    return table
