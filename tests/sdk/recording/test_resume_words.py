"""W&B's words about a run ID: none of them becomes a run, and the collector decides what must be there or must not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import chiplog
from chiplog_schemas.model.events import EventKind
from tests.support.safeguard import proves
from tests.support.sdk_events import numbers
from tests.support.waiting import WAIT_S, wait_until

WORDS = ["allow", "must", "never", "auto", "Allow", "MUST", True]
TRAINS = """
import os, signal, subprocess, sys
import chiplog
project, resume, end = sys.argv[1:]
resume = {"True": True, "None": None}.get(resume, resume)
run = chiplog.init(project, resume=resume, mode="offline", capture_console=False)
run.log({"x": 1.0})
print(run.id, run.label, flush=True)
if end == "exit":
    raise SystemExit(4)
if end == "kill":
    import json, pathlib, time
    marks = pathlib.Path(os.environ["CHIPLOG_DIR"], "unfinished")
    until = time.monotonic() + 60
    # The sender's thread writes the mark, and on a machine with much to do it has its first turn late.
    while run.id not in [json.loads(path.read_text())["run_id"] for path in marks.glob("[!.]*")]:
        assert time.monotonic() < until, "no mark of the unfinished run"
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
elif end == "wait":
    sys.stdin.readline()
run.finish(exit_code=end == "fail")
"""


def start(root: Path, project: str, resume: str, end: str, **options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", TRAINS, project, resume, end]
    environ = os.environ | {"CHIPLOG_DIR": str(root)}
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def train(root: Path, project: str, resume: str = "auto", end: str = "end", **options: object) -> list[str]:
    """Return run ID and label of a training."""
    process = start(root, project, resume, end, **options)
    said, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == {"kill": -signal.SIGKILL, "exit": 4}.get(end, 0)
    return said.split()


@proves("resume-word-is-no-run", "a word of W&B is no run ID", new='if word in ("",):')
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("named", ["run_id", "id", "variable", ""])
def test_no_word_becomes_a_run(chiplog_dir, offline, monkeypatch, word, named) -> None:
    if named == "variable":
        monkeypatch.setenv("CHIPLOG_RUN_ID", "gpt-1")
    given = {named: "gpt-1"} if named in ("run_id", "id") else {}
    with chiplog.init("p", resume=word, mode="offline", capture_console=False, **given) as run:
        assert run.id == "gpt-1" if named else run.id not in WORDS
    said = [event.fields["identity"] for event in offline(EventKind.IDENTITY)]
    demand = str(word).lower() if named and str(word).lower() in ("must", "never") else None
    assert [one.get("resume") for one in said] == [demand]


@pytest.mark.parametrize(
    ("given", "run_id", "line"),
    [
        ({"id": "a", "run_id": "b"}, "b", "id='a' and run_id='b' name two runs; the second is used"),
        ({"id": "a", "resume": "b"}, "a", "resume='b' and run_id='a' name two runs; the second is used"),
        ({"id": "a"}, "a", ""),
        ({"resume": "must"}, None, "resume='must' needs the ID of the run"),
        ({"resume": "allow"}, None, ""),
        ({"resume": "never"}, None, ""),
        ({"resume": "latest"}, "latest", "resume='latest' is taken as the ID of a run; give the ID of the run"),
        ({"resume": "y", "run_id": "y"}, "y", ""),
        ({"resume": False}, None, ""),
    ],
)
def test_what_names_no_run_or_two_is_one_line(chiplog_dir, caplog, given, run_id, line) -> None:
    with chiplog.init(mode="offline", capture_console=False, **given) as run:
        assert run.id == run_id if run_id else run.id.count("-") == 2
    said = [record.getMessage() for record in caplog.records]
    assert sum(any(part in one for part in ("name two runs", "needs the ID", "is taken as")) for one in said) == bool(
        line
    )
    assert line in caplog.text


def test_allow_goes_on_with_label_and_steps_and_never_begins_at_0(chiplog_dir, offline) -> None:
    labels = []
    for resume in ("allow", "allow", "never"):
        with chiplog.init(run_id="r", resume=resume, mode="offline", capture_console=False) as run:
            run.log({"x": 1.0})
            labels.append(run.label)
    assert labels[0] == labels[1] != labels[2]
    with chiplog.init(run_id="r", label="l", resume="allow", mode="offline", capture_console=False) as run:
        run.log({"y": 1.0}, step=7)
    with chiplog.init(run_id="r", label="l", resume="never", mode="offline", capture_console=False) as run:
        run.log({"y": 1.0})
    assert sorted(step for key, step, _ in numbers(offline()) if key == "x") == [0, 0, 1]
    assert sorted(step for key, step, _ in numbers(offline()) if key == "y") == [0, 7]


@proves(
    "refused-run-writes-no-count",
    "a refused run leaves the files of the run that exists alone",
    new="self.is_refused = False\n...",
)
def test_a_run_that_had_to_be_new_leaves_count_and_mark_of_the_one_that_exists_alone(chiplog_dir, offline) -> None:
    def log(n: int, resume: str) -> list[int]:
        run = chiplog.init(run_id="x", resume=resume, label="l", mode="offline", capture_console=False)
        for _ in range(n):
            run.log({resume: 1.0})
        run.finish()
        return sorted(step for key, step, _ in numbers(offline()) if key == resume)

    assert log(10, "allow") == list(range(10))
    assert log(3, "never") == [0, 1, 2]
    assert log(1, "must") == [10], "the count is that of the run that exists"
    killed = train(chiplog_dir, "p", end="kill")
    never = chiplog.init("p", run_id=killed[0], resume="never", mode="offline", capture_console=False)
    never.finish()
    assert train(chiplog_dir, "p") == killed, "it is still the last one that did not finish, with its label"


@proves("finished-run-not-resumed", "auto resumes a run that did not finish, and no other", condition=False)
def test_auto_goes_on_with_the_last_run_of_the_project_that_did_not_finish(chiplog_dir, tmp_path) -> None:
    killed = train(chiplog_dir, "p", end="kill")
    assert train(chiplog_dir, "p", resume="None")[0] != killed[0], "without resume a run is new"
    assert train(chiplog_dir, "q")[0] != killed[0], "another project"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert train(chiplog_dir, "p", cwd=elsewhere)[0] != killed[0], "another directory"
    assert train(chiplog_dir, "p", end="fail") == killed, "also its label"
    assert train(chiplog_dir, "p", end="exit") == killed, "after an end that no hook saw, too"
    assert train(chiplog_dir, "p", resume="True") == killed
    assert train(chiplog_dir, "p")[0] != killed[0], "it has finished"


@proves("chosen-run-is-named", "a run that resume='auto' has chosen is named", value="[]")
def test_auto_names_the_run_and_why_in_one_line_of_the_primary(chiplog_dir, tmp_path, caplog) -> None:
    quiet = {"mode": "offline", "capture_console": False}
    first = chiplog.init("p", resume="auto", **quiet)
    assert not first.resumed and "continues" not in caplog.text
    first.finish(exit_code=1)
    second = chiplog.init("p", resume="auto", **quiet)
    assert (second.id, second.resumed) == (first.id, True)
    [line] = [record.getMessage() for record in caplog.records if "continues" in record.getMessage()]
    assert f"resume='auto' continues run {first.id}, the last one of this working directory and project p" in line
    second.finish(exit_code=1)
    chiplog.init("p", resume="auto", primary=False, **quiet).finish(exit_code=1)
    assert len([record for record in caplog.records if "continues" in record.getMessage()]) == 1, "of the primary only"


@proves(
    "running-run-not-resumed",
    "auto leaves alone what still runs",
    part='not lock_holder_pid(Path(run["journal"]) / "lock")',
    new="True",
)
def test_auto_leaves_a_run_alone_that_still_runs(chiplog_dir) -> None:
    runs = start(chiplog_dir, "p", "auto", "wait")
    assert runs.stdout is not None
    first = runs.stdout.readline().split()[0]
    wait_until(lambda: list((chiplog_dir / "unfinished").glob("*")), "the file of an unfinished run")
    assert train(chiplog_dir, "p")[0] != first
    runs.communicate("\n", timeout=WAIT_S)


RANKS = """
import sys
import chiplog
run = chiplog.init("p", resume=True, mode="offline", capture_console=False)
run.log({"x": 1.0})
import time
time.sleep(float(sys.argv[1]))
print(run.id, flush=True)
if sys.argv[2:]:
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ranks_that_start_one_after_the_other_go_on_with_the_same_run(chiplog_dir) -> None:
    def launch(elastic_id: str, end: str) -> set[str]:
        found = []
        for rank in range(2):
            environ = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
            environ |= {"TORCHELASTIC_RUN_ID": elastic_id, "CHIPLOG_DIR": chiplog_dir}
            environ = os.environ | {name: str(value) for name, value in environ.items()}
            command = [sys.executable, "-c", RANKS, "0.5", *([end] if end else [])]
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=WAIT_S)
            found.append(done.stdout.strip())
        return set(found)

    first = launch("00000000-0000-4000-8000-000000000001", "kill")
    assert len(first) == 1
    assert launch("00000000-0000-4000-8000-000000000002", "kill") == first
