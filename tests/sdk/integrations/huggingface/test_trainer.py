"""What the Trainer tells a chiplog callback, on a stand-in for it; tests/integrations has the real one."""

import gc
import sys
import weakref
from typing import Any

import pytest

from chiplog.integrations.adapter.framework_run import FrameworkRun

BATCH = {"input_ids": [0]}


def test_report_to_chiplog_means_the_callback(transformers: Any) -> None:
    assert transformers.table == {"chiplog": transformers.ChiplogCallback}


def test_a_trainer_without_the_callback_is_as_before(transformers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrameworkRun, "open", lambda self: pytest.fail("a run is opened"))
    trainer = transformers.Trainer()
    assert trainer.train([BATCH]) == "trained"
    trainer.predict()


def test_a_training_that_fails_leaves_the_trainer_as_it_was(transformers: Any) -> None:
    trainer = transformers.Trainer(transformers.ChiplogCallback())
    before = set(vars(trainer))
    with pytest.raises(KeyError, match="of the training"):
        trainer.train([BATCH], fails=KeyError("of the training"))
    assert set(vars(trainer)) == before


def test_an_exception_frees_what_its_training_held(transformers: Any) -> None:
    class OutOfMemoryError(MemoryError):
        """Takes weak references, as those of torch."""

    def fail(*given: Any) -> None:
        raise OutOfMemoryError

    trainer = transformers.Trainer(transformers.ChiplogCallback())
    trainer.training_step = fail
    gc.disable()  # else it may hide a cycle of the exception with a frame that it came through
    try:
        try:
            trainer.train([BATCH])
        except OutOfMemoryError as error:
            held = weakref.ref(error)
        assert held() is None
    finally:
        gc.enable()


def test_functions_that_the_script_gave_to_the_trainer_are_used_and_stay(transformers: Any) -> None:
    trainer = transformers.Trainer(transformers.ChiplogCallback())
    saved, losses = [], []
    trainer._save_checkpoint = lambda model, trial: saved.append(trial)
    trainer.compute_loss = lambda *given: losses.append(1.0) or losses[-1]
    before = dict(vars(trainer))
    trainer.train([BATCH])
    assert (saved, losses) == ([None], [1.0, 1.0])
    assert vars(trainer) == before


def test_of_several_callbacks_one_records(transformers: Any, caplog: pytest.LogCaptureFixture) -> None:
    given = transformers.ChiplogCallback(project="p")
    trainer = transformers.Trainer(transformers.ChiplogCallback, given, transformers.ChiplogCallback)
    assert trainer.callback_handler.callbacks == [given]
    assert caplog.messages == ["chiplog: the Trainer has several ChiplogCallbacks; the last one records"]


def test_a_version_without_the_table_is_one_line(transformers: Any, caplog: pytest.LogCaptureFixture) -> None:
    table: Any = sys.modules["transformers.integrations"]
    del table.integration_utils.INTEGRATION_TO_CALLBACK
    sys.modules["chiplog.integrations.huggingface.trainer"].prepare(transformers.ChiplogCallback)
    assert caplog.messages == [
        'chiplog: this version of transformers takes no report_to="chiplog"; pass callbacks=[ChiplogCallback()]'
    ]
