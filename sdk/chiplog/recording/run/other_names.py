"""What scripts read from a run under other names: those of arguments, columns, other loggers and notebooks."""

import html
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from chiplog.identity.process_info import host_name, node_name
from chiplog.safety import foreign_names

_ALIASES: dict[str, Callable[[Any], Any]] = {
    "primary": lambda run: run.is_primary,
    "run_group": lambda run: run.group,
    "run_name": lambda run: run.name,
    "project_name": lambda run: foreign_names.CallableText(run.project or ""),
    "start_time": lambda run: run._run_journal.started_us / 1e6,
    "started_at": lambda run: datetime.fromtimestamp(run._run_journal.started_us / 1e6, UTC),
    "node": lambda run: node_name(),
    "hostname": lambda run: host_name(),
    "pid": lambda run: run._run_journal.pid,
    "rank_pid": lambda run: run._run_journal.pid,
    "info": lambda run: foreign_names.RunInfo(run.id, run.name, run._run_journal.started_us // 1000),
}


def attribute_of(run: Any, name: str) -> Any:
    """Return what scripts expect under another name, or an object that does nothing; else raise AttributeError."""
    if name in _ALIASES:
        return _ALIASES[name](run)
    if name not in foreign_names.RUN_NAMES:
        raise AttributeError(f"'Run' object has no attribute {name!r}")
    run._report_fault(foreign_names.unavailable("run", name))
    return foreign_names.run_attribute(name)


def html_of(run: Any) -> str:
    """Return what this process knows of the run, as a table for notebooks."""
    state = "finished" if run._finished else "disabled" if run.disabled else "running"
    known = {"run": run.name or run.id, "id": run.id, "project": run.project, "label": run.label}
    rows = [*known.items(), ("state", state if run.mode in ("online", "disabled") else f"{state}, {run.mode}")]
    cells = ((name, html.escape(str("" if value is None else value))) for name, value in rows)
    return f"<table>{''.join(f'<tr><th>{name}</th><td>{text}</td></tr>' for name, text in cells)}</table>"
