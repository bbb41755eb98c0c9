"""Which sender may deliver for which producer: the node that binds it, and what is kept of a refusal."""

import json
import tracemalloc

import pytest

from chiplog_collector.index.apply import authorization
from chiplog_collector.index.apply.apply_context import ApplyContext
from chiplog_collector.index.apply.authorization import NodeAuthorization
from chiplog_collector.index.apply.state import State
from chiplog_schemas.model.receipt import RestrictedSender
from tests.support.safeguard import proves

A = RestrictedSender(b"a" * 16, ("node-a",))
B = RestrictedSender(b"b" * 16, ("node-b",))
PRODUCER = b"p" * 16


@pytest.fixture
def context() -> ApplyContext:
    return ApplyContext(State())


@pytest.fixture
def nodes(context: ApplyContext) -> NodeAuthorization:
    return NodeAuthorization(context)


def test_an_unnamed_producer_is_of_the_first_sender_until_its_node_is_known(
    context: ApplyContext, nodes: NodeAuthorization
) -> None:
    assert nodes.authorize(A, PRODUCER, 1)
    assert not nodes.authorize(B, PRODUCER, 2)
    assert not nodes.authorize(B, PRODUCER, 3, ["node-b"]), "no identity moves it out of the first sender's names"
    context.producer(PRODUCER).node = "node-b"
    assert nodes.authorize(B, PRODUCER, 4)
    assert not nodes.authorize(A, PRODUCER, 5)


def test_the_node_of_the_agent_counts_before_the_one_that_an_identity_names(
    context: ApplyContext, nodes: NodeAuthorization
) -> None:
    producer = context.producer(PRODUCER)
    producer.node, producer.agent_node = "node-b", "node-a"
    assert nodes.authorize(A, PRODUCER, 1, ["node-b"])
    assert not nodes.authorize(B, PRODUCER, 2, ["node-b"])


@pytest.mark.promise(8)
def test_a_key_for_no_node_delivers_for_nobody(nodes: NodeAuthorization) -> None:
    assert not nodes.authorize(RestrictedSender(b"n" * 16, ()), PRODUCER, 1)


def test_a_refusal_is_one_row_for_each_sender_that_names_both_nodes(
    context: ApplyContext, nodes: NodeAuthorization
) -> None:
    context.producer(PRODUCER).node = "node-a"
    for number in range(3):
        assert not nodes.authorize(B, PRODUCER, number)
    assert not nodes.authorize(RestrictedSender(b"c" * 16, ("node-b",)), PRODUCER, 3)
    rows = context.batch.rows["events"]
    assert [(row[3], row[4]) for row in rows] == [("refused_node", "error")] * 2
    first = json.loads(rows[0][6])
    assert (first["record"], first["nodes"], first["node"]) == (0, ["node-b"], "node-a")


@proves("node-name-bounded", "names of nodes need little memory, however long", value="_matches_node(nodes, node)")
def test_long_names_of_nodes_are_not_kept() -> None:
    tracemalloc.start()
    try:
        for number in range(40):
            name = f"gpu-{number:06d}" + "x" * 500_000
            assert authorization.matches_node(("gpu-*",), name)
            assert not authorization.matches_node(("cpu-*",), name)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000, "one name and crumbs"
