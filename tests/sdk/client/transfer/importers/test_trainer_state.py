"""The state of a Trainer in SQL has the values that json reads; of several checkpoints the newest one counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from chiplog_client.transfer.importers.formats import guess_format
from chiplog_client.transfer.importers.imported_run import ImporterError
from tests.support.imported_runs import import_path
from tests.support.index import Index

# As transformers 5.24.0 writes it, shortened.
_STATE: dict[str, Any] = {
    "best_global_step": 4,
    "best_metric": 0.125,
    "best_model_checkpoint": "out/checkpoint-4",
    "epoch": 2.0,
    "eval_steps": 2,
    "global_step": 4,
    "is_hyper_param_search": False,
    "is_local_process_zero": True,
    "log_history": [
        {"epoch": 0.5, "grad_norm": float("nan"), "learning_rate": 5e-05, "loss": 0.6931, "step": 1},
        {"epoch": 1.0, "eval_loss": 0.5, "eval_runtime": 0.0123, "step": 2},
        {"epoch": 2.0, "eval_loss": 0.125, "note": "best", "parts": [1], "step": 4},
        {"epoch": 2.0, "step": 4, "total_flos": 10**15, "train_loss": 0.3, "train_runtime": 1.5},
    ],
    "max_steps": 4,
    "num_train_epochs": 2,
    "stateful_callbacks": {"TrainerControl": {"args": {}}},
    "total_flos": 10**15,
    "trial_params": None,
}


def test_a_run_has_the_values_that_json_reads(index: Index, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for step in (9, 10):
        (out / f"checkpoint-{step}").mkdir(parents=True)
        text = json.dumps(_STATE if step == 10 else {"log_history": []})
        (out / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    newest = out / "checkpoint-10" / "trainer_state.json"
    for path in (out, newest.parent, newest):
        assert guess_format(path) == "huggingface"
        [run] = import_path(index, "huggingface", path)
        assert (run.run.name, run.run.source) == ("out", newest)
    assert run.unmapped == {"values that are neither numbers nor texts": (1, "parts")}
    assert index.sql("SELECT name, state FROM runs") == [("out", "finished")], "one run, however it is reached"
    history = json.loads(newest.read_text())["log_history"]
    expected = [
        (key, entry["step"], str(float(value)))
        for entry in history
        for key, value in entry.items()
        if key != "step" and isinstance(value, int | float)
    ]
    found = index.sql("SELECT key, step, value FROM metrics")
    assert sorted((key, step, str(value)) for key, step, value in found) == sorted(expected)
    assert index.sql("SELECT key, step, value FROM texts") == [("note", 4, "best")]
    assert index.sql("SELECT key, value FROM config ORDER BY key") == [
        ("eval_steps", "2"),
        ("is_hyper_param_search", "false"),
        ("max_steps", "4"),
        ("num_train_epochs", "2"),
    ]
    query = "SELECT key, value FROM run_summary WHERE key LIKE 'best%' ORDER BY key"
    assert index.sql(query) == [
        ("best_global_step", "4"),
        ("best_metric", "0.125"),
        ("best_model_checkpoint", '"out/checkpoint-4"'),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "trainer_state.json:1: Expecting value: the copy is incomplete, or no JSON; copy the file again"),
        (b'{"log_history": [\n{"st', "trainer_state.json:2: Unterminated string"),
        (b"\xff", "trainer_state.json: byte 0 is not UTF-8; copy the file again"),
        (b"[1]", "trainer_state.json: it has no log_history, which the state of a Trainer has; name another file"),
        (b'{"log_history": [{"step": 1}, {"loss": 1}]}', "entry 2 of log_history has no step: {'loss': 1}; correct"),
        (b'{"log_history": [{"step": 9223372036854775808}]}', "entry 1 of log_history has no step"),
        (b"[" * 100_000, "trainer_state.json: it nests too deep; copy the file again"),
    ],
)
def test_bad_files_are_one_line(index: Index, tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_bytes(content)
    with pytest.raises(ImporterError) as error:
        import_path(index, "huggingface", path)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert index.sql("FROM runs") == []


def test_a_folder_without_a_state_is_one_line(index: Index, tmp_path: Path) -> None:
    with pytest.raises(ImporterError, match="name the output folder of a Trainer"):
        import_path(index, "huggingface", tmp_path)
