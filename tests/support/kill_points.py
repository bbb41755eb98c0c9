"""Named points of a store's life at which a process of a collector kills itself: before a call, after it, or within it.

A plan is a file that names some of them. The first process that gets to one removes the plan and ends by SIGKILL, so a
plan costs one process. Processes that a test starts call `arm` before they begin: see `ARMED`.
"""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from tests.support.safeguard import ROOT

VARIABLE = "CHIPLOG_TEST_KILL_PLAN"
# For `patch_daemons`: the modules that it changes are imported before the daemon begins.
ARMED = f"""
import sys
if "chiplog_collector.index" in sys.orig_argv or "chiplog_collector.store" in sys.orig_argv:
    sys.path.append({str(ROOT)!r})
    from tests.support.kill_points import arm
    arm()
"""
_AROUND = ("before", "after")
_WITHIN = (*_AROUND, "within")
# By process and point: the moments. Those of the index first: the transaction by which a piece gets into the outbox.
POINTS: dict[str, dict[str, tuple[str, ...]]] = {
    "chiplog_collector.index": {
        "a table of a piece": _AROUND,
        "the sync of a piece": _AROUND,
        "the name of a piece": _AROUND,
        "a piece": _AROUND,
    },
    "chiplog_collector.store": {
        "a table": _AROUND,  # of a piece: between two of them
        "the creation of a table": _AROUND,
        "an upload": _WITHIN,
        "a commit": _WITHIN,
        "a checkpoint": ("within",),
        "the note of a piece": _AROUND,  # after all commits
        "the emptying of the outbox": _WITHIN,
        "a rewrite": _AROUND,  # of one new file, for a compaction or a deletion
        "a compaction": _WITHIN,
        "a deletion": _WITHIN,
        "a vacuum": _WITHIN,
    },
}
MOMENTS = [f"{moment} {point}" for points in POINTS.values() for point in points for moment in points[point]]
_TAKEN = 0.5  # of the calls of a point: not always the first one of a piece
_COMMIT_S = 0.02  # about as long as one takes, or a checkpoint


class KillPlan:
    """The plan of the processes of a test: moments, of which the first that is met costs a process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._met = _met(path)

    def set(self, moments: Iterable[str]) -> None:
        """Plan one kill, at one of some moments."""
        self._met.unlink(missing_ok=True)
        draft = self._path.with_suffix(".new")
        draft.write_text("\n".join(moments), encoding="utf-8")
        draft.rename(self._path)

    def met(self) -> str:
        """Return the moment of the kill; empty before it."""
        return self._met.read_text(encoding="utf-8") if self._met.exists() else ""

    def cancel(self) -> str:
        """Plan nothing. Return the moment of a kill in the last instant."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            while not (moment := self.met()):
                time.sleep(0.001)
            return moment
        return self.met()


def _met(plan: Path) -> Path:
    return plan.with_suffix(".met")


def _is_planned(moment: str) -> bool:
    try:
        return moment in Path(os.environ[VARIABLE]).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False


def _end_at(moment: str) -> None:
    if not _is_planned(moment) or random.random() > _TAKEN:
        return
    plan, mine = Path(os.environ[VARIABLE]), Path(f"{os.environ[VARIABLE]}.{os.getpid()}")
    mine.write_text(moment, encoding="utf-8")
    try:
        plan.unlink()
    except FileNotFoundError:  # another process took it
        mine.unlink()
        return
    mine.rename(_met(plan))
    os.kill(os.getpid(), signal.SIGKILL)


def _end_soon(moment: str, holds: Callable[[], bool] = lambda: True) -> None:
    """End at a random moment from now on, once something holds, while the caller continues."""

    def wait() -> None:
        deadline = time.monotonic() + 1.0
        while not holds() and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(random.uniform(0.0, _COMMIT_S))
        _end_at(moment)

    if _is_planned(moment):
        threading.Thread(target=wait, daemon=True).start()


def _around(owner: Any, name: str, point: str, *, is_within: bool = False) -> None:
    """Have a point before and after a function or a method."""
    called = getattr(owner, name)

    def armed(*given: Any, **named: Any) -> Any:
        _end_at(f"before {point}")
        if is_within:
            _end_soon(f"within {point}")
        found = called(*given, **named)
        _end_at(f"after {point}")
        return found

    setattr(owner, name, armed)


class _CutSource:
    """A file whose process ends while it is uploaded."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        _end_at("within an upload")
        return data

    def seek(self, *given: int) -> int:
        return self._source.seek(*given)

    def tell(self) -> int:
        return self._source.tell()


def arm() -> None:
    """Have the points of this process."""
    if VARIABLE not in os.environ:
        return
    if "chiplog_collector.index" in sys.orig_argv:
        _arm_index()
    else:
        _arm_publisher()


def _arm_index() -> None:
    from chiplog_collector.store import outbox, piece_cutter

    _around(piece_cutter, "write_table", "a table of a piece")
    _around(outbox, "sync_file", "the sync of a piece")
    _around(outbox, "sync_directory", "the name of a piece")
    _around(outbox.Outbox, "add", "a piece")


def _arm_publisher() -> None:
    from chiplog_collector.store import compaction, delta_store, outbox, publisher

    store = delta_store.DeltaStore
    _around(publisher.Publisher, "_publish", "a table")
    _around(publisher.Publisher, "_note", "the note of a piece")
    _around(outbox.Outbox, "remove", "the emptying of the outbox")
    sync_directory = outbox.sync_directory

    def armed_sync(path: Path) -> None:
        _end_at("within the emptying of the outbox")
        sync_directory(path)

    outbox.sync_directory = armed_sync
    _around(store, "_create", "the creation of a table")
    _around(store, "_upload", "an upload")
    _around(store, "vacuum", "a vacuum", is_within=True)
    _around(compaction, "write_rows", "a rewrite")
    put, commit, replace = store._put, store._commit, store.replace

    def armed_put(self: Any, name: str, source: Any, **named: Any) -> None:
        put(self, name, _CutSource(source) if name.endswith(".parquet") else source, **named)

    def armed_commit(self: Any, table: Any, name: str, *given: Any) -> None:
        _end_at("before a commit")
        _end_soon("within a commit")
        version = table.version() + 1
        if (version + 1) % delta_store.CHECKPOINT_COMMITS == 0:
            path = f"{name}/_delta_log/{version:020d}.json"

            def is_committed() -> bool:
                return _exists(self, path)

            _end_soon("within a checkpoint", is_committed)
        commit(self, table, name, *given)
        _end_at("after a commit")

    def armed_replace(self: Any, *given: Any, is_change: bool = False, **named: Any) -> None:
        point = "a deletion" if is_change else "a compaction"
        _end_at(f"before {point}")
        _end_soon(f"within {point}")
        replace(self, *given, is_change=is_change, **named)
        _end_at(f"after {point}")

    for name, method in (("_put", armed_put), ("_commit", armed_commit), ("replace", armed_replace)):
        setattr(store, name, method)


def _exists(store: Any, path: str) -> bool:
    import obstore
    from obstore.exceptions import BaseError

    try:
        obstore.head(store._objects, path)
    except (BaseError, FileNotFoundError):
        return False
    return True
