"""A sampler in the agent's own process: it sends the same, is replaced the same, and never touches a driver."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from chiplog_agent.stats import sampler as sampler_module
from chiplog_agent.stats import sampler_process as sampler_process_module
from chiplog_agent.stats.gpu import threads as gpu_threads_module
from chiplog_agent.stats.sampler_process import Message, SamplerProcess
from chiplog_agent.stats.source import Reading
from chiplog_agent.stats.source_set import SourceSet
from tests.support import gpu_sampler
from tests.support.gpu_sampler import WAIT_S, lines
from tests.support.gpu_sampler import of as samples
from tests.support.safeguard import proves
from tests.support.waiting import wait_until

ABSENT = "hw.* is absent: no NVIDIA driver here (test)"


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the reason for which there is no driver; a driver appears when the list is emptied."""
    reason = [ABSENT]
    monkeypatch.setattr(gpu_threads_module, "missing_library", lambda: reason[0] if reason else None)
    for module in (gpu_threads_module, sampler_process_module):
        monkeypatch.setattr(module, "has_driver", lambda: not reason)
    yield reason


@pytest.fixture
def feed() -> Iterator[SamplerProcess]:
    feed = SamplerProcess(period_s=0.05, may_share=True)
    yield feed
    feed.close()
    wait_until(lambda: not threads(), "the end of the thread")


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "chiplog-sampler"]


def collect(feed: SamplerProcess, until: Callable[[list[Message]], bool]) -> list[Message]:
    return gpu_sampler.collect(feed, until, ticks=True)


def test_the_same_samples_come_from_a_thread(feed: SamplerProcess) -> None:
    feed.start()
    assert feed.pid == os.getpid()
    feed.watch([os.getpid()])
    rank = f"pid:{os.getpid()}"
    messages = collect(feed, lambda found: len(samples(found)) >= 3 and len(samples(found, rank)) >= 3)
    assert lines(messages) == [ABSENT]
    assert feed.bad_frames == 0
    with contextlib.closing(SamplerProcess(period_s=0.05)) as process:
        process.start()
        [other] = samples(collect(process, lambda found: len(samples(found)) >= 1))[:1]
    assert set(samples(messages)[-1].names) >= set(other.names)


@proves(
    "driver-never-in-agent",
    "a GPU driver, which can hang, is never used in the agent's process",
    part="and not has_driver()",
)
def test_with_a_driver_the_sampler_is_a_process(feed: SamplerProcess, driver: list[str]) -> None:
    driver.clear()
    feed.start()
    assert feed.pid not in (None, os.getpid())
    assert not threads()


@proves("new-driver-ends-thread", "a driver that is installed later is sampled by a process")
def test_a_driver_that_appears_ends_the_thread(
    feed: SamplerProcess, driver: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_threads_module, "RETRY_BESIDE_MAX_S", 0.1)
    feed.start()
    collect(feed, lambda found: bool(samples(found)))
    driver.clear()
    messages = collect(feed, lambda found: feed.pid not in (None, os.getpid()) and len(samples(found)) > 1)
    assert "an NVIDIA driver appeared" in lines(messages)
    wait_until(lambda: not threads(), "the end of the thread")


@proves(
    "hung-thread-gets-process", "threads that hang do not accumulate in the agent", part="not self._killed", new="True"
)
def test_a_thread_that_hangs_is_replaced_by_a_process(feed: SamplerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_process_module, "SILENT_MIN_S", 0.5)
    released = threading.Event()

    def hang(self: SourceSet, now: float) -> list[Reading]:
        released.wait(WAIT_S)
        return []

    monkeypatch.setattr(sampler_module.SourceSet, "read", hang)
    try:
        feed.start()
        messages = collect(feed, lambda found: feed.pid not in (None, os.getpid()))
        assert any("silent" in line for line in lines(messages))
        assert len(threads()) == 1
    finally:
        released.set()


def test_a_failing_thread_is_reported_and_replaced(feed: SamplerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sampler_module.SourceSet, "read", lambda self, now: 1 / 0)
        feed.start()
        messages = collect(feed, lambda found: any("exit code 1" in line for line in lines(found)))
    assert any("ZeroDivisionError" in line for line in lines(messages))
    collect(feed, lambda found: bool(samples(found)))


def test_closing_leaves_no_thread_and_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    feed = SamplerProcess(period_s=0.05, may_share=True)
    feed.start()
    collect(feed, lambda found: bool(samples(found)))
    feed.close()
    wait_until(lambda: not threads(), "the end of the thread")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, "the end of its descriptors")
