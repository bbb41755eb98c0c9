"""Reads sources when they are due: those that cannot hang in the caller's thread, each other one on its own."""

import threading
from collections.abc import Callable, Iterable

from chiplog_agent.stats.post_box import PostBox
from chiplog_agent.stats.source import DUE_SLACK_S, READ_ERRORS, AbsentError, Reading, Source
from chiplog_schemas.clock import now_us
from chiplog_schemas.once import OnceLogger

_LINES_MAX = 64  # a source that invents errors must not fill a log


class SourceSet:
    """Some sources. Readings of those with threads, and lines, are posted as frames to `box`.

    `late` has the titles of the sources whose reading has exceeded its deadline, once each until it ends.
    """

    def __init__(self, sources: Iterable[Source], box: PostBox) -> None:
        self._box = box
        self._once = OnceLogger(lambda line: box.post(["line", line]), keys_max=_LINES_MAX)
        self._due_at: dict[Source, float] = dict.fromkeys(sources, 0.0)
        self._absent: set[Source] = set()
        self._threads: dict[Source, _SourceThread] = {}

    def read(self, now: float) -> list[Reading]:
        """Return what is read in this thread, one reading for each device, and wake the threads that are due.

        now: monotonic, s.
        """
        readings: list[Reading] = []
        for source, due_at in self._due_at.items():
            if now < due_at - DUE_SLACK_S or source in self._absent:
                continue
            self._due_at[source] = now + source.period_s
            if source.deadline_s is None:  # safeguard: hanging-source-on-thread
                readings += self._read(source)
            else:
                self._wake(source, now)
        return _by_device(readings)

    def late(self, now: float) -> list[str]:
        """Return the titles of sources that have become late since the last call. now: monotonic, s."""
        return [source.title for source, thread in self._threads.items() if thread.has_become_late(now)]

    def _read(self, source: Source) -> list[Reading]:
        try:
            readings = list(source.read())
        except AbsentError as error:
            self._absent.add(source)
            if reason := str(error):
                self._once.log(reason)
        except READ_ERRORS as error:
            self._once.log(source, f"{source.title} is absent from the samples: {type(error).__name__}: {error}")
        else:
            if source.missing:  # safeguard: missing-values-said-once
                self._once.log(source.missing)
            return readings
        return []

    def _wake(self, source: Source, now: float) -> None:
        thread = self._threads.get(source)
        if thread is None:
            thread = self._threads[source] = _SourceThread(source, self._read, self._box)
        thread.wake(now)


class _SourceThread:
    """Reads one source on request, each time on a thread of its own, and posts what it read.

    A request during a reading is dropped, so a source that hangs has one thread.
    """

    def __init__(self, source: Source, read: Callable[[Source], list[Reading]], box: PostBox) -> None:
        self._source = source
        self._read = read
        self._box = box
        self._since: float | None = None  # monotonic; the start of the reading in progress
        self._is_late = False

    def wake(self, now: float) -> None:
        if self._since is None:
            self._since = now
            try:
                threading.Thread(target=self._run, name=self._source.title, daemon=True).start()
            except RuntimeError:  # no thread can be started now: the next request tries again
                self._since = None

    def has_become_late(self, now: float) -> bool:
        since, deadline_s = self._since, self._source.deadline_s
        is_late = since is not None and deadline_s is not None and now - since > deadline_s
        is_news = is_late and not self._is_late
        self._is_late = is_late
        return is_news

    def _run(self) -> None:
        try:
            readings = self._read(self._source)
            ts_us = now_us()
            self._box.post(*(["sample", ts_us, *reading] for reading in readings))
        except Exception as error:  # a fault of this source must not end its readings
            self._box.post(["line", f"{self._source.title} failed: {type(error).__name__}: {error}", "warning"])
        finally:
            self._since = None


def _by_device(readings: Iterable[Reading]) -> list[Reading]:
    """Return one reading for each device: each costs an event."""
    merged: dict[str, Reading] = {}
    for device, names, values in readings:
        before = merged.get(device, Reading(device, (), ()))
        merged[device] = Reading(device, before.names + names, before.values + values)
    return list(merged.values())
