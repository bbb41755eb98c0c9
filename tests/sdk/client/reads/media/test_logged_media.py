"""Media of a run: those of a key at one step, and what describes contents."""

from collections.abc import Iterator

import duckdb
import pytest

from chiplog_client.client import Client
from chiplog_client.reads.media.logged_media import describe_contents, read_media
from tests.support.hand_written import filled
from tests.support.logged_media import LOST, digest_of, fill_logged_media, logged
from tests.support.run_builder import RunBuilder

NEWEST = 1 << 40


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    def fill(database: duckdb.DuckDBPyConnection) -> None:
        fill_logged_media(database)
        build = RunBuilder(database)
        build.label("logged", "rank1", attempt=1, rank=1, node="node0")
        for step, rank, key, content in logged():
            medium = {"size": len(content.data), "metadata": content.metadata, "step": 0}
            if (step, rank, content.kind) == (0, 1, "image"):
                build.media(key, "image", "again", seq=0, where="rank = 1 AND attempt = 1", **medium)
            elif (step, rank, content.kind) == (0, 0, "html"):
                build.media(key, "html", "later", seq=9000, where="run_id = 'logged' AND rank = 0", **medium)

    with filled(tmp_path_factory.mktemp("logged"), fill) as client:
        yield client


def test_images_of_a_step_have_their_masks_and_boxes(client: Client) -> None:
    found = read_media(client, "logged", "scene", "image", 150)
    assert (found["n_steps"], found["step"], found["before"], found["after"]) == (3, 100, 0, 200)
    assert [(row["label"], row["item"], row["type"]) for row in found["rows"]] == [
        ("rank0", None, "image/png"),
        ("rank1", None, "image/png"),
    ]
    first = found["rows"][0]
    assert first["metadata"]["caption"] == "rank 0 at 100 <b>"
    assert first["metadata"]["boxes"]["predictions"]["class_labels"] == {"1": "cat", "2": "dog"}
    [mask] = first["masks"]
    assert (mask["name"], mask["is_stored"]) == ("truth", True)
    assert mask["metadata"]["class_labels"] == {"0": "nothing", "1": "cat"}


def test_items_of_a_list_keep_their_order_and_are_bounded(client: Client) -> None:
    found = read_media(client, "logged", "digits", "image", NEWEST, ["rank0"])
    assert [row["metadata"]["caption"] for row in found["rows"]] == [f"digit {n}" for n in range(5)]
    assert not found["is_cut"]
    found = read_media(client, "logged", "digits", "image", NEWEST, limit=2)
    assert (len(found["rows"]), found["is_cut"]) == (2, True)
    assert read_media(client, "logged", "digits", "image", NEWEST, ["rank1"])["rows"] == []


def test_the_newest_attempt_and_the_last_value_of_a_step_count(client: Client) -> None:
    assert [row["sha256"] for row in read_media(client, "logged", "scene", "image", 0, ["rank1"])["rows"]] == ["again"]
    assert [row["sha256"] for row in read_media(client, "logged", "report", "html", 0)["rows"]] == ["later"]


def test_without_a_step_the_newest_media_of_all_steps_come_first(client: Client) -> None:
    found = read_media(client, "logged", "digits", "image", None, limit=7)
    assert [(row["step"], row["item"]) for row in found["rows"]] == [*((200, n) for n in range(5)), (100, 0), (100, 1)]
    assert found["is_cut"]
    again = read_media(client, "logged", "scene", "image", None, ["rank1"])
    assert [(row["step"], row["attempt"]) for row in again["rows"]] == [(200, 0), (100, 0), (0, 1)]


def test_contents_are_described_by_their_digest(client: Client) -> None:
    digest = digest_of("predictions")
    found = describe_contents(client, "logged", [digest, "0" * 64])
    assert list(found) == [digest]
    assert (found[digest]["kind"], found[digest]["format"], found[digest]["type"]) == ("table", "parquet", None)
    lost = digest_of(LOST)
    assert (found[digest]["is_stored"], describe_contents(client, "logged", [lost])[lost]["is_stored"]) == (True, False)
    assert describe_contents(client, "other", [digest]) == {}
    assert describe_contents(client, "logged", []) == {}
