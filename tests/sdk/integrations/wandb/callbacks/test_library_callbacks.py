"""What the callbacks of libraries share."""

from pathlib import Path

import pytest

from chiplog.integrations import wandb
from chiplog.integrations.wandb.callbacks.library_callbacks import (
    LibraryCallback,
    importance_chart,
    log_model,
    summary_word,
)
from chiplog.safety.boundary import never_raises


class Callback(LibraryCallback):
    _library = "Some"

    @never_raises("call", lambda: "nothing")
    def call(self, error: Exception) -> str:
        raise error


def test_what_fails_is_one_line_but_for_errors_of_strict_mode(capfd: pytest.CaptureFixture[str]) -> None:
    assert Callback().call(ValueError("why\n")) == "nothing"
    assert "W&B's callback for Some failed in call; it continues: ValueError why\n" in capfd.readouterr().err
    with pytest.raises(wandb.UsageError):
        Callback().call(wandb.UsageError("finished"))


def test_without_a_run_there_is_one_line(chiplog_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert Callback()._run() is Callback()._run() is None
    assert capfd.readouterr().err.count("call wandb.init() first") == 1
    with wandb.init(mode="offline") as run:
        assert Callback()._run() is run


@pytest.mark.parametrize(
    ("metric", "word"), [("LogLoss", "min"), ("RMSE", "min"), ("auc", "max"), ("rmse-mean", None), ("other", None)]
)
def test_the_summary_has_the_best_value_of_known_metrics(metric: str, word: str | None) -> None:
    assert summary_word(metric, ("rmse",), ("auc",)) == word


def test_a_chart_and_a_model_are_logged_under_the_names_of_wandb(chiplog_dir: Path, tmp_path: Path) -> None:
    [(key, chart)] = importance_chart([["f0", 2.0]]).items()
    assert (key, chart.table.columns, chart.table.data) == (
        "Feature Importance",
        ["Feature", "Importance"],
        [["f0", 2.0]],
    )
    (tmp_path / "model.txt").write_text("weights")
    with wandb.init(mode="offline") as run:
        artifact = log_model(run, "model", str(tmp_path / "model.txt"), ["best"])
    assert (artifact.name.split(":")[0], artifact.type, artifact.aliases) == ("model", "model", ["best"])
    assert [entry.path for entry in artifact.entries()] == ["model.txt"]
