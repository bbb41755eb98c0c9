"""A command as a child process: its exit status, and which signals it gets."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog_cli.commands.run.command_process import NOT_EXECUTABLE, NOT_FOUND, CommandError, find_program
from tests.support.waiting import WAIT_S

RUN = """
import os, sys
from chiplog_cli.commands.run.command_process import CommandError, SignalForwarder, find_program
signals = SignalForwarder()
{before}
try:
    print("ended with", signals.run(find_program(sys.argv[1]), sys.argv[1:], os.environ))
except CommandError as error:
    print(error.exit_code, error)
"""
# Prints each signal that it gets, and ends with the second one.
COUNTING = """
import os, signal, sys
got = []
def note(number, _):
    got.append(number)
    os.write(1, b"got %d\\n" % number)  # a signal may come within a print
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, note)
print("blocked:", sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), flush=True)
while len(got) < 2:
    signal.pause()
"""


def started(*command: str, before: str = "") -> "subprocess.Popen[str]":
    code = RUN.format(before=before)
    return subprocess.Popen([sys.executable, "-c", code, *command], stdout=subprocess.PIPE, text=True)


def test_the_exit_status_of_a_command_is_its_code_or_its_signal() -> None:
    for script, status in (("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", -9)):
        assert started("sh", "-c", script).communicate(timeout=WAIT_S)[0] == f"ended with {status}\n"


def test_signals_to_the_process_alone_are_forwarded_once_each_and_the_command_starts_with_none_blocked() -> None:
    process = started(sys.executable, "-c", COUNTING)
    assert process.stdout is not None
    assert process.stdout.readline() == "blocked: []\n"
    for number in (signal.SIGTERM, signal.SIGUSR1):
        process.send_signal(number)
        assert process.stdout.readline() == f"got {int(number)}\n"
    # Not communicate(): it reads the pipe past what readline() has already taken from it.
    assert process.stdout.read() == "ended with 0\n"
    process.wait(WAIT_S)
    process.stdout.close()


def test_a_signal_that_came_before_the_command_keeps_it_from_starting() -> None:
    process = started("echo", "started", before="os.kill(os.getpid(), 2)")
    assert process.communicate(timeout=WAIT_S)[0] == "ended with -2\n"


def test_an_exit_status_is_read_although_the_parent_ignored_the_end_of_children() -> None:
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", RUN.format(before=""), "sh", "-c", "exit 3"]
    done = subprocess.run([sys.executable, "-c", ignoring, *command], capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout == "ended with 3\n"


def test_a_program_that_is_not_there_or_cannot_be_executed_is_named(tmp_path: Path) -> None:
    assert find_program("sh", os.environ["PATH"]).endswith("/sh")
    plain = tmp_path / "train.py"
    plain.write_text("print(1)\n")
    for name, code, why in (
        ("no-such-program", NOT_FOUND, "was not found"),
        (str(tmp_path / "absent.py"), NOT_FOUND, "was not found"),
        (str(plain), NOT_EXECUTABLE, "is not executable"),
        (str(tmp_path), NOT_EXECUTABLE, "is a directory"),
    ):
        with pytest.raises(CommandError, match=why) as raised:
            find_program(name, os.environ["PATH"])
        assert raised.value.exit_code == code and repr(name) in str(raised.value)


def test_a_script_without_an_interpreter_is_reported_when_it_is_started(tmp_path: Path) -> None:
    plain = tmp_path / "train.py"
    plain.write_text("print(1)\n")
    plain.chmod(0o755)
    assert started(str(plain)).communicate(timeout=WAIT_S)[0].startswith(f"{NOT_EXECUTABLE} program {str(plain)!r}")
