"""A run with W&B's interface: steps, definitions, texts, and that nothing raises."""

import math
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tensorboardX import SummaryWriter

import chiplog
from chiplog.integrations import wandb
from chiplog_schemas.codec import unpack
from chiplog_schemas.model.events import EventKind
from tests.support.journals import Event
from tests.support.node import Node

Offline = Callable[..., list[Event]]


@pytest.fixture
def run(chiplog_dir: Path) -> Any:
    with wandb.init(mode="offline", project="p", settings=wandb.Settings(console="off")) as run:
        yield run


def logged(offline: Offline) -> list[tuple[int, list[str]]]:
    """Return step and keys of each event with numbers."""
    return [(event.fields["step"], unpack(event.fields["keys"])) for event in offline(EventKind.METRICS)]


def test_a_given_step_stays_open_and_the_next_call_without_one_closes_it(run: Any, offline: Offline) -> None:
    run.log({"a": 1})
    run.log({"b": 1}, commit=False)
    run.log({"c": 1})
    run.log({"d": 1}, step=10)
    assert run.step == 10
    run.log({"e": 1})
    run.log({"f": 1}, step=20, commit=True)
    run.log({"g": 1}, step=3)  # a lower step is kept, and does not change the count
    run.log({"h": 1})
    found = [(step, *keys) for step, keys in logged(offline)]
    assert found == [(0, "a"), (1, "b"), (1, "c"), (10, "d"), (10, "e"), (20, "f"), (3, "g"), (21, "h")]


def test_step_metrics_are_added_to_calls_without_them(run: Any, offline: Offline) -> None:
    epoch = run.define_metric("epoch", hidden=True)
    run.define_metric("val/*", step_metric=epoch, summary="min")
    run.log({"epoch": 3})
    run.log({"val/loss": 0.5})
    run.log({"other": 1})
    assert [keys for _, keys in logged(offline)] == [["epoch"], ["val/loss", "epoch"], ["other"]]
    definitions = {e.fields["name"]: e.fields["definition"] for e in offline(EventKind.DEFINE)}
    assert definitions == {"epoch": {"hidden": True}, "val/*": {"summary": "min", "step_metric": "epoch"}}
    assert run.summary["val/loss"] == {"min": 0.5}


def test_an_alert_is_not_repeated_while_it_has_to_wait(run: Any, offline: Offline) -> None:
    for wait in (timedelta(hours=1), 3_600, None):
        run.alert("high loss", wait_duration=wait)
        run.alert("another", wait_duration=0)
    run.alert("odd", wait_duration="soon")
    alerts = [event.fields["message"] for event in offline(EventKind.NOTICE) if event.fields["notice"] == "alert"]
    assert alerts == ["high loss", *["another"] * 3, "odd"]


def test_a_step_metric_is_0_until_it_is_logged(run: Any, offline: Offline) -> None:
    run.define_metric("x", step_metric="epoch")
    run.define_metric("y", step_metric="none", step_sync=False)
    run.log({"x": 1, "y": 2})
    [event] = offline(EventKind.METRICS)
    assert unpack(event.fields["keys"]) == ["x", "y", "epoch"]
    assert memoryview(event.fields["values"]).cast("d").tolist() == [1, 2, 0]


def test_what_definitions_ask_for_is_recorded_when_the_run_ends_without_finish(run: Any, offline: Offline) -> None:
    run.define_metric("x", summary="min,max")
    for value in (3, 1, 2):
        run.log({"x": value})
    run._inner.finish()  # as the end of the process does
    run.finish()
    assert [event.fields["values"] for event in offline(EventKind.SUMMARY)] == [{"x": '{"min": 1.0, "max": 3.0}'}]


def test_a_forked_child_records_nothing_of_its_parents_summary(run: Any, offline: Offline) -> None:
    run.log({"text": "a word"})
    if (pid := os.fork()) == 0:
        run._inner.finish()  # as the end of the process does
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert offline(EventKind.SUMMARY) == []


def test_definitions_of_a_name_add_up_unless_they_overwrite_it(run: Any, offline: Offline) -> None:
    for word in ("min", "max"):
        run.define_metric("both", summary=word)
        run.define_metric("last", summary=word, overwrite=True)
    run.define_metric("kept", summary="min")
    run.define_metric("kept", step_metric="epoch")
    run.define_metric("none", summary="min", step_metric="epoch")
    run.define_metric("none", hidden=True)
    run.define_metric("none", overwrite=True)
    for value in (3, 1, 2):
        run.log(dict.fromkeys(("both", "last", "kept", "none", "epoch"), value))
    run.log({"none": 2})
    assert dict(run.summary) == {
        "both": {"min": 1, "max": 3},
        "last": {"max": 3},
        "kept": {"min": 1},
        "none": 2,
        "epoch": 2,
    }
    assert logged(offline)[-1] == (3, ["none"])
    *_, last = [e.fields["definition"] for e in offline(EventKind.DEFINE) if e.fields["name"] == "none"]
    assert last["hidden"] is False


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"name": 5}, "name 5 is no text, or has a * before its end"),
        ({"name": ""}, "name '' is no text"),
        ({"name": "a*b"}, "name 'a*b' is no text"),
        ({"name": "x", "step_metric": 5}, "step_metric 5 is no text; name a metric"),
        ({"name": "x", "summary": "min,typo"}, "summary 'typo' is unknown; give some of min, max"),
        ({"name": "x", "summary": 5}, "summary 5 is unknown"),
    ],
)
def test_a_wrong_definition_is_one_line_and_raises_in_strict_mode(
    run: Any, capsys: pytest.CaptureFixture[str], given: dict[str, Any], fault: str
) -> None:
    run.define_metric(**given)
    assert f"chiplog: define_metric() is ignored: {fault}" in capsys.readouterr().err
    run._is_strict = True
    with pytest.raises(wandb.Error, match="define_metric"):
        run.define_metric(**given)


def test_several_words_and_nan_are_recorded_at_the_end(chiplog_dir: Path, offline: Offline) -> None:
    with wandb.init(mode="offline") as run:
        run.define_metric("a.b", summary="min,max")
        run.define_metric("c", summary="mean")
        for value in (1.0, 3.0):
            run.log({"a": {"b": value}, "c": value})
        run.log({"c": math.nan})
    said = {key: value for event in offline(EventKind.SUMMARY) for key, value in event.fields["values"].items()}
    assert said == {"a/b": '{"min": 1.0, "max": 3.0}', "c": "NaN"}


def test_figures_and_charts_are_media(run: Any, offline: Offline) -> None:
    from matplotlib import pyplot

    table = wandb.Table(columns=["x", "y"], data=[[1, 2]])
    figure, axes = pyplot.subplots()
    axes.plot([1, 2])
    run.log({"figure": figure, "axes": axes, "current": pyplot})
    pyplot.close(figure)
    run.log({"curve": wandb.plot.line(table, "x", "y"), "table": table, "note": "text"})
    found = [(event.fields["key"], event.fields["kind"]) for event in offline(EventKind.MEDIA)]
    figures = [("axes", "figure"), ("current", "figure"), ("figure", "figure")]
    assert sorted(found) == sorted([("curve_table", "table"), ("table", "table"), *figures])
    assert run.summary["note"] == "text"


def test_a_run_shows_what_scripts_read(run: Any, tmp_path: Path) -> None:
    assert (run.project, run.group, run.job_type, run.entity, run.notes) == ("p", "", "", "", None)
    assert run.path == f"p/{run.id}" and run.url == f"chiplog:///p/runs/{run.id}" == run.get_url()
    assert (run.name, run.sweep_id, run.starting_step, run.resumed, run.offline) == (run.id, None, 0, False, True)
    run.name, run.notes, run.tags = "n", "t", ["a"]
    assert (run.name, run.notes, run.tags) == ("n", "t", ("a",))
    run.config.update({"lr": 0.1})
    assert run.config_static.lr == 0.1 and bool(run.config_static)
    assert wandb.run is run and wandb.config.lr == 0.1
    assert run.label and run._attach_id == wandb.run._attach_id
    assert run.to_html().startswith("<table") and run.display() is False
    run._label(code="hf_trainer")
    settings = run.settings
    assert (settings.run_id, settings.run_url, settings.files_dir) == (run.id, run.url, run.dir)
    assert settings.sync_dir == run.sync_dir and settings.console == "off" and settings.unknown() == []


def test_methods_of_wandb_do_their_work_and_none_raises(run: Any, tmp_path: Path, offline: Offline) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "model.pt").write_bytes(b"weights")
    assert run.save(str(tmp_path / "deep" / "model.pt"), base_path=str(tmp_path), policy="now") == ["deep/model.pt"]
    assert run.save(str(tmp_path / "deep" / "*.pt"), base_path=tmp_path) == ["deep/model.pt"]
    assert run.save() == []
    run.alert("title", "text", level=wandb.AlertLevel.WARN, wait_duration=5)
    run.alert("title 2", level="nonsense")
    run.write_logs("one\ntwo")
    run.log(3)
    run.define_metric(None)
    run.watch(3)
    run.mark_preempting()
    levels = [e.fields["level"] for e in offline(EventKind.NOTICE) if e.fields["notice"] == "alert"]
    assert levels[0] == "warning" and len(levels) == 2
    assert [e.fields["line"] for e in offline(EventKind.CONSOLE)] == ["one", "two"]


def test_finished_runs_take_nothing_with_a_line_and_raise_in_strict_mode(chiplog_dir: Path) -> None:
    run = wandb.init(mode="offline")
    run.finish()
    run.log({"a": 1})
    run.name = "late"
    strict = wandb.init(mode="offline", settings={"strict": True})
    strict.finish()
    for call in (
        lambda: strict.log({"a": 1}),
        lambda: strict.summary.update(a=1),
        lambda: setattr(strict.config, "a", 1),
        lambda: setattr(strict, "name", "n"),
        lambda: strict.log_code(),
        lambda: strict.log_artifact("x"),
    ):
        with pytest.raises(wandb.UsageError, match="is finished"):
            call()


def test_a_disabled_run_looks_like_wandbs(chiplog_dir: Path) -> None:
    run = wandb.init(mode="disabled")
    assert (run.project, run.entity, run.url, run.project_url, run.disabled) == ("dummy", "dummy", None, None, True)
    run.finish()


def test_summary_writers_are_synced_until_the_run_is_finished(chiplog_dir: Path, offline: Offline) -> None:
    add_scalar = SummaryWriter.add_scalar
    with SummaryWriter(str(chiplog_dir / "runs")) as writer:
        run = wandb.init(mode="offline", sync_tensorboard=True, reinit="create_new")
        assert wandb.init(sync_tensorboard=True) is run  # takes them once
        writer.add_scalar("loss", 0.5, 10)
        writer.add_hparams({"lr": 0.1}, {"best": 1.0}, global_step=20)
        run.log({"own": 1})
        run.finish()
        assert SummaryWriter.add_scalar is add_scalar
        writer.add_scalar("loss", 0.5, 30)
    assert logged(offline) == [(10, ["loss", "global_step"]), (20, ["best", "global_step"]), (20, ["own"])]
    assert run.config["lr"] == 0.1


def test_a_disabled_run_or_one_that_chiplog_finished_takes_nothing(chiplog_dir: Path, offline: Offline) -> None:
    add_scalar = SummaryWriter.add_scalar
    wandb.init(mode="disabled", sync_tensorboard=True).finish()
    assert SummaryWriter.add_scalar is add_scalar
    wandb.init(mode="offline", settings=wandb.Settings(sync_tensorboard=True, strict=True))
    chiplog.finish()
    with SummaryWriter(str(chiplog_dir / "runs")) as writer:
        writer.add_scalar("loss", 0.5, 10)
    assert SummaryWriter.add_scalar is add_scalar and logged(offline) == []


@pytest.mark.parametrize("is_strict", [False, True])
def test_what_needs_wandbs_server_is_harmless_with_one_line(
    chiplog_dir: Path, is_strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    artifact = wandb.Artifact("a", "dataset")
    run = wandb.init(mode="offline", settings=wandb.Settings(console="off", strict=is_strict))
    for owner in (run, wandb):
        owner.log_code(".")
        owner.mark_preempting()
        owner.link_artifact(artifact, "registry/a")
        owner.upsert_artifact(artifact)
        owner.finish_artifact(artifact)
        owner.link_model("path", "name")
        owner.pin_config_keys(["lr"])
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "is not available" in line]) == 7, said
    run.finish()
    if is_strict:
        with pytest.raises(wandb.UsageError, match="is finished"):
            run.link_model("path", "name")
    assert wandb.link_model("path", "name") is None


def test_a_model_is_downloaded_and_its_only_file_is_returned(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIPLOG_DIR", str(node.root))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for number in range(2):
        (tmp_path / "model" / f"{number}.txt").write_text(str(number))
    with wandb.init(settings=wandb.Settings(console="off")):
        wandb.log_model("model/0.txt", name="one")
        wandb.log_model("model", name="two")
        assert Path(wandb.use_model("one:latest")).read_text() == "0"
        assert sorted(os.listdir(wandb.use_model("two"))) == ["0.txt", "1.txt"]


def test_charts_are_logged_as_their_tables(run: Any, offline: Offline) -> None:
    table = wandb.Table(columns=["a"], data=[[1]])
    split = wandb.plot.line(table, split_table=True)
    run.log({"line": wandb.plot.line(table), "split": split, "shown": wandb.visualize("spec", table)})
    run.log({"eval": {"roc": wandb.plot.roc_curve([0, 1], [[0.9, 0.1], [0.2, 0.8]])}})
    keys = [event.fields["key"] for event in offline(EventKind.MEDIA)]
    assert keys == ["line_table", "Custom Chart Tables/split_table", "shown", "eval/roc_table"]
