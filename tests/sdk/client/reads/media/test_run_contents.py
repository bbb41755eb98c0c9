"""Keys of media, and versions of artifacts that a run made or used."""

from pathlib import Path

from chiplog_client.client import connect
from chiplog_client.reads.media.run_contents import read_artifacts, read_media_keys
from tests.support.hand_written import filled, hand_written
from tests.support.logged_media import LOST, fill_logged_media
from tests.support.stored_artifacts import fill


def test_parts_of_media_have_no_separate_key(tmp_path: Path) -> None:
    def fill_media(database: object) -> None:
        fill_logged_media(database)  # type: ignore[arg-type]
        database.execute(  # type: ignore[attr-defined]
            "INSERT INTO base.names VALUES (900, 'predictions/of its own'); "
            "INSERT INTO base.media SELECT * REPLACE (900 AS key) FROM base.media WHERE kind = 'html'"
        )

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


def test_versions_that_a_run_made_or_used_are_listed(tmp_path: Path) -> None:
    fill(tmp_path)
    with hand_written(tmp_path) as database:
        database.execute(
            "INSERT INTO base.runs (run, run_id) VALUES (2, 'r2'); "
            "INSERT INTO base.producers SELECT * REPLACE (2 AS producer, 2 AS run) FROM base.producers; "
            "INSERT INTO base.artifact_uses (producer, seq, ts, project, name, digest) "
            "SELECT 2, 1, ts, project, name, digest FROM base.artifacts WHERE name = 'data'"
        )
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
