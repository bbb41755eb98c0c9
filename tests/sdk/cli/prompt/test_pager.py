"""Long output goes through a pager, short output and output without a pager does not."""

import os
import subprocess
import sys

import pytest

CODE = "from chiplog_cli.prompt.pager import show_text; show_text('line\\n' * 5, height=%d)"


@pytest.mark.parametrize(
    ("pager", "height", "shown"),
    [
        ("sed s/^/paged:/", 5, "paged:line\n" * 5),
        ("sed s/^/paged:/", 6, "line\n" * 5),
        ("/nowhere/pager", 5, "line\n" * 5),
        ("head -n 1", 2, "line\n"),
    ],
)
def test_only_a_text_that_is_longer_than_the_terminal_is_paged(pager, height, shown):
    done = subprocess.run(
        [sys.executable, "-c", CODE % height], capture_output=True, text=True, env={**os.environ, "PAGER": pager}
    )
    assert (done.stdout, done.stderr, done.returncode) == (shown, "", 0)


def test_an_interrupt_belongs_to_the_pager():
    code = CODE % 2 + "; print('goes on')"
    pager = f"{sys.executable} -c 'import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(0.2)'"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PAGER": pager}
    )
    assert (done.stdout, done.stderr, done.returncode) == ("goes on\n", "", 0)
