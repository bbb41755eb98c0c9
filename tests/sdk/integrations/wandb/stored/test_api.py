"""`wandb.Api()`: runs that were recorded through the drop-in are read from SQL, and nothing is changed."""

import threading
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog.artifacts import reads
from chiplog.integrations import wandb
from chiplog.integrations.adapter import reads as adapter_reads
from chiplog.integrations.wandb import wandb_run
from tests.support.node import Node
from tests.support.waiting import WAIT_S

PROJECT = "team/gpt"  # projects may hold slashes


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Record three runs; return the node."""
    root = tmp_path_factory.mktemp("api")
    node = Node(root).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHIPLOG_DIR", str(root))
        (root / "notes.txt").write_text("kept")
        for number in range(3):
            named = {"id": f"run-{number}", "name": f"name {number}", "group": "g", "job_type": "train"}
            settings = wandb.Settings(console="off")
            config = {"lr": 10.0**-number, "opt": {"name": "adam"}}
            with wandb.init(project=PROJECT, config=config, tags=["a"], settings=settings, **named) as run:
                for step in range(10 * number):
                    run.log({"loss": float(step), **({"even": step} if step % 2 == 0 else {})})
                run.log({"note": "text", "shape": wandb.Histogram([1, 2, 3], num_bins=1)})
                run.summary["best"] = {"loss": 0.5}
                run.save(str(root / "notes.txt"), base_path=str(root))
                artifact = wandb.Artifact("model", "model", metadata={"n": number})
                artifact.add_file(str(root / "notes.txt"))
                run.log_artifact(artifact)
        wandb.init(project="", id="alone", settings=settings).finish()
        arrived = "SELECT 1 FROM events WHERE kind = 'file_stored' HAVING count(*) >= 3"
        node.until(arrived)
        node.until("SELECT 1 FROM runs WHERE state = 'finished' HAVING count(*) = 4")
        yield node
        node.stop()


@pytest.fixture(autouse=True)
def directory(stored: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPLOG_DIR", str(stored.root))


@pytest.mark.parametrize("path", [PROJECT, f"entity/{PROJECT}", f"/{PROJECT}/"])
def test_runs_of_a_project_have_config_and_summary(path: str) -> None:
    runs = wandb.Api().runs(path)
    assert [run.id for run in runs] == ["run-0", "run-1", "run-2"] and len(runs) == 3
    last = runs[-1]
    assert (last.name, last.group, last.job_type, last.state) == ("name 2", "g", "train", "finished")
    assert last.tags == ["a"] and last.created_at.endswith("Z")
    assert {run.id: run.config for run in runs}["run-1"] == {"lr": 0.1, "opt": {"name": "adam"}}
    summary = last.summary._json_dict
    assert summary["_step"] == last.lastHistoryStep == 19 and summary["_runtime"] >= 0
    assert {key: value for key, value in summary.items() if not key.startswith("_")} == {
        "loss": 19.0,
        "even": 18.0,
        "best/loss": 0.5,
        "note": "text",
    }
    assert last.path[-1] == "run-2" and last.path[0] == ("entity" if "entity" in path else "")


def test_filters_and_orders_choose_runs() -> None:
    api = wandb.Api(overrides={"project": PROJECT})
    assert [run.id for run in api.runs(filters={"config.lr": {"$lt": 0.5}}, order="-config.lr")] == ["run-1", "run-2"]
    assert [run.id for run in api.runs(filters={"summary_metrics.loss": {"$gte": 19}})] == ["run-2"]
    assert api.runs(filters={"summary_metrics.best.loss": 0.5}, order="-created_at")[0].id == "run-2"
    assert list(api.runs(filters={"tags": "z"})) == []
    with pytest.raises(ValueError, match="runs have no filter 'username'"):
        api.runs(filters={"username": "x"})


@pytest.mark.parametrize("path", ["run-2", f"{PROJECT}/run-2", f"entity/{PROJECT}/run-2", f"{PROJECT}/runs/run-2"])
def test_a_run_is_found_by_its_path(path: str) -> None:
    run = wandb.Api().run(path)
    assert (run.id, run.config["lr"], run.project) == ("run-2", 0.01, PROJECT)
    assert wandb.Api().run("/".join(run.path)).url == run.url == f"chiplog:///{PROJECT.replace('/', '%2F')}/runs/run-2"


def test_what_is_not_stored_raises_both_errors_of_wandb() -> None:
    api = wandb.apis.public.Api()
    for kind in (ValueError, wandb.CommError):
        for ask in (lambda: api.run("other"), lambda: api.run("other/run-2"), lambda: api.runs("other")):
            with pytest.raises(kind, match="Could not find"):
                ask()
    assert [run.id for run in api.runs("uncategorized")] == ["alone"] and api.run("alone").summary == {}
    assert isinstance(api.run("run-0"), wandb.apis.public.Run)


def test_files_and_artifacts_of_a_run(tmp_path: Path) -> None:
    run = wandb.Api().run("run-1")
    [file] = run.files()
    assert (file.name, file.size) == ("notes.txt", 4)
    with run.file("notes.txt").download(tmp_path) as opened:
        assert opened.read() == "kept"
    with pytest.raises(ValueError, match="replace=True"):
        file.download(tmp_path)
    file.download(tmp_path, replace=True).close()
    file.download(tmp_path, exist_ok=True).close()
    with pytest.raises(ValueError, match="no file"):
        run.file("other")
    [artifact] = run.logged_artifacts()
    assert (artifact.name, artifact.version) == ("model", "v0") and run.used_artifacts() == []
    for name in ("model:latest", f"{PROJECT}/model:v0", f"entity/{PROJECT}/model:v0"):
        assert wandb.Api(overrides={"project": PROJECT}).artifact(name, type="model").version == "v0"


def test_the_api_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run = wandb.Api().run("run-1")
    run.config["lr"] = 3
    run.update()
    run.delete()
    assert "only reads" in capsys.readouterr().err
    assert wandb.Api().run("run-1").config["lr"] == 0.1
    run.load(force=True)
    assert run.config["lr"] == run["config"]["lr"] == 0.1


def test_without_data_reads_raise_comm_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPLOG_DIR", str(tmp_path / "nothing"))
    with pytest.raises(wandb.CommError, match="cannot be read"):
        wandb.Api().run("x")


def test_history_of_a_run_that_was_read_through_the_api() -> None:
    run = wandb.Api().run("run-2")
    frame = run.history(keys=["loss", "even"])
    assert list(frame.columns) == ["_step", "loss", "even"]
    assert frame["loss"].tolist() == frame["even"].tolist() == [float(step) for step in range(0, 20, 2)]
    rows = list(run.scan_history())
    assert [row["_step"] for row in rows] == list(range(21))
    assert rows[-1]["note"] == "text" and rows[-1]["shape"]["values"] == [3.0]
    assert run.history(stream="system", pandas=False) == []


def test_a_run_uses_an_artifact_below_an_entity_and_an_unknown_one_is_an_error_of_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "_SETTLE_S", 0.1)
    monkeypatch.chdir(tmp_path)
    with wandb.init(project="uses", entity="mine", settings=wandb.Settings(console="off")) as run:
        for before in ("", "mine/", "another/"):
            assert run.use_artifact(f"{before}{PROJECT}/model:v0", type="model").version == "v0"
        assert Path(run.use_model(f"{PROJECT}/model:v0")).read_text() == "kept"
        for name in (f"{PROJECT}/model:typo", "another/project/none:latest", "none"):
            with pytest.raises(wandb.CommError, match=r"has no version 'typo'|is unknown"):
                run.use_artifact(name)
        with pytest.raises(chiplog.ArtifactError):
            wandb.Api().artifact("none")


def test_a_resumed_run_has_what_it_had_or_says_that_it_is_unknown(
    stored: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    named = {"id": "again", "project": "resumed", "resume": "allow", "settings": wandb.Settings(console="off")}
    with wandb.init(name="first", config={"lr": 1}, **named) as run:
        run.log({"loss": 2.0, "t": {"y": 4}})
        run.summary.update({"best": 9, "word": "w"})
    stored.until("SELECT 1 FROM runs WHERE run_id = 'again' AND state = 'finished'")
    monkeypatch.setattr(wandb_run, "FORMER_WAIT_S", WAIT_S)
    with wandb.init(**named) as run:
        assert (run.name, dict(run.config), run.step) == ("first", {"lr": 1}, 1)
        assert (run.summary["best"], run.summary["word"], run.summary["t"]["y"]) == (9, "w", 4)
    is_over = threading.Event()
    with monkeypatch.context() as patch, wandb.init(**named) as run:
        patch.setattr(wandb_run, "FORMER_WAIT_S", 0.0)
        patch.setattr(adapter_reads, "_read", lambda *given: is_over.wait(WAIT_S))
        assert dict(run.config) == {} and run.notes is None
        is_over.set()
    assert caplog.text.count("what run again had before it was resumed is unknown: SQL did not answer") == 1


def test_what_only_wandbs_server_has_is_harmless_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    wandb.Api().sweep("entity/project/id")
    assert "wandb.Api.sweep is not available" in capsys.readouterr().err
    with pytest.raises(AttributeError):
        _ = wandb.Api()._private
