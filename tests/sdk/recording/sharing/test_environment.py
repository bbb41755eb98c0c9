"""Where a run ran: commit, command line, versions, a few variables, of the primary; no secrets, no child process."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chiplog.recording.sharing.environment import EnvironmentCollector, collect_environment, git_of, packages
from chiplog_schemas.model.events import EventKind
from tests.support.journals import Event, read_events
from tests.support.waiting import WAIT_S

TRAINING = """
import os, sys, time, chiplog
run = chiplog.init(run_id="r", label=sys.argv[1], primary=sys.argv[1] == "rank0", mode="offline", capture_console=False)
run.log({"x": 1.0})
run._collect_environment()  # as each tick of the sender does
end = time.monotonic() + 120
while run._environment._thread is not None and run._environment._thread.is_alive() and time.monotonic() < end:
    time.sleep(0.05)
run.finish()
try:
    os.wait()
    print("a child was left")
except ChildProcessError:
    print("no child")
"""


def git(directory: Path, *arguments: str) -> str:
    names = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *names, *arguments], cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q")
    (root / "train.py").write_text(TRAINING)
    git(root, "add", "train.py")
    git(root, "commit", "-q", "-m", "first")
    return root


def train(repository: Path, root: Path, label: str, *arguments: str, **environ: str) -> list[Event]:
    done = subprocess.run(
        [sys.executable, str(repository / "train.py"), label, *arguments],
        env=os.environ | {"CHIPLOG_DIR": str(root), "CHIPLOG_SURROUNDINGS": "1"} | environ,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.stdout == "no child\n", done.stderr
    events = read_events(root / "offline")
    return [e for e in events if e.kind == EventKind.NOTICE and e.fields["notice"] == "environment"]


def test_the_primary_tells_commit_command_versions_and_the_allowed_variables(repository, chiplog_dir) -> None:
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "s3",
        "NCCL_DEBUG": "WARN",
        "PYTORCH_HUB_APIKEY": "t0k",
        "NCCL_NET_URL": "http://me:t0k@h",
        "MY_OWN": "m1ne",
    }
    train(repository, chiplog_dir, "rank1")
    [said] = train(repository, chiplog_dir, "rank0", "--lr", "0.1", "--api-key=k3y", "--token", "t0k", **secrets)
    facts = said.fields["body"]
    assert facts["commit"] == git(repository, "rev-parse", "HEAD")
    assert facts["branch"] == "main"
    assert facts["command"][-4:] == ["0.1", "--api-key=***", "--token", "***"]
    assert facts["packages"]["pyzmq"]
    assert facts["python"] == sys.version.split()[0]
    assert facts["variables"]["NCCL_DEBUG"] == "WARN"
    assert facts["variables"]["NCCL_NET_URL"] == "http://***@h"
    assert not {"AWS_SECRET_ACCESS_KEY", "PYTORCH_HUB_APIKEY", "MY_OWN"} & set(facts["variables"])
    assert not any(secret in str(said.fields) for secret in ("s3'", "k3y", "t0k", "m1ne"))
    assert said.fields["message"].startswith(facts["commit"][:12])


SPAWNS = """
import multiprocessing, sys
from chiplog.recording.sharing.environment import collect_environment

def tell():
    print(collect_environment({})["command"][1:], flush=True)

if __name__ == "__main__":
    for method in sys.argv[1:3]:
        process = multiprocessing.get_context(method).Process(target=tell)
        process.start()
        process.join()
"""


def test_a_spawned_rank_tells_the_command_that_people_typed(tmp_path) -> None:
    (tmp_path / "train.py").write_text(SPAWNS)
    command = [sys.executable, "train.py", "spawn", "forkserver", "--lr", "0.1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.splitlines() == [str(command[1:])] * 2


def test_it_can_be_switched_off(repository, chiplog_dir) -> None:
    assert train(repository, chiplog_dir, "rank0", CHIPLOG_SURROUNDINGS="0") == []


def test_the_commit_is_found_wherever_git_keeps_it(repository, tmp_path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    below = repository / "a" / "b"
    below.mkdir(parents=True)
    assert git_of(str(below)) == {"commit": commit, "branch": "main"}
    git(repository, "pack-refs", "--all")
    assert git_of(str(repository)) == {"commit": commit, "branch": "main"}
    git(repository, "worktree", "add", "-q", str(tmp_path / "other"), "-b", "side/branch")
    assert git_of(str(tmp_path / "other")) == {"commit": commit, "branch": "side/branch"}
    git(repository, "checkout", "-q", "--detach")
    assert git_of(str(repository)) == {"commit": commit}
    assert git_of(str(tmp_path)) == {}


def test_a_broken_working_copy_tells_nothing_and_breaks_nothing(tmp_path) -> None:
    empty = tmp_path / "empty"
    (empty / ".git").mkdir(parents=True)
    assert git_of(str(empty)) == {}
    (empty / ".git" / "HEAD").write_bytes(b"\xff\xfe" * 100)
    assert git_of(str(empty)) == {}
    (empty / ".git" / "HEAD").write_text("ref: refs/heads/unborn\n")
    assert git_of(str(empty)) == {"branch": "unborn"}
    lost = tmp_path / "lost"
    lost.mkdir()
    (lost / ".git").write_text("gitdir: /nowhere/at/all\n")
    assert git_of(str(lost)) == {}


def test_what_is_told_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["x" * 10_000] * 10_000)
    facts = collect_environment({"NCCL_DEBUG": "y" * 10_000})
    assert len(str(facts["command"])) < 300_000
    assert len(facts["variables"]["NCCL_DEBUG"]) == 500
    assert packages(["/nowhere"]) == {}


def test_the_end_and_the_senders_thread_may_begin_at_once_and_the_end_waits_for_it(monkeypatch) -> None:
    begin, starting, ended = threading.Thread.start, threading.Event(), threading.Event()

    def slow_start(thread: threading.Thread) -> None:
        if thread.name == "chiplog-surroundings":
            starting.set()
            ended.wait(0.2)  # not set while the start delays the end: no time is asserted
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    said: list[str] = []
    teller = EnvironmentCollector(lambda message, facts: said.append(message), {})
    tick = threading.Thread(target=teller.start)
    tick.start()
    starting.wait()
    teller.start()
    teller.stop()
    ended.set()
    tick.join()
    assert teller._thread is not None
