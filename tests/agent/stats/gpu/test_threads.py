"""NVML on threads: what is lost is reported once and comes back, and no device waits for another."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from chiplog_agent.stats.gpu.known_gpus import KnownGpus
from chiplog_agent.stats.gpu.nvml import GpuUnavailableError
from chiplog_agent.stats.gpu.threads import CHECK_INTERVAL_S, RETRY_MAX_S, GpuThreads
from chiplog_agent.stats.sampler_process import (
    DeviceEvent,
    DeviceStale,
    GpuAddresses,
    Message,
    SamplerLog,
    SamplerProcess,
)
from tests.support.gpu_sampler import GPU0, GPU1, GPU2, GpuSampler, collect, events, lines, of, tables
from tests.support.safeguard import proves


@proves("nvml-retried-while-lost", "NVML is initialised again while GPUs are lost", new="if self._stats is None:")
@proves("nvml-closed-before-retry", "handles are dead until NVML was shut down")
@proves("lost-gpu-is-error", "a lost GPU is an error", part='"error"', new='"info"')
@pytest.mark.parametrize(
    ("word", "devices", "reason"),
    [
        ("lost0", [GPU0], "GPU is lost"),
        ("lost0 lost1", [GPU0, GPU1], "GPU is lost"),
        ("unloaded", [GPU0, GPU1], "Driver Not Loaded"),
        ("uninit", [GPU0, GPU1], "Uninitialized"),
    ],
)
def test_lost_gpus_are_errors_said_once_and_are_back_after_their_return(
    node: GpuSampler, word: str, devices: list[str], reason: str
) -> None:
    """Handles stay dead until NVML was initialised again, as those of a driver that was loaded again do."""
    node.feed.start()
    names = {of(node.run(lambda messages: len(of(messages, GPU0)) >= 2), GPU0)[0].names}
    node.tell(word)
    messages = node.run(lambda messages: all(events(messages, "gpu.lost", device) for device in devices))
    messages += node.run(lambda messages: len(of(messages, "")) >= 30)
    for device in devices:
        [lost] = events(messages, "gpu.lost", device)
        assert lost.level == "error" and reason in lost.text and lost.device == device
        assert DeviceStale(device) not in messages
    others = {GPU0, GPU1} - set(devices)
    assert all(not events(messages, "gpu.lost", other) and len(of(messages, other)) >= 10 for other in others)
    node.tell("")
    messages = node.run(lambda messages: all(events(messages, "gpu.back", device) for device in devices))
    messages += node.run(lambda messages: all(len(of(messages, device)) >= 2 for device in (GPU0, GPU1)))
    assert names <= {sample.names for sample in of(messages, GPU0)}
    assert not any(events(messages, "gpu.lost", device) for device in devices)


def test_a_device_is_back_within_5_s_of_its_return() -> None:
    assert CHECK_INTERVAL_S + RETRY_MAX_S < 5.0


@proves("gpu-count-change-noticed", "a changed number of GPUs is noticed", value="False")
def test_a_gpu_that_comes_later_is_seen_and_one_that_goes_is_lost(node: GpuSampler) -> None:
    node.feed.start()
    node.run(lambda messages: bool(of(messages, GPU1)))
    node.tell("gpus=3")
    messages = node.run(lambda found: len(of(found, GPU2)) >= 2 and [len(t.gpus) for t in tables(found)][-1:] == [3])
    assert [gpu.uuid for gpu in tables(messages)[-1].gpus] == [GPU0, GPU1, GPU2]
    assert not [message for message in messages if isinstance(message, DeviceEvent)]
    node.tell("gpus=1")
    messages = node.run(
        lambda messages: bool(events(messages, "gpu.lost", GPU1) and events(messages, "gpu.lost", GPU2))
    )
    node.tell("gpus=3")
    messages = node.run(lambda found: all(events(found, "gpu.back", device) for device in (GPU1, GPU2)))
    assert not events(messages, "gpu.back", GPU0)


@proves("nvml-open-under-hung-call", "NVML is not shut down under a call that hangs", value="True")
def test_a_gpu_that_hangs_keeps_no_other_from_being_sampled_while_one_is_lost(node: GpuSampler) -> None:
    """NVML cannot be initialised again while a call hangs; the devices that work continue."""
    node.tell("gpus=3")
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU2)) >= 2)
    node.tell("gpus=3 hang1 lost2")
    node.run(lambda messages: bool(events(messages, "gpu.lost", GPU2)) and DeviceStale(GPU1) in messages)
    node.run(lambda messages: len(of(messages, GPU0)) >= 20)
    node.tell("gpus=3")
    node.run(lambda messages: bool(events(messages, "gpu.back", GPU2)) and len(of(messages, GPU1)) >= 2)
    node.run(lambda messages: bool(of(messages, GPU0)))


@proves("lost-at-start-is-lost", "a GPU that was lost before the start is lost", condition=False)
def test_a_gpu_that_was_lost_before_the_start_is_lost_and_comes_back(node: GpuSampler) -> None:
    """It tells no UUID: its place names it, for this machine has no driver that knows its address."""
    node.tell("lost0")
    node.feed.start()
    messages = node.run(lambda messages: bool(events(messages, "gpu.lost", "GPU 0 of 2")) and bool(of(messages, GPU1)))
    [lost] = events(messages, "gpu.lost", "GPU 0 of 2")
    assert (lost.level, lost.text) == ("error", "lost: GPU is lost")
    assert not [text for text in lines(messages) if "absent" in text]
    node.tell("")
    node.run(lambda messages: bool(of(messages, GPU0) and events(messages, "gpu.back", "GPU 0 of 2")))


def test_a_new_sampler_knows_the_uuid_of_a_lost_gpu_and_that_it_is_back(node: GpuSampler) -> None:
    node.feed.start()
    node.run(lambda messages: bool(of(messages, GPU0)) and node.known.exists())
    node.feed.close()
    known = KnownGpus(node.known)
    known.note({"GPU 0000:17:00.0": GPU2})  # NVML returns no UUID of a lost GPU
    known.save(known.lost)
    for word in ("lost0", ""):
        node.tell(word)
        node.feed = SamplerProcess(period_s=0.1, known_gpus=node.known)
        node.feed.start()
        messages = node.run(lambda messages: bool(events(messages, "gpu.lost" if word else "gpu.back", GPU0)))  # noqa: B023
        told = [message for message in messages if isinstance(message, DeviceEvent | GpuAddresses)]
        assert [type(message) for message in told[-1:]] == [DeviceEvent]
        assert GpuAddresses({GPU2: "00000000:17:00.0"}) in told
        assert len([message for message in told if isinstance(message, DeviceEvent)]) == 1
        node.run(lambda _: (GPU0 in KnownGpus(node.known).lost) == bool(word))  # noqa: B023  in this round
        node.feed.close()


def test_a_node_whose_gpus_are_all_lost_at_the_start_says_so(node: GpuSampler) -> None:
    node.tell("lost0 lost1")
    node.feed.start()
    names = [f"GPU {index} of 2" for index in range(2)]
    node.run(lambda messages: all(events(messages, "gpu.lost", name) for name in names))
    node.tell("")
    node.run(lambda messages: all(events(messages, "gpu.back", name) for name in names))


def test_a_driver_that_is_loaded_after_the_agents_start_is_found(node: GpuSampler) -> None:
    node.tell("no_driver")
    node.feed.start()
    node.run(lambda messages: bool(lines(messages)))
    node.tell("")
    messages = node.run(lambda messages: len(of(messages, GPU0)) >= 2)
    assert not [message for message in messages if isinstance(message, DeviceEvent)], "it was not there before"


def reasons(messages: list[Message]) -> list[str]:
    """Return the lines, without the one of a machine on which NVML starts slowly."""
    return [text for text in lines(messages) if "has not finished its start" not in text]


@pytest.mark.parametrize(("words", "level"), [("no_driver", "info"), ("no_permission", "warning")])
def test_a_node_without_usable_nvml_says_why_in_one_line(node: GpuSampler, words: str, level: str) -> None:
    node.tell(words)
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, "")) >= 5 and bool(reasons(messages)))
    assert len(reasons(messages)) == 1
    assert reasons(messages)[0].startswith("hw.* is absent: NVML cannot be initialised")
    assert SamplerLog(reasons(messages)[0], level) in messages


def test_a_node_without_the_library_says_so_in_one_line(node: GpuSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH")
    try:
        import ctypes

        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has a GPU and its driver: nothing is absent here")
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, "")) >= 5 and bool(reasons(messages)))
    assert len(reasons(messages)) == 1 and "no NVIDIA driver" in reasons(messages)[0]


@pytest.fixture
def threads() -> Iterator[GpuThreads]:
    """GPU threads that are not started: what they post, without a device."""
    threads = GpuThreads()
    yield threads
    threads.box.close()


def test_a_device_is_lost_once_until_it_is_back(threads: GpuThreads) -> None:
    threads.note_back(GPU0)
    assert not threads.box.messages, "it was not lost"
    threads.note_lost([GPU0, GPU1], "it fell off the bus")
    threads.note_lost([GPU1, GPU0], "again")
    assert [(post[1], post[4]) for post in threads.box.messages] == [("gpu.lost", GPU0), ("gpu.lost", GPU1)]
    threads.box.messages.clear()
    threads.note_back(GPU0)
    threads.note_back(GPU0)
    threads.note_lost([GPU0, GPU1], "once more")
    assert [(post[1], post[4]) for post in threads.box.messages] == [("gpu.back", GPU0), ("gpu.lost", GPU0)]


def test_what_is_known_of_gpus_is_kept_before_one_of_them_can_hang(tmp_path: Path) -> None:
    path = tmp_path / "known"
    KnownGpus(path).save(frozenset({GPU0}))

    class Hanging:
        lines = ()
        devices = ()
        places: ClassVar = {"GPU 0 of 1": GPU0}

        def events(self, *_: Any) -> Any:
            return SimpleNamespace(start=lambda: None)

        def describe(self) -> None:
            raise TimeoutError

    threads = GpuThreads(KnownGpus(path))
    threads.note_back(GPU0)
    with pytest.raises(TimeoutError):
        threads._begin(Hanging())  # type: ignore[arg-type]  # as much of NVML as is called
    threads.box.close()
    kept = KnownGpus(path)
    assert (kept.uuids, kept.lost) == ({"GPU 0 of 1": GPU0}, frozenset())


@proves("addresses-before-events", "the first events of a GPU name it by its PCI address, too")
def test_addresses_are_posted_before_a_gpu_can_have_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the file come first: of a GPU that is lost, NVML tells none."""
    known = KnownGpus()
    known.note({"GPU 0000:17:00.0": GPU0, "GPU 1 of 2": GPU1})
    known.note({"GPU 0 of 1": GPU0})
    threads = GpuThreads(known)
    monkeypatch.setattr(threads, "look", lambda now: (_ for _ in ()).throw(InterruptedError))
    with pytest.raises(InterruptedError):
        threads._supervise()
    assert list(threads.box.messages) == [["addresses", {GPU0: "00000000:17:00.0"}]]
    threads.box.messages.clear()
    found = SimpleNamespace(lines=(), devices=(), places={"GPU 0000:65:00.0": GPU2}, events=lambda *_: pytest.fail())
    with pytest.raises(pytest.fail.Exception):
        threads._begin(found)  # type: ignore[arg-type]  # as much of NVML as is called
    assert list(threads.box.messages) == [["addresses", {GPU0: "00000000:17:00.0", GPU2: "00000000:65:00.0"}]]
    threads.box.close()


@proves("replaced-gpu-closed", "a replaced GPU has a closing event, which names both")
def test_a_lost_gpu_that_was_replaced_is_closed_by_one_event_and_lost_no_more(tmp_path: Path) -> None:
    """As after a maintenance, in which agent and sampler end. Its MIG instances leave with it."""
    known = KnownGpus(tmp_path / "known")
    known.note({"GPU 0000:17:00.0": GPU0, "GPU 0000:65:00.0": GPU1})
    known.save(frozenset({GPU0}))
    threads = GpuThreads(KnownGpus(tmp_path / "known"))
    threads._known = dict.fromkeys([GPU1, "MIG-1"])
    threads._parents = {"MIG-1": GPU1}
    found = SimpleNamespace(lines=(), devices=(), events=lambda *_: pytest.fail())
    found.places = {"GPU 0000:17:00.0": GPU2, "GPU 0000:65:00.0": "GPU-4"}
    for _ in range(2):
        with pytest.raises(pytest.fail.Exception):
            threads._begin(found)  # type: ignore[arg-type]  # as much of NVML as is called
    threads.note_lost(threads._known, "NVML no longer shows it")
    threads.note_back(GPU0)
    posts = list(threads.box.messages)
    assert [post for post in posts if post[0] == "event"] == [
        ["event", "gpu.replaced", "info", f"replaced by {GPU2}", GPU0, {}],
        ["event", "gpu.replaced", "info", "replaced by GPU-4", GPU1, {}],
    ]
    assert [post[1] for post in posts if post[0] == "gone"] == [GPU0, GPU1, "MIG-1"]
    assert posts[0][0] == "gone" and posts[-1][0] == "addresses", "the event has the name that the former one had"
    threads.box.close()


@proves("back-saved-while-another-hangs", "a sampler that dies in a call has kept what it reported")
def test_a_gpus_return_is_kept_while_the_thread_that_starts_nvml_hangs(tmp_path: Path) -> None:
    path = tmp_path / "known"
    KnownGpus(path).save(frozenset({GPU0, GPU1}))
    threads = GpuThreads(KnownGpus(path))
    threads.note_back(GPU0)
    threads.box.close()
    assert KnownGpus(path).lost == {GPU1}


def test_a_lost_gpu_without_a_uuid_stays_lost_while_nvml_cannot_start(
    threads: GpuThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = GpuUnavailableError("NVML shows no GPU", lost={"GPU 0000:17:00.0": "GPU is lost"})
    answers = [lost, GpuUnavailableError("Driver Not Loaded", is_unloaded=True)] * 2

    def start() -> None:
        raise answers.pop(0)

    monkeypatch.setattr("chiplog_agent.stats.gpu.threads.GpuStats", start)
    while answers:
        threads._initialise()
    posts = [(post[1], post[4]) for post in threads.box.messages if post[0] == "event"]
    assert posts == [("gpu.lost", "GPU 0000:17:00.0")]


@proves("unloaded-driver-said-once", "a driver that is not loaded any more is one event of the node", condition=True)
def test_an_unloaded_driver_is_one_event_of_the_node(node: GpuSampler) -> None:
    node.feed.start()
    node.run(lambda messages: bool(of(messages, GPU0) and of(messages, GPU1)))
    for _ in range(2):
        node.tell("unloaded")
        messages = node.run(lambda messages: all(events(messages, "gpu.lost", gpu) for gpu in (GPU0, GPU1)))
        messages += node.run(lambda messages: len(of(messages, "")) >= 20)
        [event] = events(messages, "gpu.driver_unbind", "")
        assert event.level == "error" and "not loaded" in event.text
        node.tell("")
        node.run(lambda messages: all(events(messages, "gpu.back", gpu) for gpu in (GPU0, GPU1)))


@proves("news-ends-pause", "what the cheap look finds is followed at once")
def test_attempts_that_fail_are_spaced_out_until_something_changes(
    threads: GpuThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []
    kernel: list[str] = []
    monkeypatch.setattr("chiplog_agent.stats.gpu.threads.kernel_gpus", lambda: list(kernel))
    monkeypatch.setattr(threads, "_initialise", lambda: attempts.append(now))
    for now in range(20):
        threads.look(float(now))
    assert attempts == [0, 1, 3, 6, 9, 12, 15, 18]
    attempts.clear()
    now = 20
    kernel.append("0000:01:00.0")
    threads.look(float(now))
    now = 21
    threads.look(float(now))
    assert attempts == [20, 21], "at once, and then after the shortest pause"


@proves("released-gpus-stay-closed", "a sampler of released GPUs does not load NVML", value="GpuThreads(known)")
def test_released_gpus_are_closed_and_neither_lost_nor_stale_until_they_are_resumed(node: GpuSampler) -> None:
    """A second sampler without any handle takes the place of the first, which has shut NVML down."""
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU0)) >= 2)
    node.feed.release_gpus(True)
    assert not node.feed.has_closed_gpus
    messages = collect(node.feed, lambda messages: any("are released" in line for line in lines(messages)), ticks=True)
    assert node.feed.has_closed_gpus and node.feed.restarts == 0
    assert node.shutdowns.read_text() == "0", "no sample of GPM is left"
    messages += collect(node.feed, lambda messages: len(of(messages, "")) >= 20, ticks=True)
    assert "nvidia" not in Path(f"/proc/{node.feed.pid}/maps").read_text()
    assert not [message for message in messages if isinstance(message, DeviceEvent | DeviceStale)]
    node.feed.release_gpus(False)
    messages = collect(node.feed, lambda messages: len(of(messages, GPU1)) >= 2, ticks=True)
    assert not node.feed.has_closed_gpus
    assert [line for line in lines(messages) if "resumed" in line]
    assert not [message for message in messages if isinstance(message, DeviceEvent | DeviceStale)]
