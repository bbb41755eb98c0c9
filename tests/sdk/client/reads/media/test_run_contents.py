"""Keys of media, and versions of artifacts that a run made or used."""

import hashlib
from pathlib import Path

import duckdb

from chiplog_client.client import connect
from chiplog_client.reads.media.run_contents import read_artifacts, read_logged_keys, read_media_keys
from tests.support.hand_written import filled, hand_written
from tests.support.logged_media import LOST, fill_logged_media, logged
from tests.support.media_run import fill_media_run
from tests.support.run_builder import RunBuilder
from tests.support.stored_artifacts import fill


def test_parts_of_media_have_no_separate_key(tmp_path: Path) -> None:
    def fill_media(database: duckdb.DuckDBPyConnection) -> None:
        fill_logged_media(database)
        build = RunBuilder(database)
        for step, rank, _, content in logged():
            if content.kind == "html":
                medium = "html", hashlib.sha256(content.data).hexdigest(), len(content.data), content.metadata
                where = f"run_id = 'logged' AND rank = {rank}"
                build.media("predictions/of its own", *medium, step=step, seq=9000 + step, where=where)

    with filled(tmp_path, fill_media) as client:
        found = {(row["key"], row["kind"]): row for row in read_media_keys(client, "logged")}
        assert set(found) == {
            *(
                ("scene", "image"),
                ("digits", "image"),
                (LOST, "image"),
                ("report", "html"),
                ("predictions/of its own", "html"),
                ("tone", "audio"),
            ),
            *((key, "video") for key in ("film", "mp4", "webm")),
            *(("cloud", "object3d"), ("predictions", "table")),
        }
        digits = found["digits", "image"]
        assert digits == {"key": "digits", "kind": "image", "n": 15, "first_step": 0, "last_step": 200}
        assert read_media_keys(client, "other") == []
        assert read_artifacts(client, "logged") == []


def test_histograms_and_texts_have_their_number_and_steps(tmp_path: Path) -> None:
    with filled(tmp_path, fill_media_run) as client:
        found = read_logged_keys(client, "media")
    steps = {"first_step": 0, "last_step": 400}
    assert found["texts"] == [{"key": "sample", "n": 10, "n_labels": 2, **steps}]
    assert [row["key"] for row in found["histograms"]] == ["grads", "weights"]
    assert found["media"] == []


def test_versions_that_a_run_made_or_used_are_listed(tmp_path: Path) -> None:
    fill(tmp_path)
    with hand_written(tmp_path) as database:
        build = RunBuilder(database)
        build.run("r2", primary_label="a")
        build.label("r2", "a", is_primary=True)
        [(digest,)] = database.execute("SELECT digest FROM artifacts WHERE name = 'data'").fetchall()
        build.artifact_use("data", digest, project="team/gpt", where="run_id = 'r2'")
    with connect(dir=tmp_path) as client:
        made, used = read_artifacts(client, "r1"), read_artifacts(client, "r2")
        assert read_media_keys(client, "r1") == []
    assert [(row["name"], row["version"], row["is_made"], row["is_used"]) for row in made] == [
        ("data", "v0", True, False),
        ("evil", "v0", True, False),
        ("gone", "v0", True, False),
        ("model", "v0", True, False),
        ("model", "v1", True, False),
        ("partial", "v0", True, False),
    ]
    assert (made[3]["aliases"], made[4]["aliases"]) == (["best"], ["latest"])
    [row] = used
    assert (row["name"], row["is_made"], row["is_used"]) == ("data", False, True)
