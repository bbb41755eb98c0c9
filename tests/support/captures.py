"""Commands on a terminal of a given width, as the documentation shows them: run in tmux, which draws the screen.

A page has a comment before each such block, `<!-- capture 160: chiplog show latest -->`. After ` | ` come lines that
are typed into the command.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

from tests.support.command_line import CLI, environment
from tests.support.waiting import WAIT_S, wait_until

BLOCK = re.compile(r"^<!-- capture (\d+): (.+?) -->\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HEIGHT = 100  # lines: no capture scrolls
_END = "#end of the command"
_PROMPT = "chiplog> "


def capture(root: Path, width: int, command: str) -> str:
    """Return what a terminal of this width shows of a command and its output, without blanks at the ends of lines."""
    program, *typed = command.split(" | ")
    name, *arguments = shlex.split(program)
    assert name == "chiplog"
    line = f"{shlex.join([*CLI, *arguments])}; printf %s {shlex.quote(_END)}; read -r _"
    # A socket for each: a server keeps its socket for a moment after the request to end.
    server = ["tmux", "-u", "-S", str(root / f"tmux-{os.urandom(4).hex()}"), "-f", "/dev/null"]
    size = ["-x", str(width), "-y", str(_HEIGHT)]
    env = environment(root, TERM="xterm-256color")
    for name in ("COLUMNS", "LINES", "TMUX"):  # they would count more than the size of this terminal
        env.pop(name, None)
    subprocess.run([*server, "new-session", "-d", *size, "sh", "-c", line], env=env, check=True, timeout=WAIT_S)

    def screen() -> str:
        done = subprocess.run(
            [*server, "capture-pane", "-p"], capture_output=True, text=True, check=True, timeout=WAIT_S
        )
        return done.stdout

    try:
        for number, text in enumerate(typed):
            ready = _PROMPT if number == 0 else "…>"
            wait_until(lambda ready=ready: screen().rstrip().endswith(ready.rstrip()), ready)
            keys = re.sub(";$", r"\\;", text)  # a semicolon at the end of an argument would end tmux's command
            subprocess.run([*server, "send-keys", "-l", keys], check=True, timeout=WAIT_S)
            subprocess.run([*server, "send-keys", "Enter"], check=True, timeout=WAIT_S)
        if typed:
            end = r"(?s)\d+ rows?, \d+ ms\n.*" + re.escape(_PROMPT.rstrip())
        else:
            end = _END
        wait_until(lambda: re.search(end, screen()), end)
        shown = screen().rstrip()
    finally:
        subprocess.run([*server, "kill-server"], check=False, timeout=WAIT_S)
    last = _PROMPT.rstrip() if typed else _END
    shown = shown.removesuffix(last).rstrip("\n")
    return "\n".join([f"$ {program}", *(row.rstrip() for row in shown.splitlines())]) + "\n"
