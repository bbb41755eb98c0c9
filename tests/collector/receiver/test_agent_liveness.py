"""Who is missed when, with the clock in the test's hand: no socket, no sleep."""

from chiplog_collector.receiver.agent_liveness import (
    CLEAN_EXIT_GRACE_S,
    MISSED_AFTER_S,
    WORDS_PER_TURN_MAX,
    AgentLiveness,
)
from chiplog_schemas.limits import PEER_SILENT_S, SENDERS_MAX
from tests.support.safeguard import proves

A = b"A" * 16


def pass_time(
    presence: AgentLiveness, begin: float, seconds: float, *, listens: bool = True
) -> list[tuple[float, bytes]]:
    """Take turns of a quarter of a second; return the lost agents, and when they were declared lost."""
    turns = (begin + n * 0.25 for n in range(int(seconds * 4) + 1))
    return [(now, word.sender) for now in turns for word in presence.tick(now, listens=listens)]


def test_an_agent_that_falls_silent_is_lost_a_heartbeat_after_its_session_and_told_once() -> None:
    presence = AgentLiveness({}, 0.0)
    assert presence.greeted(A, "node-a", "boot") is None, "a new one was never called lost"
    assert pass_time(presence, 0.0, 100.0) == []
    presence.left(A, 100.0, goodbye=False, silent_s=PEER_SILENT_S)
    [(at, sender)] = pass_time(presence, 100.0, 1_000.0)
    assert (at, sender) == (100.0 + MISSED_AFTER_S, A)
    word = presence.greeted(A, "node-a", "boot")
    assert word is not None
    assert (word.is_here, word.node, word.boot) == (True, "node-a", "boot")
    assert presence.greeted(A, "node-a", "boot") is None


def test_what_is_said_of_a_lost_agent_is_what_it_said_itself_and_how_long_it_was_silent() -> None:
    presence = AgentLiveness({}, 0.0)
    presence.greeted(A, "n" * 500, 7)
    presence.tick(49.9, listens=True)
    presence.left(A, 50.0, goodbye=False, silent_s=10.0)
    presence.tick(50.5, listens=True)
    presence.tick(51.5, listens=True)
    [word] = presence.tick(52.0, listens=True)
    assert word.is_here is False
    assert (word.node, word.boot) == ("n" * 128, "")
    assert word.silent_s >= 12.0


def test_an_agent_that_comes_back_in_time_is_not_missed() -> None:
    presence = AgentLiveness({}, 0.0)
    presence.greeted(A, "node-a", "boot")
    presence.left(A, 100.0, goodbye=False)
    assert pass_time(presence, 100.0, 11.0) == []
    presence.greeted(A, "node-a", "boot")
    assert pass_time(presence, 111.0, 1_000.0) == []


def test_one_that_said_goodbye_has_the_time_of_an_upgrade() -> None:
    presence = AgentLiveness({}, 0.0)
    presence.greeted(A, "node-a", "boot")
    pass_time(presence, 0.0, 10.0)
    presence.left(A, 10.0, goodbye=True)
    [(at, _)] = pass_time(presence, 10.0, 1_000.0)
    assert at == 10.0 + CLEAN_EXIT_GRACE_S


def test_whom_the_log_knows_from_before_a_start_is_missed_from_the_start_on_or_said_to_be_here() -> None:
    presence = AgentLiveness({A: 3, b"B" * 16: 1}, 0.0)
    word = presence.greeted(A, "node-a", "boot")
    assert word is not None and word.is_here, "the previous receiver may have declared it lost"
    assert pass_time(presence, 0.0, 100.0) == [(PEER_SILENT_S + MISSED_AFTER_S, b"B" * 16)]


def test_whom_the_log_calls_lost_already_is_not_called_lost_again_and_said_to_be_here_when_it_comes() -> None:
    presence = AgentLiveness({A: 3, b"B" * 16: 1}, 0.0, {A})
    assert pass_time(presence, 0.0, 1_000.0) == [(PEER_SILENT_S + MISSED_AFTER_S, b"B" * 16)]
    word = presence.greeted(A, "node-a", "boot")
    assert word is not None and word.is_here


@proves("no-loss-while-deaf", "no agent is lost while the receiver did not listen", condition=False)
def test_time_in_which_the_receiver_did_not_listen_is_nobodys_silence() -> None:
    presence = AgentLiveness({A: 1}, 0.0)
    assert pass_time(presence, 0.0, 5.0) == []
    assert pass_time(presence, 5.25, 100.0, listens=False) == [], "its disk refused"
    assert presence.tick(500.0, listens=True) == [], "it was stopped"
    [(at, _)] = pass_time(presence, 500.25, 100.0)
    assert 506.0 <= at <= 508.0


def test_of_very_many_that_leave_at_a_time_some_are_called_lost_in_each_turn_and_memory_is_bounded() -> None:
    presence = AgentLiveness({}, 0.0)
    for number in range(SENDERS_MAX + 10):
        presence.left(number.to_bytes(16, "big"), 0.0, goodbye=True)
    assert len(presence._missed) == SENDERS_MAX
    few = AgentLiveness({number.to_bytes(16, "big"): 1 for number in range(WORDS_PER_TURN_MAX + 1)}, 0.0)
    for turn in range(60):
        assert few.tick(turn * 0.2, listens=True) == []
    assert [len(few.tick(12.0 + turn * 0.2, listens=True)) for turn in range(3)] == [WORDS_PER_TURN_MAX, 1, 0]
