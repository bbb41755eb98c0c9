"""`init` while a run is open: side by side, in place of it, or that run again."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import chiplog
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.process.inherited_run import PARENT_RUN, decode_inherited
from tests.support.journals import read_events
from tests.support.safeguard import proves
from tests.support.sdk_events import numbers
from tests.support.waiting import WAIT_S


def open_run(**options: object) -> chiplog.Run:
    return chiplog.init(mode="offline", **({"capture_console": False} | options))


def by_run(events, kind: EventKind) -> dict[str, list]:
    """Return {run ID: events of a kind}."""
    runs = {e.producer: e.fields["identity"]["run_id"] for e in events if e.kind == EventKind.IDENTITY}
    found: dict[str, list] = {}
    for event in events:
        if event.kind == kind:
            found.setdefault(runs[event.producer], []).append(event)
    return found


@proves("parallel-runs-stay-open", "runs side by side leave each other open", new="if not opened:")
def test_runs_side_by_side_have_each_their_label_values_and_end(chiplog_dir, offline) -> None:
    train = open_run(run_id="train", label="trainer")
    evaluate = open_run(run_id="eval", label="evaluator", reinit="create_new")
    assert chiplog.run is evaluate
    train.log({"loss": 1.0})
    chiplog.log({"acc": 0.5})
    assert decode_inherited(os.environ[PARENT_RUN]).run_id == "eval"
    evaluate.finish(exit_code=3)
    assert chiplog.run is train
    chiplog.log({"loss": 0.5})
    assert decode_inherited(os.environ[PARENT_RUN]).run_id == "train"
    chiplog.finish()
    assert PARENT_RUN not in os.environ
    chiplog.log({"late": 1.0})
    events = offline()
    assert {run: [(key, value) for key, _, value in numbers(logged)] for run, logged in by_run(events, 1).items()} == {
        "train": [("loss", 1.0), ("loss", 0.5)],
        "eval": [("acc", 0.5)],
    }
    ends = by_run(events, EventKind.STATE)
    assert {run: end.fields["state"]["exit_code"] for run, (end,) in ends.items()} == {"train": 0, "eval": 3}
    labels = {run: said[0].fields["identity"]["label"] for run, said in by_run(events, EventKind.IDENTITY).items()}
    assert labels == {"train": "trainer", "eval": "evaluator"}


def test_the_first_may_finish_first_and_one_run_may_be_open_twice_under_two_labels(chiplog_dir, offline) -> None:
    first = open_run(run_id="r", label="l")
    second = open_run(run_id="r", label="l", reinit="create_new")
    third = open_run(reinit="create_new")
    assert (second.label, second.is_primary) == ("l.2", False)
    first.finish()
    assert chiplog.run is third
    assert decode_inherited(os.environ[PARENT_RUN]).run_id == third.id
    open_run(run_id="other").finish()
    assert third._finished and second._finished, "finish_previous means all of them"
    assert len(offline(EventKind.STATE)) == 4


def test_threads_that_call_init_at_once_get_one_run(chiplog_dir, offline) -> None:
    n_threads = 8
    together = threading.Barrier(n_threads)

    def start(index: int) -> chiplog.Run:
        together.wait()
        run = open_run(run_id="r")
        run.log({"index": index})
        return run

    with ThreadPoolExecutor(n_threads) as pool:
        runs = set(pool.map(start, range(n_threads)))
    (run,) = runs
    run.finish()
    assert sorted(value for _, _, value in numbers(offline())) == list(range(n_threads))
    assert len(offline(EventKind.IDENTITY)) == 1


@pytest.mark.parametrize(
    ("reinit", "is_same_run", "is_finished"),
    [
        (None, False, True),
        ("finish_previous", False, True),
        (True, False, True),
        ("return_previous", True, False),
        (False, True, False),
        ("Create_New", False, False),
        ("default", False, True),
        ("again", False, True),
    ],
)
def test_what_becomes_of_the_open_run(chiplog_dir, caplog, reinit, is_same_run, is_finished) -> None:
    before = open_run(run_id="a")
    after = open_run(run_id="b", reinit=reinit)
    assert ((after is before), before._finished) == (is_same_run, is_finished)
    assert caplog.text.count("reinit 'again' is unknown, finish_previous is used") == (reinit == "again")
    before.finish()
    after.finish()


def test_to_finish_the_previous_run_of_a_rank_by_name_makes_another_run(chiplog_dir, monkeypatch) -> None:
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "00000000-0000-4000-8000-00000000000a")
    first = open_run()
    assert open_run() is first
    second = open_run(reinit=True)
    third = open_run(reinit="create_new")
    assert [second.id, third.id] == [f"{first.id}-2", f"{first.id}-3"]
    assert (first._finished, second._finished) == (True, False)


FAILS = """
import chiplog
a = chiplog.init(run_id="a", label="a", mode="offline")
print("one", flush=True)
b = chiplog.init(run_id="b", label="b", mode="offline", reinit="create_new")
print("two", flush=True)
a.finish()
c = chiplog.init(run_id="c", label="c", mode="offline", reinit="create_new")
print("three", flush=True)
raise ValueError("boom")
"""


@proves(
    "exception-ends-all-runs", "an uncaught exception ends every open run", new="all_runs()[-1]._end.mark_exit(error)"
)
def test_an_uncaught_exception_is_how_every_open_run_ends_and_each_line_is_in_one_of_them(chiplog_dir) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILS],
        env=os.environ | {"CHIPLOG_DIR": str(chiplog_dir)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.stdout == "one\ntwo\nthree\n"
    events = read_events(chiplog_dir / "offline")
    ends = {run: end[-1].fields["state"] for run, end in by_run_of_consoles(events, EventKind.STATE).items()}
    assert {run: (end["state"], end.get("reason")) for run, end in ends.items()} == {
        "a": ("finished", None),
        "b": ("failed", "ValueError: boom"),
        "c": ("failed", "ValueError: boom"),
    }
    lines = by_run_of_consoles(events, EventKind.CONSOLE)
    printed = {run: [e.fields["line"] for e in said if e.fields["stream"] == 1] for run, said in lines.items()}
    assert printed == {"a": ["one", "two"], "b": ["three"]}


def by_run_of_consoles(events, kind: EventKind) -> dict[str, list]:
    """Return {run ID: events of a kind}, a console's being those of its owner; its own end is left out."""
    identities = {e.producer: e.fields["identity"] for e in events if e.kind == EventKind.IDENTITY}
    found: dict[str, list] = {}
    for event in events:
        said = identities[event.producer]
        if event.kind == kind and not (kind == EventKind.STATE and said["role"] == "console"):
            owner = identities[bytes.fromhex(said["of"])] if "of" in said else said
            found.setdefault(owner["run_id"], []).append(event)
    return found


# As in Lightning's ddp, if a logger and a callback call init.
LIGHTNING = """
import sys, time
import torch.distributed as dist
import chiplog
rank, world_size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
first = chiplog.init("p", mode="offline", capture_console=False)
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world_size)
second = chiplog.init("p", mode="offline", capture_console=False)
second.log({"x": float(rank)})
assert first is second
while first._membership.identity.needs_agreement: time.sleep(0.01)  # it may last longer than finish() waits
second.finish()
dist.destroy_process_group()
"""


@proves("one-run-around-group", "init before and after the process group exists is one run")
@pytest.mark.full
def test_a_rank_that_no_launcher_names_is_in_one_run_before_and_after_its_group_exists(chiplog_dir, tmp_path) -> None:
    environ = os.environ | {"CHIPLOG_DIR": str(chiplog_dir)}
    command = [sys.executable, "-c", LIGHTNING]
    ranks = [subprocess.Popen([*command, str(rank), "2", str(tmp_path / "store")], env=environ) for rank in range(2)]
    assert [rank.wait(timeout=WAIT_S) for rank in ranks] == [0, 0]
    said = [e for e in read_events(chiplog_dir / "offline") if e.kind == EventKind.IDENTITY]
    last = {e.producer: (e.fields["identity"]["run_id"], e.fields["identity"]["label"]) for e in said}
    assert len(last) == 2, "one producer for each rank"
    assert len({run_id for run_id, _ in last.values()}) == 1
    assert sorted(label for _, label in last.values()) == ["rank0", "rank1"]
