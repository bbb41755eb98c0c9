"""`wandb.init()`: W&B's arguments, settings and variables, and the choice of one run or many."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import chiplog
from chiplog.integrations import wandb
from chiplog.integrations.wandb import start
from tests.support.waiting import WAIT_S

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
TORCHRUN |= {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1"}


@pytest.fixture(autouse=True)
def fresh(chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CHIPLOG_MODE", "offline")
    yield
    wandb.teardown()


def test_without_a_launcher_each_init_is_a_run_and_a_second_one_returns_the_open_run() -> None:
    first = wandb.init(config={"lr": 0.1})
    assert wandb.init(config={"depth": 2}) is first and dict(first.config) == {"lr": 0.1, "depth": 2}
    first.finish()
    assert wandb.init().id != first.id


def test_in_a_notebook_a_second_init_finishes_the_open_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    first = wandb.init()
    assert wandb.init().id != first.id and first._is_finished


def test_a_second_init_says_what_the_open_run_does_not_take(capsys: pytest.CaptureFixture[str]) -> None:
    first = wandb.init(project="first", name="n", mode="offline")
    assert wandb.init(project="first", name="n", mode="offline", tags=["a"]) is first
    assert capsys.readouterr().err == ""
    assert wandb.init(project="second", group="g") is first
    what = f"wandb.init() returns the open run {first.id}, so project='second', group='g' is not used"
    assert capsys.readouterr().err == f"chiplog: {what}; finish it first, or pass reinit='create_new'\n"


def test_reinit_decides_about_an_open_run() -> None:
    first = wandb.init()
    beside = wandb.init(reinit="create_new")
    assert wandb.run is first and not first._is_finished
    last = wandb.init(reinit=True)
    assert first._is_finished and beside._is_finished and wandb.run is last


@pytest.mark.parametrize("word", ["auto", True])
def test_a_run_that_did_not_finish_goes_on_and_one_that_did_does_not(word: Any) -> None:
    with pytest.raises(ZeroDivisionError), wandb.init(resume=word) as first:
        first.log({"a": 1.0}, step=15)
        _ = 1 / 0
    with wandb.init(resume=word) as second:
        assert second.id == first.id
        second.log({"a": 1.0})
        assert (first.starting_step, second.starting_step, second.step) == (0, 16, 17)
    assert wandb.init(resume=word).id != first.id


def test_an_id_wins_over_the_run_that_did_not_finish_with_the_warning_of_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(wandb, "termwarn", warnings.append)
    with pytest.raises(ZeroDivisionError), wandb.init(id="first", resume="auto"):
        _ = 1 / 0
    with pytest.raises(ZeroDivisionError), wandb.init(id="first", resume="auto"):
        _ = 1 / 0
    assert not warnings
    with wandb.init(id="second", resume="auto") as run:
        assert run.id == "second"
    said = "Ignoring ID first loaded due to resume='auto' because the run ID is set to second."
    assert warnings == [said]


HIDES = """
import sys
from chiplog.integrations import wandb
sys.excepthook = lambda kind, error, trace: print("hidden:", error)
wandb.init(settings={"console": "off"})
raise ValueError("of the script")
"""


@pytest.mark.parametrize(("hides", "printed"), [(True, "hidden: of the script\n"), (False, "")])
def test_an_exception_is_printed_once_also_if_the_hook_of_a_library_hides_it(hides: bool, printed: str) -> None:
    script = HIDES if hides else HIDES.replace("sys.excepthook", "unused")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (1, printed)
    assert done.stderr.startswith("Traceback") and done.stderr.count("ValueError: of the script\n") == 1


def test_an_open_run_of_chiplog_is_returned() -> None:
    inner = chiplog.init(capture_console=False)
    assert wandb.init()._inner is inner


@pytest.mark.parametrize(
    ("given", "environ", "expected"),
    [
        ({}, {}, ("rank1", False)),
        ({"group": "g"}, {}, ("rank1", True)),
        ({"group": "g", "id": "x"}, {}, ("rank1", False)),
        ({"settings": {"mode": "shared", "x_label": "node-1"}}, {}, ("node-1", False)),
        ({}, {"WANDB_X_LABEL": "node-1", "WANDB_MODE": "shared"}, ("node-1", False)),
        ({}, {"CHIPLOG_RUN_PER_PROCESS": "1"}, ("rank1", True)),
    ],
)
def test_under_a_launcher_ranks_are_labels_of_one_run_or_runs_in_a_group(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], environ: dict[str, str], expected: tuple[str, bool]
) -> None:
    for name, value in (TORCHRUN | environ).items():
        monkeypatch.setenv(name, value)
    run = wandb.init(**given)
    other = chiplog.init(reinit="create_new", run_id=None, capture_console=False)  # what the launcher's run is called
    is_own_run = run.id.endswith("-1") or "rank1" in run.id
    assert (run.label, is_own_run and run.id != other.id) == expected
    assert run.group == given.get("group", "")


@pytest.mark.parametrize("given", [{"group": "g"}, {}])
def test_the_line_about_a_run_for_each_process_names_wandbs_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: dict[str, Any]
) -> None:
    for name, value in (TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    if not given:
        monkeypatch.setenv("WANDB_RUN_GROUP", "g")
    wandb.init(**given)
    words = "each process of this launch has its own run; without group= or WANDB_RUN_GROUP they share one"
    assert [record.getMessage() for record in caplog.records] == [f"chiplog: {words}"]


def test_an_argument_wins_over_settings_those_over_chiplogs_variables_and_these_over_wandbs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "of wandb")
    assert wandb.init(reinit="finish_previous").project == "of wandb"
    monkeypatch.setenv("CHIPLOG_PROJECT", "of chiplog")
    assert wandb.init(reinit="finish_previous").project == "of chiplog"
    settings = wandb.Settings(project="of settings")
    assert wandb.init(reinit="finish_previous", settings=settings).project == "of settings"
    assert wandb.init(reinit="finish_previous", settings=settings, project="argument").project == "argument"
    monkeypatch.setenv("WANDB_X_PRIMARY", "true")
    assert wandb.init(reinit="finish_previous").is_primary
    monkeypatch.setenv("CHIPLOG_PRIMARY", "0")
    assert not wandb.init(reinit="finish_previous").is_primary
    assert wandb.init(reinit="finish_previous", settings={"x_primary": True}).is_primary


@pytest.mark.parametrize(
    ("given", "environ", "expected"),
    [
        ({}, {}, None),
        ({"x_stats_sampling_interval": 30}, {}, 30.0),
        ({"x_stats_sampling_interval": 30, "x_disable_stats": True}, {}, 0.0),
        ({"_disable_stats": True}, {}, 0.0),
        ({"x_disable_stats": "false"}, {}, None),
        ({}, {"WANDB__DISABLE_STATS": "true"}, 0.0),
        ({"x_disable_stats": False}, {"WANDB_X_DISABLE_STATS": "true", "WANDB_X_STATS_SAMPLING_INTERVAL": "5"}, 5.0),
    ],
)
def test_how_often_a_node_is_sampled_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], environ: dict[str, str], expected: float | None
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert wandb.init(settings=wandb.Settings(**given))._inner._settings.sample_interval_s == expected


def test_config_is_a_namespace_or_a_dict_of_chosen_keys() -> None:
    values = {"a": 1, "b": 2, "c": 3}
    assert dict(wandb.init(config=Namespace(**values)).config) == values
    assert dict(wandb.init(config=values, config_exclude_keys=["b"], reinit=True).config) == {"a": 1, "c": 3}
    assert dict(wandb.init(config=values, config_include_keys=["b"], reinit=True).config) == {"b": 2}
    assert dict(wandb.init(config="config.yaml", reinit=True).config) == {}
    assert dict(wandb.init(config=3, reinit=True).config) == {}


def test_what_is_not_available_is_one_line_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setitem(sys.modules, "gym", None)
    wandb.init(monitor_gym=True, fork_from="x", of_tomorrow=1, dir=tmp_path / "there", save_code=True)
    said = capsys.readouterr().err
    for part in ("monitor_gym records nothing", "init(fork_from=)", "no argument of_tomorrow="):
        assert part in said
    assert Path(wandb.run.dir).is_dir() and wandb.run.dir.startswith(str(tmp_path / "there"))


def test_strict_mode_raises_what_wandb_raises() -> None:
    with pytest.raises(wandb.UsageError, match="Invalid project name"):
        wandb.init(project="a:b", settings={"strict": True})
    with pytest.raises(wandb.UsageError, match="at most only one"):
        wandb.init(config_include_keys=["a"], config_exclude_keys=["b"], settings={"strict": True})
    run = wandb.init(settings={"strict": True})
    with pytest.raises(wandb.Error, match="is in use"):
        wandb.init(id=run.id, reinit="create_new", settings={"strict": True})
    with pytest.raises(wandb.Error, match="returns the open run"):
        wandb.init(id="other", settings={"strict": True})


def test_bad_arguments_never_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**given: Any) -> Any:
        assert given["mode"] == "disabled"
        return chiplog.init(mode="disabled")

    monkeypatch.setattr(start, "chiplog_init", fail)
    assert wandb.init().disabled


def test_functions_without_a_run_do_nothing_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    wandb.log({"a": 1})
    wandb.save("x")
    wandb.finish()
    assert wandb.run is None
    said = capsys.readouterr().err
    assert "wandb.log() without a run" in said and "wandb.save() without a run" in said


def test_functions_act_on_the_current_run() -> None:
    run = wandb.init()
    wandb.log({"a": 1.0}, step=4)
    assert (run.step, wandb.summary["a"]) == (4, 1)
    wandb.config = {"lr": 1}
    assert wandb.config["lr"] == 1
    wandb.define_metric("a", summary="max")
    wandb.join()
    assert run._is_finished


def test_lines_of_libraries_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("termlog", "termwarn", "termerror"):
        getattr(wandb.errors.term, name)("said")
    assert capsys.readouterr().err == "wandb: said\nwandb: WARNING said\nwandb: ERROR said\n"


def test_a_silent_run_writes_no_lines(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    run = wandb.init(of_today=1, settings={"silent": True})
    run.log({"bad": object()})
    wandb.termlog("said")
    assert (capsys.readouterr().err, caplog.text) == ("", "")
    run = wandb.init(reinit=True)
    run.log({"bad": object()})
    wandb.termlog("said")
    assert capsys.readouterr().err == "wandb: said\n" and "'bad' is a object" in caplog.text


def test_attach_returns_the_run_of_its_id_or_of_what_another_process_was_given() -> None:
    run = wandb.init(id="abc")
    assert wandb.attach("abc") is run and wandb._attach(run._attach_id) is run
    given = run._attach_id
    start._opened.clear()  # as in another process
    assert wandb.attach(given).id == "abc" == wandb.run.id
    run.finish()
    assert wandb.attach("def").id == "def"
