"""Disk full and EIO at every write site of SDK, agent and collector.

Training continues, the loss is declared exactly, and everything recovers without a restart when the disk does. Full
disks are real ones (a small tmpfs that is filled and freed); a preloaded library makes single calls fail.

| site | how it is failed | test |
|---|---|---|
| SDK: journals/ and the journal's directory (mkdir) | EIO | a_rank_… |
| SDK: lock (open, its text), head page (open, allocate) | EIO, ENOSPC | a_rank_… |
| SDK: first segment and later ones (open, allocate) | EIO, ENOSPC; a full disk | a_rank_…, a_full_disk_… |
| SDK: publishing (rename), trimming (unlink), removal at the end (rename, unlink) | EIO | a_rank_… |
| SDK: records, head page's counters | mapped, their blocks allocated before: no call can fail | the two above |
| SDK: start of an agent (run/, its output file) | EIO | a_rank_that_cannot_start_an_agent_… |
| agent: directories, lock, socket, spool at its start | EIO | a_daemon_… |
| agent: spool segment (open, header, sync of file and directory) | EIO, ENOSPC | the_daemons_… |
| agent: spool append (error, short), sync, cutting back (ftruncate), trim (unlink) | EIO, ENOSPC | the_daemons_… |
| agent: removal of an adopted journal (rename, unlink) | EIO | an_adopted_journal_… |
| agent: its socket, restored (bind) | EIO | a_socket_… |
| agent: collector/host (write) | ENOSPC | a_host_file_… |
| collector: directories, lock, `synced`, log segment, socket at its start | EIO, ENOSPC | a_daemon_… |
| collector: log append (error, short and then full), sync, cutting back | EIO, ENOSPC | the_daemons_… |
| index: write-ahead log (write, sync, truncate), file (write) | EIO, ENOSPC | the_daemons_…, a_full_disk_… |
| index: recreated (open, rename) | EIO | an_index_… |

Not reached: records and counters in mapped pages (the kernel gives no error for an allocated page of a local disk; a
disk that breaks under it is a SIGBUS, as for the program's own code); the timed checkpoint (once a minute; it is the
same call as at the end of the index, which is). Commands (`rebuild`, `compact`, `sync`): test_disk_commands.py.
"""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_schemas.addresses import ipc_path
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.process.log_owner import read_owner
from tests.support.disk.faults import (
    ALLOCATE,
    BIND,
    LONG_MS,
    MKDIR,
    OPEN,
    RENAME,
    SHORT,
    SYNC,
    TRUNCATE,
    UNLINK,
    WRITE,
    Faults,
    FaultyNode,
    Rank,
    build_library,
    settled,
    small_disk,
    until_hit,
)
from tests.support.marks import everyday
from tests.support.node import end_process
from tests.support.oracle import read
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

EIO, ENOSPC = errno.EIO, errno.ENOSPC
MIB = 1 << 20


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def faults(library: Path, tmp_path: Path) -> dict[str, Faults]:
    return {who: Faults(library, tmp_path / f"{who}.rules") for who in ("agent", "collector")}


@pytest.fixture
def node(faults: dict[str, Faults], tmp_path: Path) -> Iterator[FaultyNode]:
    """A node that is not started yet, whose daemons can be made to fail."""
    node = FaultyNode(tmp_path / "chiplog", faults["agent"].environment, faults["collector"].environment)
    try:
        yield node
    finally:
        for each in faults.values():
            each.heal()
        node.stop()


# What of a rank fails: (operations, part of the path, errno, calls that still succeed, calls that fail then; -1 all).
RANK_SITES = {
    "the directory of journals": (MKDIR, "/journals", EIO, 0, -1),
    "the journal's directory": (MKDIR, "/.new-", EIO, 0, -1),
    "the lock": (OPEN, "/lock", EIO, 0, -1),
    "the lock's text": (WRITE | TRUNCATE, "/lock", ENOSPC, 0, -1),
    "the head page": (OPEN, "/head", EIO, 0, -1),
    "the head page's blocks": (ALLOCATE, "/head", ENOSPC, 0, -1),
    "the first segment": (OPEN, ".seg", EIO, 0, 1),
    "the first segment's blocks": (ALLOCATE, ".seg", ENOSPC, 0, 1),
    "a later segment": (OPEN, ".seg", EIO, 1, 2),
    "a later segment's blocks": (ALLOCATE, ".seg", ENOSPC, 1, 2),
    "all later segments": (ALLOCATE, ".seg", ENOSPC, 1, -1),
    "a segment that cannot be taken back": (ALLOCATE | UNLINK, ".seg", ENOSPC, 1, -1),
    "publishing": (RENAME, "/.new-", EIO, 0, -1),
    "trimming": (UNLINK, ".seg", EIO, 0, -1),
    "the removal's rename": (RENAME, "/journals/", EIO, 1, -1),
    "the removal's unlinks": (UNLINK, "/.done-", EIO, 0, -1),
}


@proves("memory-without-journal", "a journal that cannot be made means memory", value="ZeroDivisionError")
@pytest.mark.promise(3)
@pytest.mark.full
def test_a_rank_whose_writes_fail_trains_on_and_loses_nothing_while_an_agent_listens(
    node: FaultyNode, library: Path, tmp_path: Path, started: list[Rank]
) -> None:
    """Each site by a rank of its own, all at once; they have journals in directories of their own."""
    node.start()
    ranks: dict[str, tuple[Rank, Faults]] = {}
    for number, (site, (operations, part, error, skip, times)) in enumerate(RANK_SITES.items()):
        root = tmp_path / f"rank{number}"
        rules = Faults(library, tmp_path / f"rank{number}.rules")
        rules.fail(operations, root, part, error, skip, times)
        environment = {**rules.environment, "CHIPLOG_AGENT": node.place.agent_address}
        rank = Rank(tmp_path / f"rank{number}.oracle", root, f"rank{number}", site.replace("'", ""), **environment)
        ranks[site] = rank, rules
        started.append(rank)
    for rank in started:
        rank.ready().log(4000)  # into a second segment: the first holds 256 KiB
    for site, (rank, rules) in ranks.items():
        errors = rank.finish()
        assert "Traceback" not in errors, (site, errors)
        assert all(rules.hits), f"{site} was not reached"
    for site, (rank, _) in ranks.items():
        verdict, row = settled(node, rank)
        assert verdict.ok, (site, verdict)
        assert (verdict.expected, row["lost"], row["state"]) == (4000, 0, "finished"), (site, row)


# What of a daemon fails while events flow: (who, rules). `agent/spool` and `collector/log` are directories of the node.
DAEMON_SITES = {
    "spool: a segment": ("agent", [(OPEN, "agent/spool/", EIO)]),
    "spool: append, cut short by a full disk": (
        "agent",
        [(WRITE, "agent/spool/", SHORT, 1), (WRITE, "spool/", ENOSPC)],
    ),
    "spool: append, and cutting it back": ("agent", [(WRITE, "spool/", SHORT, 1), (WRITE | TRUNCATE, "spool/", EIO)]),
    "spool: sync of file and directory": ("agent", [(SYNC, "agent/spool", EIO)]),
    "spool: trim": ("agent", [(UNLINK, "agent/spool/", EIO)]),
    "log: append, cut short by a full disk": ("collector", [(WRITE, "/log/", SHORT, 1), (WRITE, "/log/", ENOSPC)]),
    "log: append, and cutting it back": ("collector", [(WRITE, "/log/", SHORT, 1), (WRITE | TRUNCATE, "/log/", EIO)]),
    "log: sync": ("collector", [(SYNC, "collector/log", EIO)]),
    "index: write-ahead log, two commits": ("collector", [(WRITE, "index.duckdb.wal", ENOSPC, 2)]),
    "index: write-ahead log, cut short": (
        "collector",
        [(WRITE, "duckdb.wal", SHORT, 1), (WRITE, "duckdb.wal", ENOSPC)],
    ),
    "index: sync": ("collector", [(SYNC, "index.duckdb", EIO)]),
}


@proves("failed-commit-waits", "what a commit could not write waits for the next", new="self._pending = []\n...")
@proves("refused-spool-retried", "a disk that refuses the spool does not end the agent", new="raise")
@proves("refused-commit-is-no-record", "a commit that the disk refuses is not blamed on a record", value="False")
@pytest.mark.full
def test_the_daemons_survive_every_write_that_fails_and_go_on_when_the_disk_does(
    node: FaultyNode, faults: dict[str, Faults], tmp_path: Path, started: list[Rank]
) -> None:
    """One rank logs on and on; at each site all calls fail until one was met, then none. Nothing is restarted."""
    node.start("--spool-bytes-max", str(MIB))  # segments of 128 KiB: a new one soon
    assert node.agent is not None
    assert node.collector is not None
    rank = Rank(tmp_path / "oracle", node.root, CHIPLOG_AGENT=node.place.agent_address)
    started.append(rank)
    rank.ready()
    for site, (who, rules) in DAEMON_SITES.items():
        for operations, part, error, *times in rules:
            faults[who].fail(operations, node.root, part, error, times=times[0] if times else -1)

        def met(who: str = who, n_wanted: int = (*rules[-1], 1)[3]) -> bool:
            rank.log(500)
            return faults[who].hits[-1] >= n_wanted

        wait_until(met, f"a call that fails: {site}")
        faults[who].heal()
        rank.log(100)
        n_logged = len(read(rank.file))
        query = f"SELECT count(*) AS n FROM metrics WHERE key = 'value' HAVING n >= {n_logged}"
        wait_until(lambda q=query: node.try_sql(q), f"all {n_logged} events after {site}")
    assert node.agent.poll() is None
    assert node.collector.poll() is None
    assert rank.longest_ms < LONG_MS
    assert rank.finish() == ""
    verdict, row = settled(node, rank)
    assert verdict.ok
    assert row["lost"] == 0
    assert node.sql("SELECT * FROM events WHERE kind = 'quarantined' AND message LIKE '%cannot be applied%'") == []
    for module in ("chiplog_agent", "chiplog_collector"):
        assert "Traceback" not in node.output(module), node.output(module)


COMMITS = """
import sys
from pathlib import Path
from chiplog_schemas.storage.log_reader import LogReader
from chiplog_schemas.storage.segment_log import SegmentLog
log = SegmentLog(Path(sys.argv[1]), bytes(16))
for payload in (b"first", b"second", b"third"):
    log.append(1, payload * 100)
    for _ in range(3):
        try:
            log.commit()
            break
        except OSError as error:
            print(f"refused: {error}")
found = LogReader(Path(sys.argv[1])).read(log.next_number, 1 << 20)
print([bytes(getattr(item, "payload", b"damage"))[:6] for item in found])
"""


@proves(
    "failed-truncate-overwritten",
    "a tail that could not be truncated is overwritten, or the next truncation would remove acknowledged data",
)
def test_a_commit_cuts_back_its_own_bytes_and_never_acknowledged_ones(library: Path, tmp_path: Path) -> None:
    """The second is torn, cannot be cut back, and succeeds when tried again. Then the sync of the third fails."""
    rules = Faults(library, tmp_path / "rules")
    rules.fail(WRITE, tmp_path / "log", ".seg", SHORT, skip=2, times=1)
    rules.fail(WRITE | TRUNCATE, tmp_path / "log", ".seg", EIO, skip=2, times=2)
    rules.fail(SYNC, tmp_path / "log", "", EIO, skip=4, times=1)
    command = [sys.executable, "-c", COMMITS, str(tmp_path / "log")]
    environment = {**os.environ, **rules.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert rules.hits == [1, 2, 1]
    *refused, kept = done.stdout.splitlines()
    assert len(refused) == 2
    assert kept == str([b"firstf", b"second", b"thirdt"])


@proves(
    "blocks-allocated-first", "blocks are allocated before they are mapped", new="os.ftruncate(opened.number, size)"
)
@pytest.mark.promise(3)
def test_a_full_disk_costs_what_it_declares_and_nothing_once_there_is_room_again(
    node: FaultyNode, tmp_path: Path, started: list[Rank]
) -> None:
    """Journals, spool, log and index on one disk that is used up while a rank logs into it."""
    with small_disk(node.root, 24 * MIB) as disk:
        try:
            node.start()
            quota = {"CHIPLOG_JOURNAL_MEMORY_BYTES_MAX": str(MIB), "CHIPLOG_AGENT": node.place.agent_address}
            rank = Rank(tmp_path / "oracle", node.root, **quota)
            started.append(rank)
            rank.ready().log(2000)
            disk.fill()
            rank.log(60_000)  # more than its memory quota, and what it had allocated before
            wait_until(lambda: "cannot be written" in node.output(), "an agent that notices the full disk")
            rank.log(1000)
            disk.free()
            query = "SELECT max(step) AS n FROM metrics WHERE key = 'value' HAVING n >= {}"
            rank.log(10)

            def healed() -> bool:
                rank.log(10)
                return bool(node.try_sql(query.format(63_010)))

            wait_until(healed, "events that were logged after the disk had room again")
            rank.finish()
            verdict, row = settled(node, rank)
            assert 0 < len(verdict.lost) <= row["lost"] <= len(verdict.lost) + 5, row
            assert row["state"] == "finished"
            assert "journal full" in row["reasons"]
            assert row["produced"] == rank.produced
            assert rank.longest_ms < LONG_MS
            assert node.sql("SELECT * FROM events WHERE kind = 'quarantined'") == []
        finally:
            for each in started:
                each.close()
            node.stop()


def start_refused(node: FaultyNode, library: Path, folder: Path) -> Rank:
    """Start a rank for whose second segment there is no room."""
    node.start_collector()
    rules = Faults(library, folder / "rank.rules")
    rules.fail(ALLOCATE, node.root, ".seg", ENOSPC, skip=1)
    return Rank(folder / "oracle", node.root, CHIPLOG_AGENT=node.place.agent_address, **rules.environment)


@proves("memory-events-counted", "the head page counts what is in memory only", condition=False)
@pytest.mark.full
def test_a_killed_rank_whose_disk_refused_is_declared_to_its_last_event(
    node: FaultyNode, library: Path, tmp_path: Path, started: list[Rank]
) -> None:
    """Everything in the memory of the process is gone with it: exactly that is lost, and declared."""
    rank = start_refused(node, library, tmp_path)
    started.append(rank)
    rank.ready().log(10_000)
    rank.kill()
    node.start_agent()
    verdict, row = settled(node, rank, lost=True)
    assert row["state"] == "crashed"
    assert row["produced"] == rank.produced
    # In addition to the values perhaps the notice that the disk refuses, which was in memory too.
    assert 0 < len(verdict.lost) <= row["lost"] <= len(verdict.lost) + 1 < 10_000
    assert verdict.lost == list(range(10_000 - len(verdict.lost), 10_000)), "the newest, and no other"


def test_a_run_whose_end_was_lost_with_its_memory_is_not_running_for_ever(
    node: FaultyNode, library: Path, tmp_path: Path, started: list[Rank]
) -> None:
    """No agent, a disk that refuses: the run ends, and with it the memory that held its last events."""
    rank = start_refused(node, library, tmp_path)
    started.append(rank)
    rank.ready().log(5000)
    rank.finish()
    node.start_agent()
    _, row = settled(node, rank, lost=True)
    assert (row["state"], row["produced"]) == ("crashed", rank.produced), "its end is lost too, with a reason"


@proves(
    "adopted-journal-kept-until-removed",
    "a journal that cannot be removed is not delivered again",
    new="adopted.lock.release()",
)
@pytest.mark.full
def test_an_adopted_journal_that_cannot_be_removed_is_delivered_once_and_removed_when_the_disk_heals(
    node: FaultyNode, faults: dict[str, Faults], tmp_path: Path, started: list[Rank]
) -> None:
    node.start_collector()
    rank = Rank(tmp_path / "oracle", node.root, CHIPLOG_AGENT=node.place.agent_address)
    started.append(rank)
    rank.ready().log(3000)
    rank.kill()
    faults["agent"].fail(RENAME, node.root, "/journals/")
    faults["agent"].fail(UNLINK, node.root, "/.done-", times=1)
    node.start_agent()
    _, row = settled(node, rank)
    assert row["stored"] == rank.produced
    tries = faults["agent"].hits[0]
    log = sum(path.stat().st_size for path in (node.place.collector / "log").glob("*.seg"))
    wait_until(lambda: faults["agent"].hits[0] >= tries + 3, "an agent that tries again")
    more = sum(path.stat().st_size for path in (node.place.collector / "log").glob("*.seg")) - log
    assert more < log / 10, f"{more} bytes more in the log, after {log}: it was delivered again"
    faults["agent"].heal()
    wait_until(lambda: list(node.place.journals.iterdir()) == [], "a journal that is removed")


@proves("failed-socket-retried", "a socket that cannot be made does not end the agent", value="ZeroDivisionError")
@pytest.mark.full
def test_a_socket_that_cannot_be_made_anew_is_made_when_the_disk_heals(
    node: FaultyNode, faults: dict[str, Faults], tmp_path: Path, started: list[Rank]
) -> None:
    node.start()
    assert node.agent is not None
    socket = Path(node.place.agent_address.removeprefix("ipc://"))
    faults["agent"].fail(BIND, node.root, "agent.sock")
    socket.unlink()
    wait_until(lambda: faults["agent"].hits[0] >= 2, "an agent that tries again")
    rank = Rank(tmp_path / "oracle", node.root, CHIPLOG_AGENT=node.place.agent_address)
    started.append(rank)
    rank.ready().log(100)
    faults["agent"].heal()
    wait_until(socket.exists, "a socket")
    rank.log(100)
    rank.finish()
    assert settled(node, rank)[0].ok
    assert node.agent.poll() is None


@proves("new-index-beside-old", "a new index is made under another name", value="place.index")
@pytest.mark.full
def test_an_index_that_cannot_be_made_is_made_when_the_disk_heals(
    node: FaultyNode, faults: dict[str, Faults], tmp_path: Path, started: list[Rank]
) -> None:
    """Nothing is set aside for it: what was cut short has another name."""
    node.start_agent()
    faults["collector"].fail(OPEN, node.root, "index-new.duckdb", ENOSPC)
    faults["collector"].fail(RENAME, node.root, "index-new.duckdb", EIO, times=2)
    node.start_collector()
    rank = Rank(tmp_path / "oracle", node.root, CHIPLOG_AGENT=node.place.agent_address)
    started.append(rank)
    rank.ready().log(100)
    wait_until(lambda: faults["collector"].hits[0] >= 2, "an index that tries again")
    faults["collector"].heal()
    faults["collector"].fail(RENAME, node.root, "index-new.duckdb", EIO, times=1)
    until_hit(faults["collector"], "the rename of the new index")
    rank.finish()
    assert settled(node, rank)[0].ok
    assert list(node.place.collector.glob("*.set-aside-*")) == []


START_SITES = {
    "collector's directory": ("chiplog_collector", MKDIR, "/collector", EIO),
    "collector's lock": ("chiplog_collector", OPEN, "/lock", EIO),
    "collector's synced": ("chiplog_collector", OPEN | ALLOCATE, "/synced", ENOSPC),
    "collector's log": ("chiplog_collector", MKDIR, "/log", EIO),
    "collector's first segment": ("chiplog_collector", OPEN, "/log/", EIO),
    "its header": ("chiplog_collector", WRITE, "/log/", ENOSPC),
    "its sync": ("chiplog_collector", SYNC, "/log", EIO),
    "collector's socket": ("chiplog_collector", BIND, "/collector.sock", EIO),
    "agent's directory": ("chiplog_agent", MKDIR, "/agent", EIO),
    "agent's lock": ("chiplog_agent", OPEN, "/lock", EIO),
    "agent's journals": ("chiplog_agent", MKDIR, "/journals", EIO),
    "agent's spool": ("chiplog_agent", MKDIR, "/spool", ENOSPC),
    "agent's socket": ("chiplog_agent", BIND, "/agent.sock", EIO),
}


def test_a_daemon_that_cannot_start_says_why_in_one_line_and_starts_when_the_disk_heals(
    library: Path, tmp_path: Path
) -> None:
    """Whatever starts daemons starts them again: systemd, or, every five seconds, the rank and the agent."""
    processes: dict[str, tuple[subprocess.Popen[str], Faults]] = {}
    for number, (site, (module, operations, part, error)) in enumerate(START_SITES.items()):
        rules = Faults(library, tmp_path / f"{number}.rules")
        rules.fail(operations, tmp_path / str(number), part, error)
        command = [sys.executable, "-P", "-m", module, "--dir", str(tmp_path / str(number))]
        environment = {**os.environ, **rules.environment}
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True
        )
        processes[site] = started, rules
    try:
        for site, (process, rules) in processes.items():
            _, errors = process.communicate(timeout=WAIT_S)
            assert process.returncode == 1, (site, errors)
            assert "cannot start" in errors.splitlines()[-1], (site, errors)
            assert "Traceback" not in errors, (site, errors)
            assert all(rules.hits), f"{site} was not reached"
    finally:
        for process, _ in processes.values():
            if process.poll() is None:
                process.kill()
                process.communicate()
    for number in (2, 5, 11):  # what was left half made is no obstacle
        module = list(START_SITES.values())[number][0]
        place = paths_for_root(tmp_path / str(number))
        directory = place.collector if module == "chiplog_collector" else place.agent
        with open(os.devnull, "wb") as nowhere:
            again = subprocess.Popen(
                [sys.executable, "-P", "-m", module, "--dir", str(place.root)], stdin=nowhere, stderr=nowhere
            )
        try:
            wait_until(lambda d=directory, p=again: lock_holder_pid(d / "lock") == p.pid, f"{module} that runs")
        finally:
            end_process(again.pid)
            again.wait()


@proves(
    "failed-agent-start-retried",
    "an agent that could not be started is tried again",
    new="...\nself._may_start_agent = False",
)
def test_a_rank_that_cannot_start_an_agent_tries_again(library: Path, tmp_path: Path, started: list[Rank]) -> None:
    """Embedded: the disk refuses the directory of the agent's output at first."""
    root = tmp_path / "chiplog"
    place = paths_for_root(root)
    rules = Faults(library, tmp_path / "rank.rules")
    rules.fail(OPEN, root, "chiplog_agent.out")
    rank = Rank(tmp_path / "oracle", root, **rules.environment)
    started.append(rank)
    try:
        rank.ready().log(10)
        until_hit(rules, "the agent's output file")
        rules.heal()
        pid = wait_until(lambda: lock_holder_pid(place.agent / "lock"), "an agent that was started after all")
        assert pid > 0
        rank.finish()
    finally:
        for directory in (place.agent, place.collector):
            if (pid := lock_holder_pid(directory / "lock")) > 0:
                end_process(pid)


@pytest.mark.parametrize("failure", everyday(1, ["full", "short"]))
def test_an_owners_record_that_could_not_be_written_names_no_owner(library: Path, tmp_path: Path, failure: str) -> None:
    """A truncated record would keep this host from ever starting its collector. On its own disk the lock decides."""
    root = tmp_path / "chiplog"
    place = paths_for_root(root)
    rules = Faults(library, tmp_path / "collector.rules")
    if failure == "short":
        rules.fail(WRITE, root, "collector/.owner-", SHORT, times=1)
    rules.fail(WRITE, root, "collector/.owner-", ENOSPC)
    command = [sys.executable, "-P", "-m", "chiplog_collector", "--dir", str(root), "--embedded"]
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, env={**os.environ, **rules.environment})
    wait_until(lambda: lock_holder_pid(place.collector / "lock") == process.pid, "a collector that runs")
    wait_until(lambda: ipc_path(place.query_address).exists(), "a collector that listens")
    assert read_owner(place.collector) is None
    rules.heal()
    try:
        wait_until(lambda: read_owner(place.collector) is not None, "a collector that owns its log")
    finally:
        end_process(process.pid)
        process.wait()
        shutil.rmtree(root, ignore_errors=True)
