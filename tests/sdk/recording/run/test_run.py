"""The calls of training code: nothing raises, nothing is dropped silently, and the journal has every event."""

import enum
import io
import json
import math
import os
import re
import resource
import sys
import threading
from argparse import Namespace

import pytest
import torch

import chiplog
from chiplog.recording.api.disabled import DisabledRun
from chiplog_schemas.limits import EVENT_BYTES_MAX, KIB, MIB
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.process.inherited_run import PARENT_RUN
from chiplog_schemas.storage.journal_dir import HEAD_NAME, decode_head
from tests.support.hostile import Hostile
from tests.support.journals import read_events
from tests.support.sdk_events import counted, notices, numbers


def test_seqs_are_gapless_and_the_first_event_is_the_identity(run, offline) -> None:
    for step in range(100):
        run.log({"a": step}, step=step)
    run.finish()
    events = offline()
    assert [event.seq for event in events] == list(range(len(events)))
    assert events[0].kind == EventKind.IDENTITY
    assert events[0].fields["identity"]["label"] == "rank0"
    assert events[-1].kind == EventKind.STATE
    assert run._journal.next_seq == len(events)


def test_any_label_sets_and_removes_tags_within_the_bounds_of_texts(offline, caplog) -> None:
    run = chiplog.init(run_id="r", label="rank1", primary=False, mode="offline", capture_console=False)
    for key, value in (("stage", "ü"), ("stage", None), ("", "x"), ("k" * 513, "x"), ("long", "x" * 65_537)):
        run._set_tag(key, value)
    run._set_tag("half \udcff", Hostile())
    run._set_tag(7, "x")  # type: ignore[arg-type]
    run._set_tag("n", 7)  # type: ignore[arg-type]
    run.finish()
    run._set_tag("late", "x")
    chiplog.init(mode="disabled")._set_tag("none", "x")
    DisabledRun()._set_tag("none", "x")
    assert [event.fields for event in offline(EventKind.TAG)] == [
        {"key": "stage", "value": "ü"},
        {"key": "stage", "value": None},
        {"key": "n", "value": "7"},
    ]
    said = [record.getMessage().removeprefix("chiplog: ") for record in caplog.records]
    assert [line[:30] for line in said] == [
        "a value has no name: its key i",
        "key 'kkkkkkkkkkkkkkkkkkkkkkkkk",
        "text of 65537 characters under",
        "set_tag() failed inside: Runti",
        "key 7 is not a string; use str",
        "set_tag() after finish() of r ",
    ]


def test_a_notebook_shows_a_run_as_an_escaped_table(run) -> None:
    shown = chiplog.init("<p>", run_id="p3", name="a & b", label="rank0", mode="offline", reinit="create_new")
    assert shown._repr_html_() == (
        "<table><tr><th>run</th><td>a &amp; b</td></tr><tr><th>id</th><td>p3</td></tr>"
        "<tr><th>project</th><td>&lt;p&gt;</td></tr><tr><th>label</th><td>rank0</td></tr>"
        "<tr><th>state</th><td>running, offline</td></tr></table>"
    )
    shown.finish()
    assert "<td>finished, offline</td>" in shown._repr_html_()
    assert f"<tr><th>run</th><td>{run.id}</td></tr>" in run._repr_html_(), "a run without a name has its ID"


def test_arguments_that_a_call_has_not_are_said_and_left_out(offline, caplog) -> None:
    run = chiplog.init("gpt", "p2", entity="team", label="rank0", mode="offline", settings=Hostile())
    run.log({"x": 1.0}, 3, 7)
    chiplog.log({"x": 2.0}, 4, 8, sync=True)
    with run.step(5, step=5), run.phase("forward", sync=True):
        pass
    with run.phase():
        pass
    for value in range(20):
        run.log({"y": 1.0}, 5, torch.ones(1) * value)
    run.alert("odd", "text", "info", wait_duration=3)
    run.define_metric("x", summary="max", goal="maximize")
    run.watch(None, log="all", log_freq=7)
    run.save(__file__, policy="now")
    for call in (run.alert, run.save, run.define_metric, run.watch):
        call()
    chiplog.setup(1)
    list(run.data([1], name="train"))
    run.finish(0, quiet=True)
    before = len(caplog.records)
    run.alert("late", wait_duration=3)
    run.step(7)
    assert [record.getMessage()[:23] for record in caplog.records[before:]] == [
        "chiplog: alert() after ",
        "chiplog: step() after f",
    ]
    chiplog.finish(quiet=True)
    assert [number for number in numbers(offline()) if number[0] == "x"] == [("x", 3, 1.0), ("x", 4, 2.0)]
    said = [record.getMessage().removeprefix("chiplog: ") for record in caplog.records]
    assert "init() has no argument 'p2', entity=, settings=, which is left out; it takes project, run_id, " in said[0]
    for call in ("log() has no argument 7", "log() has no argument 8, sync=", "step() has no argument 5, step="):
        assert any(line.startswith(f"{call}, which is left out; ") for line in said), call
    takes = "alert() has no argument wait_duration=, which is left out; it takes title, text, level"
    assert takes in said
    assert "setup() has no argument 1, which is left out; it takes none" in said
    assert len([line for line in said if line.startswith("log() has no argument")]) == 2, "of many values once"
    for name in ("goal=", "log=, log_freq=", "name=", "policy=", "quiet=", "sync="):
        assert any(f"() has no argument {name}, which is left out; " in line for line in said), name
    assert counted(offline())["unknown_argument"] == 31


def test_only_the_primary_says_the_config(chiplog_dir, offline) -> None:
    config = Namespace(lr=3e-4, layers=[1, 2], name="gpt")
    for label in ("rank0", "rank1"):
        run = chiplog.init(
            mode="offline", run_id="r", label=label, primary=label == "rank0", config=config, capture_console=False
        )
        run.config["batch"] = 8
        run.config.update(epochs=2)
        assert run.config.lr == 3e-4
        assert dict(run.config) == {"lr": 3e-4, "layers": [1, 2], "name": "gpt", "batch": 8, "epochs": 2}
        run.finish()
    said = offline(EventKind.CONFIG)
    assert len({event.producer for event in said}) == 1
    merged = {key: json.loads(text) for event in said for key, text in event.fields["values"].items()}
    assert merged == {"lr": 3e-4, "layers": [1, 2], "name": "gpt", "batch": 8, "epochs": 2}


def test_one_bad_entry_of_the_config_costs_itself(chiplog_dir, offline, caplog) -> None:
    cycle: list = []
    cycle.append(cycle)
    config = {"lr": 0.1, "hostile": Hostile(), "cycle": cycle, "tuple": {(1, 2): 3}, "odd": {1, 2}, "nan": math.nan}
    run = chiplog.init(mode="offline", config=config, capture_console=False)
    run.finish()
    [said] = offline(EventKind.CONFIG)
    values = {key: json.loads(text) for key, text in said.fields["values"].items()}
    assert math.isnan(values.pop("nan"))
    assert values == {"lr": 0.1, "hostile": "<Hostile>", "cycle": ["<cycle>"], "tuple": {"(1, 2)": 3}, "odd": [1, 2]}
    assert counted(offline()) == {"not_json": 2}


def test_a_config_larger_than_an_event_is_split(chiplog_dir, offline) -> None:
    config = {f"k{number}": "v" * 100_000 for number in range(30)}
    chiplog.init(mode="offline", config=config, capture_console=False).finish()
    said = offline(EventKind.CONFIG)
    assert len(said) > 1
    assert {key: json.loads(text) for e in said for key, text in e.fields["values"].items()} == config
    assert all(len(str(event.fields)) < EVENT_BYTES_MAX for event in said)


def test_every_label_has_a_summary_of_its_own(run, offline) -> None:
    run.summary["best"] = 0.9
    run.summary.update({"epoch": 3})
    del run.summary["epoch"]
    assert dict(run.summary) == {"best": 0.9}
    with pytest.raises(AttributeError):
        _ = run.summary.nothing
    run.finish()
    assert [event.fields["values"] for event in offline(EventKind.SUMMARY)] == [{"best": "0.9"}, {"epoch": "3"}]


def test_an_alert_is_an_event_whatever_it_is_made_of(run, offline) -> None:
    run.alert("loss is high", "it is 7", level="error")
    run.alert("half \ud800", 3, "odd")
    run.alert(Hostile())
    run.finish()
    alerts = [e.fields for e in offline(EventKind.NOTICE) if e.fields["notice"] == "alert"]
    assert [(a["message"], a["body"]["text"]) for a in alerts] == [("loss is high", "it is 7"), ("half \\ud800", "3")]
    assert counted(offline()) == {"internal_error": 1, "bad_level": 1}


@pytest.mark.parametrize("title", ["", None, " "])
def test_an_alert_without_a_title_is_a_row_and_is_said(run, offline, caplog, title) -> None:
    run.alert(title, "it is 7")
    run.finish()
    [alert] = [e.fields for e in offline(EventKind.NOTICE) if e.fields["notice"] == "alert"]
    assert (alert["message"], alert["body"]["text"]) == ("alert", "it is 7")
    [record] = caplog.records
    assert record.getMessage() == (f"chiplog: alert() has the title {title!r}; 'alert' is used instead, so give it one")


class Level(enum.Enum):
    WARN = "WARN"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (Level.WARN, "warning"),
        ("critical", "error"),
        ("FATAL", "error"),
        ("warn", "warning"),
        ("WARNING", "warning"),
        ("Info", "info"),
        ("odd", "warning"),
        (30, "warning"),
    ],
)
def test_the_level_of_an_alert_may_be_called_as_elsewhere(run, offline, caplog, given, kept) -> None:
    run.alert("loss is high", level=given)
    run.finish()
    assert [e.fields["level"] for e in offline(EventKind.NOTICE) if e.fields["notice"] == "alert"] == [kept]
    is_changed = given in ("critical", "FATAL", "odd", 30)
    assert [kind for kind, _ in notices(offline())] == ["bad_level"] * is_changed
    assert (
        f"alert level {given!r} is not one of debug, info, warning, error; {kept} is used" in caplog.text
    ) == is_changed


def test_config_and_summary_take_attributes_and_no_wrong_call_raises(run, offline) -> None:
    run.config.lr = 0.5
    run.summary.best = 3
    run.summary.update(5)
    run.summary.update({"a": 1}, {"b": 2})
    run.finish()
    assert (run.config["lr"], run.config.lr) == (0.5, 0.5)
    assert [e.fields["values"] for e in offline(EventKind.CONFIG)] == [{"lr": "0.5"}]
    assert [e.fields["values"] for e in offline(EventKind.SUMMARY)] == [{"best": "3"}]
    assert counted(offline()) == {"not_a_dict": 2}


def test_console_lines_go_first_when_the_journal_is_nearly_full(chiplog_dir, offline, monkeypatch) -> None:
    monkeypatch.setenv("CHIPLOG_SPOOL_BYTES_MAX", str(4 * MIB))
    monkeypatch.setattr("sys.stdout", io.StringIO())
    with chiplog.init(mode="offline") as run:
        for number in range(4500):
            print("x" * 1000)
            run.log({"x": float(number)})
    events = offline()
    assert len(numbers(events)) == 4500
    kept = sum(event.kind == EventKind.CONSOLE for event in events)
    lost = sum(e.fields["body"]["lines"] for e in events if e.fields.get("notice") == "console_lost")
    assert 0 < kept < 4500
    assert kept + lost == 4500


def test_disabled_does_nothing(chiplog_dir) -> None:
    before = (threading.active_count(), sys.stdout, sys.stderr, os.environ.get(PARENT_RUN))
    run = chiplog.init(mode="disabled", config={"lr": 1})
    run.log({"x": 1.0})
    run.log(None)
    run.alert("x")
    run.summary["a"] = 1
    with run.phase("p"):
        pass
    assert (threading.active_count(), sys.stdout, sys.stderr, os.environ.get(PARENT_RUN)) == before
    assert (run._journal.next_seq, run.config["lr"], run.mode) == (0, 1, "disabled")
    run.finish()
    assert not chiplog_dir.exists()


def test_offline_leaves_a_journal_and_starts_nobody(chiplog_dir, offline) -> None:
    run = chiplog.init(mode="offline", capture_console=False)
    run.log({"x": 1.0})
    run.finish()
    names = {path.name for path in chiplog_dir.iterdir()}
    assert names - {"unfinished"} == {"offline", "steps"}, "no agent's and no collector's"
    assert not list(chiplog_dir.glob("unfinished/*")), "it finished"
    assert len(offline()) == 3
    assert offline(EventKind.STATE)[0].fields["state"] == {
        "state": "finished",
        "exit_code": 0,
    }


def test_finishing_twice_is_finishing_once(run, offline) -> None:
    run.finish()
    run.finish(exit_code=3)
    assert len(offline(EventKind.STATE)) == 1


def test_what_is_said_after_the_finish_is_harmless_and_said_to_be_for_nothing(run, offline, caplog) -> None:
    run.log({"x": 1.0})
    run.finish()
    n_events = len(offline())
    for _ in range(3):
        run.log({"x": 2.0})
    run.alert("too late")
    run.summary["late"] = 1
    run.config.update(late=1)
    run.define_metric("late", summary="max")
    with run.phase("late"):
        pass
    run.step()
    assert run.save("late.pt") == []
    run.log({"x": 3.0})
    assert len(offline()) == n_events == run._journal.next_seq
    assert [record.getMessage() for record in caplog.records] == [
        f"chiplog: {call} after finish() of r is not recorded; call init() again"
        for call in ("log()", "alert()", "summary", "config", "define_metric()", "step()", "save()")
    ]


def test_an_exit_code_marks_the_label_failed(run, offline) -> None:
    run.finish(exit_code=3)
    state = offline(EventKind.STATE)[0].fields["state"]
    assert (state["state"], state["exit_code"]) == ("failed", 3)


@pytest.mark.parametrize(("given", "code"), [(1 << 70, 255), ("boom", 1), (-9, -9)])
def test_an_exit_code_may_be_anything(run, offline, given, code) -> None:
    run.finish(exit_code=given)
    [state] = offline(EventKind.STATE)
    assert (state.fields["state"]["state"], state.fields["state"]["exit_code"]) == ("failed", code)
    assert f"finish(exit_code={given})" in state.fields["state"]["reason"]


def test_a_fault_of_ours_at_the_end_does_not_cost_the_end(run, offline, caplog, monkeypatch) -> None:
    def fails(*given: object, **named: object) -> None:
        raise OSError("no")

    for part, name in ((run._steps, "stop"), (run._resume_files.counter, "save"), (run._environment, "stop")):
        monkeypatch.setattr(part, name, fails)
    journal = run._journal
    run.log({"x": 1.0})
    run.finish()
    assert [event.fields["state"]["state"] for event in offline(EventKind.STATE)] == ["finished"]
    assert decode_head((journal.directory / HEAD_NAME).read_bytes()).finished
    assert any("finish() failed inside: OSError no" in record.getMessage() for record in caplog.records)


def test_an_exception_in_the_with_block_marks_the_label_failed_and_is_passed_on(chiplog_dir, offline) -> None:
    with pytest.raises(ValueError, match="boom"), chiplog.init(mode="offline", capture_console=False):
        raise ValueError("boom \ud800")
    state = offline(EventKind.STATE)[0].fields["state"]
    assert (state["state"], state["exit_code"], state["reason"]) == ("failed", 1, "ValueError: boom \\ud800")


def test_an_exception_that_cannot_be_shown_is_still_the_users(chiplog_dir, offline) -> None:
    class UnshownError(Exception):
        def __str__(self):
            raise RuntimeError("no")

    with pytest.raises(UnshownError), chiplog.init(mode="offline", capture_console=False):
        raise UnshownError
    assert offline(EventKind.STATE)[0].fields["state"]["reason"] == "UnshownError: <UnshownError>"


@pytest.mark.parametrize(
    "options",
    [
        {"tags": None},
        {"tags": 5},
        {"gpu_device_ids": 3},
        {"config": 5},
        {"config": Hostile()},
        {"mode": "sideways"},
        {"project": "half \ud800", "name": 3, "notes": "\udcff"},
        {"run_id": "a/b", "label": "x" * 500},
        {"primary": "yes"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_init_takes_odd_arguments_without_raising(chiplog_dir, offline, caplog, options) -> None:
    run = chiplog.init(**{"mode": "offline", "capture_console": False} | options)
    assert run.mode == "offline"
    run.log({"x": 1.0})
    run.finish()
    assert numbers(offline()) == [("x", 0, 1.0)]


def test_arguments_and_variables_that_are_wrong_are_said_once_and_leave_rows(chiplog_dir, caplog, monkeypatch) -> None:
    monkeypatch.setenv("CHIPLOG_KEYS_MAX", "many")
    with chiplog.init(mode="onlin", config=5, agent="ipc:///nowhere/agent.sock", capture_console=False) as run:
        assert (run.mode, dict(run.config)) == ("offline", {})
        events = read_events(chiplog_dir / "offline")
    assert {("bad_argument", "mode"), ("bad_argument", "config")} < set(notices(events))
    said = [e.fields["message"] for e in events if e.kind == EventKind.NOTICE and e.fields["notice"] == "bad_value"]
    assert said[:2] == [
        "mode 'onlin' is unknown, so this run is offline: chiplog sync delivers it; give one of online, offline, "
        "disabled, rank0",
        "config of type int is not a mapping and is ignored; give a dict",
    ]
    assert any("CHIPLOG_KEYS_MAX" in message and "'many'" in message for message in said)
    assert [record.getMessage() for record in caplog.records] == [f"chiplog: {message}" for message in said]


@pytest.mark.parametrize(
    "options", [{"dir": 5}, {"run_id": Hostile()}, {"name": Hostile()}], ids=lambda options: next(iter(options))
)
def test_init_with_arguments_that_cannot_be_read_logs_nothing_and_says_so(chiplog_dir, caplog, options) -> None:
    run = chiplog.init(mode="offline", capture_console=False, **options)
    run.log({"x": 1.0})
    assert run.mode == "disabled"
    assert "nothing is logged" in caplog.text


def test_init_in_a_directory_that_is_gone_says_so_in_one_line_and_logs_nothing(tmp_path, caplog, monkeypatch) -> None:
    """A relative CHIPLOG_DIR is then invalid, with any arguments omitted."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setenv("CHIPLOG_DIR", "relative")
    (tmp_path / "gone").rmdir()
    run = chiplog.init(project="p", config={"lr": 0.1}, capture_console=False)
    run.log({"loss": 1.0})
    assert run.save("x") == []
    run.finish()
    assert (run.mode, run._journal.next_seq) == ("disabled", 0)
    [line] = [record.getMessage() for record in caplog.records]
    assert "No such file or directory" in line and "nothing is logged" in line


def test_a_disk_that_fills_up_is_said_once_and_noted_in_the_journal(chiplog_dir, caplog) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    run = chiplog.init(mode="offline", capture_console=False)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300 * KIB, before[1]))
        for step in range(3000):
            run.log({f"key {number}": 1.0 for number in range(20)}, step=step)
            if step % 500 == 0:
                run._tick()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    run.finish()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "kept in memory, bounded" in said[0]
    assert re.fullmatch(r"chiplog: \d+ events reached no agent and end with this process: .*File too large", said[1])


def test_the_identity_says_what_init_was_given(chiplog_dir, offline) -> None:
    run = chiplog.init(
        "gpt",
        run_id="r",
        name="n",
        group="g",
        job_type="train",
        tags=["a", "b"],
        notes="words",
        label="eval",
        primary=False,
        gpu_device_ids=["GPU-00000000-0000-0000-0000-000000000001"],
        mode="offline",
        capture_console=False,
    )
    assert (run.id, run.label, run.is_primary, run.restart_count, run.rank) == ("r", "eval", False, 0, None)
    run.finish()
    said = offline(EventKind.IDENTITY)[0].fields["identity"]
    expected = {
        "role": "rank",
        "run_id": "r",
        "project": "gpt",
        "name": "n",
        "group": "g",
        "job_type": "train",
        "tags": ["a", "b"],
        "notes": "words",
        "label": "eval",
        "primary": False,
        "gpus": ["GPU-00000000-0000-0000-0000-000000000001"],
        "pid": os.getpid(),
    }
    assert {name: said[name] for name in expected} == expected


@pytest.mark.parametrize(("value", "primary"), [("0", False), ("no", False), ("1", True), ("", True), ("odd", True)])
def test_variables_set_what_arguments_do_not(chiplog_dir, monkeypatch, value, primary) -> None:
    monkeypatch.setenv("CHIPLOG_PRIMARY", value)
    monkeypatch.setenv("CHIPLOG_MODE", "offline")
    monkeypatch.setenv("CHIPLOG_LABEL", "from-variable")
    monkeypatch.setenv("CHIPLOG_RUN_ID", "run-of-variable")
    run = chiplog.init(run_id="run-of-argument", capture_console=False)
    assert (run.id, run.label, run.is_primary, run.mode) == (
        "run-of-argument",
        "from-variable",
        primary,
        "offline",
    )
    run.finish()
