"""Dimensions in memory: each producer is found by its ID, number, run, label and sender."""

from chiplog_collector.index.apply.state import Producer, Run, State


def test_a_producer_is_found_by_its_id_number_label_run_and_sender() -> None:
    state = State()
    run = state.add_run(Run(3, "r"))
    assert (state.runs["r"], state.runs_by_number[3]) == (run, run)
    first = state.add_producer(Producer(1, b"1" * 16, run=3, label="rank0", sender=b"agent"))
    again = state.add_producer(Producer(2, b"2" * 16, run=3, label="rank0"))
    unnamed = state.add_producer(Producer(4, b"4" * 16, run=3))
    assert state.producers[b"1" * 16] is first and state.producers_by_number[4] is unnamed
    assert state.by_label == {(3, "rank0"): [first, again]}
    assert state.members == {3: {1: first, 2: again}}
    assert state.by_sender == {b"agent": {1}}
    assert state.have.keys() == {1, 2, 4}


def test_a_loaded_ledger_is_kept_when_its_producer_is_added() -> None:
    state = State()
    state.add_producer(Producer(1, b"1" * 16))
    state.have[1].add(0, 5)
    state.add_producer(Producer(1, b"1" * 16))
    assert list(state.have[1]) == [(0, 5)]


def test_a_producer_is_of_the_agent_that_delivered_it_last() -> None:
    state = State()
    moved, stays = (state.add_producer(Producer(n, bytes([n]) * 16)) for n in (1, 2))
    for producer in (moved, stays):
        state.set_sender(producer, b"first")
    state.set_sender(moved, b"second")
    assert state.by_sender == {b"first": {2}, b"second": {1}}
    assert (moved.sender, stays.sender) == (b"second", b"first")


def test_a_key_must_cover_the_node_of_the_agent_if_one_is_known() -> None:
    producer = Producer(1, b"1" * 16, node="pod-7")
    assert producer.key_node == "pod-7"
    producer.agent_node = "node-a"
    assert producer.key_node == "node-a"
