"""`restore`: a file that was saved to a run comes back."""

import os
from pathlib import Path

import pytest

from chiplog.integrations import wandb
from tests.support.node import Node

QUIET = wandb.Settings(console="off")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.txt").write_text("w")
    return tmp_path


def test_a_saved_file_comes_back_in_another_run_and_without_one(
    node: Node, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIPLOG_DIR", str(node.root))
    with wandb.init(project="team/p", id="first", settings=QUIET) as run:
        run.save("model/weights.txt")
        with run.restore("model/weights.txt") as file:  # it waits for a file that was just saved
            assert (file.read(), file.name) == ("w", os.path.join(run.dir, "model/weights.txt"))
        assert run.restore("other.txt") is None
    with wandb.restore("model/weights.txt", "entity/team/p/first", root="there") as file:
        assert (file.read(), file.name) == ("w", "there/model/weights.txt")
    with wandb.init(project="team/p", id="second", settings=QUIET):
        with wandb.restore("model/weights.txt", "team/p/first") as file:
            assert file.read() == "w"
        Path("there/model/weights.txt").write_text("changed")
        for options, text in (({}, "changed"), ({"replace": True}, "w")):
            with wandb.restore("model/weights.txt", "first", root="there", **options) as file:
                assert file.read() == text


def test_what_cannot_be_restored_is_none_with_one_line_or_an_error(
    chiplog_dir: Path, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wandb.restore("weights.txt") is None
    assert wandb.restore("../weights.txt", "r") is None
    assert wandb.restore("weights.txt", "r") is None  # nothing is recorded
    first, second = capsys.readouterr().err.splitlines()
    assert "call wandb.init() first, or give run_path=" in first and "'../weights.txt'" in second
    with wandb.init(mode="disabled") as run:
        assert run.restore("weights.txt") is None
    monkeypatch.setenv("CHIPLOG_COLLECTOR", "tcp://127.0.0.1:1")
    with pytest.raises(wandb.CommError, match=r"file 'weights\.txt' of run r cannot be read"):
        wandb.restore("weights.txt", "r")
