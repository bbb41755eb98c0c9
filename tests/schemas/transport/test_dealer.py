"""The link over real sockets: what its log's disk or the system refuses costs a session, and nothing else."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_schemas.limits import BACKOFF_MAX_S
from chiplog_schemas.protocol.sender import SenderState
from chiplog_schemas.transport.dealer import require_free_fds
from tests.support.hop import Hop
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S


@pytest.fixture
def hop(tmp_path: Path) -> Iterator[Hop]:
    made = Hop(f"ipc://{tmp_path}/s")
    yield made
    made.close()


@proves(
    "unreadable-log-costs-session",
    "a disk that refuses to read the log costs a session, not the daemon",
    value="ZeroDivisionError",
)
@pytest.mark.parametrize("what", ["seek", "read", "acknowledged"])
def test_a_log_that_cannot_be_read_for_a_while_is_sent_whole_afterwards(hop: Hop, what: str) -> None:
    hop.log.refused = {what}
    hop.until(lambda: bool(hop.told) and hop.told[-1][0] is SenderState.CLOSED)
    assert "Input/output error" in hop.told[-1][1]
    n_asked, begun = hop.log.n_asked, hop.now
    hop.until(lambda: hop.now > begun + 20)
    if what != "acknowledged":  # there the session is open until the first acknowledgement
        assert hop.log.n_asked - n_asked < 20 * 5, "asked again and again, and slower"
        assert SenderState.OPEN not in [state for state, _ in hop.told], "no success is reported"
    hop.log.refused.clear()
    healed = hop.now
    hop.until(lambda: hop.log.acked == 10)
    assert hop.now < healed + 2 * BACKOFF_MAX_S
    assert sorted(set(hop.taken)) == list(range(10))
    assert hop.told[-1] == (SenderState.OPEN, hop.link.address)


def test_a_link_says_once_that_it_is_open(hop: Hop) -> None:
    hop.until(lambda: hop.log.acked == 10)
    assert [state for state, _ in hop.told] == [SenderState.GREETING, SenderState.OPEN]


def test_too_few_descriptors_are_noticed_and_the_last_ones_are_not_taken() -> None:
    code = """
import os, resource
from chiplog_schemas.transport.dealer import require_free_fds
opened = len(os.listdir("/proc/self/fd")) - 1
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
refused = []
for free in range(24):
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + free, hard))
    try:
        require_free_fds()
    except OSError as error:
        refused.append(free)
    assert len(os.listdir("/dev/fd") if free else range(opened + 1)) - 1 == opened
print(refused)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stdout.strip() == str(list(range(17))), done.stderr  # 16, and one for the listing


def test_descriptors_beyond_the_limit_do_not_count_as_open() -> None:
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    high = [os.dup2(0, number) for number in range(500, 540)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
        require_free_fds()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        for descriptor in high:
            os.close(descriptor)
