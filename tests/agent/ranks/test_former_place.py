"""What an earlier decision left is moved: journals, spools and files; from a shared place only of ended processes."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import chiplog
from chiplog_agent.pipeline.spool import Spool
from chiplog_agent.ranks import former_place as module
from chiplog_agent.ranks.former_place import FormerPlaceMover
from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.process.file_lock import Lock
from chiplog_schemas.storage.former_places import find_leftovers
from chiplog_schemas.storage.journal_dir import list_journals
from chiplog_schemas.transport.collector_memory import RememberedCollector, remember_collector
from tests.support.lock_holder import lock_holder
from tests.support.safeguard import proves
from tests.support.waiting import wait_until

OLD_S = 3 * 3600.0


@pytest.fixture
def places(tmp_path: Path) -> Paths:
    found = Paths(tmp_path / "root", tmp_path / "local", tmp_path / "local" / "run", (tmp_path / "root",), True)
    ensure_private_dir(found.local)
    return found


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "file_system_type", lambda path: "fuse")
    yield


def record(places: Paths) -> Path:
    """Record a run in the former place, as an earlier version did; return its journal."""
    run = chiplog.init(mode="offline", dir=places.root, capture_console=False)
    run.log({"x": 1.0})
    run.finish()
    [(_, path)] = list_journals(places.root / "offline")
    ensure_private_dir(places.root / "journals")
    return path.rename(places.root / "journals" / path.name)


def move(
    places: Paths, on_blocks: Callable[[list[bytes]], object] = lambda blocks: None, collector: str | None = None
) -> None:
    mover = FormerPlaceMover(places, collector)
    mover.tick(0.0)

    def ended() -> bool:
        on_blocks(mover.take_blocks())
        mover.on_spool_synced()
        return mover.is_idle

    wait_until(ended, "the end of the move")


def age(directory: Path) -> None:
    then = time.time() - OLD_S
    for path in (*directory.iterdir(), directory):
        os.utime(path, (then, then))


def moved(places: Paths) -> list[str]:
    return [path.name for _, path in list_journals(places.journals)]


def test_a_journal_is_moved_with_its_content(places: Paths) -> None:
    journal = record(places)
    content = {path.name: path.read_bytes() for path in journal.iterdir() if path.name != "lock"}
    with lock_holder(journal / "lock"):
        move(places)
        assert moved(places) == [], "its process runs"
    move(places)
    assert moved(places) == [journal.name]
    found = {path.name: path.read_bytes() for path in (places.journals / journal.name).iterdir()}
    assert found.pop("lock") and found == content
    assert os.listdir(places.root / "journals") == []


@proves(
    "shared-journal-of-other-node-stays",
    "a journal that a process on another node may still write stays",
    condition=False,
)
def test_a_journal_on_a_shared_place_is_moved_once_its_process_has_ended(
    places: Paths, shared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = record(places)
    with monkeypatch.context() as other_node:
        other_node.setattr(module, "boot_id", lambda: "of-another-node")
        move(places)
        assert moved(places) == [], "its process may run on another node, whose locks are not seen here"
        age(journal)
        move(places)
    assert moved(places) == [journal.name]
    own = record(places)
    move(places)
    assert own.name in moved(places), "its process ran in this boot, and its lock is free"


def test_a_move_that_an_agent_had_begun_is_finished(places: Paths) -> None:
    journal = record(places)
    begun = journal.rename(journal.with_name(f".moving-{journal.name}"))
    move(places)
    assert moved(places) == [], "another agent may be moving it"
    age(begun)
    move(places)
    assert moved(places) == [journal.name]


def test_a_full_disk_leaves_the_journal_in_its_place(places: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = record(places)

    def refuse(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(module, "copy_durably", refuse)
        move(places)
    assert journal.exists() and moved(places) == []
    move(places)
    assert moved(places) == [journal.name]


def leave_spool(places: Paths) -> None:
    ensure_private_dir(places.root / "agent")
    spool = Spool(places.root / "agent" / "spool", os.urandom(16))
    for number in range(20):
        spool.append(b"block %d" % number)
    spool.sync()
    spool.close()
    (places.root / "outbox").mkdir()
    (places.root / "outbox" / ("a" * 64)).write_bytes(b"content")


@proves(
    "former-spool-keeps-its-collector",
    "what waits for a configured collector goes to no other one after a change of its place",
    condition=False,
)
def test_what_waits_for_another_collector_stays_until_an_agent_delivers_to_that_one(places: Paths) -> None:
    journal = record(places)
    leave_spool(places)
    remember_collector(places.root / "agent", RememberedCollector("tcp://10.0.0.1:9", "", "n", is_configured=True))
    taken: list[bytes] = []
    for other in (None, "tcp://10.0.0.2:9"):
        move(places, taken.extend, other)
        assert (moved(places), taken) == ([], [])
    assert [str(left) for left in find_leftovers(places)] == [f"1 journal, a spool, 1 saved file in {places.root}"]
    move(places, taken.extend, "tcp://10.0.0.1:9")
    assert (moved(places), len(taken)) == ([journal.name], 20)


@proves(
    "former-spool-removed-after-sync",
    "a former spool is removed once its blocks are on stable storage",
    condition=False,
)
def test_the_blocks_of_a_spool_are_passed_on_and_removed_after_the_sync(places: Paths) -> None:
    leave_spool(places)
    taken: list[bytes] = []
    mover = FormerPlaceMover(places)
    mover.tick(0.0)
    wait_until(lambda: taken.extend(mover.take_blocks()) or len(taken) == 20, "all blocks")
    time.sleep(0.5)  # a removal that does not wait for the sync comes at once
    assert (places.root / "agent" / ".moving-spool").exists(), "not yet on stable storage here"
    mover.on_spool_synced()
    wait_until(lambda: mover.is_idle, "the end of the move")
    assert taken == [b"block %d" % number for number in range(20)]
    assert os.listdir(places.root / "agent") == ["lock"]
    assert (places.outbox / ("a" * 64)).read_bytes() == b"content"
    assert not os.listdir(places.root / "outbox")


def test_a_spool_whose_agent_may_run_elsewhere_stays(places: Paths, shared: None) -> None:
    leave_spool(places)
    agent = places.root / "agent"
    (agent / "link").touch()
    (agent / "lock").touch()
    taken: list[bytes] = []
    move(places, taken.extend)
    assert taken == []
    age(agent)
    move(places, taken.extend)
    assert len(taken) == 20


def test_a_spool_of_a_running_agent_stays(places: Paths) -> None:
    leave_spool(places)
    with lock_holder(places.root / "agent" / "lock"):
        taken: list[bytes] = []
        move(places, taken.extend)
        assert taken == []
    lock = Lock(places.root / "agent" / "lock")
    lock.release()
