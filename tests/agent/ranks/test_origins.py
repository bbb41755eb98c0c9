"""Where a producer's process is: the kernel's PID and start, never what the producer reports of itself."""

import os
import subprocess
import sys

import pytest

from chiplog_agent.pipeline.batcher import Origin
from chiplog_agent.ranks.origins import origin_of_dead, origin_of_living
from chiplog_schemas.process.procfs import boot_id, pid_namespace, start_ticks, uptime_us
from tests.support.safeguard import proves


def test_a_local_producer_has_the_kernels_pid_and_start_whatever_it_reports() -> None:
    origin = origin_of_living(os.getpid(), {"pid": 1, "uptime": uptime_us()}, is_local=True)
    assert origin == Origin(os.getpid(), start_ticks(os.getpid()))
    assert origin.can_sample


@proves("no-samples-over-tcp", "a producer that comes over TCP is not sampled", condition=False)
def test_a_producer_that_comes_over_tcp_has_no_pid_here() -> None:
    identity = {"pid": os.getpid(), "boot": "of another machine"}
    assert origin_of_living(os.getpid(), identity, is_local=False) == Origin(is_remote=True)
    here = origin_of_living(os.getpid(), {"pid": os.getpid(), "boot": boot_id()}, is_local=False)
    assert here == Origin(), "on this machine, of which all containers name the same boot"
    assert not here.can_sample


@proves("reused-pid-is-another", "a reused PID is not its producer's", condition=False)
def test_a_process_that_is_younger_than_its_producer_is_another() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        old = uptime_us() - 60_000_000
        assert origin_of_living(process.pid, {"uptime": old}, is_local=True) == Origin()


@pytest.mark.parametrize("pid", [0, 1 << 30])
def test_a_process_that_cannot_be_seen_is_not_sampled(pid: int) -> None:
    origin = origin_of_living(pid, {"pid": os.getpid()}, is_local=True)
    assert origin == Origin(pid)
    assert not origin.can_sample


@proves(
    "pid-of-own-namespace",
    "a PID of another namespace does not count in this one",
    new='if pid <= 0 and identity.get("pid"):',
)
def test_of_a_dead_producer_only_a_pid_of_this_namespace_counts() -> None:
    own = {"pid": 4242, "boot": boot_id(), "pid_namespace": pid_namespace()}
    assert origin_of_dead(0, own) == Origin(4242)
    assert origin_of_dead(77, own | {"pid": 1}) == Origin(77), "as its agent saw it"
    assert origin_of_dead(0, own | {"pid_namespace": 1}) == Origin()
    assert origin_of_dead(0, {"pid": 4242, "boot": boot_id()}) == Origin()
    assert origin_of_dead(0, own | {"boot": "another"}) == Origin(is_remote=True)
    assert not origin_of_dead(0, own).can_sample
