"""Start, stop and find the daemons of a directory: real processes that hold its locks and listen at its sockets."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chiplog_client import daemons
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from chiplog_schemas.process.daemon import output_path
from chiplog_schemas.process.file_lock import Lock
from chiplog_schemas.process.log_owner import LogOwnership
from chiplog_schemas.storage.journal_dir import HEAD_NAME, LOCK_NAME
from chiplog_schemas.storage.segment_format import segment_name
from chiplog_schemas.transport.collector_memory import RememberedCollector, remember_collector
from chiplog_schemas.transport.link_status import LinkState, write_link_status
from tests.support.lock_holder import lock_holder
from tests.support.node import end_daemons
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

AGENT, COLLECTOR, INDEX = daemons.AGENT, daemons.COLLECTOR, daemons.INDEX


@pytest.fixture
def where(tmp_path: Path) -> Iterator[Paths]:
    found = paths_for_root(tmp_path / "chiplog")
    yield found
    end_daemons(found)


def lock(where: Paths, module: str) -> Path:
    return daemons.lock_path(where, module)


def test_an_agent_may_be_started_before_anything_has_made_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIPLOG_LOCAL_DIR", str(tmp_path / "local"))
    where = paths_for_root(tmp_path / "chiplog")
    assert not daemons.may_start_agent(where), "nothing has been recorded"
    ensure_private_dir(where.journals)
    assert daemons.may_start_agent(where) and not where.root.exists()


def test_a_daemon_is_the_process_that_holds_its_lock(where: Paths) -> None:
    assert daemons.daemon_pid(where, AGENT) == 0
    with lock_holder(lock(where, AGENT)) as holder:
        assert daemons.daemon_pid(where, AGENT) == holder.pid
        assert daemons.daemon_pid(where, COLLECTOR) == 0
    assert daemons.daemon_pid(where, AGENT) == 0


@pytest.mark.parametrize(("note", "is_embedded"), [("embedded", True), ("", False)])
def test_a_daemon_that_a_training_started_is_embedded(where: Paths, note: str, is_embedded: bool) -> None:
    with lock_holder(lock(where, AGENT), note=note):
        assert daemons.is_embedded(where, AGENT) is is_embedded


def test_start_returns_the_daemon_that_runs_and_starts_no_other(where: Paths) -> None:
    with lock_holder(lock(where, AGENT), daemons.socket_path(where, AGENT)) as holder:
        assert daemons.start(where, AGENT, ["--no-such-flag"]) == holder.pid
    assert not output_path(where, AGENT).exists()


def test_start_names_a_daemon_that_does_not_listen(where: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "START_WAIT_S", 0.1)
    with lock_holder(lock(where, AGENT)) as holder:
        expected = f"{AGENT} (process {holder.pid}) runs and does not listen at {daemons.socket_path(where, AGENT)}"
        with pytest.raises(OSError) as raised:
            daemons.start(where, AGENT, [])
        assert str(raised.value) == expected


def test_a_start_that_fails_ends_with_the_last_line_of_the_daemon(
    where: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "START_WAIT_S", 1.0)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho first\necho the reason\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(OSError, match=r"did not come up within 1 s: the reason$"):
        daemons.start(where, COLLECTOR, [])
    assert output_path(where, COLLECTOR).read_text() == "first\nthe reason\n", "one start, not one after the other"


@pytest.mark.full
def test_a_daemon_that_leaves_while_it_is_waited_for_is_followed_by_another(where: Paths, monkeypatch) -> None:
    holder = daemons.start(where, daemons.COLLECTOR, ["--embedded"])
    accepts = daemons._accepts_connections

    def stop_first(path: Path) -> bool:
        monkeypatch.setattr(daemons, "_accepts_connections", accepts)
        daemons.stop(where, daemons.COLLECTOR)
        return accepts(path)

    monkeypatch.setattr(daemons, "_accepts_connections", stop_first)
    pid = daemons.start(where, daemons.COLLECTOR, [])
    assert pid == daemons.daemon_pid(where, daemons.COLLECTOR) != holder


def test_stop_returns_the_daemon_once_its_lock_is_free(where: Paths) -> None:
    assert daemons.stop(where, AGENT) == 0, "none runs"
    with lock_holder(lock(where, AGENT)) as holder:
        assert daemons.stop(where, AGENT) == holder.pid
        assert daemons.daemon_pid(where, AGENT) == 0
        assert holder.wait(WAIT_S) == -signal.SIGTERM


def test_stop_waits_for_the_lock_of_a_daemon_that_listens(where: Paths) -> None:
    """A daemon whose lock file was removed creates another one within a second."""
    with lock_holder(lock(where, AGENT), daemons.socket_path(where, AGENT), pause_s=0.3) as holder:
        assert daemons.stop(where, AGENT) == holder.pid


def test_a_daemon_that_does_not_end_is_named_with_what_ends_it(where: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "STOP_WAIT_S", 0.2)
    with lock_holder(lock(where, AGENT), ignores_sigterm=True) as holder:
        with pytest.raises(OSError, match=f"did not end within 0.2 s; see {output_path(where, AGENT)}, or kill -9"):
            daemons.stop(where, AGENT)
        assert holder.poll() is None


def test_a_daemon_that_a_signal_stopped_is_named_with_what_resumes_it(where: Paths) -> None:
    with lock_holder(lock(where, AGENT)) as holder:
        assert not daemons.is_sigstopped(holder.pid)
        assert daemons.is_coming_up(where, AGENT)
        holder.send_signal(signal.SIGSTOP)
        wait_until(lambda: daemons.is_sigstopped(holder.pid), "a stopped process")
        assert not daemons.is_coming_up(where, AGENT)
        with pytest.raises(OSError, match=f"kill -CONT {holder.pid} resumes it"):
            daemons.stop(where, AGENT)
        holder.send_signal(signal.SIGCONT)
        wait_until(lambda: not daemons.is_sigstopped(holder.pid), "a process that runs")
        assert holder.poll() is None, "it was sent no SIGTERM"


def test_a_daemon_is_coming_up_while_it_is_young(where: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not daemons.is_coming_up(where, AGENT)
    with lock_holder(lock(where, AGENT)):
        assert daemons.is_coming_up(where, AGENT)
        monkeypatch.setattr(daemons, "COMING_UP_MAX_S", 0.0)
        assert not daemons.is_coming_up(where, AGENT)


@proves("index-start-waited-for", "a reader waits while an embedded collector starts its index", value="0.0")
def test_an_embedded_collector_may_need_time_to_start_its_index(where: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    assert daemons.start_wait_s(where) == 0.0
    with lock_holder(lock(where, INDEX)):
        assert daemons.start_wait_s(where) == daemons.COMING_UP_MAX_S
    monkeypatch.setattr(daemons, "COMING_UP_MAX_S", 0.0)  # all are old
    with lock_holder(lock(where, COLLECTOR)):
        assert daemons.start_wait_s(where) == 0.0
    with lock_holder(lock(where, COLLECTOR), note="embedded") as holder:
        assert daemons.start_wait_s(where) == daemons.START_WAIT_S
        holder.send_signal(signal.SIGSTOP)
        wait_until(lambda: daemons.is_sigstopped(holder.pid), "a stopped process")
        assert daemons.start_wait_s(where) == 0.0


def test_only_the_log_of_a_collector_that_is_no_service_may_be_applied(where: Paths) -> None:
    assert not daemons.may_apply_log(where)
    log = where.collector / "log"
    log.mkdir(parents=True)
    (log / segment_name(0)).touch()
    assert daemons.has_log(where)
    assert not daemons.may_apply_log(where), "of a collector that an operator started"
    (where.collector / "host").write_text("former-name")
    assert daemons.may_apply_log(where), "on a local disk a new host name changes nothing"
    assert not daemons.may_apply_log(replace(where, may_be_shared=True)), "elsewhere it may be another host's"
    LogOwnership(where, is_service=True).release()
    assert not daemons.may_apply_log(where), "of a collector that an operator starts"
    LogOwnership(where).release()
    assert daemons.may_apply_log(where)
    (log / segment_name(0)).unlink()
    assert not daemons.may_apply_log(where), "an empty log"


def test_an_index_that_fails_or_hangs_is_an_error_with_its_last_line(
    where: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="index ended with exit status 1: "):
        daemons.apply_log(where)  # the directory does not exist
    where.collector.mkdir(parents=True)
    monkeypatch.setattr(daemons, "COMING_UP_MAX_S", 1.0)
    with lock_holder(lock(where, INDEX)), pytest.raises(OSError, match="not applied after 1 s"):
        daemons.apply_log(where)


def test_the_link_is_as_the_running_agent_reports_it(where: Paths) -> None:
    where.agent.mkdir(parents=True)
    write_link_status(where.agent_link, LinkState.OPEN, "collector a answers")
    assert daemons.collector_link_status(where) is None, "no agent runs"
    held = Lock(lock(where, AGENT))
    try:
        link = daemons.collector_link_status(where)
        assert link is not None and (link.state, link.text) == (LinkState.OPEN, "collector a answers")
    finally:
        held.release()
    with lock_holder(lock(where, AGENT)):
        assert daemons.collector_link_status(where) is None, "the report is an earlier agent's"


@proves(
    "own-service-is-here",
    "an agent that reaches the collector of its directory by a TCP address does not deliver elsewhere",
    condition=False,
)
def test_a_collector_of_this_directory_with_a_tcp_address_is_not_elsewhere(where: Paths) -> None:
    where.agent.mkdir(parents=True)
    where.collector.mkdir(parents=True)
    agent, collector = Lock(lock(where, AGENT)), Lock(lock(where, COLLECTOR))
    owner = LogOwnership(where, is_service=True)
    try:
        for address, state, is_elsewhere in (
            ("tcp://127.0.0.1:4100", LinkState.OPEN, False),
            ("tcp://127.0.0.1:4100", LinkState.CLOSED, True),
            ("tcp://192.0.2.1:4100", LinkState.OPEN, True),
            ("ipc:///elsewhere.sock", LinkState.OPEN, True),
        ):
            remember_collector(where.agent, RememberedCollector(address, "", "site", True))
            write_link_status(where.agent_link, state, "")
            assert bool(daemons.goes_elsewhere(where)) is is_elsewhere, (address, state)
    finally:
        owner.release()
        collector.release()
        agent.release()


def test_what_waits_for_a_collector_elsewhere_is_said_with_what_delivers_it(where: Paths) -> None:
    """Without an agent it is unknown what of the spool has arrived."""
    spool = where.agent / "spool"
    spool.mkdir(parents=True)
    (spool / segment_name(0)).write_bytes(bytes(64 << 10))
    remember_collector(where.agent, RememberedCollector("tcp://192.0.2.1:4100", "", "site", True))
    up = f"chiplog up --dir {where.root}"
    stopped = f"; no agent runs: a part of the 64 KiB in its spool may not have arrived, and `{up}` delivers it; query"
    assert stopped in daemons.goes_elsewhere(where)
    agent = Lock(lock(where, AGENT))
    try:
        for state, waits in (
            (LinkState.CLOSED, "is out of reach; up to 64 KiB wait in the spool until it answers; query"),
            (LinkState.OPEN, "which answers; query"),
        ):
            write_link_status(where.agent_link, state, "")
            assert waits in daemons.goes_elsewhere(where), state
    finally:
        agent.release()


def test_the_last_line_of_a_daemon_is_its_newest_output(where: Paths) -> None:
    assert daemons.last_output_line(where, AGENT) == "(no output)"
    where.run.mkdir(parents=True, exist_ok=True)
    output_path(where, AGENT).write_bytes(b" \n")
    assert daemons.last_output_line(where, AGENT) == "(no output)"
    output_path(where, AGENT).write_bytes(b"x" * 100_000 + b"\n" + b"\xff last\n\n")
    assert daemons.last_output_line(where, AGENT) == "\N{REPLACEMENT CHARACTER} last"


def test_journals_wait_when_their_process_has_ended_and_no_agent_runs(where: Paths) -> None:
    assert daemons.waiting_journals(where) == []
    names = ("11" * 16, "22" * 16, "33" * 16)
    for name in names:
        (where.journals / name).mkdir(parents=True)
        (where.journals / name / HEAD_NAME).touch()
    os.rename(where.journals / names[2] / HEAD_NAME, where.journals / names[2] / "other")  # an agent cannot adopt it
    held = Lock(where.journals / names[0] / LOCK_NAME)
    try:
        assert daemons.waiting_journals(where) == [bytes.fromhex(names[1])]
    finally:
        held.release()
    assert daemons.waiting_journals(where) == [bytes.fromhex(name) for name in names[:2]]
    where.agent.mkdir(parents=True)
    held = Lock(lock(where, AGENT))
    try:
        assert daemons.waiting_journals(where) == []
    finally:
        held.release()


@proves("adopted-journal-awaited", "a query waits for a journal that the agent has begun to read", value="ended")
def test_a_journal_is_on_its_way_before_and_while_the_agent_reads_it(where: Paths) -> None:
    producer = b"j" * 16
    journal = where.journals / producer.hex()
    journal.mkdir(parents=True)
    for name in (HEAD_NAME, LOCK_NAME):
        (journal / name).touch()
    assert daemons.journals_on_their_way(where) == [producer]
    where.agent.mkdir(parents=True, exist_ok=True)
    held = [Lock(lock(where, AGENT)), Lock(journal / LOCK_NAME)]  # by one process, as by an agent
    try:
        assert daemons.ended_journals(where) == []
        assert daemons.journals_on_their_way(where) == [producer]
        os.utime(journal / LOCK_NAME, (0, 0))
        assert daemons.journals_on_their_way(where) == [], "a journal that the agent holds for long cannot be read"
    finally:
        for taken in held:
            taken.release()


def test_the_number_of_waiting_journals_is_a_sentence() -> None:
    assert daemons.what_waits(1) == "1 journal of an ended process waits"
    assert daemons.what_waits(2) == "2 journals of ended processes wait"
