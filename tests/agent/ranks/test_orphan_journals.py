"""Journals of dead ranks: an agent that gets the lock delivers the rest, and declares what is missing."""

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chiplog_agent.pipeline.batcher import EventBatcher
from chiplog_agent.ranks import orphan_journals
from chiplog_agent.ranks.exit_cause import VANISHED, ExitCauseResolver
from chiplog_agent.ranks.orphan_journals import OrphanJournalCollector, remove_stale_staging
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.events import EventKind, decode
from chiplog_schemas.process.file_lock import Lock
from chiplog_schemas.storage.journal_dir import HEAD_NAME, LOCK_NAME, list_journals
from chiplog_schemas.storage.record import MAGIC_BYTES
from tests.support.blocks import block_to_rows
from tests.support.descriptors import no_descriptors
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

LOCKS = """
import pathlib, sys
from chiplog_schemas.process.file_lock import Lock, LockHeldError
try:
    Lock(pathlib.Path(sys.argv[1]), create=False)
except LockHeldError:
    sys.exit(9)
"""
AGENT = b"A" * 16
# A rank without a sender: what it wrote is all there is. Its last act comes from the test.
RANK = """
import os, signal, sys
from pathlib import Path
from chiplog.journal.journal import Journal
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind, encode
producer = bytes([int(sys.argv[2])]) * 16
journal = Journal(Path(sys.argv[1]) / producer.hex(), producer, pack({"label": "rank0"}))
def say(number, size=100):
    journal.append(encode(EventKind.TEXT, number, number, "key", "x" * size))
journal.append(encode(EventKind.IDENTITY, 0, {"label": "rank0", "run_id": "r"}))
journal.publish()
"""


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    return tmp_path / "journals"


def rank_that(journals: Path, last_act: str, number: int = 1) -> Path:
    """Run a rank to its end and return its journal."""
    done = subprocess.run([sys.executable, "-c", RANK + last_act, str(journals), str(number)], timeout=WAIT_S)
    assert done.returncode in (0, -signal.SIGKILL)
    return journals / (bytes([number]) * 16).hex()


KILL = "\nos.kill(os.getpid(), signal.SIGKILL)"


class Agent:
    """Core and adoption, and what came out of them."""

    def __init__(self, journals: Path) -> None:
        self.core = EventBatcher(AGENT, "node-a", 7, "0.1", 0)
        self.core.build(0)
        self.endings = ExitCauseResolver(journals)
        self.adoption = OrphanJournalCollector(journals, self.endings)
        self.rows: list[tuple[bytes, int, list]] = []

    def build(self) -> None:
        blocks, _ = self.core.build(0)
        for block in blocks:
            self.rows += [(p, seq, decode(payload)) for p, seq, payload in block_to_rows(decode_block(block))]

    def adopt(self, synced: dict[bytes, int] | None = None) -> list[bytes]:
        """Scan once, read everything, sync; return the adopted producers."""
        self.endings.poll(5)
        found = self.adoption.scan(synced or {})
        while self.adoption.is_busy:
            self.adoption.drain_into(self.core, 1.0, 5)
            self.build()
        self.adoption.on_spool_synced()
        return found

    def seqs(self) -> list[int]:
        return [seq for producer, seq, _ in self.rows if producer != AGENT]

    def said(self, kind: EventKind) -> list[list]:
        """Return the agent's own events of a kind; of those about producers the ones that report an end."""
        own = [event for producer, _, event in self.rows if producer == AGENT and event[0] == kind]
        return [event for event in own if kind != EventKind.PEER or "state" in event[3]]


def test_what_a_killed_rank_left_is_delivered_and_its_journal_removed(journals) -> None:
    journal = rank_that(journals, "for n in range(5000): say(n)" + KILL)
    agent = Agent(journals)
    assert agent.adopt() == [b"\1" * 16]
    assert agent.seqs() == list(range(5001))
    [peer] = agent.said(EventKind.PEER)
    assert peer[2] == b"\1" * 16
    assert (peer[3]["state"], peer[3]["reason"], peer[3]["produced"]) == ("crashed", VANISHED, 5001)
    assert agent.said(EventKind.LOST) == []
    assert not journal.exists()
    assert list(journals.iterdir()) == []
    assert agent.adoption.is_idle
    assert agent.adopt() == []


def test_a_rank_that_finished_is_delivered_without_being_called_crashed(journals) -> None:
    rank_that(journals, "say(1); journal.mark_finished()" + KILL)
    agent = Agent(journals)
    agent.adopt()
    assert agent.seqs() == [0, 1]
    assert agent.said(EventKind.PEER) == []


def test_a_living_ranks_journal_is_left_alone_and_counted(journals) -> None:
    waiting = RANK + "say(1); print('ready', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", waiting, str(journals), "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        agent = Agent(journals)
        assert agent.adopt() == []
        assert (agent.adoption.alive, agent.adoption.is_idle) == (1, False)
        assert agent.adoption.known == {b"\1" * 16}
    finally:
        process.kill()
        process.communicate()
    assert agent.adopt() == [b"\1" * 16]
    assert agent.seqs() == [0, 1]


def test_the_lock_of_a_connected_rank_is_tried_at_times_until_it_ends(
    journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = RANK + "say(1); print('ready', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", waiting, str(journals), "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    producer, tried = b"\1" * 16, []
    monkeypatch.setattr(orphan_journals, "_RETRY_LOCK_S", 1e6)
    monkeypatch.setattr(orphan_journals, "Lock", lambda path, **how: tried.append(path) or Lock(path, **how))
    try:
        assert process.stdout.readline() == b"ready\n"
        agent = Agent(journals)
        for connected, n_tried in [({producer}, 1), ({producer}, 1), (set(), 2), ({producer}, 2)]:
            assert agent.adoption.scan({}, connected) == []
            assert (len(tried), agent.adoption.alive) == (n_tried, 1), "the first scan watches its process"
        agent.adoption._all_at = 0.0
        assert agent.adoption.scan({}, {producer}) == [] and len(tried) == 3, "a lock may be lost before the end"
    finally:
        process.kill()
        process.communicate()
    assert agent.endings.poll(5)
    assert agent.adoption.scan({}, {producer}) == [producer], "also before its session has ended"


CLOSES = (
    RANK
    + """
say(1)
print("logged", flush=True)
sys.stdin.readline()
os.closerange(3, 65536)
print("closed", flush=True)
sys.stdin.readline()
journal.keep_files(1e12)
print("kept", flush=True)
sys.stdin.readline()
say(2)
os.kill(os.getpid(), signal.SIGKILL)
"""
)


@proves(
    "live-process-keeps-journal",
    "a journal without a holder stays while its process lives and may take the lock again",
    condition=False,
)
def test_a_living_rank_that_closes_all_descriptors_keeps_its_journal(journals) -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", CLOSES, str(journals), "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert rank.stdin is not None
    assert rank.stdout is not None
    try:
        assert rank.stdout.readline() == "logged\n"
        agent = Agent(journals)
        assert agent.adopt() == []
        for word in ("closed", "kept"):
            print("go on", file=rank.stdin, flush=True)
            assert rank.stdout.readline() == f"{word}\n"
            assert agent.adopt() == []
            assert agent.adoption.alive == 1
        print("end", file=rank.stdin, flush=True)
        rank.wait(WAIT_S)
        while not agent.adopt():
            time.sleep(0.05)
        assert [seq for _, seq, _ in agent.rows][:3] == [0, 1, 2]
    finally:
        rank.kill()
        rank.wait()
        rank.stdin.close()
        rank.stdout.close()


def test_reading_begins_where_the_spool_or_the_head_page_says(journals) -> None:
    rank_that(journals, "for n in range(100): say(n)\njournal.acknowledged(30)" + KILL)
    agent = Agent(journals)
    agent.adopt({b"\1" * 16: 50})
    assert agent.seqs() == list(range(50, 101))
    rank_that(journals, "for n in range(100): say(n)\njournal.acknowledged(30)" + KILL, number=2)
    agent = Agent(journals)
    agent.adopt({b"\2" * 16: 10})
    assert agent.seqs() == list(range(30, 101))
    assert agent.said(EventKind.LOST) == []


def test_the_journal_stays_until_what_was_read_is_synced(journals) -> None:
    journal = rank_that(journals, "say(1)" + KILL)
    agent = Agent(journals)
    agent.adoption.scan({})
    agent.adoption.drain_into(agent.core, 1.0, 5)
    assert journal.exists()
    assert not agent.adoption.is_idle
    assert agent.adoption.scan({}) == [], "it is held already"
    assert agent.adoption.on_spool_synced() == [b"\1" * 16]
    assert not journal.exists()


def test_what_the_head_page_counts_beyond_the_last_record_is_declared_lost(journals) -> None:
    drops = "journal.bytes_max = 1 << 20\nfor n in range(3000): say(n, 1000)"
    rank_that(journals, drops + KILL)
    agent = Agent(journals)
    agent.adopt()
    [lost] = agent.said(EventKind.LOST)
    kept = agent.seqs()
    assert kept == list(range(len(kept)))
    assert lost[2:5] == [b"\1" * 16, len(kept), 3000]
    assert agent.said(EventKind.PEER)[0][3]["produced"] == 3001


def test_what_was_in_memory_when_the_disk_refused_is_declared_lost(journals) -> None:
    """Produced = read + lost, wherever the process died."""
    refuse = f"""
import resource
for n in range(100): say(n, 1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY}))
for n in range(1000): say(n, 1000)
"""
    for number, more in (
        (1, ""),
        (2, "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\nfor n in range(5000): say(n, 1000)"),
    ):
        rank_that(journals, refuse + more + KILL, number)
        agent = Agent(journals)
        agent.adopt()
        [lost] = agent.said(EventKind.LOST)
        produced = agent.said(EventKind.PEER)[0][3]["produced"]
        assert produced == (1101 if number == 1 else 6101)
        declared = list(range(lost[3], lost[4] + 1))
        assert sorted(agent.seqs() + declared) == list(range(produced))
        assert agent.seqs() != []


def test_what_a_journal_declared_itself_is_not_declared_twice(journals) -> None:
    drops = """
journal.bytes_max = 1 << 20
for n in range(3000): say(n, 1000)
while (piece := journal.read(1 << 20)) is not None: last = piece.last
journal.acknowledged(500)
say(1); say(2)
"""
    rank_that(journals, drops + KILL)
    agent = Agent(journals)
    agent.adopt()
    assert agent.said(EventKind.LOST) == []
    own = [event for producer, _, event in agent.rows if producer != AGENT and event[0] == EventKind.LOST]
    assert len(own) == 1
    missing = set(range(500, 3004)) - set(agent.seqs())
    assert missing == set(range(own[0][3], own[0][4] + 1))


def test_a_damaged_record_costs_itself_and_is_declared(journals) -> None:
    journal = rank_that(journals, "for n in range(100): say(n)" + KILL)
    [segment, *_] = sorted(journal.glob("*.seg"))
    data = bytearray(segment.read_bytes())
    at = -1
    for _ in range(41):
        at = data.index(MAGIC_BYTES, at + 1)
    data[at + 30] ^= 1  # in the payload of seq 40
    segment.write_bytes(data)
    agent = Agent(journals)
    agent.adopt()
    assert agent.seqs() == [*range(40), *range(41, 101)]
    [lost] = agent.said(EventKind.LOST)
    assert lost[3:5] == [40, 40]
    assert "damaged" in lost[5]


@pytest.mark.parametrize("what", ["head", "empty head", "no head"])
def test_a_journal_without_a_sound_head_page_is_delivered_all_the_same(journals, what) -> None:
    journal = rank_that(journals, "for n in range(10): say(n)" + KILL)
    head = journal / HEAD_NAME
    if what == "no head":
        head.unlink()
    else:
        head.write_bytes(b"" if what == "empty head" else b"\xff" * 4096)
    agent = Agent(journals)
    agent.adopt()
    assert agent.seqs() == list(range(11))
    assert not journal.exists()


def test_directories_that_are_no_journals_are_left_alone(journals) -> None:
    for name in ("not hex", "ab", ".new-" + "ab" * 16, "zz" * 16, "cd" * 16):
        (journals / name).mkdir(parents=True)
    agent = Agent(journals)
    assert agent.adopt() == [], "the last one has no lock: it is being removed"
    assert len(list(journals.iterdir())) == 5


def test_a_journal_that_cannot_be_read_stays_and_is_said_once(journals) -> None:
    journal = rank_that(journals, "for n in range(10): say(n)" + KILL)
    (journal / "09000000000000000000.seg").mkdir()  # reading it is an OSError, also for root
    agent = Agent(journals)
    agent.adopt()
    agent.adopt()
    assert journal.exists()
    [notice] = agent.said(EventKind.NOTICE)
    assert notice[2] == "journal_unreadable"
    assert str(journal) in notice[4]
    assert agent.adoption.is_idle, "it does not keep an agent from leaving"
    (journal / "09000000000000000000.seg").rmdir()
    later = Agent(journals)
    agent.adoption._unreadable[0].lock.release()  # as the end of that agent's process would
    later.adopt()
    assert later.seqs() == list(range(11))
    assert list_journals(journals) == []


def test_adoption_gives_way_when_the_block_is_full(journals) -> None:
    rank_that(journals, "for n in range(5000): say(n, 1000)" + KILL)
    core = EventBatcher(AGENT, "node-a", 7, "0.1", 0)
    core.build(0)
    adoption = OrphanJournalCollector(journals)
    adoption.scan({})
    adoption.drain_into(core, 1.0, 5)
    assert not core.has_capacity
    assert adoption.is_busy


def test_journals_that_died_while_they_were_made_are_removed_and_those_of_the_living_are_not(journals: Path) -> None:
    making = RANK.replace("journal.publish()\n", "")
    done = subprocess.run([sys.executable, "-c", making + KILL, str(journals), "1"], timeout=WAIT_S)
    assert done.returncode == -signal.SIGKILL
    living = subprocess.Popen(
        [sys.executable, "-c", making + "\nprint(flush=True); sys.stdin.read()", str(journals), "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert living.stdout is not None
    living.stdout.readline()
    for name in (".new-" + "03" * 16, ".done-" + "04" * 16, "05" * 16):
        (journals / name).mkdir()
    everything = {path.name for path in journals.iterdir()}
    remove_stale_staging(journals, time.time())
    assert {path.name for path in journals.iterdir()} == everything  # all of them are young
    remove_stale_staging(journals, time.time() + 3600)
    assert {path.name for path in journals.iterdir()} == {".new-" + "02" * 16, "05" * 16}
    living.communicate()
    remove_stale_staging(journals, time.time() + 3600)
    assert {path.name for path in journals.iterdir()} == {"05" * 16}
    remove_stale_staging(journals / "nowhere", 0.0)


@proves("journal-waits-for-descriptor", "a journal waits for a descriptor", condition=False)
def test_a_journal_is_not_set_aside_because_descriptors_are_short(journals: Path) -> None:
    rank_that(journals, "\nfor n in range(1, 5): say(n)" + KILL)
    agent = Agent(journals)
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        agent.adoption.scan({})
    agent.adoption.scan({})
    with no_descriptors():
        agent.adoption.drain_into(agent.core, 1.0, 5)
    assert not agent.adoption.is_busy, "the loop does not spin while it waits"
    assert not agent.adoption.is_idle, "and an embedded agent does not leave"
    agent.adopt()
    assert agent.seqs() == [0, 1, 2, 3, 4]
    assert not agent.said(EventKind.NOTICE)
    assert agent.adoption.is_idle
    assert list_journals(journals) == []


@proves("adopted-journals-bounded", "dead journals leave descriptors for others", condition=False)
def test_of_many_dead_journals_only_some_are_held_at_once(journals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 6):
        rank_that(journals, KILL, number)
    monkeypatch.setattr(orphan_journals, "_ADOPTED_MAX", 2)
    agent = Agent(journals)
    adopted = []
    for n_left in (3, 1, 0):
        adopted.append(len(agent.adopt()))
        assert agent.adoption.alive == n_left
    assert adopted == [2, 2, 1]
    assert agent.adoption.is_idle
    assert sorted(p for p, _, _ in agent.rows if p != AGENT) == [bytes([number]) * 16 for number in range(1, 6)]


@proves(
    "unwatched-end-is-not-alive",
    "a process whose end cannot be observed does not count as alive",
    part="self._processes.is_alive(producer)",
    new="producer in self._pids",
)
def test_a_journal_without_a_lock_is_adopted_although_its_process_was_gone_before_it_was_watched(
    journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = rank_that(journals, KILL)
    (journal / LOCK_NAME).unlink()
    agent = Agent(journals)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    agent.endings.on_hello(b"\1" * 16, gone.pid)  # the agent read the PID a moment before the process ended
    assert agent.adopt() == [], "a living rank makes its lock again within a second"
    monkeypatch.setattr("chiplog_agent.ranks.orphan_journals._LOCKLESS_S", 0.0)
    assert agent.adopt() == [b"\1" * 16]
    assert agent.seqs() == [0]


@proves(
    "adopter-is-not-the-rank", "an agent does not take itself for the rank whose journal it adopted", condition=True
)
def test_a_late_word_of_a_dead_rank_does_not_cost_the_lock_of_its_journal(journals) -> None:
    journal = rank_that(journals, "say(1)" + KILL)
    agent = Agent(journals)

    def is_held() -> bool:
        agent.adoption.on_hello(b"\1" * 16)
        return subprocess.run([sys.executable, "-c", LOCKS, str(journal / LOCK_NAME)], timeout=WAIT_S).returncode == 9

    assert agent.adoption.scan({}) == [b"\1" * 16]
    assert is_held(), "while it is read"
    agent.adoption.drain_into(agent.core, 1.0, 5)
    assert agent.adoption.is_waiting
    assert is_held(), "while it waits for the sync"
    assert agent.endings.pid_of(b"\1" * 16) == 0, "the rank had ended before it could be watched"
