"""Methods of SummaryWriter, replaced while a run takes what writers are given: each value once, undone at the end."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog.integrations.tensorboard import patch
from chiplog.integrations.tensorboard.patch import Sync
from tests.support.summary_writers import MODULES
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.parametrize("module", MODULES)


class Taken:
    """A sync that keeps what it takes."""

    def __init__(self, root: str | None = None) -> None:
        self.rows: list[tuple[dict[str, Any], int | None]] = []
        self.config: dict[str, Any] = {}
        self.errors: list[str] = []
        self.sync = Sync(self.log, self.config.update, lambda where, error: self.errors.append(str(error)), root)
        self.sync.begin()

    def log(self, data: dict[str, Any], step: int | None) -> None:
        self.rows.append((data, step))


@pytest.fixture(autouse=True)
def ended(module: str) -> Iterator[None]:
    importlib.import_module(module)
    yield
    for sync in list(patch._patches._takers):
        sync.end()


def writer_of(module: str, directory: Path) -> Any:
    return importlib.import_module(module).SummaryWriter(str(directory))


def test_values_keep_their_precision_and_event_files_are_written(module: str, tmp_path: Path) -> None:
    before = writer_of(module, tmp_path)  # made before anything takes its values
    taken = Taken()
    before.add_scalar("charts/return", 0.1, 7)
    before.add_scalar("loss", scalar_value=1 / 3, global_step=7)
    before.add_scalar("no step", 2)
    before.close()
    assert taken.rows == [
        ({"charts/return": 0.1, "global_step": 7}, 7),
        ({"loss": 1 / 3}, 7),
        ({"no step": 2}, None),
    ]
    [path] = tmp_path.glob("events.*")
    assert b"charts/return" in path.read_bytes()


def test_methods_that_open_other_writers_give_each_value_once(module: str, tmp_path: Path) -> None:
    taken = Taken()
    with writer_of(module, tmp_path) as writer:
        writer.add_scalars("loss", {"train": 0.5, "val": 0.25}, 1)
        writer.add_hparams({"lr": 0.1}, {"hparam/accuracy": 0.9}, global_step=2)
        writer.add_scalar("after", 3.0, 2)
    assert taken.rows == [
        ({"loss/train": 0.5, "loss/val": 0.25, "global_step": 1}, 1),
        ({"hparam/accuracy": 0.9, "global_step": 2}, 2),
        ({"after": 3.0}, 2),
    ]
    assert taken.config == {"lr": 0.1} and taken.errors == []


def test_several_writers_have_the_path_below_their_common_parent_as_prefix(module: str, tmp_path: Path) -> None:
    taken = Taken()
    writers = [writer_of(module, tmp_path / name) for name in ("train", "eval/a")]
    for writer in writers:
        writer.add_scalar("loss", 1.0, 1)
    third = writer_of(module, tmp_path / "test")
    third.add_scalar("loss", 1.0, 1)
    assert [list(data) for data, _ in taken.rows] == [
        ["train/loss", "train/global_step"],
        ["eval/a/loss", "eval/a/global_step"],
        ["test/loss", "test/global_step"],
    ]
    rooted = Taken(root=str(tmp_path))
    third.add_scalar("loss", 1.0, 1)
    for writer in (*writers, third):
        writer.close()
    assert [list(data) for data, _ in rooted.rows] == [["test/loss", "test/global_step"]]
    assert len(taken.rows) == 3  # the newest alone takes values


def test_at_the_end_the_class_is_as_it_was(module: str, tmp_path: Path) -> None:
    cls = importlib.import_module(module).SummaryWriter
    before = dict(vars(cls))
    first, second = Taken(), Taken()
    assert vars(cls)["add_scalar"] is not before["add_scalar"]
    first.sync.end()
    assert vars(cls)["add_scalar"] is not before["add_scalar"]
    second.sync.end()
    second.sync.end()
    assert dict(vars(cls)) == before
    assert patch._patches not in sys.meta_path
    with writer_of(module, tmp_path) as writer:
        writer.add_scalar("loss", 1.0, 1)
    assert first.rows == second.rows == []


def test_a_method_that_another_library_replaced_stays_and_values_are_taken_once(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = importlib.import_module(module).SummaryWriter
    own = cls.add_scalar
    Taken().sync.end()
    first = Taken()
    ours = cls.add_scalar
    monkeypatch.setattr(cls, "add_scalar", lambda *given, **named: ours(*given, **named))
    foreign = cls.add_scalar
    first.sync.end()
    assert cls.add_scalar is foreign
    second = Taken()
    with writer_of(module, tmp_path) as writer:
        writer.add_scalar("loss", 1.0, 1)
    second.sync.end()
    assert [step for _, step in second.rows] == [1] and first.rows == []
    monkeypatch.setattr(cls, "add_scalar", own)
    patch._patches._replaced.clear()


def test_what_the_method_raises_is_raised_and_what_the_sync_raises_is_not(module: str, tmp_path: Path) -> None:
    taken = Taken()
    with writer_of(module, tmp_path) as writer:
        with pytest.raises(TypeError):
            writer.add_scalar("loss")
        writer.add_scalar("loss", 1.0, 1)
        taken.log = None  # type: ignore[assignment, method-assign]
        taken.sync._log = None  # type: ignore[assignment]
        writer.add_scalar("loss", 1.0, 2)
    assert [step for _, step in taken.rows] == [1]
    assert taken.errors == ["'NoneType' object is not callable"]


LATE = """
import sys
from chiplog.integrations.tensorboard import patch
rows = []
sync = patch.Sync(lambda data, step: rows.append((data, step)), dict, print)
sync.begin()
assert patch._patches in sys.meta_path
from {module} import SummaryWriter
with SummaryWriter(sys.argv[1]) as writer:
    writer.add_scalar("loss", 0.5, 3)
assert rows == [({{"loss": 0.5, "global_step": 3}}, 3)], rows
sync.end()
assert patch._patches not in sys.meta_path and SummaryWriter.add_scalar.__closure__ is None
"""


def test_a_class_that_is_imported_later_is_replaced_then(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LATE.format(module=module), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
