"""The stream that says when there is something new."""

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from chiplog_page.routes import live as routes_live
from chiplog_page.routes.live import RUNS_MAX, Live
from chiplog_page.server.source import Source
from tests.support.hand_written import hand_written
from tests.support.live_runs import fill_live_runs
from tests.support.loops import in_a_loop
from tests.support.page_client import serving
from tests.support.run_builder import RunBuilder
from tests.support.waiting import WAIT_S


class Scripted(Source):
    """Has these states, one after the other, or fails."""

    def __init__(self, *states: dict[str, object] | Exception) -> None:
        super().__init__()
        self.states = list(states)
        self.ended = asyncio.Event()

    async def state(self) -> dict[str, object]:
        if not self.states:
            self.ended.set()
            await asyncio.Event().wait()
        state = self.states.pop(0)
        if isinstance(state, Exception):
            raise state
        return state


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_live, "POLL_INTERVAL_S", 0)


@in_a_loop
async def test_the_watch_goes_on_after_any_error_and_reports_it(
    no_pause: None, caplog: pytest.LogCaptureFixture
) -> None:
    source = Scripted(ValueError("no such\nkey"), ValueError("no such\nkey"))
    live = Live(source)
    changes = live.changes()
    assert await anext(changes) == {"error": "ValueError: no such"}
    await source.ended.wait()
    assert [record.levelname for record in caplog.records] == ["ERROR"], "once"
    live.close()


@in_a_loop
async def test_a_page_that_stalls_gets_the_newest_state_alone(no_pause: None) -> None:
    source = Scripted(*({"position": number, "n_deleted": 0} for number in range(5)))
    live = Live(source)
    changes = live.changes()
    assert await anext(changes) == {"position": 0, "n_deleted": 0}
    await source.ended.wait()
    assert await anext(changes) == {"position": 4, "n_deleted": 0}
    live.close()
    assert [state async for state in changes] == []


@in_a_loop
async def test_a_deletion_ends_the_memory_of_frames(no_pause: None) -> None:
    source = Scripted({"position": 1, "n_deleted": 1})
    live = Live(source)
    changes = live.changes()
    await anext(changes)
    before = live.frames("run")
    source.states.append({"position": 2, "n_deleted": 1})
    source.states.append({"position": 3, "n_deleted": 2})
    again = live.changes()  # a watch that is new finds what was deleted before
    live._watch.cancel()  # type: ignore[union-attr]
    await asyncio.sleep(0)
    await anext(again)
    await source.ended.wait()
    assert live.frames("run") is not before
    live.close()


def test_a_page_hears_of_each_change(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
        RunBuilder(database).position(5)
    with serving(tmp_path) as client:
        client.sign_in()
        connection = http.client.HTTPConnection("127.0.0.1", client.server.port, timeout=WAIT_S)
        connection.request("GET", "/api/live", headers={"Cookie": client.cookie})
        response = connection.getresponse()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert next_change(response) == {"position": 5, "n_deleted": 0}
        with hand_written(tmp_path) as database:
            database.execute("UPDATE base.position SET next_number = 6")
        change: dict[str, Any] = {"error": ""}
        while "error" in change:  # a read within the write meets another configuration of DuckDB in this process
            change = next_change(response)
        assert change == {"position": 6, "n_deleted": 0}
        connection.close()


def next_change(response: http.client.HTTPResponse) -> dict[str, Any]:
    while not (line := response.readline().decode()).startswith("data: "):
        assert line
    found: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return found


def test_frames_of_many_runs_are_forgotten_the_oldest_first(tmp_path: Path) -> None:
    live = Live(Source(dir=str(tmp_path)))
    first = live.frames("first")
    assert live.frames("first") is first
    for number in range(RUNS_MAX):
        live.frames(str(number))
    assert live.frames("first") is not first
