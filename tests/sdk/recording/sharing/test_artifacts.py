"""`run.log_artifact`: contents in the outbox, a manifest and its version in the journal, one line per refusal."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog.recording.sharing import artifacts
from chiplog.values.artifact_value import ManifestFile, manifest_digest
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import paths_for_root
from tests.support.journals import Event

Offline = Callable[..., list[Event]]
KINDS = (EventKind.ARTIFACT_FILE, EventKind.ARTIFACT, EventKind.ARTIFACT_ALIAS, EventKind.ARTIFACT_USE)


@pytest.fixture
def run(chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CHIPLOG_FILE_BYTES_MAX", "4096")
    with chiplog.init("team/gpt", mode="offline", run_id="r", label="rank3", capture_console=False) as run:
        yield run


def said(offline: Offline) -> list[tuple[int, dict[str, Any]]]:
    return [(event.kind, event.fields) for event in offline() if event.kind in KINDS]


def notices(offline: Offline) -> list[str]:
    return [event.fields["message"] for event in offline(EventKind.NOTICE) if event.fields["notice"] == "bad_value"]


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def outbox(chiplog_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths_for_root(chiplog_dir).offline_files.iterdir()}


def test_files_are_copied_and_then_a_manifest_a_version_and_its_aliases_are_emitted(
    run: chiplog.Run, chiplog_dir: Path, offline: Offline, tmp_path: Path
) -> None:
    (tmp_path / "d" / "sub").mkdir(parents=True)
    (tmp_path / "d" / "sub" / "a").write_bytes(b"same")
    (tmp_path / "m.pt").write_bytes(b"same")
    artifact = chiplog.Artifact("model", "model", "text", {"epoch": 3})
    artifact.add_file(tmp_path / "m.pt")
    artifact.add_dir(tmp_path / "d", "data")
    artifact.add_reference("s3://bucket/key", "raw")
    assert run.log_artifact(artifact, aliases=["best", "latest"]) is artifact
    (tmp_path / "m.pt").write_bytes(b"later")
    files = [
        ManifestFile("m.pt", 4, sha256(b"same")),
        ManifestFile("data/sub/a", 4, sha256(b"same")),
        ManifestFile("raw", 0, None, "s3://bucket/key"),
    ]
    digest = manifest_digest(files)
    version = {"project": "team/gpt", "name": "model", "digest": digest}
    of_version = {"type": "model", "n_files": 3, "bytes": 8, "metadata": '{"epoch": 3}', "description": "text"}
    assert said(offline) == [
        *(
            (
                EventKind.ARTIFACT_FILE,
                {"digest": digest, "path": f.path, "bytes": f.size, "sha256": f.sha256}
                | {"reference": f.reference, "omitted": ""},
            )
            for f in files
        ),
        (EventKind.ARTIFACT, version | of_version),
        (EventKind.ARTIFACT_ALIAS, version | {"alias": "best", "is_set": 1}),
    ]
    assert list(outbox(chiplog_dir).values()) == [b"same"]
    assert (artifact.digest, artifact.version, artifact.project) == (digest.hex(), None, "team/gpt")


def test_later_aliases_are_events_and_a_use_is_one(run: chiplog.Run, offline: Offline, tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"m")
    artifact = run.log_model(tmp_path / "m.pt", name="m", aliases=["a", "b"])
    assert run.use_artifact(artifact) is artifact
    artifact.aliases = ["b", "c"]
    artifact.save()
    found = [(kind, f.get("alias"), f.get("is_set")) for kind, f in said(offline)[2:]]
    assert found[:3] == [
        (EventKind.ARTIFACT_ALIAS, "a", 1),
        (EventKind.ARTIFACT_ALIAS, "b", 1),
        (EventKind.ARTIFACT_USE, None, None),
    ]
    assert sorted(found[3:], key=repr) == sorted(
        [(EventKind.ARTIFACT_ALIAS, "a", 0), (EventKind.ARTIFACT_ALIAS, "c", 1)], key=repr
    )
    [version] = [fields for kind, fields in said(offline) if kind == EventKind.ARTIFACT]
    assert (version["name"], version["type"], version["project"]) == ("m", "model", "team/gpt")


def test_a_file_above_a_limit_stays_in_the_manifest_without_bytes(
    run: chiplog.Run, chiplog_dir: Path, offline: Offline, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(bytes(4097))
    run.log_artifact(tmp_path / "large", name="x")
    [(_, entry), *_] = said(offline)
    assert (entry["path"], entry["bytes"], entry["sha256"]) == ("large", 4097, sha256(bytes(4097)))
    assert entry["omitted"].startswith("it has 4097 bytes, the limit is 4096, set by CHIPLOG_FILE_BYTES_MAX")
    assert not paths_for_root(chiplog_dir).offline_files.exists() or outbox(chiplog_dir) == {}
    [line] = notices(offline)
    assert "it has 4097 bytes, the limit is 4096" in line and "the artifact names it without its bytes" in line


def test_what_cannot_be_read_is_one_line_each_and_the_rest_is_logged(
    run: chiplog.Run, offline: Offline, tmp_path: Path
) -> None:
    (tmp_path / "good").write_bytes(b"good")
    os.mkfifo(tmp_path / "pipe")
    artifact = chiplog.Artifact("x/y" * 400, "t", metadata={"big": "x" * 300_000})
    for name in ("good", "missing", "pipe"):
        artifact.add_file(tmp_path / name)
    artifact.add_file(tmp_path / "good", "../outside")
    artifact.add_file(3)  # type: ignore[arg-type]
    artifact.add_reference("http://[bad")
    artifact.add_dir("/")
    artifact.add_dir(tmp_path / "none")
    artifact.add_reference(tmp_path / "nowhere")
    run.log_artifact(artifact)
    entries = [(f["path"], f["sha256"], f["reference"]) for kind, f in said(offline) if kind == EventKind.ARTIFACT_FILE]
    assert entries == [("good", sha256(b"good"), ""), ("nowhere", None, (tmp_path / "nowhere").as_uri())]
    [version] = [fields for kind, fields in said(offline) if kind == EventKind.ARTIFACT]
    assert len(version["name"]) == 128 and "/" not in version["name"] and json.loads(version["metadata"]) == {}
    lines = notices(offline)
    good = f"file {str(tmp_path / 'good')!r}: '../outside' cannot be its name in the run"  # not that of a link to it
    of_values = ("add_file(3) failed", "add_reference('http://[bad') failed", f"{tmp_path / 'none'}': it is not a dir")
    for part in ("No such file", "not a regular file", good, "the whole disk", *of_values):
        assert sum(part in line for line in lines) == 1 + (part == "No such file"), (part, lines)
    assert sum("metadata of" in line for line in lines) == 1
    assert sum("a slash, 1200 characters, over the limit of 128" in line for line in lines) == 1


def test_a_file_that_changes_while_it_is_copied_is_one_line(
    run: chiplog.Run, offline: Offline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"before")
    copy = run._files.saver._copy

    def changes(descriptor: int, size: int) -> tuple[int, bytes]:
        copied = copy(descriptor, size)
        (tmp_path / "f").write_bytes(b"after it")
        return copied

    monkeypatch.setattr(run._files.saver, "_copy", changes)
    run.log_artifact(tmp_path / "f", name="x")
    assert [f["sha256"] for _, f in said(offline)[:1]] == [sha256(b"before")]
    [line] = notices(offline)
    assert "it changed while it was copied" in line


def test_too_many_files_and_a_full_outbox_are_one_line(
    run: chiplog.Run, offline: Offline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "FILES_PER_SAVE_MAX", 2)
    for number in range(4):
        (tmp_path / f"{number}").write_bytes(b"%d" % number)
    artifact = chiplog.Artifact("x")
    for number in range(4):
        artifact.add_file(tmp_path / f"{number}")
    run.log_artifact(artifact)
    assert [f["path"] for kind, f in said(offline) if kind == EventKind.ARTIFACT_FILE] == ["0", "1"]
    assert notices(offline) == ["artifact 'x' has more than 2 files; the others are left out"]
    monkeypatch.setattr(run._files.saver, "_outbox_bytes_max", 0)
    with chiplog.Artifact("y").new_file("unused") as file:
        file.write("never logged")
    other = chiplog.Artifact("z")
    other.add(chiplog.Html("<b>x</b>"), "page.html")
    run.log_artifact(other)
    assert any("artifact 'z' lacks 'page.html'" in line for line in notices(offline))


def test_neither_a_bad_argument_nor_a_finished_run_raises(run: chiplog.Run, offline: Offline) -> None:
    class Odd:
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert run.log_artifact(Odd(), name=Odd(), type=3).version is None  # type: ignore[arg-type]
    assert any("which is not a path or an Artifact" in line for line in notices(offline))
    run.finish()
    assert run.log_artifact("x", name="late").digest is None


def test_a_disabled_run_gives_artifacts_without_a_version(chiplog_dir: Path, tmp_path: Path) -> None:
    with chiplog.init(mode="disabled") as run:
        artifact = run.log_artifact(tmp_path, name="x")
        assert (artifact.wait().version, artifact.digest) == (None, None)
        used = chiplog.use_artifact("model:best")
        assert list(Path(used.download(tmp_path / "out")).iterdir()) == []
    assert not chiplog_dir.exists()


def test_an_offline_run_reads_no_artifact(run: chiplog.Run, tmp_path: Path) -> None:
    with pytest.raises(chiplog.ArtifactError, match="an offline run cannot read artifact 'model:best'"):
        run.use_artifact("model:best")
    with pytest.raises(chiplog.ArtifactError, match="chiplog sync delivers it"):
        run.log_artifact(tmp_path, name="x").wait()
