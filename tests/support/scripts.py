"""A script of a test that starts processes of its own."""

import os
import subprocess
import sys

from tests.support.waiting import WAIT_S

# A script of its own for each: the children must not inherit pytest.
HEAD = """
import multiprocessing, os, signal, sys
import chiplog

def child(number):
    for step in range(20):
        chiplog.log({"child": number}, step=step)

def joining(number):
    run = chiplog.init(mode="offline", label=f"child{number}")
    run.log({"child": number}, step=0)

def nameless(number):
    chiplog.init(mode="offline").log({"child": number}, step=0)

def silent(number):
    return number * 2
"""


def run_script(body: str, functions: str = "", *, may_fail: bool = False) -> str:
    script = (
        HEAD
        + functions
        + "\nif __name__ == '__main__':\n"
        + "".join(f"    {line}\n" for line in body.strip().splitlines())
    )
    # From a file: spawn imports the main module again.
    path = os.path.join(os.path.dirname(os.environ["CHIPLOG_DIR"]), "script.py")
    with open(path, "w") as file:
        file.write(script)
    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    assert may_fail or "Traceback" not in done.stderr, done.stderr
    assert "chiplog:" not in done.stderr, done.stderr
    return done.stdout
