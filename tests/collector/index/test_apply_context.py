"""What the parts of the applier share: producers, names, rows of `events`, seqs that are declared lost."""

import pytest

from chiplog_collector.index.apply_context import ApplyContext, without_range
from chiplog_collector.index.state import Producer, State


@pytest.fixture
def context() -> ApplyContext:
    return ApplyContext(State())


@pytest.fixture
def producer(context: ApplyContext) -> Producer:
    return context.producer(b"p" * 16)


def test_a_producer_gets_a_number_once_and_is_written_with_the_batch(context: ApplyContext, producer: Producer) -> None:
    assert context.producer(b"p" * 16) is producer
    assert context.producer(b"q" * 16).producer == producer.producer + 1
    assert context.batch.producers == {1, 2}


def test_a_name_gets_a_number_once(context: ApplyContext) -> None:
    assert [context.name(name) for name in ("loss", "accuracy", "loss")] == [1, 2, 1]
    assert context.batch.names == [(1, "loss"), (2, "accuracy")]


@pytest.mark.parametrize(("level", "kept"), [("error", "error"), ("loud", "info")])
def test_an_unknown_level_is_info_and_a_body_that_is_no_dict_is_empty(
    context: ApplyContext, producer: Producer, level: str, kept: str
) -> None:
    context.emit_event(producer, 3, 7, "alert", level, "too hot", {"gpu": 1})
    context.emit_event(None, 0, 8, "gap", level, "lost", [1])
    of_producer, of_nobody = context.batch.rows["events"]
    assert of_producer == (producer.producer, 3, 7, "alert", kept, "too hot", '{"gpu": 1}', None, None)
    assert of_nobody == (None, 0, 8, "gap", kept, "lost", "{}", None, None)


def test_only_missing_seqs_are_declared_lost_and_only_once(context: ApplyContext, producer: Producer) -> None:
    context.state.have[producer.producer].add(2, 3)
    assert context.declare_lost(producer, 0, 5, "first") == 4
    assert context.declare_lost(producer, 4, 6, "second") == 3, "all that are not there, whether declared or not"
    assert context.batch.losses[producer.producer] == [(0, 1, "first"), (4, 5, "first"), (6, 6, "second")]
    assert context.declare_lost(producer, 5, 4, "no range") == 0


def test_what_an_ended_producer_lacks_is_declared_only_after_records_were_lost(
    context: ApplyContext, producer: Producer
) -> None:
    producer.state, producer.produced = "finished", 3
    context.declare_missing(producer)
    assert not context.batch.losses
    context.state.damaged = True
    context.declare_missing(producer)
    assert [(first, last) for first, last, _ in context.batch.losses[producer.producer]] == [(0, 2)]


@pytest.mark.parametrize(
    ("cut", "left"),
    [((3, 4), [(0, 2), (5, 9)]), ((0, 9), []), ((20, 30), [(0, 9)]), ((5, 30), [(0, 4)]), ((-3, 2), [(3, 9)])],
)
def test_a_range_without_another_one(cut: tuple[int, int], left: list[tuple[int, int]]) -> None:
    assert without_range(0, 9, *cut) == left
