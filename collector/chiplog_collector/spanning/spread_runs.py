"""Runs whose labels are in several logs, pure: which row of a producer counts, its attempt, and who is primary.

Each collector decides for what is in its log. Where a run is in several, every reader decides again, from the rows of
all of them, so all come to the same result. The rules are those of one log, see `index/apply/registry.py`: attempts by
launch, then by restart count; the primary keeps its role until it has ended, or a later restart of its launch claims
it. Launches are ordered by the start of their first process, since there is no common order of arrival.
store/engine_views.sql has the same rules for other engines.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from chiplog_schemas.model.intervals import Intervals

DESCRIBING = ("project", "name", "run_group", "job_type", "tags", "notes")


@dataclass(frozen=True, slots=True)
class SeenProducer:
    """A producer as one log knows it. Attributes are the columns of `base.producers`; times in µs, 0: unknown."""

    log: str
    uuid: str
    run_id: str
    label: str
    launch: str
    restart: int
    attempt: int
    is_primary: bool
    has_ended: bool
    is_presumed: bool
    fallback: bool
    started_us: int
    ended_us: int
    seen_us: int


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A run as one log knows it. fields: the columns that describe it; edited: those that a person has set."""

    log: str
    run_id: str
    primary_label: str | None
    primary_launch: str | None
    primary_restart: int
    fields: dict[str, Any]
    edited: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """What counts of a producer: the row of which log, its attempt, and whether it is primary."""

    log: str
    uuid: str
    attempt: int
    is_primary: bool


@dataclass(frozen=True, slots=True)
class SpreadRun:
    """A run of several logs.

    Attributes:
        run_id: Its ID.
        primary: The run as the log knows it whose label is primary; None if none is.
        fields: The columns that describe it.
        places: Those of its producers.
    """

    run_id: str
    primary: SeenRun | None
    fields: dict[str, Any]
    places: list[Place]


def spread_runs(producers: Iterable[SeenProducer], runs: Iterable[SeenRun]) -> list[SpreadRun]:
    """Return what counts of the runs of producers that are in several logs."""
    labels: dict[str, dict[str, list[SeenProducer]]] = defaultdict(lambda: defaultdict(list))
    for producer in _newest(producers):
        labels[producer.run_id][producer.label].append(producer)
    runs_by_id: dict[str, list[SeenRun]] = defaultdict(list)
    for run in runs:
        runs_by_id[run.run_id].append(run)
    found = []
    for run_id, by_label in labels.items():
        primary = primary_of(runs_by_id[run_id], by_label)
        places = []
        for label, mates in by_label.items():
            for attempt, mate in enumerate(_in_order(mates)):
                is_primary = mate.is_primary and primary is not None and label == primary.primary_label
                places.append(Place(mate.log, mate.uuid, attempt, is_primary))
        found.append(SpreadRun(run_id, primary, described(runs_by_id[run_id], primary), places))
    return found


def described(runs: Sequence[SeenRun], primary: SeenRun | None) -> dict[str, Any]:
    """Return what describes a run of several logs: what a person has set, else the primary's, else what there is."""
    ordered = sorted(runs, key=lambda run: (run is not primary, run.log))
    telling = ordered if primary is None else [primary]
    found = {}
    for name in DESCRIBING:
        edited = [run.fields[name] for run in ordered if name in run.edited]
        known = [run.fields[name] for run in telling if run.fields[name]]
        found[name] = (edited or known or [telling[0].fields[name]])[0]
    return found


def primary_of(runs: Sequence[SeenRun], by_label: dict[str, list[SeenProducer]]) -> SeenRun | None:
    """Return the run as the log knows it whose label is primary; None if none claims."""
    claims = [run for run in runs if run.primary_label is not None]
    if not claims:
        return None
    first = min(claims, key=lambda run: _claim_order(run, by_label))
    holder = first
    for claim in sorted(claims, key=lambda run: _claim_order(run, by_label)):
        if claim.primary_label == holder.primary_label:
            continue
        if claim.primary_launch == holder.primary_launch:
            takes_over = claim.primary_restart > holder.primary_restart
        else:
            ended = _holders(holder, by_label)
            begun = min((mate.started_us for mate in _holders(claim, by_label)), default=0)
            takes_over = all(mate.has_ended and mate.ended_us <= begun for mate in ended)
        if takes_over:
            holder = claim
    return holder


def _claim_order(run: SeenRun, by_label: dict[str, list[SeenProducer]]) -> tuple[bool, int, int, str]:
    mates = _holders(run, by_label)
    is_fallback = bool(mates) and all(mate.fallback for mate in mates)
    return is_fallback, min((mate.started_us for mate in mates), default=0), run.primary_restart, run.log


def _holders(run: SeenRun, by_label: dict[str, list[SeenProducer]]) -> list[SeenProducer]:
    return by_label.get(run.primary_label or "", [])


def _newest(producers: Iterable[SeenProducer]) -> list[SeenProducer]:
    """Return one row of each producer: of the log that knows most of its end."""
    found: dict[str, SeenProducer] = {}
    for producer in producers:
        known = found.get(producer.uuid)
        if known is None or _knowledge(producer) > _knowledge(known):
            found[producer.uuid] = producer
    return list(found.values())


def _knowledge(producer: SeenProducer) -> tuple[bool, bool, int, list[int]]:
    # An agent that moves leaves a log in which its ranks seem to have died.
    smaller_log = [-ord(character) for character in producer.log]
    return not producer.is_presumed, producer.has_ended, producer.seen_us, smaller_log


def _in_order(mates: list[SeenProducer]) -> list[SeenProducer]:
    """Return the incarnations of a label, oldest first."""
    if len({mate.log for mate in mates}) == 1:
        return sorted(mates, key=lambda mate: mate.attempt)
    begun: dict[str, int] = {}
    for mate in mates:
        begun[mate.launch] = min(mate.started_us, begun.get(mate.launch, mate.started_us))
    return sorted(mates, key=lambda mate: (begun[mate.launch], mate.launch, mate.restart, mate.started_us, mate.uuid))


Ranges = list[tuple[int, int]]


def parted(ranges: dict[str, Ranges]) -> dict[str, tuple[Ranges, Ranges]]:
    """Part the closed ranges of seq of one producer, by log: those that count, and those that a smaller log has, too.

    Args:
        ranges: What each log has, by its ID. They may touch.
    """
    seen, found = Intervals(), {}
    for log in sorted(ranges):
        own = list(Intervals(ranges[log]))
        kept = Intervals(part for first, last in own for part in seen.add(first, last))
        found[log] = list(kept), [part for first, last in own for part in kept.missing(first, last)]
    return found
