"""The stream that says when there is something new."""

import http.client
import json
from pathlib import Path

from chiplog.page.routes_live import RUNS_MAX, Live
from chiplog.page.source import Source
from tests.support.hand_written import hand_written
from tests.support.live_runs import fill_live_runs
from tests.support.page_client import serving


def test_a_page_hears_of_each_change(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
        database.execute("INSERT INTO base.position (next_number) VALUES (5)")
    with serving(tmp_path) as client:
        client.sign_in()
        connection = http.client.HTTPConnection("127.0.0.1", client.server.port, timeout=30)
        connection.request("GET", "/api/live", headers={"Cookie": client.cookie})
        response = connection.getresponse()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert next_change(response) == {"position": 5, "n_deleted": 0}
        with hand_written(tmp_path) as database:
            database.execute("UPDATE base.position SET next_number = 6")
        assert next_change(response) == {"position": 6, "n_deleted": 0}
        connection.close()


def next_change(response: http.client.HTTPResponse) -> dict[str, int]:
    while not (line := response.readline().decode()).startswith("data: "):
        assert line
    found: dict[str, int] = json.loads(line.removeprefix("data: "))
    return found


def test_frames_of_many_runs_are_forgotten_the_oldest_first(tmp_path: Path) -> None:
    live = Live(Source(dir=str(tmp_path)))
    first = live.frames("first")
    assert live.frames("first") is first
    for number in range(RUNS_MAX):
        live.frames(str(number))
    assert live.frames("first") is not first
