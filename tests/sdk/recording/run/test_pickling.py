"""A run that is passed to another process, as an argument or in a queue: the same run, a separate label."""

import copy
import pickle
import subprocess
import sys

import pytest

import chiplog
from chiplog.recording.run import pickling
from chiplog_schemas.model.events import EventKind
from tests.support.marks import everyday
from tests.support.scripts import run_script
from tests.support.sdk_events import by_label, values

HANDED = """
def handed(run, number):
    assert run.config["lr"] == 0.1, run.config
    for step in range(5):
        run.log({"child": number}, step=step)
    assert chiplog.run is run

def fails(run):
    run.log({"child": 1.0}, step=0)
    raise ValueError("boom")

def only_carries(run, number):
    return (run.id, number)
"""


@pytest.mark.parametrize("method", everyday(2, ["fork", "spawn", "forkserver"]))
def test_a_run_that_is_an_argument_of_a_child_logs_into_the_same_run(chiplog_dir, offline, method) -> None:
    run_script(
        f"""
run = chiplog.init(mode="offline", run_id="r", label="main", project="p", config={{"lr": 0.1}})
context = multiprocessing.get_context({method!r})
children = [context.Process(target=handed, args=(run, number)) for number in range(2)]
for process in children: process.start()
for process in children: process.join()
assert [process.exitcode for process in children] == [0, 0]
run.log({{"parent": 1.0}}, step=0)
""",
        HANDED,
    )
    labels = by_label(offline())
    assert values(labels.pop("main"), "parent") == [(0, 1.0)]
    assert len(labels) == 2
    for label, events in labels.items():
        identity = events[0].fields["identity"]
        assert label == f"main.{identity['pid']}"
        assert (identity["run_id"], identity["project"], identity["primary"]) == ("r", "p", False)
        assert len(values(events, "child")) == 5
        assert events[-1].fields["state"] == {"state": "finished", "exit_code": 0}
    assert sorted(values(events, "child")[0][1] for events in labels.values()) == [0.0, 1.0]
    assert len(offline(EventKind.CONFIG)) == 1, "it is the parent's"


def test_a_child_with_a_run_as_argument_ends_as_it_does(chiplog_dir, offline) -> None:
    run_script(
        """
run = chiplog.init(mode="offline", run_id="r", label="main")
process = multiprocessing.get_context("spawn").Process(target=fails, args=(run,))
sys.stderr = None
process.start()
process.join()
assert process.exitcode == 1
""",
        HANDED,
        may_fail=True,
    )
    labels = by_label(offline())
    del labels["main"]
    [events] = labels.values()
    assert events[-1].fields["state"]["reason"] == "ValueError: boom"


def test_workers_of_a_pool_are_one_label_each_however_often_the_run_comes_and_none_if_they_do_not_log(
    chiplog_dir, offline
) -> None:
    out = run_script(
        """
from concurrent.futures import ProcessPoolExecutor
run = chiplog.init(mode="offline", run_id="r", label="main", config={"lr": 0.1})
spawn = multiprocessing.get_context("spawn")
with ProcessPoolExecutor(2, mp_context=spawn) as pool:
    print(sorted(pool.map(only_carries, [run] * 6, range(6))))
with ProcessPoolExecutor(1, mp_context=spawn) as pool:
    list(pool.map(handed, [run] * 6, range(6)))
""",
        HANDED,
    )
    assert out == f"{[('r', number) for number in range(6)]}\n"
    labels = by_label(offline())
    del labels["main"]
    [events] = labels.values()
    assert len(values(events, "child")) == 30


def test_in_its_own_process_the_pickle_of_a_run_is_the_run(chiplog_dir) -> None:
    run = chiplog.init(mode="offline", capture_console=False)
    assert pickle.loads(pickle.dumps(run)) is run
    assert copy.deepcopy({"logger": run})["logger"] is run
    run.finish()
    assert pickle.loads(pickle.dumps(run)) is run, "finished as it is"


def test_whatever_its_config_holds_a_run_travels_with_plain_values_in_its_place(chiplog_dir) -> None:
    cycle: dict[str, object] = {}
    cycle["self"] = cycle
    config = {"model": lambda: 1, "lr": 0.1, "sizes": {(1, 2): 3}, "cycle": cycle, "when": cycle.keys}
    run = chiplog.init(mode="offline", capture_console=False, config=config)
    assert pickle.loads(pickle.dumps(run)) is run
    there = pickle.loads(pickle.dumps(pickling.to_pickle(run).config))
    assert (there["lr"], there["sizes"]) == (0.1, {"(1, 2)": 3})
    assert there["cycle"] == {"self": "<cycle>"}
    assert there["model"].endswith("<lambda>")
    assert run.config["model"]() == 1, "here it is what it was"
    run.finish()


def test_a_pickle_of_another_host_uses_that_hosts_own_directory_and_says_the_host_in_its_label(
    chiplog_dir, tmp_path, monkeypatch
) -> None:
    run = chiplog.init(mode="offline", label="main", capture_console=False, agent="tcp://127.0.0.1:5")
    ticket = pickling.to_pickle(run)
    run.finish()
    monkeypatch.setattr(pickling, "host_name", lambda: "executor-7")
    there = pickling.from_pickle(ticket, {"CHIPLOG_DIR": str(tmp_path / "there")})
    assert there.label.startswith("main.executor-7-")
    assert there._settings.places.root == tmp_path / "there"
    assert there._settings.agent_address == "tcp://127.0.0.1:5", "its address travels with it"
    assert pickling.from_pickle(ticket, {})._settings.places.root == chiplog_dir
    assert (there.rank, there.is_primary) == (None, False)


def test_a_finished_run_that_arrives_elsewhere_is_finished(chiplog_dir, tmp_path) -> None:
    run = chiplog.init(mode="offline", run_id="r", capture_console=False)
    run.finish()
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(run))
    code = f"import pickle; run = pickle.load(open({str(path)!r}, 'rb')); run.log({{'x': 1.0}}); print(run.id)"
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code], capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("r\n", 0)
    assert "chiplog: log() after finish() of r is not recorded" in done.stderr
