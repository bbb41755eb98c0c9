"""Many runs in one process, one after another, and in many processes: each row is in its run, and nothing leaks."""

import gc
import os
import threading

import pytest

import chiplog
from chiplog.recording.run import current_run
from chiplog_schemas.model.events import EventKind
from tests.support.safeguard import proves
from tests.support.scripts import run_script
from tests.support.sdk_events import values

POOL = """
def trial(number):
    run = chiplog.init(mode="offline", run_id=f"trial-{number}", config={"number": number}, label="trial")
    for step in range(3):
        run.log({"number": number}, step=step)
    run.finish()
    return os.getpid()

def ranked(index, call):
    run = chiplog.init(mode="offline")
    run.log({"index": index}, step=100 + call)
"""
N_RUNS = 100


def by_run(offline) -> dict[str, list]:
    """Return {run ID: events}; asserts that each run is one producer, whole."""
    runs: dict[str, list] = {}
    identities = {event.producer: event.fields["identity"] for event in offline(EventKind.IDENTITY)}
    of = {producer: said["run_id"] for producer, said in identities.items() if said["role"] == "rank"}
    for event in offline():
        if event.producer in of:
            runs.setdefault(of[event.producer], []).append(event)
    assert len(of) == len(runs)
    for events in runs.values():
        assert [event.seq for event in events] == list(range(len(events)))
        assert events[-1].kind == EventKind.STATE
    return runs


@pytest.mark.full
def test_a_hundred_runs_in_one_process_leave_no_thread_descriptor_or_memory_behind(chiplog_dir, offline) -> None:
    def one(number: int) -> None:
        run = chiplog.init(mode="offline", run_id=f"r{number}", config={"n": number}, capture_console=number % 2 == 0)
        for step in range(3):
            run.log({"n": number, "step": step})
        run.finish()

    def held() -> tuple[int, int, int]:
        gc.collect()
        runs = sum(type(thing) is chiplog.Run for thing in gc.get_objects())
        return threading.active_count(), len(os.listdir("/proc/self/fd")), runs

    one(-1)
    before = held()
    for number in range(N_RUNS):
        one(number)
    assert held() == before
    runs = by_run(offline)
    assert len(runs) == N_RUNS + 1
    for number in range(N_RUNS):
        assert values(runs[f"r{number}"], "n") == []
        steps = [e.fields["step"] for e in runs[f"r{number}"] if e.kind == EventKind.METRICS]
        assert steps == [0, 1, 2], "each run counts its own steps"


def test_a_finished_run_holds_no_descriptor_until_the_garbage_collector_comes(chiplog_dir, offline) -> None:
    def one(number: int) -> chiplog.Run:
        run = chiplog.init(mode="offline", run_id=f"r{number}", capture_console=number % 2 == 0)
        run.log({"n": number})
        run.finish()
        run.log({"late": number})
        return run

    runs = [one(0)]
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    gc.disable()
    try:
        runs += [one(number) for number in range(1, 9)]
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()
    events = by_run(offline)
    assert [run._journal.next_seq for run in runs] == [len(events[run.id]) for run in runs]


@proves(
    "second-run-is-another",
    "the second run of a rank is not its first one again",
    part="current_run.opened_ids",
    new="set()",
)
def test_runs_of_a_sweep_are_runs_of_their_own_with_steps_and_labels_of_their_own(
    chiplog_dir, offline, monkeypatch
) -> None:
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(current_run, "opened_ids", set())
    ids = []
    for number in range(3):
        with chiplog.init(mode="offline", capture_console=False, config={"lr": number}) as run:
            run.log({"n": number})
            ids.append(run.id)
    assert ids[1:] == [f"{ids[0]}-2", f"{ids[0]}-3"], "the ranks beside it count alike"
    runs = by_run(offline)
    for number, run_id in enumerate(ids):
        assert values(runs[run_id], "n") == [(0, float(number))]
        assert runs[run_id][0].fields["identity"]["label"] == "rank0"


def test_workers_of_a_pool_make_one_run_after_the_other_also_beside_an_open_run(chiplog_dir, offline) -> None:
    out = run_script(
        """
from concurrent.futures import ProcessPoolExecutor
run = chiplog.init(mode="offline", run_id="sweep", label="main")
with multiprocessing.get_context("fork").Pool(2) as pool:
    pids = set(pool.map(trial, range(6), chunksize=1))
    pool.close()
    pool.join()
with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
    pids |= set(pool.map(trial, range(6, 9)))
run.log({"parent": 1.0}, step=0)
print(len(pids) < 9)
""",
        POOL,
    )
    assert out == "True\n"
    runs = by_run(offline)
    assert set(runs) == {"sweep", *(f"trial-{number}" for number in range(9))}
    assert values(runs["sweep"], "parent") == [(0, 1.0)]
    for number in range(9):
        events = runs[f"trial-{number}"]
        assert values(events, "number") == [(step, float(number)) for step in range(3)]
        identity = events[0].fields["identity"]
        assert (identity["label"], identity["primary"], "rank" in identity) == ("trial", True, False)
        assert [event.kind for event in events].count(EventKind.CONFIG) == 1


def test_each_call_of_mp_spawn_is_one_run_also_beside_a_pool_and_without_a_process_group(chiplog_dir, offline) -> None:
    """The children are forked, so that torch is imported once. multiprocessing passes the same to spawned children."""
    run_script(
        """
import torch.multiprocessing as mp
with multiprocessing.get_context("fork").Pool(2) as pool:
    for call in range(2):
        mp.start_processes(ranked, (call,), nprocs=2, start_method="fork")
        pool.map(trial, [call])
    pool.close()
    pool.join()
""",
        POOL,
    )
    found: dict[str, list[tuple[bool, str]]] = {}
    identities = {event.producer: event.fields["identity"] for event in offline(EventKind.IDENTITY)}
    for said in identities.values():
        if said["role"] == "rank":
            found.setdefault(said["run_id"], []).append((said["primary"], said["label"]))
    assert [found.pop(f"trial-{call}") for call in range(2)] == [[(True, "trial")]] * 2
    assert len(found) == 2, "a call, a run"
    for ranks in found.values():
        assert sorted(primary for primary, _ in ranks) == [False, True]
        assert len({label for _, label in ranks}) == 2
    calls = sorted(event.fields["step"] for event in offline(EventKind.METRICS) if event.fields["step"] >= 100)
    assert calls == [100, 100, 101, 101]
