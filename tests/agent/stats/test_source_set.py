"""Sources that are read when they are due, also one that hangs, fails or is absent."""

import threading
from collections.abc import Iterator

import pytest

from chiplog_agent.stats.post_box import PostBox
from chiplog_agent.stats.source import AbsentError, Reading, Source
from chiplog_agent.stats.source_set import SourceSet
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until


class Given(Source):
    """A source whose readings the test gives. It waits for `is_open` if it may hang."""

    def __init__(self, title: str, *, period_s: float = 0.0, deadline_s: float | None = None, device: str = "") -> None:
        self.title, self.period_s, self.deadline_s, self.device = title, period_s, deadline_s, device
        self.n_reads = 0
        self.error: Exception | None = None
        self.is_open = threading.Event()
        self.is_open.set()

    def read(self) -> list[Reading]:
        self.n_reads += 1
        assert self.is_open.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return [Reading(self.device, (self.title,), (float(self.n_reads),))]


@pytest.fixture
def box() -> Iterator[PostBox]:
    box = PostBox()
    yield box
    box.close()


def test_readings_of_one_device_are_one_sample_and_slow_sources_come_when_due(box: PostBox) -> None:
    sources = SourceSet([Given("a"), Given("b", period_s=10.0), Given("c", device="nic:eth0")], box)
    assert sources.read(100.0) == [Reading("", ("a", "b"), (1.0, 1.0)), Reading("nic:eth0", ("c",), (1.0,))]
    assert sources.read(101.0) == [Reading("", ("a",), (2.0,)), Reading("nic:eth0", ("c",), (2.0,))]
    assert sources.read(109.99)[0].names == ("a", "b"), "a timer that wakes early is no reason to wait a second more"


def test_an_absent_source_is_left_out_without_a_line_and_not_asked_again(box: PostBox) -> None:
    absent = Given("a")
    absent.error = AbsentError()
    sources = SourceSet([absent], box)
    assert [sources.read(float(now)) for now in range(3)] == [[], [], []]
    assert absent.n_reads == 1 and not box.messages


@proves("missing-values-said-once", "values that a source lacks are one line", condition=False)
def test_what_a_machine_lacks_is_one_line_with_the_reason(box: PostBox) -> None:
    absent, partial = Given("a"), Given("b")
    absent.error = AbsentError("a.* is absent: no adapter")
    partial.missing = "b.limit is absent: none is set"
    sources = SourceSet([absent, partial], box)
    assert [len(sources.read(float(now))) for now in range(3)] == [1, 1, 1]
    assert list(box.messages) == [["line", "a.* is absent: no adapter"], ["line", "b.limit is absent: none is set"]]


def test_a_failure_is_told_once_and_the_source_is_read_again(box: PostBox) -> None:
    source = Given("a")
    source.error = ValueError("not a number")
    sources = SourceSet([source], box)
    assert sources.read(0.0) == sources.read(1.0) == []
    assert list(box.messages) == [["line", "a is absent from the samples: ValueError: not a number"]]
    source.error = None
    assert sources.read(2.0) == [Reading("", ("a",), (3.0,))]


@proves(
    "hanging-source-on-thread",
    "other sources do not wait for one that hangs",
    part="source.deadline_s is None",
    new="True",
)
def test_a_source_that_hangs_is_late_once_while_others_go_on_and_it_comes_back(box: PostBox) -> None:
    source = Given("fs:/data", deadline_s=2.0, device="fs:/data")
    source.is_open.clear()
    sources = SourceSet([source, Given("a")], box)
    assert [sources.read(now)[0].names for now in (0.0, 1.0)] == [("a",), ("a",)]
    assert [sources.late(now) for now in (1.0, 2.5, 3.0)] == [[], ["fs:/data"], []]
    source.is_open.set()
    wait_until(lambda: bool(box.messages), "its reading")
    [[kind, ts_us, *reading]] = box.messages
    assert (kind, reading) == ("sample", ["fs:/data", ("fs:/data",), (1.0,)]) and ts_us > 0
    assert source.n_reads == 1, "requests during a reading are dropped"
    wait_until(lambda: sources.late(4.0) == [] and bool(sources.read(5.0)) and source.n_reads == 2, "the next reading")
