"""Files of a run that other processes saved, from the database and the collector."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog_schemas.model.events import EventKind
from tests.support.node import Node

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001e221bc33"
    "0000000049454e44ae426082"
)


@pytest.fixture
def files(chiplog_dir: Path) -> Any:
    """The files of a run of this process."""
    plugin = import_module("chiplog.integrations.mlflow.plugin")
    run = plugin.tracking_store(f"chiplog://{chiplog_dir}").create_run("0", "me", 1_000, [], "calm-fox-1")
    address = import_module("chiplog.integrations.mlflow.addresses").Address(directory=str(chiplog_dir))
    return import_module("chiplog.integrations.mlflow.artifacts.artifact_files").ArtifactFiles(address, run.info.run_id)


@pytest.mark.parametrize("name", ["val~sample+step+3+timestamp+17+uuid.png", "val#sample%step%3%timestamp%17%uuid.png"])
def test_a_picture_with_key_and_step_is_media_of_the_run_too(
    files: Any, tmp_path: Path, offline: Any, name: str
) -> None:
    (tmp_path / "picture.png").write_bytes(PNG)
    files.save(tmp_path / "picture.png", f"mlflow/artifacts/images/{name}")
    [media] = offline(EventKind.MEDIA)
    assert (media.fields["key"], media.fields["step"], media.fields["kind"]) == ("val/sample", 3, "image")
    files.save(tmp_path / "picture.png", "mlflow/artifacts/images/other.png")
    assert len(offline(EventKind.MEDIA)) == 1


def test_what_any_label_saved_is_read_by_another_process_once_it_has_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "node").start()
    try:
        monkeypatch.setenv("CHIPLOG_DIR", str(node.root))
        monkeypatch.setenv("CHIPLOG_MODE", "online")
        (tmp_path / "a.txt").write_text("of rank 3")
        named = {"run_id": "shared", "capture_console": False, "reinit": "create_new"}
        primary = chiplog.init(label="rank0", **named)
        other = chiplog.init(label="rank3", primary=False, **named)
        other._files.save_for_any_label(tmp_path / "a.txt", "mlflow/artifacts/a.txt")
        other.finish()
        primary.finish()
        modules = "chiplog.integrations.mlflow"
        address = import_module(f"{modules}.addresses").Address(directory=str(node.root))
        files = import_module(f"{modules}.artifacts.artifact_files").ArtifactFiles(address, "shared")
        assert files.copy("mlflow/artifacts/a.txt", tmp_path / "target")
        assert (tmp_path / "target").read_text() == "of rank 3"
        assert list(files.below("mlflow/artifacts")) == ["mlflow/artifacts/a.txt"]
        assert not files.copy("mlflow/artifacts/b.txt", tmp_path / "none")
        for text, label in (("of this process", None), ("of rank 5", "rank5")):
            (tmp_path / "a.txt").write_text(text)
            if label is None:
                files.save(tmp_path / "a.txt", "mlflow/artifacts/a.txt")
            else:
                later = chiplog.init(label=label, primary=False, **named)
                later._files.save_for_any_label(tmp_path / "a.txt", "mlflow/artifacts/a.txt")
                later.finish()
                node.until(f"SELECT path FROM files WHERE bytes = {len(text)} AND path LIKE 'mlflow/%'")
            assert files.copy("mlflow/artifacts/a.txt", tmp_path / "target")
            assert (tmp_path / "target").read_text() == text  # of two processes the last one counts
        assert node.sql("SELECT kind FROM events WHERE kind = 'file_refused'") == []
    finally:
        node.stop()
