"""All sources of this host together: each metric comes, under the same names each time, and in one sample."""

import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from chiplog_agent.stats.host.sources import host_sources
from chiplog_agent.stats.post_box import PostBox
from chiplog_agent.stats.source_set import SourceSet
from chiplog_schemas.model.system_metrics import HOST_METRICS

EVERYWHERE = {
    "system.cpu.utilization",
    "system.cpu.load_average.1m",
    "system.memory.usage",
    "system.memory.limit",
    "system.paging.faults",
    "system.filesystem.usage",
    "system.network.io.receive",
    "system.network.io.transmit",
    "system.network.errors",
    "system.network.dropped",
}


@pytest.fixture
def box() -> Iterator[PostBox]:
    box = PostBox()
    yield box
    box.close()


def read(sources: SourceSet) -> dict[str, float]:
    [sample] = [reading for reading in sources.read(time.monotonic()) if reading.device == ""]
    return dict(zip(sample.names, sample.values, strict=True))


def failures(box: PostBox) -> list[str]:
    """Return the lines about sources that failed; others are about what this machine lacks."""
    return [message[1] for message in box.messages if message[0] == "line" and "from the samples" in message[1]]


def test_every_metric_that_each_linux_has_is_sampled(box: PostBox) -> None:
    assert set(read(SourceSet(host_sources(), box))) >= EVERYWHERE
    assert failures(box) == []


def test_names_are_those_of_the_table_and_the_same_from_sample_to_sample(box: PostBox) -> None:
    sources = SourceSet(host_sources(), box)
    [names] = {tuple(read(sources)) for _ in range(5)}
    assert set(names) <= HOST_METRICS.keys()


def test_counters_do_not_fall(box: PostBox) -> None:
    sources = SourceSet(host_sources(), box)
    before, after = read(sources), read(sources)
    for name in before:
        if HOST_METRICS[name].is_counter:
            assert after[name] >= before[name], name


def test_a_source_that_fails_is_left_out_and_told_once(box: PostBox, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = SourceSet(host_sources(), box)
    whole = read(sources)

    def fail(**_: Any) -> None:
        raise OSError("out of order")

    monkeypatch.setattr(psutil, "net_io_counters", fail)
    [names] = {tuple(read(sources)) for _ in range(3)}
    assert whole.keys() - set(names) == {name for name in whole if name.startswith("system.network")}
    assert failures(box) == ["network is absent from the samples: OSError: out of order"]
    monkeypatch.undo()
    assert read(sources).keys() == whole.keys()
