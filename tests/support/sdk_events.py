"""Decode the events of a journal: metrics, phases, losses and faults."""

import struct
from collections import defaultdict

from chiplog_schemas.codec import unpack
from chiplog_schemas.model.events import EventKind


def numbers(events) -> list[tuple[str, int, float]]:
    """Return (key, step, value) of metrics in the order logged."""
    found = []
    for event in events:
        if event.kind == EventKind.METRICS:
            keys = unpack(event.fields["keys"])
            values = struct.unpack(f"<{len(keys)}d", event.fields["values"])
            found += [(key, event.fields["step"], value) for key, value in zip(keys, values, strict=True)]
    return found


def notices(events) -> list[tuple[str, str]]:
    """Return (kind of fault, its key) of every notice about a bad value."""
    return [
        (event.fields["body"]["kind"], event.fields["body"]["key"])
        for event in events
        if event.kind == EventKind.NOTICE and event.fields["notice"] == "bad_value"
    ]


def counted(events) -> dict[str, int]:
    """Return how often each fault happened, as reported at the end."""
    counts: dict[str, int] = {}
    for event in events:
        if event.kind == EventKind.NOTICE and event.fields["notice"] in ("bad_values", "nonfinite_values"):
            counts |= event.fields["body"]
    return counts


def phases(events) -> list[tuple[int, dict[str, float]]]:
    """Return (step, seconds by phase) of each event of phases."""
    found = []
    for event in events:
        if event.kind == EventKind.PHASES:
            keys = unpack(event.fields["keys"])
            seconds = struct.unpack(f"<{len(keys)}d", event.fields["values"])
            found.append((event.fields["step"], dict(zip(keys, seconds, strict=True))))
    return found


def losses(events) -> list[tuple[int, str]]:
    """Return (how many, why) of each loss that the journal declares of itself."""
    found = [event.fields for event in events if event.kind == EventKind.LOST]
    return [(fields["last"] - fields["first"] + 1, fields["reason"]) for fields in found]


def by_label(events):
    """Return {label: events of one producer}; asserts that each producer's seqs are gapless."""
    producers = defaultdict(list)
    for event in events:
        producers[event.producer].append(event)
    for producer, found in list(producers.items()):
        if found[0].fields["identity"]["role"] == "console":  # lines of one of the labels, and no label
            del producers[producer]
    labels = {}
    for found in producers.values():
        assert [event.seq for event in found] == list(range(len(found)))
        assert found[0].kind == EventKind.IDENTITY
        labels[found[0].fields["identity"]["label"]] = found
    assert len(labels) == len(producers)
    return labels


def values(events, key):
    found = []
    for event in events:
        if event.kind == EventKind.METRICS and unpack(event.fields["keys"]) == [key]:
            found.append((event.fields["step"], struct.unpack("<d", event.fields["values"])[0]))
    return found
