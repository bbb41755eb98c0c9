"""Priorities: what is lowered is lowered alone, and stays within what the kernel knows."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chiplog_collector.priority import BACKGROUND, lower_thread

PROCESS = """
import os, threading
from pathlib import Path
from chiplog_collector.priority import lower_process
lower_process(5)
found = []
thread = threading.Thread(target=lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
thread.start()
thread.join()
group = Path("/proc/self/autogroup")
print((os.getpriority(os.PRIO_PROCESS, 0), found[0], group.read_text() if group.exists() else ""))
"""
GROUP = Path("/proc/self/autogroup")  # empty in a process that a control group shares cores among


def priority_of_group(text: str) -> int | None:
    """Read `/autogroup-25 nice 5`; None where this process is in no such group."""
    return int(text.split()[-1]) if text.strip() else None


def own() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def in_thread(*calls: int) -> list[int]:
    found: list[int] = []

    def run() -> None:
        for steps in calls:
            lower_thread(steps)
            found.append(own())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux alone")
def test_a_thread_is_lowered_and_no_other_one() -> None:
    before = own()
    assert in_thread(BACKGROUND, 100) == [min(19, before + BACKGROUND), 19]
    assert own() == before


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux alone")
@pytest.mark.parametrize("leads", [True, False])
def test_a_process_is_lowered_with_its_threads_and_its_session_if_that_is_its_own(leads: bool) -> None:
    before, had = own(), priority_of_group(GROUP.read_text()) if GROUP.exists() else None
    command = [sys.executable, "-P", "-c", PROCESS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=leads)
    process, thread, group = eval(done.stdout)
    session = priority_of_group(group)
    assert process == thread == min(19, before + 5)
    if had is not None:
        assert session == (5 if leads else had)
        assert priority_of_group(GROUP.read_text()) == had


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    before = own()
    assert in_thread(5) == [before]


def test_a_refusal_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "setpriority", refuse)
    before = own()
    assert in_thread(5) == [before]
