"""`python -m chiplog.cli`: the path that scripts have."""

import subprocess
import sys

import chiplog_cli
from chiplog import cli
from tests.support.waiting import WAIT_S


def test_the_module_is_the_command() -> None:
    assert cli.main is chiplog_cli.main
    command = [sys.executable, "-m", "chiplog.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.startswith("chiplog ")


def test_the_command_loads_nothing_that_records() -> None:
    code = "import sys, runpy; sys.argv = ['x', '--version']\n"
    code += "try: runpy.run_module('chiplog.cli', run_name='__main__', alter_sys=True)\n"
    code += "except SystemExit: print('zmq' in sys.modules)"
    command = [sys.executable, "-c", code, "chiplog.cli"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.split()[-1] == "False"
