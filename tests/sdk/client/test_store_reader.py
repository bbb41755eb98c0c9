"""Read a store without a collector: by its address, as any other data."""

import contextlib
import hashlib
import os
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_client import daemons, store_reader
from chiplog_client.client import QueryError, connect
from chiplog_client.store_reader import check_readable
from chiplog_schemas.limit_settings import RANGES
from tests.support.index import Index
from tests.support.published_index import publish_in_pieces
from tests.support.safeguard import proves
from tests.support.sample_log import everything
from tests.support.waiting import wait_until


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"file://{tmp_path}/lake"
    yield url
    daemons.stop(store_reader.reader_places(url), daemons.COLLECTOR)


def test_a_store_answers_as_its_collector_and_nothing_is_written_to_it(tmp_path: Path, url: str) -> None:
    index = Index(tmp_path)
    publish_in_pieces(index, tmp_path / "lake", everything()[:-1])
    before = sorted(path for path in (tmp_path / "lake").rglob("*"))
    with connect(url) as client:
        found = client.sql("SELECT label, count(*) AS n FROM metrics GROUP BY ALL ORDER BY ALL").rows()
        assert [tuple(row.values()) for row in found] == index.sql(
            "SELECT label, count(*) AS n FROM metrics GROUP BY ALL ORDER BY ALL"
        )
        [place] = client.sql("SELECT run_id, collector, is_silent FROM run_places LIMIT 1").rows()
        run = place["run_id"]
        asked = f"a collector that has it: {place['collector']}$"
        for change in (lambda: client.edit_run(run, name="x"), lambda: client.delete_runs([run])):
            with pytest.raises(QueryError, match=f"can only be read here; ask {asked}"):
                change()
        with pytest.raises(QueryError, match="can only be read here; ask a collector of this store for a change"):
            client.save_view("mine", None)
        with pytest.raises(QueryError, match="disabled"):
            client.sql("FROM read_text('/etc/passwd')")
        digest = hashlib.sha256(b"content").digest()
        content = tmp_path / "lake" / "contents" / digest.hex()
        content.parent.mkdir(exist_ok=True)
        content.write_bytes(b"content")
        assert b"".join(client.read_file(digest.hex())) == b"content"
        with pytest.raises(QueryError, match="is not stored"):
            list(client.read_file("0" * 64))
        content.unlink()
        content.parent.rmdir()
        copy = pickle.loads(pickle.dumps(client))
        daemons.stop(store_reader.reader_places(url), daemons.COLLECTOR)  # as after five minutes
        assert copy.sql("SELECT count(*) AS n FROM runs").rows() == client.sql("SELECT count(*) AS n FROM runs").rows()
        copy.close()
    assert sorted(path for path in (tmp_path / "lake").rglob("*")) == before
    index.close()


@proves(
    "reader-has-these-credentials", "credentials that were set right count at once for a store that could not be read"
)
def test_a_reader_with_other_variables_makes_way(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where = store_reader.reader_places(url)

    def pid_of_reader() -> int:
        connect(url).close()
        return daemons.daemon_pid(where, daemons.COLLECTOR)

    def answers() -> bool:
        with connect(url) as client, contextlib.suppress(QueryError):
            return client.sql("FROM runs").rows() == []
        return False

    commits = tmp_path / "lake" / "collectors" / "_delta_log"
    commits.parent.mkdir(parents=True)
    commits.write_text("no directory")  # it cannot be read
    with connect(url) as client, pytest.raises(QueryError, match="the store cannot be read"):
        client.sql("FROM runs")
    before = pid_of_reader()
    assert pid_of_reader() == before, "with the same variables it is not started again"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the right one")
    second = pid_of_reader()
    assert second != before
    commits.unlink()
    wait_until(answers, "an answer")
    wait_until(lambda: not where.store_refused.exists(), "the reader to read the store")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a wrong one")
    assert pid_of_reader() == second, "one that reads the store stays, for others who ask it"
    monkeypatch.setenv("CHIPLOG_COLD_GB", "20")
    third = pid_of_reader()
    assert third != second
    monkeypatch.delenv("CHIPLOG_COLD_GB")
    assert pid_of_reader() == third


@pytest.mark.parametrize(
    ("theirs", "ours", "is_refused", "makes_way"),
    [
        ({"AWS_SESSION_TOKEN": "a"}, {"AWS_SESSION_TOKEN": "b"}, False, False),
        ({"AWS_SESSION_TOKEN": "a"}, {"AWS_SESSION_TOKEN": "b"}, True, True),
        ({"AWS_SESSION_TOKEN": "a"}, {"AWS_SESSION_TOKEN": "a"}, True, False),
        ({"CHIPLOG_COLD_GB": "20"}, {"CHIPLOG_COLD_GB": " 020"}, False, False),
        ({"CHIPLOG_COLD_GB": "20"}, {"CHIPLOG_COLD_GB": "15"}, False, False),
        ({"CHIPLOG_COLD_GB": "20"}, {"CHIPLOG_COLD_GB": "21"}, False, True),
    ],
    ids=["first look", "refused", "same credentials", "same limit", "lower limit", "greater limit"],
)
def test_a_reader_makes_way_only_for_what_may_answer_more(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    theirs: dict[str, str],
    ours: dict[str, str],
    is_refused: bool,
    makes_way: bool,
) -> None:
    where, stopped = store_reader.reader_places(url), []
    where.store_refused.parent.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"], env=os.environ | theirs) as reader, monkeypatch.context() as context:
        where.store_refused.write_text(str(reader.pid if is_refused else reader.pid + 1))  # that of an earlier one
        context.setattr(daemons, "daemon_pid", lambda *_: reader.pid)
        context.setattr(daemons, "start", lambda *_: reader.pid)
        context.setattr(daemons, "stop", lambda *_: stopped.append(reader.pid))
        for name, value in ours.items():
            context.setenv(name, value)
        store_reader.start_reader(url)
        reader.kill()
    assert bool(stopped) == makes_way


@pytest.mark.parametrize("url", ["file://relative", "s3://", "file://"])
def test_an_address_that_is_no_store_is_one_line(url: str) -> None:
    with pytest.raises(ValueError, match="is no address of a store; give file:///DIRECTORY"):
        connect(url)


def test_a_directory_that_does_not_exist_is_one_line_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="/typo is no directory, so no collector publishes to file:"):
        connect(f"file://{tmp_path}/typo")
    assert not list(tmp_path.iterdir())


@proves("reader-names-bad-limit", "a reader of a store with a bad variable is one line at once")
def test_a_bad_variable_is_one_line_before_any_process_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in RANGES:
        with monkeypatch.context() as context:
            context.setenv(variable, "ten")
            for opened in (check_readable, connect):
                with pytest.raises(ValueError, match=f"^{variable}='ten' is not a whole .*; change or unset it$"):
                    opened(f"file://{tmp_path}")
    assert not list(tmp_path.iterdir())


def test_a_host_without_the_extra_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_reader, "find_spec", lambda name: None if name == "deltalake" else object())
    with pytest.raises(ValueError, match=r"needs deltalake; pip install 'chiplog\[lake\]'"):
        connect("s3://bucket/folder")
