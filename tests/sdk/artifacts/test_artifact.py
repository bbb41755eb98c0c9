"""`chiplog.Artifact`: what adds to it never raises, what reads it may; a collector numbers it."""

import copy
import gc
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

import chiplog
from chiplog.artifacts.artifact import ArtifactFile, parse_name
from chiplog.values.artifact_value import ArtifactEntry
from chiplog_cli.root import main


def test_entries_have_the_names_that_they_are_given_or_the_last_part(tmp_path: Path) -> None:
    artifact = chiplog.Artifact("x")
    artifact.add_file("a/m.pt")
    artifact.add_file("a/m.pt", "other.pt")
    artifact.add_dir("d")
    artifact.add_reference("s3://bucket/deep/key")
    here = os.getcwd()
    assert artifact.entries() == [
        ArtifactEntry("m.pt", source=f"{here}/a/m.pt", given="a/m.pt"),
        ArtifactEntry("other.pt", source=f"{here}/a/m.pt", given="a/m.pt"),
        ArtifactEntry("", source=f"{here}/d"),
        ArtifactEntry("key", reference="s3://bucket/deep/key"),
    ]


def test_arguments_about_the_way_to_a_server_are_accepted_and_others_are_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    artifact = chiplog.Artifact("x")
    artifact.add_file("m.pt", policy="immutable", skip_cache=True)
    artifact.add_dir("d", policy="mutable")
    assert caplog.messages == []
    artifact.add_file("m.pt", color="red")
    assert "add_file() has no argument color=" in caplog.messages[0] and len(artifact.entries()) == 3


def test_names_of_wandbs_artifacts_are_harmless_with_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    artifact = chiplog.Artifact("x", incremental=True)
    artifact.finalize()
    assert artifact.is_draft()
    for _ in range(2):
        artifact.link("registry/model")
        assert not artifact.tags
    assert [message.split(" ")[1] for message in caplog.messages] == ["Artifact()", "artifact.link", "artifact.tags"]
    with pytest.raises(AttributeError, match="no attribute 'of_tomorrow'"):
        _ = artifact.of_tomorrow
    copy.copy(artifact)


def test_media_are_entries_with_their_parts_below() -> None:
    artifact = chiplog.Artifact("x")
    pixels = np.zeros((4, 4, 3), dtype=np.uint8)
    artifact.add(chiplog.Image(pixels, masks={"m": {"mask_data": np.zeros((4, 4), dtype=np.uint8)}}), "img.png")
    paths = [entry.path for entry in artifact.entries()]
    assert paths[-1] == "img.png" and all(path.startswith("img.png.parts/") for path in paths[:-1])
    artifact.add("text", "t")
    assert "takes media such as chiplog.Table" in artifact.take_problems()[0]


def test_a_new_file_is_an_entry_once_it_is_closed_and_goes_with_the_artifact() -> None:
    artifact = chiplog.Artifact("x")
    with artifact.new_file("a.txt") as file, artifact.new_file("b", "wb") as other:
        file.write("text")
        other.write(b"bytes")
    with pytest.raises(ZeroDivisionError), artifact.new_file("c"):
        raise ZeroDivisionError
    with artifact.new_file("d", mode="nonsense") as file:
        file.write("lost")
    assert len(artifact.take_problems()) == 1
    sources = {entry.path: Path(entry.source) for entry in artifact.entries()}
    assert {path: source.read_bytes() for path, source in sources.items()} == {"a.txt": b"text", "b": b"bytes"}
    del artifact
    gc.collect()
    assert not sources["b"].exists()


def test_a_temporary_file_may_be_gone_when_the_artifact_is_logged(tmp_path: Path) -> None:
    artifact = chiplog.Artifact("x")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "m.pt").write_bytes(b"weights")
        artifact.add_file(os.path.join(directory, "m.pt"))
        artifact.add_file(os.path.join(directory, "missing"))
    first, second = artifact.entries()
    assert (first.path, Path(first.source).read_bytes()) == ("m.pt", b"weights")
    assert second.source == os.path.join(directory, "missing")


@pytest.mark.parametrize(
    ("given", "name", "fault"),
    [("a/b:c", "a_b_c", "a slash, a colon"), ("", "unnamed", "no characters"), (" x ", "x", "space"), (5, "5", "")],
)
def test_a_bad_name_is_cleaned_in_one_line(given: object, name: str, fault: str) -> None:
    artifact = chiplog.Artifact(given)  # type: ignore[arg-type]
    assert artifact.name == name
    problems = artifact.take_problems()
    assert len(problems) == bool(fault) and all(fault in problem for problem in problems)


def test_an_alias_that_is_the_name_of_a_version_is_refused() -> None:
    artifact = chiplog.Artifact("x")
    artifact.aliases = ["a/b"]
    assert artifact.take_aliases("v3") == ["a_b"]
    assert [problem.partition(":")[0] for problem in artifact.take_problems()] == [
        "alias 'a/b' has a slash; 'a_b' is used",
        "cannot have the alias 'v3'",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("name", ("p", "name", "latest")),
        ("name:v3", ("p", "name", "v3")),
        ("team/gpt/name:best", ("team/gpt", "name", "best")),
        ("/name", ("", "name", "latest")),
    ],
)
def test_the_last_slash_separates_the_project(text: str, found: tuple[str, str, str]) -> None:
    assert parse_name(text, "p") == found


@pytest.mark.parametrize("text", ["", ":", None, 3])
def test_what_names_no_artifact_is_an_error(text: object) -> None:
    with pytest.raises(chiplog.ArtifactError, match="an artifact is named as"):
        parse_name(text, "p")


def test_nothing_is_read_of_an_artifact_that_was_not_logged(tmp_path: Path) -> None:
    artifact = chiplog.Artifact("x")
    for read in (artifact.wait, artifact.download, lambda: artifact.get("a"), lambda: artifact.get_path("a")):
        with pytest.raises(chiplog.ArtifactError, match="was not logged"):
            read()
    artifact.save()
    assert "log it first" in artifact.take_problems()[0]


def test_what_a_run_logs_another_reads_and_the_same_files_are_the_same_version(
    node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.pt").write_bytes(b"weights")
    with chiplog.init("team/gpt", run_id="maker", dir=node.root, capture_console=False) as run:
        first = run.log_artifact("m.pt", name="model", type="model", aliases=["best"])
        assert first.wait().version == "v0"
        assert run.log_model("m.pt", name="model").wait().version == "v0"
        Path("m.pt").write_bytes(b"better weights")
        assert run.log_model("m.pt", name="model").wait().version == "v1"
    with chiplog.init("other", run_id="user", dir=node.root, capture_console=False) as run:
        used = run.use_artifact("team/gpt/model:best", type="model")
        assert (used.version, used.project, used.type, used.aliases) == ("v0", "team/gpt", "model", ["best"])
        assert Path(used.download(), "m.pt").read_bytes() == b"weights"
        assert used.get("m.pt") == b"weights"
        file = used.get_path("m.pt")
        assert used.files() == [file]
        assert isinstance(file, ArtifactFile) and Path(file.download("out")).read_bytes() == b"weights"
        with pytest.raises(chiplog.ArtifactError, match="has no file 'x'"):
            used.get_path("x")
        with pytest.raises(chiplog.ArtifactError, match="is of type 'model', not 'dataset'"):
            run.use_artifact("team/gpt/model", type="dataset")
        used.aliases.append("prod")
        used.save()
    rows = node.until(
        "SELECT version, aliases, made_by, used_by FROM artifacts ORDER BY version",
        lambda rows: "prod" in rows[0]["aliases"] and rows[0]["used_by"],
    )
    assert [tuple(row.values()) for row in rows] == [
        (0, ["best", "prod"], ["maker"], ["user"]),
        (1, ["latest"], ["maker"], []),
    ]


def test_an_artifact_of_an_offline_run_is_numbered_once_it_is_delivered(node, tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"weights")
    with chiplog.init("p", run_id="off", mode="offline", dir=node.root, capture_console=False) as run:
        run.log_artifact(tmp_path / "m.pt", name="model", aliases=["best"])
    assert main(["sync", "--dir", str(node.root)]) == 0
    node.until("SELECT count(*) AS n FROM artifact_files WHERE is_stored", lambda rows: rows[0]["n"] == 1)
    with chiplog.init("p", run_id="user", dir=node.root, capture_console=False) as run:
        used = run.use_artifact("model:best")
        assert (used.version, used.get("m.pt")) == ("v0", b"weights")
