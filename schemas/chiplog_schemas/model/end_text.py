"""The only module that derives a cause from text: where a foreign library or an old writer provides no code.

Two kinds of text arrive here. The first are messages of exceptions of torch, NCCL, gloo and the C library, whose type
is not specific (RuntimeError), or of which only the text is known (torchelastic's error file). The second is the
`reason` of ends that were written before STATE and NOTICE carried a code. All other code uses `EndCause`.
"""

import re
from functools import cache

from chiplog_schemas.limits import TEXT_CHARS_MAX
from chiplog_schemas.model.codes import EndCause

# Names of exceptions which mean that another process is gone, or that this one was asked to end.
# torch 2.13: torch.distributed (Dist…Error), torch/multiprocessing/spawn.py
# (Process…Exception), torch/distributed/elastic/multiprocessing (ChildFailedError, SignalException),
# torch/distributed/elastic/rendezvous/api.py (Rendezvous…Error).
PEER_LOST_TYPES = frozenset(
    {
        "ChildFailedError",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "ProcessExitedException",
        "ProcessRaisedException",
        "RendezvousClosedError",
        "RendezvousConnectionError",
        "RendezvousError",
        "RendezvousGracefulExitError",
        "RendezvousStateError",
        "RendezvousTimeoutError",
    }
)
INTERRUPTED_TYPES = frozenset({"SignalException"})
# The exit codes with which shells report SIGHUP, SIGINT, SIGKILL or SIGTERM: 128 and the signal's number.
SIGNALLED_EXIT_CODES = frozenset({129, 130, 137, 143})


def cause_of_text(text: str) -> EndCause | None:
    """Return the cause that an exception's line, `Type: message`, implies, or None."""
    interrupted, peer_lost, connection_lost = _patterns()
    text = text[:TEXT_CHARS_MAX]
    if interrupted.search(text):
        return EndCause.INTERRUPTED
    if peer_lost.search(text):
        return EndCause.PEER_LOST
    return EndCause.CONNECTION_LOST if connection_lost.search(text) else None


def cause_of_exception(line: str, named: EndCause | None = None) -> EndCause:
    """Return the cause of an exception: what its writer named, else what its line, `Type: message`, implies."""
    return named or cause_of_text(line) or EndCause.EXCEPTION


def cause_of_old_reason(reason: str, *, has_status: bool) -> EndCause:
    """Return the cause of an end that was written without one.

    has_status: whether an exit code or signal is known, or the process itself reported a failure.
    """
    if reason.startswith("out of memory"):
        return EndCause.OUT_OF_MEMORY
    if (cause := cause_of_text(reason)) is not None:
        return cause
    if "error file says" in reason:
        return EndCause.EXCEPTION
    return EndCause.EXIT_STATUS if has_status else EndCause.UNSEEN


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    codes = "|".join(map(str, sorted(SIGNALLED_EXIT_CODES)))
    return (
        # Python's own names, at the front, and torchelastic's.
        re.compile(rf"\A(KeyboardInterrupt|SystemExit: ({codes})\Z)|SignalException"),
        # The types above; NCCL (ncclGetErrorString, torch/csrc/distributed/c10d/NCCLUtils.cpp), gloo (the path of its
        # sources, torch/third_party/gloo), c10d's watchdog and store, timeouts of torch.distributed.
        re.compile(
            r"DistBackendError|DistNetworkError|DistStoreError|remote process exited|nccl(Remote|System)Error"
            r"|gloo/transport|collective operation timeout|before timing out|timed out waiting|wait timeout"
            r"|ChildFailedError|ProcessExitedException|ProcessRaisedException|Rendezvous\w{0,64}Error",
            re.IGNORECASE,
        ),
        # strerror(3) of ECONNRESET, ECONNREFUSED, ECONNABORTED and EPIPE, and the messages of gloo and NCCL for them.
        re.compile(
            r"connection (was )?(closed|reset|refused|aborted)|closed by peer|broken pipe|socket (was )?closed"
            r"|lost connection",
            re.IGNORECASE,
        ),
    )
