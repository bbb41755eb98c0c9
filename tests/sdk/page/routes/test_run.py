"""One run over HTTP: report, ranks, console, events, files, changes."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chiplog_page.server.source import CLIENTS
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.storage.content_files import content_path
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import Rank, whole
from tests.support.exported_run import make_place
from tests.support.hand_written import hand_written
from tests.support.kept_log import finished, kept_log
from tests.support.page_client import PageClient, serving
from tests.support.run_builder import RunBuilder
from tests.support.slow_ranks import fill_slow_ranks

MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paths]:
    run = finished(1, "run-1", name="old")
    other = finished(2, "run-2")
    with kept_log(tmp_path_factory.mktemp("changed"), [whole(run), whole(other)]) as place:
        yield place


@pytest.fixture(scope="module")
def editor(place: Paths) -> Iterator[PageClient]:
    with serving(place.root) as client:
        yield client.sign_in()


def test_the_report_of_a_run_is_that_of_show(reader: PageClient) -> None:
    found = reader.get("runs/healthy")
    assert (found["run_id"], found["n_labels"], len(found["labels"])) == ("healthy", 8, 8)
    assert found["config"] == {"lr": 0.5}
    answer = reader.ask("/api/runs/%3Cb%3E")
    assert (answer.status, answer.json["error"]["message"]) == (404, "there is no run '<b>'")


def test_the_outline_of_a_run_is_its_row_and_its_keys(reader: PageClient) -> None:
    found, report = reader.get("runs/even/outline"), reader.get("runs/even")
    assert found["keys"] == [{"key": row["key"], "is_hidden": False} for row in report["keys"]]
    row = {name: value for name, value in found.items() if name not in ("keys", "labels")}
    assert row == {name: report[name] for name in row} and row["run_id"] == "even"
    assert reader.ask("/api/runs/none/outline").status == 404


@pytest.mark.full
def test_ranks_are_judged_as_in_top(reader: PageClient) -> None:
    found = reader.get("runs/large/ranks")
    at = {name: place for place, name in enumerate(found["columns"])}
    assert len(found["rows"]) == 1000
    hanging = [row[at["label"]] for row in found["rows"] if row[at["status"]] == "hangs"]
    assert hanging == ["rank417"]
    assert reader.ask("/api/runs/none/ranks").status == 404


def test_events_come_newest_first(reader: PageClient) -> None:
    found = reader.get("runs/even/events?limit=2")
    assert len(found["rows"]) == 2
    body = found["rows"][0][found["columns"].index("body")]
    assert body["step"] == 30, "an object, not a text"
    assert reader.ask("/api/runs/even/events?limit=0").status == 400


def test_failures_of_a_round(reader: PageClient) -> None:
    assert reader.get("runs/even/failures")["rounds"] == []
    assert reader.ask("/api/runs/even/failures?attempt=x").status == 400


def test_console_lines_are_read_from_a_time_on_or_before_it(reader: PageClient) -> None:
    assert reader.get("runs/healthy/console")["rows"] == []
    answer = reader.ask("/api/runs/healthy/console?direction=up")
    assert (answer.status, answer.json["error"]["message"]) == (400, "direction='up' must be one of before, after")


def test_lines_stored_later_are_found_whatever_their_times(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_slow_ranks(database)
        write_lines(database, "slow", 0, 100, "early")
    with serving(tmp_path) as client:
        client.sign_in()
        first = client.get("runs/slow/console")
        assert texts(first) == ["early"]
        with hand_written(tmp_path) as database:
            write_lines(database, "slow", 1, 40, "slow clock")  # a minute behind rank0
            write_lines(database, "slow", 0, 101, "next")
            write_lines(database, "even", 0, 50, "of another run")
        found = client.get(f"runs/slow/console?resume={first['resume']}")
        assert texts(found) == ["slow clock", "next"]
        assert texts(client.get(f"runs/slow/console?resume={first['resume']}&label=rank1")) == ["slow clock"]
        again = client.get(f"runs/slow/console?resume={found['resume']}")
        assert (texts(again), again["resume"]) == ([], None)
        unknown = client.get("runs/slow/console?resume=10000.7")
        assert (
            client.ask("/api/runs/slow/console?at=noon").json["error"]["message"].startswith("at='noon' is not a time")
        )
        assert texts(unknown) == ["slow clock", "early", "next"]
        for wrong in ("10000", "10000.x", "-1.5", "10000.5.6"):
            answer = client.ask(f"/api/runs/slow/console?resume={wrong}")
            assert (answer.status, "resume" in answer.json["error"]["message"]) == (400, True)


def write_lines(database: duckdb.DuckDBPyConnection, run_id: str, rank: int, second: int, *lines: str) -> None:
    where = f"run_id = '{run_id}' AND rank = {rank}"
    for seq, line in enumerate(lines, second):
        RunBuilder(database).console(line, seq=seq, at=second, where=where)


def texts(answer: dict[str, Any]) -> list[str]:
    return [row[answer["columns"].index("line")] for row in answer["rows"]]


def test_a_run_is_edited_and_deleted(editor: PageClient) -> None:
    assert editor.ask("/api/runs/run-1", "PATCH", {"name": MARKUP, "tags": ["best"]}).status == 200
    run = editor.get("runs/run-1")
    assert (run["name"], run["tags"]) == (MARKUP, ["best"])
    wrong = editor.ask("/api/runs/run-1", "PATCH", {"state": "finished"})
    assert (wrong.status, wrong.json["error"]["message"].partition(";")[0]) == (400, "state cannot be changed")
    assert editor.ask("/api/runs/run-1", "PATCH", {}).status == 400
    assert editor.ask("/api/runs/none", "DELETE").status == 400
    assert editor.ask("/api/runs/run-2", "DELETE").json["runs"] == 1
    assert editor.ask("/api/runs/run-2").status == 404


def test_a_file_that_was_not_saved_is_not_found(reader: PageClient) -> None:
    answer = reader.ask("/api/runs/healthy/files/../../etc/passwd")
    assert answer.status == 404
    assert reader.ask("/api/runs/healthy/files/model.pt").json["error"]["message"] == (
        "run 'healthy' saved no file 'model.pt'"
    )


def test_a_file_is_sent_in_parts_or_not_at_all(tmp_path: Path) -> None:
    data = os.urandom((2 << 20) + 5)
    digest = hashlib.sha256(data).digest()
    rank = Rank(30, "rank0", run_id="large", rank=0, primary=True)
    rank.say(EventKind.FILE, "model.pt", len(data), digest)
    place = make_place(tmp_path, whole(rank), (Kind.STORED, pack([b"S" * 16, digest, len(data)])))
    path = content_path(place.files, digest)
    ensure_private_dir(path.parent)
    path.write_bytes(data)
    with serving(place.root) as client:
        client.sign_in()
        for name, found in (("ckpt/last.pt", b"newest" * 1000), ("empty", b"")):
            answer = client.ask(f"/api/runs/whole/files/{name}")
            assert (answer.status, answer.body) == (200, found)
        assert client.ask("/api/runs/large/files/model.pt").body == data
        assert client.ask("/api/runs/large/files/model.pt?bytes=7").body == data[:7]
        for _ in range(2 * CLIENTS):
            with client.asked("/api/runs/large/files/model.pt") as connection, connection.getresponse() as response:
                assert response.status == 200  # and leave
        absent = client.ask("/api/runs/whole/files/absent")
    message = "the content of 'absent' has not arrived at the collector"
    assert (absent.status, absent.json["error"]["message"].partition(":")[0]) == (404, message)


def test_events_are_filtered_and_counted_by_kind(reader: PageClient) -> None:
    found = reader.get("runs/even/events?kind=phase_open&level=info")
    assert len(found["rows"]) == 4
    assert found["kinds"] == [{"kind": "phase_open", "level": "info", "n": 4, "title": "long phase"}]
    assert reader.get("runs/even/events?kind=phase_open&level=error")["rows"] == []
    found = reader.get("runs/even/events?kind=phase_open&label=rank1&label=rank2")
    assert {row[found["columns"].index("label")] for row in found["rows"]} == {"rank1", "rank2"}
    assert found["kinds"] == [{"kind": "phase_open", "level": "info", "n": 2, "title": "long phase"}]


def test_known_events_are_not_sent_again(reader: PageClient) -> None:
    found = reader.get("runs/even/events?kind=phase_open")
    known = reader.get(f"runs/even/events?kind=phase_open&known={found['digest']}")
    assert known == {"digest": found["digest"]}
    assert len(reader.get(f"runs/even/events?kind=phase_open&label=rank1&known={found['digest']}")["rows"]) == 1
