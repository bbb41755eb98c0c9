"""Signal handlers that raise, log, and end the process in the midst of log(); many threads; finalisers.

Invariant: the data of a log() that returned is in the journal once, whatever interrupted it, and survives SIGKILL. An
exception of a handler reaches the training. A log() that an exception interrupted is in the journal once or not at all.
"""

import os
import signal
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_schemas.codec import unpack
from chiplog_schemas.model.events import EventKind, decode
from chiplog_schemas.storage.journal_dir import JournalReader, list_journals
from chiplog_schemas.storage.record import Record
from tests.support.rounds import Rounds
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

PATIENCE_S = WAIT_S
RAISED_IN_A_SOAK = 40_000


def play(scene: str, folder: Path, seed: int, **environment: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(parents=True)
    return subprocess.run(
        [sys.executable, "-m", "tests.fault.rank_of_signals", scene, str(folder), str(seed)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S + 600 * bool(environment),
    )


def metrics_in(folder: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield (step, values) of each event of the journal that the dead process left; each seq is there once."""
    [(_, directory)] = list_journals(folder / "chiplog" / "offline")
    for following, item in enumerate(JournalReader(directory).records()):
        assert isinstance(item, Record), item
        assert item.number == following, "every seq is there once, in order"
        event = decode(item.payload)
        if event[0] == EventKind.METRICS:
            keys = event[3] if isinstance(event[3], list) else unpack(event[3])
            yield event[2], dict(zip(keys, struct.unpack(f"<{len(keys)}d", event[4]), strict=True))


def numbers_in(folder: Path, key: str = "number") -> Counter[int]:
    found: Counter[int] = Counter()
    for step, values in metrics_in(folder):
        if key in values:
            assert values[key] == step
            found[step] += 1
    return found


def said(folder: Path, pattern: str) -> set[int]:
    return {int(line) for path in folder.glob(pattern) for line in path.read_text().splitlines()}


@proves(
    "interrupt-passes-log",
    "what a signal handler raises passes through log()",
    value="Exception",
    environment={"CHIPLOG_NATIVE": "0"},
)
@proves(
    "interrupt-is-no-bad-value",
    "an exception of a signal handler while a value is read is not an error of the value",
    value="Exception",
)
def test_what_a_handler_raises_reaches_the_training_and_nothing_that_returned_is_lost(tmp_path: Path) -> None:
    check_raises(tmp_path / "raises", 1)


def check_raises(folder: Path, seed: int, **environment: str) -> int:
    played = play("raises", folder, seed, **environment)
    assert played.returncode == -signal.SIGKILL, played.stderr[-2000:]
    n_calls, n_raised, n_seen, took_s, bad = played.stdout.split(" ", 4)
    assert n_raised == n_seen, "none is swallowed"
    assert bad.strip() == "{}", "no value is bad, and nothing failed inside"
    assert float(took_s) < 60.0, "a hundred calls of another thread wait for no lock"
    for name, key in (("returned", "number"), ("beside", "beside")):
        found = numbers_in(folder, key)
        missing = said(folder, name) - found.keys()
        assert not missing, f"{len(missing)} of {n_calls} lost, such as {sorted(missing)[:5]}"
        assert max(found.values()) == 1, "none is doubled"
    return int(n_raised)


@pytest.mark.soak(2)
def test_handlers_raise_again_and_again(rounds: Rounds, tmp_path: Path) -> None:
    for seed in rounds(0):
        raised = str(RAISED_IN_A_SOAK)
        rounds.count("exceptions of handlers", check_raises(tmp_path / str(seed), seed, CHIPLOG_TEST_RAISED=raised))


@pytest.mark.soak(1)
def test_a_handler_that_logs_and_ends_the_process_leaves_all_that_it_logged(rounds: Rounds, tmp_path: Path) -> None:
    for seed in rounds(3):
        folder = tmp_path / str(seed)
        play("leaves", folder, seed)
        returned, found = said(folder, "returned"), numbers_in(folder)
        assert 1_000_002 in returned, "the handler was called"
        assert returned <= found.keys(), (seed, sorted(returned - found.keys()))
        assert len(found.keys() - returned) <= 2, "those that were being logged"
        assert max(found.values()) == 1
        rounds.count("events", len(found))


@pytest.mark.soak(1)
def test_what_many_threads_logged_survives_sigkill(rounds: Rounds, tmp_path: Path) -> None:
    for seed in rounds(1):
        folder = tmp_path / str(seed)
        assert play("threads", folder, seed).returncode == -signal.SIGKILL
        returned, found = said(folder, "returned.*"), numbers_in(folder)
        assert len(returned) > 1000
        assert returned <= found.keys(), (seed, len(returned - found.keys()), sorted(returned - found.keys())[:5])
        assert len(found.keys() - returned) <= 64
        assert max(found.values()) == 1
        rounds.count("events", len(found))


def test_finalisers_that_log_lose_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "finalises"
    assert play("finalises", folder, 1).returncode == -signal.SIGKILL
    returned, found = said(folder, "returned"), numbers_in(folder)
    assert sum(number >= 1_000_000 for number in returned) > 500
    assert returned == found.keys()
    assert max(found.values()) == 1


COLLECTING = """
import gc, signal, sys
import chiplog
run = chiplog.init(mode="offline", dir=sys.argv[1], capture_console=False)
run.step()
run.step()
class Late(Exception):
    pass
def handler(signum, frame):
    raise Late
signal.signal(signal.SIGALRM, handler)
many = [[number] for number in range(300_000)]
unraisable = []
sys.unraisablehook = unraisable.append
seen = 0
for _ in range(10):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        gc.collect()
        for _ in range(100):
            pass
    except Late:
        seen += 1
print(seen, len(unraisable))
"""


@proves(
    "gc-callback-without-python",
    "the collector's callback runs no Python code",
    new="noted: Any = partial(getattr, _Moments(self._began, self._ended))\n"
    "self._on_gc: Any = lambda phase, info: noted(phase, info)",
    environment={"CHIPLOG_NATIVE": "0"},
)
def test_what_a_handler_raises_during_a_collection_reaches_the_training(tmp_path: Path) -> None:
    """The first Python function that starts afterwards gets the exception: it must not be chiplog's callback."""
    command = [sys.executable, "-c", COLLECTING, str(tmp_path / "chiplog")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.split() == ["10", "0"]
