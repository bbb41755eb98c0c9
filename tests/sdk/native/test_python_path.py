"""Run the tests of the functions that exist in C and in Python once more, with CHIPLOG_NATIVE=0."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog.native.loader import hot_path
from tests.support.marks import everyday
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).parents[3]
MODULES = [
    "tests/sdk/timing",
    "tests/sdk/recording/test_bad_input.py",
    "tests/sdk/journal/test_journal.py",
    "tests/sdk/recording/api/test_functions.py",
    "tests/sdk/recording/run/test_run.py",
    "tests/fault/test_interrupts.py",
]


@pytest.mark.skipif(hot_path is None, reason="all tests use the Python functions")
@pytest.mark.parametrize("module", everyday(1, MODULES))
def test_the_python_functions_pass_the_same_tests(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}", module]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=ROOT, env=environ | {"CHIPLOG_NATIVE": "0"}, capture_output=True, text=True, timeout=2 * WAIT_S
    )
    assert done.returncode == 0, done.stdout[-4000:]
