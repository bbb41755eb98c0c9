"""The agent's report on its collector, and the start of a collector: a real link, real files, and time by hand."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chiplog_agent.pipeline.collector_supervisor import CollectorSupervisor
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from chiplog_schemas.process.daemon import output_path
from chiplog_schemas.protocol.sender import SenderState
from chiplog_schemas.transport.link_status import LinkState, read_link_status
from tests.support.hop import SENDER, Hop
from tests.support.waiting import wait_until


class Agent:
    """A supervisor, its link, and what it reports."""

    def __init__(self, where: Paths, hop: Hop, *, may_start: bool) -> None:
        self.where = where
        self.hop = hop
        self.elsewhere: list[str] = []
        self.diagnostics: list[str] = []
        self.refused: list[int] = []
        self.supervisor = CollectorSupervisor(
            hop.link,
            where,
            lambda message, now: self.elsewhere.append(message),
            lambda message, error: self.diagnostics.append(message),
            may_start=may_start,
            now=0.0,
        )

    @property
    def link(self) -> tuple[LinkState, str] | None:
        found = read_link_status(self.where.agent_link, os.getpid())
        return found and (found.state, found.text)

    def poll_refused(self) -> None:
        self.supervisor.poll_refused(lambda text, n_refused: self.refused.append(n_refused))


@pytest.fixture
def where(tmp_path: Path) -> Paths:
    found = paths_for_root(tmp_path / "chiplog")
    ensure_private_dir(found.agent)
    return found


@pytest.fixture
def hop(tmp_path: Path) -> Iterator[Hop]:
    made = Hop(f"ipc://{tmp_path}/s")
    yield made
    made.close()


@pytest.fixture
def agent(where: Paths, hop: Hop) -> Agent:
    return Agent(where, hop, may_start=False)


@pytest.fixture
def starter(where: Paths, hop: Hop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """An agent that may start a collector; the program only prints its arguments."""
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return Agent(where, hop, may_start=True)


def starts(where: Paths) -> list[str]:
    path = output_path(where, "chiplog_collector")
    return path.read_text().splitlines() if path.exists() else []


def test_the_state_of_the_link_is_reported_and_logged_once_per_change(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    address = agent.hop.link.address
    assert agent.link == (LinkState.CONNECTING, f"collector {address} has not answered yet")
    with caplog.at_level("INFO", "chiplog.agent"):
        for _ in range(3):
            agent.supervisor.on_change(SenderState.GREETING, "")
            agent.supervisor.on_change(SenderState.CLOSED, "connection refused")
    assert agent.link == (LinkState.CLOSED, f"collector {address} is out of reach: connection refused")
    with caplog.at_level("INFO", "chiplog.agent"):
        agent.supervisor.on_change(SenderState.OPEN, address)
        agent.supervisor.on_change(SenderState.CLOSED, "connection refused")
        agent.supervisor.on_change(SenderState.OPEN, address)
    assert agent.link == (LinkState.OPEN, f"collector {address} answers")
    refused, answers = f"collector {address} is out of reach: connection refused", f"collector {address} answers"
    assert caplog.messages == [refused, answers, refused, answers]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2


def test_no_report_outlives_the_supervisor(agent: Agent) -> None:
    agent.supervisor.close()
    assert not agent.where.agent_link.exists()


def test_a_report_that_cannot_be_written_is_a_complaint(where: Paths, hop: Hop) -> None:
    os.rmdir(where.agent)
    agent = Agent(where, hop, may_start=False)
    assert agent.diagnostics == ["the state of the link cannot be reported to `chiplog status`"]


def test_refused_events_are_reported_when_they_begin_double_and_end(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    hop = agent.hop
    hop.until(lambda: hop.log.acked == 10)

    def refuse(n_events: int) -> None:
        hop.set_refused(n_events)
        hop.until(lambda: hop.link.protocol.refused == n_events)
        agent.poll_refused()

    agent.poll_refused()
    assert agent.refused == []
    for n_events in (3, 3, 5, 6, 7, 12):
        refuse(n_events)
    assert agent.refused == [3, 6, 12]
    assert agent.link is not None and agent.link[0] is LinkState.REFUSING
    assert "and refuses 12 events of other nodes than the key of this agent" in agent.link[1]
    with caplog.at_level("INFO", "chiplog.agent"):
        refuse(0)
    assert agent.refused == [3, 6, 12], "an end is no row"
    assert agent.supervisor.n_refused == 12, "a counter does not fall"
    assert caplog.messages[-1].endswith("answers, and no longer refuses any events")
    assert agent.link == (LinkState.OPEN, f"collector {hop.link.address} answers")
    refuse(4)
    assert agent.supervisor.n_refused == 16


def test_what_was_refused_before_the_start_of_the_agent_is_not_counted_again(agent: Agent) -> None:
    hop = agent.hop
    agent.poll_refused()  # before the collector answers
    hop.receiver.set_refused({SENDER: 7}, set())
    hop.until(lambda: hop.log.acked == 10)
    agent.poll_refused()
    assert (agent.refused, agent.supervisor.n_refused) == ([7], 0)
    hop.set_refused(9)
    hop.until(lambda: hop.link.protocol.refused == 9)
    agent.poll_refused()
    assert agent.supervisor.n_refused == 2


def test_a_collector_is_started_when_none_answers_and_again_when_it_does_not_come_up(starter: Agent) -> None:
    where = starter.where
    starter.supervisor.ensure_running(0.09)
    assert not output_path(where, "chiplog_collector").exists(), "a collector that runs answers within this time"
    started = "-P -m chiplog_collector --embedded"
    starter.supervisor.ensure_running(0.1)
    wait_until(lambda: starts(where) == [started], "a collector")
    starter.supervisor.ensure_running(5.0)
    starter.supervisor.ensure_running(5.2)
    wait_until(lambda: len(starts(where)) > 1, "another collector")
    time.sleep(0.2)  # a third one prints within this
    assert starts(where) == [started] * 2
    assert starter.elsewhere == []


def test_no_collector_is_started_where_none_may_be_or_one_answers(agent: Agent, starter: Agent, where: Paths) -> None:
    agent.supervisor.ensure_running(100.0)
    starter.hop.until(lambda: starter.hop.link.is_open)
    starter.supervisor.ensure_running(100.0)
    assert not output_path(where, "chiplog_collector").exists()


@pytest.mark.parametrize("may_be_shared", [True, False])
def test_data_of_another_host_is_reported_once_and_no_collector_is_started(
    hop: Hop, where: Paths, starter: Agent, may_be_shared: bool
) -> None:
    ensure_private_dir(where.collector)
    (where.collector / "host").write_text("elsewhere")
    agent = Agent(replace(where, may_be_shared=may_be_shared), hop, may_start=True)
    for now in (1.0, 10.0, 100.0):
        agent.supervisor.ensure_running(now)
    if may_be_shared:
        [line] = agent.elsewhere
        assert line.startswith(f"the data in {where.collector} belongs to the collector of host elsewhere; what is")
        assert not output_path(where, "chiplog_collector").exists()
    else:
        assert agent.elsewhere == [], "on a local disk the name of the host does not count"
        wait_until(lambda: len(starts(where)) == 3, "a collector at each try")


def test_a_start_that_fails_is_a_complaint_and_is_tried_again(starter: Agent) -> None:
    starter.where.run.write_text("a file in place of the directory")
    starter.supervisor.ensure_running(1.0)
    assert starter.diagnostics == ["no collector could be started, and the spool keeps everything"]
    os.unlink(starter.where.run)
    starter.supervisor.ensure_running(10.0)
    wait_until(lambda: len(starts(starter.where)) == 1, "a collector")


def test_a_collector_that_is_not_installed_is_a_complaint_and_no_process(
    starter: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chiplog_schemas.process.daemon.COLLECTOR_MODULE", "chiplog_not_installed")
    starter.supervisor.ensure_running(1.0)
    assert starter.diagnostics == ["no collector could be started, and the spool keeps everything"]
    assert starts(starter.where) == []
