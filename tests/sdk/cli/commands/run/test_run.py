"""`chiplog run`: the command runs as without it, and its console, command line and end are recorded."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chiplog_cli.commands.run import run as command
from chiplog_schemas.model.events import EventKind
from tests.support.command_line import CLI, environment, one_line
from tests.support.journals import Event, read_events
from tests.support.safeguard import proves
from tests.support.terminal import Terminal
from tests.support.waiting import WAIT_S

OFFLINE = ("run", "--mode", "offline", "-q")


def ran(root: Path, *arguments: str, **more: Any) -> tuple[int, str, str]:
    env = environment(root, CHIPLOG_SURROUNDINGS="1")
    done = subprocess.run([*CLI, *arguments], capture_output=True, env=env, timeout=WAIT_S, **more)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def events(root: Path, kind: EventKind) -> list[Event]:
    return [event for event in read_events(root / "offline") if event.kind == kind]


def lines(root: Path) -> list[tuple[int, str]]:
    return [(event.fields["stream"], event.fields["line"]) for event in events(root, EventKind.CONSOLE)]


def end(root: Path) -> dict[str, Any]:
    """Return the end of the launcher's label; the helper of a console has another one."""
    [state] = [e.fields["state"] for e in events(root, EventKind.STATE) if "exit" in str(sorted(e.fields["state"]))]
    return {name: value for name, value in state.items() if name not in ("cause", "detail")}


def test_the_output_passes_unchanged_and_console_command_and_exit_code_are_recorded(tmp_path: Path) -> None:
    script = "import sys; print('out'); print('10%\\r20%', file=sys.stderr); sys.exit(3)"
    code, out, err = ran(tmp_path, *OFFLINE, "--run-id", "mine", "--tag", "a", "--", sys.executable, "-c", script)
    assert (code, out, err) == (3, "out\n", "10%\r20%\n")
    assert sorted(lines(tmp_path)) == [(1, "out"), (2, "20%")]
    name = os.path.basename(sys.executable)
    assert end(tmp_path) == {"state": "failed", "exit_code": 3, "reason": f"{name} ended with exit code 3"}
    [told] = [e.fields["body"]["launched"] for e in events(tmp_path, EventKind.NOTICE)]
    assert told == [sys.executable, "-c", script]
    [said] = [e.fields["identity"] for e in events(tmp_path, EventKind.IDENTITY) if "run_id" in e.fields["identity"]]
    assert (said["run_id"], said["tags"]) == ("mine", ["a"])


def test_a_command_that_a_signal_ends_is_a_crash_and_the_exit_code_is_that_of_shells(tmp_path: Path) -> None:
    assert ran(tmp_path, *OFFLINE, "sh", "-c", "kill -9 $$")[0] == 128 + signal.SIGKILL
    assert end(tmp_path) == {"state": "crashed", "exit_signal": 9, "reason": "sh was killed by SIGKILL"}


def test_a_program_that_is_not_there_is_one_line_and_records_nothing(tmp_path: Path) -> None:
    code, out, err = ran(tmp_path, *OFFLINE, "--", "no-such-program", "x")
    assert (code, out) == (127, "")
    assert one_line(err) == "chiplog run: program 'no-such-program' was not found; check its name and PATH"
    assert not (tmp_path / "offline").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--run-id", "a/b", "true"), "run ID 'a/b' has a slash; give 'a_b'"),
        (("--run-id", "", "true"), "run ID '' has no characters; give another one"),
        (("--name", "x"), "Missing argument"),
        (("--mode", "fast", "true"), "'fast' is not one of"),
    ],
)
def test_bad_options_are_one_line_and_start_nothing(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    code, _, err = ran(tmp_path, "run", *arguments)
    assert code == 2 and named in one_line(err)


def test_the_run_id_is_shown_and_not_recorded_and_processes_of_the_command_join_the_run(tmp_path: Path) -> None:
    script = "import chiplog; run = chiplog.init(); print(run.id, run.is_primary, run.mode)"
    code, out, err = ran(tmp_path, "run", "--mode", "offline", "--project", "p", "--", sys.executable, "-c", script)
    assert code == 0, err
    run_id = one_line(err).removeprefix("chiplog run: ")
    assert out == f"{run_id} True offline\n"
    said = [e.fields["identity"] for e in events(tmp_path, EventKind.IDENTITY)]
    ranks = {one["label"]: one for one in said if one["role"] == "rank"}
    launcher = next(label for label in ranks if label.startswith("launcher-"))
    [script_label] = [label for label in ranks if label != launcher]
    assert ranks[script_label]["parent"] == launcher
    assert {one["project"] for one in ranks.values()} == {"p"}
    assert all("chiplog run" not in line for _, line in lines(tmp_path))


@proves(
    "rank-prints-past-launcher", "what a rank records is not recorded a second time by its launcher", condition=False
)
def test_a_process_that_records_its_own_console_shows_it_and_it_is_recorded_once(tmp_path: Path) -> None:
    script = "import chiplog; print('before'); run = chiplog.init(); print('mine')"
    code, out, _ = ran(tmp_path, *OFFLINE, "--", sys.executable, "-c", script)
    assert (code, sorted(out.splitlines())) == (0, ["before", "mine"])
    assert sorted(lines(tmp_path)) == [(1, "before"), (1, "mine")]


def test_several_runs_of_one_script_are_the_launchers_run_and_further_ones(tmp_path: Path) -> None:
    script = "import chiplog\nfor _ in range(2):\n    run = chiplog.init(); print(run.id); run.finish()"
    _, out, _ = ran(tmp_path, *OFFLINE, "--no-console", "--", sys.executable, "-c", script)
    first, second = out.split()
    assert second == f"{first}-2"


@proves("training-runs-unrecorded", "a training runs although its run cannot be opened", value="ZeroDivisionError")
def test_a_training_runs_although_it_cannot_be_recorded(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    env = environment(Path("relative"))
    shell = f'rmdir "{gone}"; exec "$@"'
    arguments = ["run", "--", "/bin/sh", "-c", "echo trained; exit 4"]
    done = subprocess.run(
        ["sh", "-c", shell, "sh", *CLI, *arguments], cwd=gone, env=env, capture_output=True, text=True, timeout=WAIT_S
    )
    assert (done.returncode, done.stdout) == (4, "trained\n")
    assert done.stderr.startswith("chiplog run: the run is not recorded: FileNotFoundError: ")


def test_disabled_runs_the_command_and_records_nothing(tmp_path: Path) -> None:
    assert ran(tmp_path, "run", "--mode", "disabled", "--", "sh", "-c", "echo x; exit 5") == (5, "x\n", "")
    assert not (tmp_path / "offline").exists()


def test_ctrl_c_reaches_the_command_and_its_last_words_are_recorded(tmp_path: Path) -> None:
    script = """
import os, signal, sys
def note(*_):
    os.write(1, b"interrupted\\n")  # print() may be interrupted, and cannot be entered again
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, note)
print("ready", sys.stdout.isatty(), flush=True)
signal.pause()
"""
    with Terminal(tmp_path, *OFFLINE, "--", sys.executable, "-c", script, controls=True) as terminal:
        terminal.wait_for("ready True")
        terminal.type("\x03")
        terminal.wait_for("interrupted")
        assert terminal.end() == 130
    assert (1, "interrupted") in lines(tmp_path)
    assert end(tmp_path)["exit_signal"] == signal.SIGINT


@proves("ctrl-c-delivered-once", "Ctrl-C reaches a training once", part=" and sent.si_code != _SI_KERNEL")
def test_ctrl_c_is_not_forwarded_because_the_process_group_of_the_command_has_it(tmp_path: Path) -> None:
    script = """
import os, signal, sys
os.setpgid(0, 0)  # so only what is forwarded arrives here
wanted = {signal.SIGINT, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
print("ready", flush=True)
print("got", signal.sigwait(wanted).name, flush=True)
"""
    with Terminal(tmp_path, *OFFLINE, "--", sys.executable, "-c", script, controls=True) as terminal:
        terminal.wait_for("ready")
        terminal.type("\x03")
        os.kill(terminal.job, signal.SIGUSR1)  # is taken after SIGINT, which has a lower number
        terminal.wait_for("got SIGUSR1")
        assert terminal.end() == 0


def test_variables_of_options_are_those_that_init_reads() -> None:
    told = {"run_id": "r", "project": "p", "mode": None, "dir_": "here"}
    variables = command._variables(told)
    assert (variables["CHIPLOG_RUN_ID"], variables["CHIPLOG_PROJECT"]) == ("r", "p")
    assert variables["CHIPLOG_DIR"] == os.path.abspath("here") and told["dir"] == "here"
    assert variables.get("CHIPLOG_MODE") == os.environ.get("CHIPLOG_MODE")
