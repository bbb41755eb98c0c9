"""`chiplog status`: what runs for a CHIPLOG_DIR, what waits where, and whether an event arrives."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chiplog.journal.reachability import probe
from chiplog_cli.health_checks import directory_bytes, released_gpus
from chiplog_cli.output import FORMATS, Output, output_options
from chiplog_cli.store_outbox import store_outbox
from chiplog_cli.tables.tables import plain_cell
from chiplog_cli.tables.writers import Rows, open_output, write_result
from chiplog_client import daemons
from chiplog_client.delivered import is_delivered
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.process.log_owner import served_elsewhere
from chiplog_schemas.process.recording_dir import recording_dir
from chiplog_schemas.storage.journal_dir import HEAD_NAME, LOCK_NAME, decode_head, list_journals
from chiplog_schemas.transport.link_status import LinkState

if TYPE_CHECKING:
    from chiplog_cli.tables.fitted_table import Sheet

CANARY_WAIT_S = 5.0


@click.command()
@click.option("--dir", "directory", metavar="DIR", help="In place of CHIPLOG_DIR (default ~/.chiplog).")
@output_options(*FORMATS)
@click.option("--no-canary", is_flag=True, help="Send no event.")
def status(directory: str | None, output: Output, no_canary: bool) -> None:
    """Show what is running and what waits, and send one event to check that it arrives.

    Exit code 1 if the event does not arrive although an agent runs. If the agent delivers to another collector that
    cannot be asked from here, the agent's report on its link counts.
    """
    where = paths_for_root(recording_dir(directory))
    facts = _collect_status(where)
    failed = False
    if not no_canary:
        facts["canary"], failed = _fly(where, running=bool(facts["agent_pid"]))
    if output.form in ("json", "jsonl"):  # one object; each fact has its own type
        with open_output(output.path) as target:
            target.write(json.dumps(facts) + "\n")
    else:
        values = [(name, None if value is None else str(value)) for name, value in facts.items()]
        write_result(Rows(("name", "value"), values), output, sheets=lambda: [_sheet(facts)])
    if failed:
        raise click.exceptions.Exit(1)


def _collect_status(where: Paths) -> dict[str, object]:
    journals = list_journals(where.journals)
    offline = [path for _, path in list_journals(where.local / "offline") if not is_delivered(path)]
    agent_pid = daemons.daemon_pid(where, daemons.AGENT) or None
    # A journal whose lock the agent holds belongs to a dead rank: the agent is adopting it.
    alive = [directory for _, directory in journals if lock_holder_pid(directory / LOCK_NAME) not in (0, agent_pid)]
    return {
        "dir": str(where.root),
        "agent_pid": agent_pid,
        "agent_named": _named(),
        **_link(where, agent_pid),
        "collector_pid": daemons.daemon_pid(where, daemons.COLLECTOR) or None,
        "gpus": released_gpus(where),
        "data_served": daemons.goes_elsewhere(where) or served_elsewhere(where) or None,
        "ranks_logging": sum(map(_is_rank_journal, alive)),
        "journals_waiting": len(journals) - len(alive),
        "offline_journals": len(offline),
        "spool_bytes": directory_bytes(where.agent / "spool"),
        "log_bytes": directory_bytes(where.collector / "log"),
        "index_bytes": where.index.stat().st_size if where.index.exists() else 0,
        "store": outbox.line if (outbox := store_outbox(where)) is not None else None,
    }


def _is_rank_journal(journal: Path) -> bool:
    """Return True if a journal is a rank's, not that of its console helper."""
    try:
        head = decode_head((journal / HEAD_NAME).read_bytes())
    except OSError:  # just removed
        return False
    return head is not None and head.identity.get("role") == "rank"


def _fly(where: Paths, *, running: bool) -> tuple[str, bool]:
    if not running and not os.environ.get("CHIPLOG_AGENT"):
        return "not sent: no agent runs (a training starts one, or `chiplog up`)", False
    from chiplog_cli import canary  # imported late: --no-canary needs no sockets

    flight = canary.send_canaries(where, os.environ.get("CHIPLOG_AGENT"), CANARY_WAIT_S)
    if flight.visible_s is not None and flight.acknowledged_s is not None:
        return (
            f"acknowledged after {flight.acknowledged_s * 1e3:.0f} ms, in SQL after {flight.visible_s * 1e3:.0f} ms",
            False,
        )
    if flight.acknowledged_s is not None and not flight.was_queried and (link := _link_elsewhere(where)):
        return f"acknowledged by the agent; {link}; not looked up in SQL: {flight.reason}", False
    return f"did not arrive within {CANARY_WAIT_S:g} s: {flight.reason}", True


def _link_elsewhere(where: Paths) -> str:
    """Return the agent's report on its link if that is open and leads to a collector elsewhere; '' otherwise."""
    link = daemons.collector_link_status(where)
    if os.environ.get("CHIPLOG_COLLECTOR") or link is None or link.state is not LinkState.OPEN:
        return ""
    return link.text if daemons.collector_elsewhere(where) else ""


def _sheet(facts: dict[str, object]) -> "Sheet":
    from chiplog_cli.tables.fitted_table import Column, Sheet

    sheet = Sheet([Column("name", is_whole=True), Column("value")], has_header=False)
    for name, value in facts.items():
        if value is None and not name.endswith("_pid"):
            continue
        shown = "not running" if value is None else f"{value:,}" if name.endswith("_bytes") else str(value)
        sheet.add(name.replace("_", " "), plain_cell(shown))
    return sheet


def _named() -> str | None:
    """Return the address in CHIPLOG_AGENT and whether it can be reached; None if it is not set."""
    address = os.environ.get("CHIPLOG_AGENT")
    if not address:
        return None
    found = probe(address)
    return f"{address} listens" if found is None else f"{address} cannot be reached: {found.text}"


def _link(where: Paths, agent_pid: int | None) -> dict[str, object]:
    """Return the state of the agent's link for programs, and a line about it for people."""
    if agent_pid is None:
        return {"agent_link_state": None, "agent_link": None}
    if daemons.is_sigstopped(agent_pid):
        line = f"the agent was stopped by a signal; kill -CONT {agent_pid} resumes it"
        return {"agent_link_state": "stopped", "agent_link": line}
    link = daemons.collector_link_status(where)
    return {"agent_link_state": link.state if link else None, "agent_link": link.text if link else None}
