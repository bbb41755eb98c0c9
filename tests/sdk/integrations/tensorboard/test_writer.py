"""chiplog's SummaryWriter: the interface of the others, values as they were given, one line for bad calls."""

import inspect
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorboardX

import chiplog
from chiplog.integrations.tensorboard import SummaryWriter, writer
from chiplog.recording.run import current_run
from tests.support.sdk_events import numbers
from tests.support.waiting import WAIT_S

Offline = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def in_directory(no_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(writer, "_recording", None)
    writer._writers.clear()
    yield
    chiplog.finish()


def test_it_has_each_public_method_with_a_docstring() -> None:
    theirs = {name for name in vars(tensorboardX.SummaryWriter) if not name.startswith("_")}
    assert theirs <= set(dir(SummaryWriter))
    for name in theirs:
        assert inspect.getdoc(getattr(SummaryWriter, name)), name
    shown = list(inspect.signature(SummaryWriter.add_scalar).parameters)
    assert shown == ["self", "tag", "scalar_value", "global_step", "walltime"]


def test_numbers_keep_their_precision_in_the_run_that_its_arguments_open(offline: Offline) -> None:
    with SummaryWriter("logs/a", purge_step=3, filename_suffix=".x", project="p", name="tiny") as own:
        own.add_scalar("loss", 0.1, 7, 99.0)
        own.add_scalars("loss", {"train": 1 / 3, "val": 2}, global_step=8)
        own.add_scalar("no step", 2.0)
        own.add_hparams({"lr": 0.5}, {"accuracy": 0.75}, None, "trial", 9)
        own.flush()
    run = current_run.current()
    assert run is not None and (run.project, run.name, run.config["lr"]) == ("p", "tiny", 0.5)
    assert own.get_logdir() == own.logdir == own.log_dir == "logs/a" and Path("logs/a").is_dir()
    run.finish()
    assert numbers(offline()) == [
        ("loss", 7, 0.1),
        ("loss/train", 8, 1 / 3),
        ("loss/val", 8, 2.0),
        ("no step", 9, 2.0),
        ("accuracy", 9, 0.75),
    ]


def test_several_writers_have_the_path_below_their_common_parent_as_prefix(offline: Offline) -> None:
    run = chiplog.init()
    first, second = SummaryWriter("logs/train"), SummaryWriter(logdir="logs/eval")
    first.add_scalar("loss", 1.0, 1)
    second.add_scalar("loss", 2.0, 1)
    second.close()
    run.finish()
    chiplog.init()
    first.add_scalar("loss", 3.0, 1)
    chiplog.finish()
    found = sorted(numbers(offline()))  # the journals of two runs have no order
    assert found == [("eval/loss", 1, 2.0), ("loss", 1, 3.0), ("train/loss", 1, 1.0)]


def test_a_bad_call_is_one_line_and_loses_nothing_else(offline: Offline, caplog: pytest.LogCaptureFixture) -> None:
    own = SummaryWriter(comment="_tiny", comet_config={})
    assert own.log_dir.startswith("runs") and own.log_dir.endswith("_tiny")
    with caplog.at_level(logging.WARNING, "chiplog"):
        for _ in range(2):
            own.add_scalar("loss")
            own.add_scalar(None, 1.0, 1)
            own.add_image("image", "x", 1)
            own.add_graph(object())
            with own.use_metadata(global_step=1):
                own.add_scalar("loss", 0.5, 2)
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(": ")[2][:20] for text in told] == [
        "add_scalar('loss', …",
        "key None is not a st",
        "add_image('image', …",
        "add_graph() has no e",
        "use_metadata() has n",
    ]
    chiplog.finish()
    assert numbers(offline()) == [("loss", 2, 0.5)] * 2


def test_a_directory_that_cannot_be_created_loses_no_values(offline: Offline, caplog: pytest.LogCaptureFixture) -> None:
    Path("file").touch()
    with caplog.at_level(logging.WARNING, "chiplog"):
        SummaryWriter("file/logs").add_scalar("loss", 1.0, 1)
    assert "'file/logs' cannot be created" in caplog.text
    chiplog.finish()
    assert numbers(offline()) == [("loss", 1, 1.0)]


def test_a_pickle_logs_and_one_that_writes_nothing_does_not(offline: Offline) -> None:
    pickle.loads(pickle.dumps(SummaryWriter("logs"))).add_scalar("loss", 1.0, 1)
    assert not SummaryWriter(comment=None).log_dir.endswith("None")  # tensorboardX declares it
    silent = SummaryWriter("silent", write_to_disk=False)
    silent.add_scalar("loss", 2.0, 2)
    silent.add_graph(object())
    chiplog.finish()
    assert numbers(offline()) == [("loss", 1, 1.0)] and not Path("silent").exists()


def test_it_needs_no_other_library() -> None:
    code = (
        "import sys\n"
        "from chiplog.integrations.tensorboard import SummaryWriter\n"
        "SummaryWriter('logs').add_scalar('loss', 1.0, 1)\n"
        "assert not {'torch', 'tensorboard', 'tensorboardX', 'numpy', 'PIL'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
