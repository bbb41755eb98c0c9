"""Printed lines: filters, both ends, and lines that are stored later whatever their times are."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from chiplog_client.client import Client, connect
from chiplog_client.reads.console import Line, LinesRequest, read_lines, read_newest, read_pages
from chiplog_schemas.paths import paths_for_root
from tests.support.hand_written import hand_written
from tests.support.page_run import fill_page_run
from tests.support.served_database import changing, served_database

SLOW = LinesRequest("slow", 5)
EPOCH_S = -1_767_322_800  # 1970, from the beginning of the run


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Client, duckdb.DuckDBPyConnection]]:
    with hand_written(tmp_path) as database:
        fill_page_run(database)
    with served_database(paths_for_root(tmp_path)) as database, connect(dir=tmp_path, start=False) as client:
        yield client, database


def texts(client: Client, request: LinesRequest) -> list[str]:
    return [row["line"] for row in read_lines(client, request)[0]]


def everything(client: Client, request: LinesRequest) -> tuple[list[str], Line | None]:
    pages = list(read_pages(client, request))
    return [row["line"] for rows, _ in pages for row in rows], pages[-1][1]


def test_lines_are_read_from_both_ends_and_by_label_stream_text_and_time(served) -> None:
    client, _ = served
    whole = replace(SLOW, limit=100_000, is_forward=True)
    lines = texts(client, whole)
    assert len(lines) > 1_000
    assert texts(client, SLOW) == lines[-5:] and texts(client, replace(SLOW, is_forward=True)) == lines[:5]
    assert texts(client, replace(SLOW, is_forward=True, offset=5)) == lines[5:10]
    assert all("rank3" in line for line in texts(client, replace(SLOW, labels=("rank3",))))
    assert texts(client, replace(whole, search="LINE 999 OF RANK2")) == ["line 999 of rank2"]
    at = str(read_lines(client, SLOW)[0][-1]["ts"])
    assert texts(client, replace(SLOW, at=at)) == lines[-5:]
    assert texts(client, replace(whole, at=at)) == []
    streams = {stream: len(texts(client, replace(whole, stream=stream))) for stream in ("stdout", "stderr")}
    assert sum(streams.values()) == len(lines)


def test_pages_have_each_line_once_and_what_is_stored_in_the_meantime_comes_after_them(served) -> None:
    client, database = served
    request = replace(SLOW, limit=1_000, is_forward=True)
    lines = texts(client, replace(request, limit=100_000))
    pages = read_pages(client, request)
    rows, newest = next(pages)
    seen = [row["line"] for row in rows]
    [(producer,)] = database.execute("SELECT producer FROM base.identified WHERE run_id = 'slow' LIMIT 1").fetchall()

    def store(n: int) -> None:
        late = {"seq": 900_000 + n, "at": EPOCH_S, "where": f"producer = {producer}"}
        with changing(database) as build:
            build.console(f"late {n}", **late)

    store(1)
    for rows, _ in pages:
        seen += [row["line"] for row in rows]
    assert seen == lines
    assert newest is not None
    assert everything(client, replace(request, since=newest)) == (["late 1"], (producer, 900_001))
    store(2)
    assert everything(client, replace(request, since=(producer, 900_001)))[0] == ["late 2"]
    assert read_newest(client, "slow") == (producer, 900_002)


def test_a_run_without_lines_has_no_newest_line(served) -> None:
    client, _ = served
    assert read_lines(client, replace(SLOW, run="gone")) == ([], None)
    assert read_newest(client, "gone") is None
    assert everything(client, replace(SLOW, run="gone")) == ([], None)
