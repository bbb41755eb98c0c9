"""A process that can start no thread, process or socket, or map no file, loses no value and ends as it should.

Once with a real limit, which the kernel applies to users other than root; and with each start failing in turn.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import paths_for_root
from tests.support.journals import Event, read_events
from tests.support.node import end_daemons
from tests.support.safeguard import proves
from tests.support.sdk_events import values
from tests.support.waiting import WAIT_S, wait_until

# Another user, who may read the interpreter wherever it is.
_ANOTHER = ["setpriv", "--reuid=54003", "--regid=54003", "--clear-groups"]
_ANOTHER += ["--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"]

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
import chiplog
run = chiplog.init(project="p", run_id="r", label="main", config={"lr": 1})
for step in range(500):
    run.log({"x": float(step)}, step=step)
print("of the training")
run.finish()
"""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that another user can use."""
    path = Path(tempfile.mkdtemp(prefix="chiplog-limited-"))
    path.chmod(0o777)
    yield path
    end_daemons(paths_for_root(path / "chiplog"))
    shutil.rmtree(path)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="another uid needs root and setpriv")
def test_a_training_that_can_start_no_thread_and_no_process_is_stored_whole(open_directory: Path) -> None:
    environ = {**os.environ, "CHIPLOG_DIR": str(open_directory / "chiplog"), "HOME": str(open_directory)}

    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        whole = [*_ANOTHER, sys.executable, *command]
        return subprocess.run(whole, env=environ, capture_output=True, text=True, timeout=WAIT_S)

    done = run("-c", LIMITED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "of the training\n"
    [line] = [line for line in done.stderr.splitlines() if "console" not in line]
    assert "starts no thread" in line and "ulimit -u" in line
    assert run("-m", "chiplog_cli", "up").returncode == 0
    query = (
        "SELECT (SELECT count(DISTINCT step) FROM metrics WHERE key = 'x' AND value = step) AS stored,"
        " (SELECT state FROM labels WHERE label = 'main') AS state, (SELECT state FROM runs) AS run_state,"
        " (SELECT count(*) FROM console WHERE line = 'of the training') AS lines"
    )

    def is_whole() -> bool:
        found = run("-m", "chiplog_cli", "sql", query, "--format", "csv").stdout.split()
        return found[-1:] == ["500,finished,finished,1"]

    wait_until(is_whole, "all values, and a good end")


# Each start is a call of one of these. The nth call of all fails, or that and all later ones.
MATRIX = """
import errno, io, json, logging, mmap, os, socket, sys, threading
import chiplog
printed = io.StringIO()
logging.basicConfig(stream=printed)
count, fails_from, fails_until, in_memory = 0, 0, 0, []
def failing(call, error):
    def start(*args, **named):
        global count
        count += 1
        if fails_from <= count < fails_until:
            raise error
        return call(*args, **named)
    return start
def system(number):
    return OSError(number, os.strerror(number))
class Socket(socket.socket):
    def __init__(self, *args, **named):
        global count
        count += 1
        if fails_from <= count < fails_until: raise system(errno.EMFILE)
        super().__init__(*args, **named)
class Map(mmap.mmap):
    def __new__(cls, *args, **named):
        global count
        count += 1
        if fails_from <= count < fails_until: raise system(errno.ENOMEM)
        return super().__new__(cls, *args, **named)
threading._start_new_thread = failing(threading._start_new_thread, RuntimeError("can't start new thread"))
if hasattr(threading, "_start_joinable_thread"):
    threading._start_joinable_thread = failing(threading._start_joinable_thread, RuntimeError("can't start new thread"))
os.posix_spawn = failing(os.posix_spawn, system(errno.EAGAIN))
for name in ("pipe", "pipe2", "openpty", "memfd_create", "pidfd_open", "eventfd", "dup"):
    setattr(os, name, failing(getattr(os, name), system(errno.EMFILE)))
socket.socket, mmap.mmap = Socket, Map
def train(number, first, last):
    global count, fails_from, fails_until
    count, fails_from, fails_until = 0, first, last
    run = chiplog.init(mode="offline", run_id=f"r{number}", label="main", capture_console=number % 2 == 0)
    assert run.mode == "offline", printed.getvalue()
    for step in range(3):
        run.log({"x": float(step)}, step=step)
    os.write(1, b"of the training" + bytes([10]))
    while run._journal.next_seq < 12:  # more than the first segment holds
        run.log({"x": float(step := step + 1)}, step=step)
        run.log({f"{step} {n}": 1.0 for n in range(4000)}, step=step)
    run.finish()
    fails_until = 0
    if "no journal in" in printed.getvalue():  # which says what is lost, and why
        assert last > first + 1, "one failure has cost a journal"
        in_memory.append(run.id)
    printed.truncate(0)
    return count
n_starts = train(0, 0, 0)
for n in range(1, n_starts + 1):
    train(2 * n, n, n + 1)
    train(2 * n + 1, n, 1 << 30)
print(json.dumps([n_starts, in_memory]), file=sys.stderr)
"""


@proves("journal-needs-no-thread", "a journal needs no thread", value="ValueError")
@proves("journal-tried-twice", "a journal is tried again where the system lacked something at one moment", new="raise")
def test_each_start_that_fails_costs_no_value(chiplog_dir: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MATRIX], capture_output=True, text=True, timeout=2 * WAIT_S)
    assert done.returncode == 0, done.stderr
    n_starts, in_memory = json.loads(done.stderr)
    print("starts that failed in turn:", n_starts)
    assert len(in_memory) <= 3, "only while no file can be mapped at all"
    events = read_events(chiplog_dir / "offline")
    by_run: dict[str, list[Event]] = {}
    for producer in {event.producer for event in events}:
        own = [event for event in events if event.producer == producer]
        identity = own[0].fields["identity"]
        if identity.get("role") != "console":
            by_run[identity["run_id"]] = own
    assert len(by_run) == 2 * n_starts + 1 - len(in_memory)
    for run_id, own in by_run.items():
        found = values(own, "x")
        assert found == [(step, float(step)) for step in range(len(found))] and len(found) > 3, run_id
        [state] = [event.fields["state"] for event in own if event.kind == EventKind.STATE]
        assert (state["state"], own[-1].kind) == ("finished", EventKind.STATE), run_id
        assert not [event for event in own if event.kind == EventKind.LOST], run_id


CONSOLE = """
import os, threading
def no_thread(*args, **named): raise RuntimeError("can't start new thread")
threading._start_new_thread = threading._start_joinable_thread = no_thread
import chiplog
run = chiplog.init(mode="offline", run_id="r", label="main")
print("of Python", flush=True)
for _ in range(20): os.write(1, b"x" * 10_000 + b"\\n")  # more than a pipe holds
run.finish()
"""


@proves(
    "helper-needs-supervisor", "without a thread that watches over it, no helper reads the console", condition=False
)
def test_without_a_thread_the_console_has_no_pipe_that_could_fill_up(chiplog_dir: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CONSOLE], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) == len("of Python\n") + 20 * 10_001
    assert "only as far as Python prints" in done.stderr
    lines = [event for event in read_events(chiplog_dir / "offline") if event.kind == EventKind.CONSOLE]
    assert [event.fields["line"] for event in lines] == ["of Python"]


CLIENT = """
import resource, zmq
from chiplog_schemas.protocol.sender import SenderState
from chiplog_schemas.transport.dealer import DeliveryClient
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
class Empty:
    first_number = 0
changes = []
client = DeliveryClient(
    zmq.Context(), "tcp://127.0.0.1:9", b"s" * 16, {}, Empty(), on_change=lambda state, why: changes.append(why)
)
client.poll(1.0)
print(changes, flush=True)
"""


@proves("context-needs-threads", "libzmq does not end a process that can start no thread", new="pass")
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="another uid needs root and setpriv")
def test_a_client_with_keys_survives_where_no_thread_can_be_started() -> None:
    done = subprocess.run([*_ANOTHER, sys.executable, "-c", CLIENT], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    assert "pids limit" in done.stdout
