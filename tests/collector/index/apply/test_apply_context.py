"""What the parts of the applier share: producers, names, rows of `events`."""

import pytest

from chiplog_collector.index.apply.apply_context import ApplyContext
from chiplog_collector.index.apply.state import Producer, State


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
