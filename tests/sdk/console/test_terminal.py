"""The terminal of a run still works for its children: pagers, editors, the debugger, bars, with the real programs."""

import contextlib
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

from chiplog_schemas.model.events import EventKind
from tests.support.journals import read_events
from tests.support.safeguard import proves
from tests.support.tools import require
from tests.support.waiting import WAIT_S, wait_until

HEAD = """
import fcntl, os, signal, subprocess, sys, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # the parent made the session
os.environ.update(TERM="xterm", LESS="", PAGER="less", GIT_PAGER="less", LESSHISTFILE="-")
import chiplog
run = chiplog.init(mode="offline", run_id="r", label="a")
while not run._console.capture.helper: time.sleep(0.01)
"""
QUESTION = "say: "
ASK = f'print("answer", repr(input("{QUESTION}")))\n'


class Terminal:
    """A terminal with a process in front, typed to from here."""

    def __init__(self, command: list[str]) -> None:
        self.shown = b""
        self.master, self._slave = pty.openpty()
        self.resize(24, 80)
        self.process = subprocess.Popen(
            command, stdin=self._slave, stdout=self._slave, stderr=self._slave, start_new_session=True
        )

    def resize(self, rows: int, columns: int) -> None:
        ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def modes(self) -> list:
        return termios.tcgetattr(self._slave)

    def readers_of(self, pid: int) -> list[str]:
        """Return the descriptors that a process has opened on this terminal to read only."""
        name, found = os.ttyname(self._slave), []
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # it was closed in the meantime
                flags = int(re.search(r"flags:\s+(\d+)", Path(f"/proc/{pid}/fdinfo/{number}").read_text())[1], 8)
                if os.readlink(f"/proc/{pid}/fd/{number}") == name and flags & os.O_ACCMODE == os.O_RDONLY:
                    found.append(number)
        return found

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def expect(self, pattern: str) -> re.Match[bytes]:
        """Wait until a text is shown, and drop the output up to its end."""
        deadline = time.monotonic() + WAIT_S
        while (found := re.search(pattern.encode(), self.shown)) is None:
            assert time.monotonic() < deadline, f"no {pattern} in {self.shown!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                self.shown += os.read(self.master, 65_536)
        # The question is on stderr: the kernel may pass it on before what was printed to stdout just before it.
        is_asked_early = pattern != QUESTION and QUESTION.encode() in self.shown[: found.end()]
        self.shown = QUESTION.encode() * is_asked_early + self.shown[found.end() :]
        return found

    def expect_reader(self, program: str) -> None:
        """Wait until a program of this terminal waits for a key; what is typed before may be lost to it."""

        def waits() -> bool:
            if select.select([self.master], [], [], 0)[0]:  # it may wait for room for its output
                self.shown += os.read(self.master, 65_536)
            for entry in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):  # it has ended
                    name, fields = (entry / "stat").read_text().rsplit(")", 1)
                    if name.endswith(f"({program}") and int(fields.split()[3]) == self.process.pid:
                        return (entry / "wchan").read_text() == "wait_woken"  # where the kernel reads a terminal
            return False

        wait_until(waits, f"{program} to wait for a key")

    def answer(self) -> None:
        """Answer the question at the end of a script: lines are edited and echoed as ever."""
        self.expect(QUESTION)
        self.type("hellp\x7fo\n")
        self.expect(r"answer 'hello'")
        deadline = time.monotonic() + WAIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.05)[0]:
                self.shown += os.read(self.master, 65_536)
        assert self.process.poll() == 0, self.shown

    def close(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait(WAIT_S)
        os.close(self._slave)
        os.close(self.master)


@pytest.fixture
def run(chiplog_dir: Path, tmp_path: Path) -> Iterator:
    """Start a script on a terminal, within a run, and close it at the end of the test."""
    opened = []

    def start(body: str, head: str = HEAD) -> Terminal:
        path = tmp_path / "train.py"
        path.write_text(head + textwrap.dedent(body) + ASK)
        opened.append(Terminal([sys.executable, "-W", "error", str(path)]))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


PAGERS = {
    "less of a pipe": ("less", "os.system('seq 1000 | less')"),
    "less of a file": ("less", "os.system('seq 1000 > numbers; less numbers')"),
    "less of subprocess": ("less", "subprocess.run('seq 1000 | less', shell=True)"),
    "more of a pipe": ("more", "os.system('seq 1000 | more')"),
}


@proves("pager-gets-keys", "keys reach a pager that opens the terminal of its stderr by name")
@pytest.mark.parametrize("name", PAGERS)
def test_a_pager_gets_its_keys_and_leaves_the_terminal_as_it_was(run, name: str, tmp_path: Path, monkeypatch) -> None:
    program, call = PAGERS[name]
    require(program)
    monkeypatch.chdir(tmp_path)
    terminal = run(call + "\n")
    before = terminal.modes
    terminal.expect(r"\n23")
    if program == "more":
        terminal.expect("More")
    terminal.type(" ")
    terminal.expect(r"\n40")
    terminal.type("q")
    terminal.answer()
    assert terminal.modes == before


def test_help_is_shown_by_a_pager_that_can_be_left(run) -> None:
    require("less")
    terminal = run("help(run.alert)\n")
    terminal.expect("Help on")
    terminal.type("q")
    terminal.answer()


def test_the_log_of_git_can_be_searched_left_and_interrupted(run, tmp_path: Path) -> None:
    require("git", "less")
    repository = tmp_path / "repository"
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    for number in range(12):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", f"commit number {number}"], check=True)
    terminal = run(f"os.system('git -C {repository} log')\n")
    terminal.expect("commit number 11")
    terminal.expect_reader("less")
    terminal.type("\x03")  # less rings the bell, paints the page again and continues
    terminal.expect("\x07")
    terminal.expect_reader("less")
    terminal.type("/number 2\n")
    terminal.expect("number 2")
    terminal.type("q")
    terminal.answer()


def test_an_editor_edits_what_it_is_given(run, tmp_path: Path) -> None:
    require("vi")
    file = tmp_path / "file.txt"
    file.write_text("old\n")
    terminal = run(f"os.system('vi -Nu NONE -n {file}')\nprint('edited', flush=True)\n")
    terminal.expect("old")
    terminal.type("cwnew\x1b")
    terminal.type(":wq\r")
    terminal.expect("edited")
    assert file.read_text() == "new\n"
    terminal.answer()


def test_an_editor_of_a_pipe_reads_its_keys_from_stderr(run, tmp_path: Path) -> None:
    require("vi")
    file = tmp_path / "file.txt"
    terminal = run("os.system('echo piped | vi -Nu NONE -n -')\nprint('edited', flush=True)\n")
    terminal.expect("piped")
    terminal.type(f":w {file}\r")
    wait_until(file.exists, "the file that vi writes")
    terminal.type(":q!\r")
    terminal.expect("edited")
    assert file.read_text() == "piped\n"
    terminal.answer()


def test_the_debugger_is_asked_and_answers(run) -> None:
    terminal = run("answer = 42\nimport pdb; pdb.set_trace()\nprint('after')\n")
    terminal.expect(r"\(Pdb\)")
    terminal.type("p answer + 1\n")
    terminal.expect("43")
    terminal.expect(r"\(Pdb\)")
    terminal.type("c\n")
    terminal.expect("after")
    terminal.answer()


def test_bars_of_tqdm_and_rich_are_drawn_and_recorded_once(run, chiplog_dir: Path) -> None:
    terminal = run("""
        from tqdm import tqdm
        for _ in tqdm(range(50), desc="tqdm", ncols=60): time.sleep(0.001)
        from rich.progress import track
        for _ in track(range(50), description="rich"): time.sleep(0.001)
        from rich.prompt import Prompt
        print("asked", Prompt.ask("which"))
    """)
    terminal.expect(r"tqdm: 100%\|(?:█)+\| 50/50")
    terminal.expect(r"rich.*━.*100%")
    terminal.expect("which")
    terminal.type("this\n")
    terminal.expect("asked this")
    terminal.answer()

    def lines() -> list[str]:
        events = read_events(chiplog_dir / "offline")
        return [event.fields["line"] for event in events if event.kind == EventKind.CONSOLE]

    wait_until(lambda: any("answer 'hello'" in line for line in lines()), "the last line")
    assert sum("tqdm" in line for line in lines()) == 1


# Sets modes at its stderr and reads its keys from its stdin, as ncurses does.
READS_STDIN = """
import sys, termios
before = termios.tcgetattr(2)
modes = termios.tcgetattr(2)
modes[3] &= ~(termios.ICANON | termios.ECHO)
termios.tcsetattr(2, termios.TCSANOW, modes)
print("keys?", flush=True)
print("read", sys.stdin.read(3), flush=True)
termios.tcsetattr(2, termios.TCSANOW, before)
"""


@proves(
    "terminal-follows-child-modes",
    "the terminal has the modes that a child has set at the pseudo-terminal",
    condition=False,
)
@proves(
    "keys-left-to-reading-child",
    "keys that a child reads from its stdin are left to it",
    new="return True\nfor number in ():",
)
def test_modes_that_a_child_sets_are_those_of_the_terminal_until_it_restores_them(run, tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(READS_STDIN)
    start = tmp_path / "start"
    terminal = run(
        f"print('helper', run._console.capture.helper)\n"
        f"while not os.path.exists({str(start)!r}): time.sleep(0.01)\n"
        f"subprocess.run([sys.executable, {str(child)!r}])\n"
    )
    helper = int(terminal.expect(r"helper (\d+)\r")[1])
    before = terminal.modes
    start.touch()
    terminal.expect(r"keys\?")
    wait_until(lambda: not terminal.modes[3] & termios.ICANON, "the modes of the child at the terminal")
    assert not terminal.modes[3] & termios.ECHO
    assert terminal.modes[3] & termios.ISIG
    for _ in range(6):
        time.sleep(0.1)  # in total longer than the helper's interval for finding a reader
        assert terminal.readers_of(helper) == [], "the keys are the child's"
    terminal.type("abc")
    terminal.expect("read abc")
    terminal.answer()
    assert terminal.modes == before


@proves(
    "background-leaves-terminal",
    "a run in the background leaves the terminal's modes and keys alone",
    part="foreground_of",
    new="(lambda rank: [rank, *_descendants(rank)])",
)
def test_a_run_in_the_background_leaves_the_terminal_alone(run, tmp_path: Path) -> None:
    training = tmp_path / "background.py"
    reads_stderr = READS_STDIN.replace("sys.stdin.read(3)", "os.read(2, 3)").replace("import", "import os,")
    (tmp_path / "child.py").write_text(reads_stderr)
    body = f"""
    child = subprocess.Popen([sys.executable, {str(tmp_path / "child.py")!r}], stdin=subprocess.DEVNULL)
    time.sleep(2)  # several looks of the helper
    child.kill()
    """
    head = HEAD.replace("fcntl.ioctl(0", "# fcntl.ioctl(0")
    training.write_text(head + textwrap.dedent(body))
    terminal = run(
        f"""
        import subprocess, sys
        subprocess.Popen([sys.executable, {str(training)!r}], process_group=0).wait()
        """,
        head="import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n",
    )
    before = terminal.modes
    terminal.expect(r"keys\?")
    for _ in range(5):
        time.sleep(0.2)
        assert terminal.modes == before
    terminal.answer()
    assert terminal.modes == before


@proves("winch-after-resize", "a foreground program gets SIGWINCH once its terminal has the new size")
def test_a_pager_follows_the_size_of_the_terminal(run) -> None:
    require("less")
    terminal = run("os.system('seq 1000 | less')\n")
    terminal.expect(r"\n23")
    terminal.resize(40, 80)
    terminal.expect(r"\n39")
    terminal.type("q")
    terminal.answer()
