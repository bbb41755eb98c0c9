"""A resumed run: the label's steps continue, attempts count up, steps out of order are kept."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import chiplog
from chiplog_schemas.model.events import EventKind
from tests.support.journals import read_events
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.sdk_events import numbers
from tests.support.waiting import WAIT_S, wait_until

# Resumes a run, logs without a step, and dies in the requested way.
RANK = """
import os, signal, sys, time
import chiplog
run = chiplog.init(resume="gpt-1", mode=sys.argv[1], capture_console=False)
for _ in range(5):
    run.log({"loss": 1.0})
print(run.label, flush=True)
if sys.argv[2] == "wait":
    sys.stdin.readline()
elif sys.argv[2] == "die":
    while run._resume_files.counter._kept != run._count.to_keep: time.sleep(0.01)  # until a tick of the sender
    os.kill(os.getpid(), signal.SIGKILL)
"""


def resume(root: Path, mode: str, end: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", RANK, mode, end],
        env=os.environ | {"CHIPLOG_DIR": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_runs_of_a_moment_leave_the_count_that_they_ended_with(chiplog_dir, offline) -> None:
    """The sender's first look may be under way when the run ends already."""
    for _ in range(20):
        with chiplog.init(resume="r", mode="offline", capture_console=False) as run:
            run.log({"a": 1.0})
    assert sorted(step for _, step, _ in numbers(offline())) == list(range(20))


def test_the_labels_own_steps_go_on_with_the_next_attempt_and_explicit_ones_are_as_given(chiplog_dir, offline) -> None:
    for _ in range(2):
        run = chiplog.init(run_id="r", label="rank0", mode="offline", capture_console=False)
        run.log({"a": 1.0})
        run.log({"a": 1.0}, step=100)
        run.log({"a": 1.0})
        run.finish()
    other = chiplog.init(run_id="r", label="rank1", mode="offline", capture_console=False)
    other.log({"b": 1.0})
    other.finish()
    found = numbers(offline())
    assert sorted(step for key, step, _ in found if key == "a") == [0, 100, 100, 101, 102, 103]
    assert [step for key, step, _ in found if key == "b"] == [0]
    fresh = chiplog.init(label="rank0", mode="offline", capture_console=False)
    fresh.log({"c": 1.0})
    fresh.finish()
    assert [step for key, step, _ in numbers(offline()) if key == "c"] == [0]


@proves(
    "step-after-largest",
    "log() without a step goes behind the largest step of its label",
    condition=False,
    environment={"CHIPLOG_NATIVE": "0"},
)
def test_a_log_without_a_step_goes_behind_the_largest_step_also_after_a_resume(chiplog_dir, offline) -> None:
    def logged(key: str) -> list[int]:
        return sorted(step for name, step, _ in numbers(offline()) if name == key)

    for _ in range(2):
        with chiplog.init(run_id="r", label="rank0", mode="offline", capture_console=False) as run:
            run.log({"first": 1.0})
            for step in range(100):
                run.log({"loss": 1.0}, step=step)
            run.log({"test/acc": 0.5})
            run.log({"loss": 1.0}, step=7)
            run.log({"sample": "a text"})
    assert logged("first") == [0, 102]
    assert logged("test/acc") == [100, 103]
    assert sorted(e.fields["step"] for e in offline(EventKind.TEXT)) == [101, 104]


@proves(
    "step-within-64-bits",
    "a count of steps does not leave 64 bits",
    value="step + self._steps_per_log",
    environment={"CHIPLOG_NATIVE": "0"},
)
def test_the_largest_step_there_is_does_not_wrap_and_is_worth_one_warning(chiplog_dir, offline, caplog) -> None:
    largest = (1 << 63) - 1
    for _ in range(2):
        with chiplog.init(run_id="r", label="rank0", mode="offline", capture_console=False) as run:
            run.log({"counted": 1.0}, step=largest - 2)
            for _ in range(3):
                run.log({"counted": 1.0})
    steps = sorted(step for _, step, _ in numbers(offline()))
    assert steps == [largest - 2] * 2 + [largest - 1] + [largest] * 5
    assert caplog.text.count(f"step {largest} is the last one") == 2, "one line a run"


def test_with_step_a_log_without_one_is_in_the_step_that_is_being_logged(chiplog_dir, offline) -> None:
    with chiplog.init(mode="offline", capture_console=False) as run:
        for step in (*range(8), 5, 6):  # back to a checkpoint
            with run.step():
                run.log({"loss": 1.0}, step=step)
                run.log({"aux": 1.0})
        run.log({"test/acc": 1.0})
    found = numbers(offline())
    assert [step for key, step, _ in found if key == "aux"] == [*range(8), 5, 6]
    assert [step for key, step, _ in found if key == "test/acc"] == [8]


# Loads a checkpoint, evaluates, and trains on until it is killed: as torchelastic starts a rank again.
ELASTIC = """
import os, signal, sys, time
import chiplog
first, last = map(int, sys.argv[1:])
run = chiplog.init(capture_console=False)
run.log({"test/acc": 0.5})
for step in range(first, last + 1):
    run.log({"loss": 1.0}, step=step)
    if step % 10 == 0:
        run.log({"test/acc": 0.5})
if last == 67:
    counter = run._resume_files.counter  # otherwise evaluations count from 0 again
    while counter._kept != run._count.to_keep: time.sleep(0.01)
if last < 99:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.full
def test_restarts_tells_where_a_loop_resumed_that_gives_some_of_its_steps(node: Node) -> None:
    environ = {"CHIPLOG_DIR": str(node.root), "TORCHELASTIC_RUN_ID": str(uuid.uuid4())}
    environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for restart, (first, last) in enumerate(((0, 67), (60, 90), (80, 99))):
        command = [sys.executable, "-c", ELASTIC, str(first), str(last)]
        subprocess.run(command, env=os.environ | environ | {"TORCHELASTIC_RESTART_COUNT": str(restart)}, timeout=WAIT_S)
    node.until("SELECT count(*) AS n FROM labels WHERE state <> 'running'", lambda rows: rows[0]["n"] == 3)
    rows = node.sql("SELECT last_step, resumed_step, steps_again FROM restarts ORDER BY attempt")
    assert [tuple(row.values()) for row in rows] == [(67, 60, 8), (90, 80, 11)]


def test_a_run_resumed_after_sigkill_has_its_label_and_its_steps_again(chiplog_dir) -> None:
    for end in ("die", "die", "end"):
        process = resume(chiplog_dir, "offline", end)
        process.communicate(timeout=WAIT_S)
        assert process.returncode == (-signal.SIGKILL if end == "die" else 0)
    events = read_events(chiplog_dir / "offline")
    assert len({e.fields["identity"]["label"] for e in events if e.kind == EventKind.IDENTITY}) == 1
    assert sorted(step for _, step, _ in numbers(events)) == list(range(15))


def known_as_rank0(offline) -> list[object]:
    """Return the events by which a process without a rank becomes rank 0."""
    return [event for event in offline(EventKind.IDENTITY) if event.fields["identity"]["label"] == "rank0"]


def test_a_rank_that_logs_before_its_group_tells_which_one_it_is_goes_on_with_that_ranks_steps(
    chiplog_dir, offline
) -> None:
    import torch.distributed as dist

    for number in range(2):
        run = chiplog.init(run_id="r", mode="offline", capture_console=False)
        run.log({"before": 1.0})
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            assert (run.rank, run.label) == (0, "rank0"), "the group's answer is not waited for"
            wait_until(lambda number=number: len(known_as_rank0(offline)) > number, "the group's answer")
            run.log({"after": 1.0})
            run.log({"after": 1.0})
            run.finish()
        finally:
            dist.destroy_process_group()
    assert sorted(step for key, step, _ in numbers(offline()) if key == "after") == [1, 2, 3, 4]


def test_the_label_of_a_process_that_lives_is_not_taken(chiplog_dir) -> None:
    first = resume(chiplog_dir, "offline", "wait")
    assert first.stdout is not None
    label = first.stdout.readline()
    second = resume(chiplog_dir, "offline", "end")
    assert second.communicate(timeout=WAIT_S)[0] != label
    first.communicate("\n", timeout=WAIT_S)


def test_attempts_count_up_and_steps_out_of_order_are_all_there(node: Node) -> None:
    for _ in range(2):
        process = resume(node.root, "online", "end")
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
    run = chiplog.init(resume="gpt-1", dir=node.root, capture_console=False)
    for step in (50, 7, -3, 50, 8):
        run.log({"odd": float(step)}, step=step)
    run.log({"loss": 1.0})
    run.finish()
    node.until("SELECT count(*) AS n FROM metrics WHERE run_id = 'gpt-1'", lambda rows: rows[0]["n"] == 16)
    ended = [{"state": "finished", "n_labels": 1, "n_attempts": 3}]
    node.until("SELECT state, n_labels, n_attempts FROM runs", lambda rows: rows == ended)
    steps = node.sql("SELECT attempt, list(step ORDER BY seq) AS steps FROM metrics WHERE key = 'odd' GROUP BY ALL")
    assert steps == [{"attempt": 2, "steps": [50, 7, -3, 50, 8]}]
    counted = node.sql(
        "SELECT attempt, list(step ORDER BY seq) AS s FROM metrics WHERE key = 'loss' GROUP BY ALL ORDER BY 1"
    )
    assert [row["s"] for row in counted] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [51]]


def test_a_run_that_is_not_known_here_is_begun_with_a_word_about_it(chiplog_dir, offline, caplog) -> None:
    for _ in range(2):  # and gone on with without one
        with chiplog.init(resume="gpt-1", mode="offline", capture_console=False) as run:
            run.log({"a": 1.0}, step=7)
        assert run.id == "gpt-1"
    said = [e.fields["message"] for e in offline(EventKind.NOTICE) if e.fields["notice"] == "bad_value"]
    unknown = (
        "no run 'gpt-1' is known on this node: unless it ran elsewhere, a new one begins; chiplog runs lists those"
    )
    assert [message for message in said if message.startswith(unknown)] == said and len(said) == 1
    assert caplog.text.count(unknown) == 1
    chiplog.init(resume="nope", mode="offline", label="rank1", primary=False, capture_console=False).finish()
    chiplog.init(resume="nope", mode="disabled").finish()
    assert "'nope'" not in caplog.text
