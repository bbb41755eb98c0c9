"""What texts give away of an end, where nothing but the text is known."""

import pytest

from chiplog_schemas.model.codes import EndCause
from chiplog_schemas.model.end_text import cause_of_old_reason, cause_of_text

VANISHED = "vanished without finish(): killed, out of memory, or os._exit"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("KeyboardInterrupt", EndCause.INTERRUPTED),
        ("SystemExit: 143", EndCause.INTERRUPTED),
        ("SystemExit: 1430", None),
        ("SystemExit: 143\n", None),
        ("ValueError: not a KeyboardInterrupt", None),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7", EndCause.INTERRUPTED),
        ("torch.distributed.DistBackendError: NCCL error", EndCause.PEER_LOST),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer", EndCause.PEER_LOST),
        ("RuntimeError: ncclRemoteError: A call failed", EndCause.PEER_LOST),
        ("ChildFailedError: train.py FAILED", EndCause.PEER_LOST),
        ("RendezvousTimeoutError", EndCause.PEER_LOST),
        ("BrokenPipeError: [Errno 32] Broken pipe", EndCause.CONNECTION_LOST),
        ("RuntimeError: Socket was closed", EndCause.CONNECTION_LOST),
        ("RuntimeError: DataLoader timed out after 5 seconds", None),
        ("ValueError: boom", None),
    ],
)
def test_the_cause_that_a_text_gives_away(text: str, cause: EndCause | None) -> None:
    assert cause_of_text(text) is cause


@pytest.mark.parametrize(
    ("reason", "has_status", "cause"),
    [
        ("killed by SIGKILL", True, EndCause.EXIT_STATUS),
        ("out of memory: killed by the kernel", True, EndCause.OUT_OF_MEMORY),
        (VANISHED, False, EndCause.UNSEEN),
        (f"{VANISHED}; its error file says: ValueError: boom", False, EndCause.EXCEPTION),
        (f"{VANISHED}; its error file says: DistNetworkError: timed out", False, EndCause.PEER_LOST),
        ("ValueError: boom; then out of memory: killed by the kernel", True, EndCause.EXIT_STATUS),
        ("", False, EndCause.UNSEEN),
    ],
)
def test_the_cause_of_an_end_that_was_written_without_one(reason: str, cause: EndCause, *, has_status: bool) -> None:
    assert cause_of_old_reason(reason, has_status=has_status) is cause


@pytest.mark.parametrize("text", ["Rendezvous" * 100_000, "x" * 1_000_000, "connection was " * 70_000])
def test_a_hostile_text_is_read_in_time_and_gives_nothing_away(text: str) -> None:
    assert cause_of_text(text) is None
