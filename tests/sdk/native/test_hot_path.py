"""Invariant: whatever a training calls, C and Python leave the same bytes, return the same and count the same."""

import functools
import gc
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog.journal import journal
from chiplog.native.loader import hot_path
from chiplog.values.metrics import FLOAT_TYPES
from chiplog_schemas.storage.record import Record, scan_records
from chiplog_schemas.storage.segment_format import SEGMENT_HEADER_BYTES
from tests.support import loop_program
from tests.support.marks import everyday
from tests.support.rounds import Rounds
from tests.support.signals import handling, raising
from tests.support.threads import run_side_by_side
from tests.support.tools import needs
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).parents[3]
N_SEEDS = 60
needs_c = pytest.mark.skipif(hot_path is None, reason="the C part of the SDK is not built, or switched off")


def run_program(
    directory: Path, native: str, seed: int, n_seeds: int, n_calls: int, *options: str, **more: str
) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "tests.support.loop_program",
        str(directory),
        str(seed),
        str(n_seeds),
        str(n_calls),
    ]
    environ = {**os.environ, "CHIPLOG_NATIVE": native, **more}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"CHIPLOG_NATIVE={native}, seeds from {seed}: {done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_c
@pytest.mark.soak(2)
@pytest.mark.parametrize("times", everyday(1, [1, 4]))
def test_c_and_python_leave_the_same_bytes(tmp_path: Path, rounds: Rounds, times: int) -> None:
    for seed in rounds(2):
        n_calls = 80 if seed % 2 else 1000  # many calls fill segments
        n_seeds = times * N_SEEDS // 4 if seed % 2 else times + 1
        first = seed * N_SEEDS
        options = ["torch"] if seed % 2 else []
        in_c = run_program(tmp_path / f"c{seed}", "1", first, n_seeds, n_calls, *options)
        in_python = run_program(tmp_path / f"python{seed}", "0", first, n_seeds, n_calls, *options)
        assert (in_c["native"], in_python["native"]) == (True, False)
        assert len(in_c["found"]) == n_seeds
        for number, found in in_c["found"].items():
            assert found == in_python["found"][number], f"seed {number} with {n_calls} calls"
        rounds.count("calls compared", n_seeds * n_calls)


@pytest.mark.full
@needs_c
@needs("gcc", "Python.h")
@pytest.mark.soak(2)
def test_the_sanitizers_of_the_compiler_find_nothing(tmp_path: Path, rounds: Rounds) -> None:
    """AddressSanitizer and UndefinedBehaviorSanitizer, with Python's memory from malloc, which they watch."""
    libraries = [sanitizer(name) for name in ("libasan.so", "libubsan.so")]
    if None in libraries:
        pytest.skip("this compiler has no sanitizers")
    package = tmp_path / "with sanitizers" / "chiplog"
    package.parent.mkdir()
    subprocess.run(["cp", "-r", str(ROOT / "sdk/chiplog"), str(package)], check=True)
    flags = "-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined"
    script = "import sys; sys.path.insert(0, 'scripts'); import build_native; print(*build_native.command(sys.argv[1]))"
    target = package / "native/_hot_path.abi3.so"
    build = [sys.executable, "-c", script, str(target).replace(" ", "%")]
    environ = {**os.environ, "CFLAGS": flags}
    command = subprocess.run(build, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    target.unlink(missing_ok=True)
    subprocess.run([word.replace("%", " ") for word in command], cwd=ROOT, check=True)
    watched = {
        "LD_PRELOAD": " ".join(str(library) for library in libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter itself frees little at its end
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(package.parent),
    }
    for seed in rounds(1):
        found = run_program(tmp_path / str(seed), "1", seed, 20, 80, **watched)
        assert found["native"]
        rounds.count("calls", 20 * 80)


def sanitizer(name: str) -> Path | None:
    try:
        found = subprocess.run(["gcc", f"-print-file-name={name}"], stdout=subprocess.PIPE, text=True).stdout.strip()
    except OSError:
        return None
    return Path(found) if Path(found).is_absolute() else None


@needs_c
def test_no_reference_is_leaked_and_none_is_released_twice(tmp_path: Path) -> None:
    clock = loop_program.Clock()
    run = loop_program.Probe(tmp_path / "journal")
    value, key, step = 12345.678, "metric" + str(os.getpid()), 1 << 40
    data: dict[Any, Any] = {key: value, "text": "words", "bad": None}
    numbers = {key: value, "other": 2.0}
    hostile = {key: loop_program.HostileNumber(loop_program.fail)}

    def calls() -> None:
        for _ in range(200):
            run.log(numbers, step=step)
            run.log(numbers)
            run.log(data, step)
            run.log(hostile, step=step)
            with run.phase("forward"), run.phase("backward"), run.phase("forward"):
                pass
            run.step()
            run.log()  # type: ignore[call-arg]  # as a mistake
            run._journal.append(b"payload", urgent=True)
        run._logged.list_keys()  # adds up the events that it holds

    del clock
    calls()
    gc.collect()
    counts = [sys.getrefcount(thing) for thing in (value, key, step, numbers, data, run, run._timing, run._step_block)]
    blocks = sys.getallocatedblocks()
    for _ in range(5):
        calls()
    gc.collect()
    after = [sys.getrefcount(thing) for thing in (value, key, step, numbers, data, run, run._timing, run._step_block)]
    run._steps.stop()
    assert after == counts
    assert sys.getallocatedblocks() - blocks < 500, "of 8,000 calls"


@needs_c
def test_threads_that_log_at_once_lose_nothing_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_MAKING_S", WAIT_S)  # a busy machine makes a segment slowly, and the others drop
    run = loop_program.Probe(tmp_path / "journal")
    n_threads, n_calls = 4, 2000

    def log(thread: int) -> None:
        for number in range(n_calls):
            run.log({f"thread{thread}": number, "hostile": loop_program.HostileNumber(lambda: None)}, step=number)
            with run.phase("forward"):
                pass

    run_side_by_side(log, range(n_threads), switches_often=True)
    events = loop_program.events_of(run)
    assert [number for number, _ in events] == list(range(len(events)))
    for thread in range(n_threads):
        steps = [event[2] for _, event in events if event[0] == 1 and f"thread{thread}".encode() in event[3]]
        assert steps == list(range(n_calls))


class Finaliser:
    """Runs a function when the garbage collector finds it."""

    def __init__(self, what: Callable[[], object]) -> None:
        self.what = what
        self.me = self

    def __del__(self) -> None:
        self.what()


def collect_within(call: Callable[[], object]) -> None:
    """Run a call in which the first allocations of containers collect garbage."""
    thresholds = gc.get_threshold()
    hold: list[Any] = [{} for _ in range(300)]  # so that the next dict is not from the list of free ones
    gc.set_threshold(1)
    hold.append({})
    gc.enable()
    try:
        call()
    finally:
        gc.set_threshold(*thresholds)


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_phases_are_recorded_once_also_if_a_finaliser_logs_within_log(tmp_path: Path, no_collection: None) -> None:
    run = loop_program.Probe(tmp_path / "journal")
    for _ in range(3):
        run.log({"x": 1.0})
        run._timing.add("forward", 1.0)
    run.log({"x": 1.0})
    run._timing.add("forward", 5.0)
    Finaliser(lambda: run.log({"x": 2.0}, step=77))
    collect_within(lambda: run.log({"x": 1.0}))
    gc.collect()
    seconds = [struct.unpack("<d", event[4])[0] for _, event in loop_program.events_of(run) if event[0] == 2]
    assert seconds == [1.0, 1.0, 1.0, 5.0]


def test_values_keep_their_keys_also_if_a_finaliser_fills_the_dict_again(tmp_path: Path, no_collection: None) -> None:
    run = loop_program.Probe(tmp_path / "journal")
    ones, twos = ({f"{name}{i}": value for i in range(30)} for name, value in (("one", 1.0), ("two", 2.0)))
    run.log(ones)
    run.log(twos)
    data = dict(ones)

    def refill() -> None:
        data.clear()
        data.update(twos)

    Finaliser(refill)
    collect_within(lambda: run.log(data))
    gc.collect()
    for _, event in loop_program.events_of(run):
        expected = 1.0 if b"one" in event[3] else 2.0
        assert set(struct.unpack("<30d", event[4])) == {expected}


def test_a_callback_of_a_step_that_fails_costs_no_step(tmp_path: Path) -> None:
    run = loop_program.Probe(tmp_path / "journal")

    def fail(step: int) -> None:
        raise ValueError("of a callback")

    for _ in range(4):
        run.log({"x": 1.0})
        run._per_step_callbacks.append(fail)
        run._timing.is_pending = True
    assert [event[2] for _, event in loop_program.events_of(run) if event[0] == 1] == [0, 1, 2, 3]


class SlowArray(loop_program.HostileArray):
    """Is read by C code that waits, in which a signal handler runs."""

    __float__ = staticmethod(functools.partial(time.sleep, 60))  # type: ignore[assignment]  # it is interrupted


def test_what_a_handler_raises_within_c_code_reaches_the_training(tmp_path: Path) -> None:
    run = loop_program.Probe(tmp_path / "journal")
    run.log({"x": 1.0})
    run.log({"x": loop_program.HostileArray(lambda: None)})
    FLOAT_TYPES.add(SlowArray)
    with handling(signal.SIGALRM, raising(TimeoutError("of the training"))), pytest.raises(TimeoutError):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        run.log({"x": SlowArray(lambda: None)})
    FLOAT_TYPES.discard(SlowArray)
    assert not run._diagnostics.counts


def test_c_and_python_measure_phases_with_the_same_clock(tmp_path: Path) -> None:
    run = loop_program.Probe(tmp_path / "journal")
    for _ in range(2):
        before = time.perf_counter()
        with run.phase("forward"):
            [began] = run._timing.open_by_thread["forward"].values()
        assert isinstance(began, float) == (hot_path is not None)
        assert before <= (began if isinstance(began, float) else began[0]) <= time.perf_counter()


def test_the_checksum_is_that_of_zlib(tmp_path: Path) -> None:
    run, draw = loop_program.Probe(tmp_path / "journal"), random.Random(1)
    sizes = [*range(300), 1000, 65_537]
    for size in sizes:
        run._journal.append(draw.randbytes(size))
    [path] = (tmp_path / ".new-journal").glob("*.seg")
    found = [record for record in scan_records(path.read_bytes(), SEGMENT_HEADER_BYTES) if isinstance(record, Record)]
    assert [len(record.payload) for record in found] == sizes


@needs_c
def test_a_tail_that_a_finaliser_replaces_while_it_is_read_is_kept_until_then(no_collection: None) -> None:
    """The tuple is allocated for the tail that is being read, and that allocation may run the finaliser."""

    released: list[object] = []

    class Layout:
        limit, memory = 64, bytearray(64)

        def __del__(self) -> None:
            released.append(id(self))

    appender, layout = hot_path.Appender(), Layout()
    appender._tail = (0, 1, layout)
    held = id(layout)
    del layout
    Finaliser(lambda: setattr(appender, "_tail", (0, 2, Layout())))
    tails: list[Any] = [(0, number, None) for number in range(3000)]  # so that the next one is not from the free list
    collect_within(lambda: tails.append(appender._tail))
    assert held not in released
    assert tails[-1][1] == 1
    assert isinstance(tails[-1][2], Layout)


@needs_c
def test_a_run_of_c_that_was_not_initialised_reports_and_does_not_crash() -> None:
    bare = hot_path.LoopCalls()
    for call in (
        lambda: bare.log({"loss": 1.0}),
        lambda: bare.phase("x"),
        bare.step,
        lambda: hot_path.Appender()._tail,
    ):
        with pytest.raises(AttributeError):
            call()
    with pytest.raises(AttributeError):
        hot_path.Appender().append(b"payload")
    with pytest.raises(TypeError):
        hot_path.Appender().append("text")
