"""What the agent makes of its sampler's messages. The sampler's process: tests/agent/stats/test_sampler_process.py."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog_agent.pipeline.batcher import EventBatcher, Origin
from chiplog_agent.pipeline.sample_intake import SampleIntake
from chiplog_agent.stats.frames import Gpu, MigDevice
from chiplog_agent.stats.release_mark import ReleaseMark
from chiplog_agent.stats.sampler_lease import SamplerLease
from chiplog_agent.stats.sampler_process import (
    DeviceEvent,
    DeviceStale,
    GpuAddresses,
    Gpus,
    Message,
    NodeFacts,
    Sample,
    SamplerLog,
)
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.events import EventKind, decode
from tests.support.blocks import block_to_rows
from tests.support.safeguard import proves

NODE = f"node-{os.getpid()}"


class Intake:
    """An intake without a sampler: messages are given by hand."""

    def __init__(self) -> None:
        self.batcher = EventBatcher(bytes(16), NODE, os.getpid(), "1", 1)
        self.batcher.build(0)  # its own identity
        self.has_room = True
        self.samples = SampleIntake(
            self.batcher,
            SamplerLease("boot", NODE, "collector"),
            NODE,
            period_s=None,
            is_embedded=False,
            has_room=lambda: self.has_room,
            is_dead=lambda producer: False,
            release=ReleaseMark(Path("/nonexistent")),
            known_gpus=Path("/nonexistent"),
        )

    def events(self) -> list[EventKind]:
        """Return the kinds of the events in the next block."""
        blocks, _ = self.batcher.build(1)
        payloads = [payload for block in blocks for _, _, payload in block_to_rows(decode_block(block))]
        return [EventKind(decode(payload)[0]) for payload in payloads if payload != b"\xc1"]

    def notices(self) -> list[str]:
        """Return the kinds of the agent's own events in the next block."""
        return [event[2] for event in self.notice_events()]

    def notice_events(self) -> list[list[Any]]:
        """Return the agent's own events in the next block."""
        blocks, _ = self.batcher.build(1)
        payloads = [payload for block in blocks for _, _, payload in block_to_rows(decode_block(block))]
        events = [decode(payload) for payload in payloads if payload != b"\xc1"]
        return [event for event in events if event[0] == EventKind.NOTICE]


class Watching:
    """A sampler that only watches."""

    def set_period(self, period_s: float) -> None:
        pass

    def watch(self, pids: set[int]) -> None:
        pass

    def close(self) -> None:
        pass


class Saying(Watching):
    """A sampler that says these messages, once."""

    has_closed_gpus = False

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)

    def read(self) -> list[Message]:
        said, self._messages = self._messages, []
        return said

    def fileno(self) -> int:
        return -1

    def tick(self, now: float) -> None:
        pass

    def release_gpus(self, is_wanted: bool) -> None:
        pass


@pytest.fixture
def intake() -> Iterator[Intake]:
    made = Intake()
    yield made
    made.samples.close()


def test_samples_without_room_are_counted_and_declared(intake: Intake) -> None:
    intake.has_room = False
    for _ in range(3):
        intake.samples._take_sample(Sample(1, "host", ("cpu.util",), [1.0]), time.monotonic())
    assert intake.batcher.samples_dropped == 3
    assert [exposed.names for exposed in intake.samples.exposed()] == [("cpu.util",)], "/metrics continues"
    intake.samples.declare_dropped(1.0)
    assert intake.batcher.samples_dropped == 0
    assert intake.events() == [EventKind.NOTICE]


def test_a_sample_and_a_stale_device_become_events(intake: Intake) -> None:
    intake.samples._take_sample(Sample(1, "", ("cpu.util",), [1.0]), 0.0)
    intake.samples._take_sample(DeviceStale("gpu0"), 0.0)
    assert sorted(intake.events()) == sorted([EventKind.SYSTEM, EventKind.NOTICE])


def test_the_message_of_a_gpus_event_begins_with_what_happened_and_ends_with_a_short_device(intake: Intake) -> None:
    uuid = "GPU-a1b2c3d4-0000-4000-8000-000000000001"
    intake.samples._take_sample(DeviceEvent("gpu.xid", "error", "XID 79: fell off", uuid, {"code": 79}), 0.0)
    intake.samples._take_sample(DeviceEvent("gpu.lost", "error", "lost: no answer", "GPU 0000:17:00.0"), 0.0)
    intake.samples._take_sample(GpuAddresses({uuid: "00000000:1B:00.0"}), 0.0)
    intake.samples._take_sample(DeviceEvent("gpu.xid", "error", "XID 48: memory", uuid, {"code": 48}), 0.0)
    intake.samples._take_sample(NodeFacts({"gpus": [{"uuid": uuid, "pci": "00000000:1B:00.0"}]}), 0.0)
    intake.samples._take_sample(NodeFacts({}), 0.0)
    intake.samples._take_sample(DeviceEvent("gpu.lost", "error", "lost: no answer", uuid), 0.0)
    intake.samples._take_sample(DeviceEvent("gpu.driver_unbind", "error", "no driver", ""), 0.0)
    intake.samples._take_sample(DeviceStale(uuid), 0.0)
    intake.samples._take_sample(DeviceStale("host.network"), 0.0)
    assert [event[4] for event in intake.notice_events()] == [
        "XID 79: fell off (GPU-a1b2c3d4)",
        "lost: no answer (PCI 0000:17:00.0)",
        "XID 48: memory (PCI 0000:1B:00.0)",
        "lost: no answer (PCI 0000:1B:00.0)",
        "no driver",
        "GPU PCI 0000:1B:00.0 has not answered; other statistics continue",
        "device host.network has not answered; other statistics continue",
    ]


def test_an_agent_without_statistics_has_no_sampler(intake: Intake) -> None:
    intake.samples.take(set(), 0.0)
    intake.samples.watch(set())
    assert not intake.samples._lease.is_held


@proves("back-after-new-sampler", "a lost GPU is back also when another sampler finds it", condition=False)
def test_what_a_new_sampler_finds_is_compared_with_what_the_former_one_saw(intake: Intake) -> None:
    names = ("hw.energy", "hw.gpu.row_remap.pending")
    intake.samples._take_sample(Sample(1, "GPU-1", names, (900.0, 0.0)), 0.0)
    intake.samples._take_sample(DeviceEvent("gpu.lost", "error", "GPU-1 is lost", "GPU-1"), 0.0)
    intake.samples._take_sample(Sample(2, "GPU-1", names, (5.0, 1.0)), 0.0)
    intake.samples._take_sample(Sample(3, "GPU-1", names, (6.0, 1.0)), 0.0)
    assert intake.notices() == ["gpu.lost", "gpu.back", "gpu.reset", "gpu.row_remap_pending"]
    assert not intake.samples.lost_gpus


@proves("removed-instance-leaves-metrics", "a MIG instance that was lost and then removed is not counted as lost")
def test_a_lost_mig_instance_that_was_removed_is_not_lost_any_more(intake: Intake) -> None:
    """An instance of a GPU that is lost as well may come back with it."""
    devices = {name: MigDevice(f"MIG-{name}", number, 0) for number, name in enumerate("abc")}
    first, second = Gpu("GPU-1", 1.0, (devices["a"], devices["b"])), Gpu("GPU-2", 1.0, (devices["c"],))
    intake.samples._take_sample(Gpus((first, second)), 0.0)
    for uuid in ("MIG-a", "MIG-b", "MIG-c", "GPU-2"):
        intake.samples._take_sample(DeviceEvent("gpu.lost", "error", f"{uuid} is lost", uuid), 0.0)
    intake.samples._take_sample(Gpus((first._replace(instances=(devices["b"],)),)), 0.0)
    assert intake.samples.lost_gpus == {"MIG-b", "MIG-c", "GPU-2"}
    intake.samples._take_sample(Gpus((first._replace(instances=()), second._replace(instances=()))), 0.0)
    assert intake.samples.lost_gpus == {"GPU-2"}, "until it answers"


@proves("stale-device-closed", "a GPU that answers again has a closing event", condition=False)
def test_a_gpu_that_does_not_answer_is_counted_until_it_answers_again_or_is_lost(
    intake: Intake, caplog: pytest.LogCaptureFixture
) -> None:
    for uuid in ("GPU-1", "GPU-2", "disk:sda"):
        intake.samples._take_sample(DeviceStale(uuid), 0.0)
    assert intake.samples.stale_gpus == {"GPU-1", "GPU-2"}
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    intake.samples._take_sample(Sample(1, "GPU-1", ("hw.power",), (5.0,)), 0.0)
    intake.samples._take_sample(Sample(2, "GPU-1", ("hw.power",), (5.0,)), 0.0)
    intake.samples._take_sample(DeviceEvent("gpu.lost", "error", "GPU-2 is lost", "GPU-2"), 0.0)
    assert not intake.samples.stale_gpus and intake.samples.lost_gpus == {"GPU-2"}
    intake.samples._take_sample(Sample(3, "GPU-2", ("hw.power",), (5.0,)), 0.0)
    assert intake.notices() == ["device_stale", "device_stale", "sampler", "gpu.back", "gpu.lost", "gpu.back"]


def test_a_gpu_id_that_names_no_gpu_of_the_node_is_a_warning_and_a_lost_one_is_none(
    intake: Intake, caplog: pytest.LogCaptureFixture
) -> None:
    rank = b"r" * 16
    claim = {"given": ["GPU-b", "GPU-", "17", "banana", "GPU-lost"]}
    intake.batcher.register(
        rank, {"run_id": "r", "label": "rank3", "pid": 77, "sample_interval_s": 1.0, "gpu_claim": claim}
    )
    intake.batcher.locate(rank, Origin(77, 5), 0.0, 0)
    sampler = Watching()
    intake.samples._sampler = sampler  # type: ignore[assignment]  # a sampler without a process
    intake.samples.watch({rank})
    intake.samples._take_sample(Gpus((Gpu("GPU-a", 1.0), Gpu("GPU-b", 1.0))), 0.0)
    intake.events()
    intake.samples._assign_gpus(0.0)
    warned = [record.getMessage() for record in caplog.records]
    assert [text.split("'")[1] for text in warned] == ["GPU-", "17", "banana", "GPU-lost"]
    assert all("rank3 of run r" in text and text.endswith("it has GPU-a, GPU-b") for text in warned)
    assert intake.notices() == ["gpu_not_found"] * 4
    intake.samples._take_sample(DeviceEvent("gpu.lost", "error", "lost", "GPU-lost"), 0.0)
    for entry in ("17", "GPU-lo", "MIG-GPU-lost/1/0", "banana"):
        intake.samples._report_unknown(rank, entry, 0.0)
    assert intake.notices() == ["gpu.lost", "gpu_not_found"]


def test_the_gpus_that_are_sampled_are_counted(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    intake.samples._take_sample(Gpus(tuple(Gpu(f"GPU-{number}", 1.0) for number in range(4))), 0.0)
    assert intake.samples.n_gpus == 0, "another agent samples them"
    assert intake.samples._lease.poll(0.0)
    intake.samples._take_sample(DeviceStale("GPU-1"), 0.0)
    intake.samples._take_sample(DeviceEvent("gpu.lost", "error", "lost", "GPU-2"), 0.0)
    assert (intake.samples.n_gpus, intake.samples.is_released) == (2, False)
    monkeypatch.setattr(ReleaseMark, "is_set", True)
    intake.samples._follow_release()
    intake.samples._take_sample(NodeFacts({"kernel": "6.1"}), 0.0)
    intake.samples._tell_facts(0.0)
    assert (intake.samples.n_gpus, intake.samples.is_released) == (0, True)


def test_a_gpu_that_does_not_answer_counts_no_more_while_gpus_are_released_and_once_it_was_replaced(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = Gpu("GPU-2", 1.0, (MigDevice("MIG-2", 1, 0),))
    intake.samples._take_sample(Gpus((Gpu("GPU-1", 1.0), replaced)), 0.0)
    for uuid in ("GPU-1", "GPU-2", "MIG-2"):
        intake.samples._take_sample(DeviceStale(uuid), 0.0)
    assert intake.samples.n_stale_gpus == 3
    monkeypatch.setattr(ReleaseMark, "is_set", True)
    intake.samples._follow_release()
    assert intake.samples.n_stale_gpus == 0
    monkeypatch.setattr(ReleaseMark, "is_set", False)
    intake.samples._follow_release()
    intake.samples._take_sample(Gpus((Gpu("GPU-1", 1.0), Gpu("GPU-3", 1.0))), 0.0)
    assert intake.samples.stale_gpus == {"GPU-1"}
    intake.samples._take_sample(Sample(1, "GPU-1", ("hw.power",), (5.0,)), 0.0)
    assert intake.samples.n_stale_gpus == 0
    assert intake.notices() == ["device_stale"] * 3 + ["gpu.back"]


def test_a_lost_gpu_is_lost_until_another_is_at_its_place(intake: Intake) -> None:
    intake.samples._take_sample(GpuAddresses({"GPU-a": "0000:17:00.0", "GPU-b": "0000:65:00.0"}), 0.0)
    intake.samples._take_sample(Gpus((Gpu("GPU-b", 1.0, (MigDevice("MIG-b", 1, 0),)),)), 0.0)
    for uuid in ("GPU-a", "GPU-b", "MIG-b"):
        intake.samples._take_sample(DeviceEvent("gpu.lost", "error", "lost", uuid), 0.0)
    intake.samples._take_sample(Gpus((Gpu("GPU-c", 1.0),)), 0.0)
    assert intake.samples.lost_gpus == {"GPU-a", "GPU-b", "MIG-b"}
    intake.samples._take_sample(DeviceEvent("gpu.replaced", "info", "replaced by GPU-c", "GPU-b"), 0.0)
    intake.samples._take_sample(GpuAddresses({"GPU-a": "0000:17:00.0", "GPU-c": "0000:65:00.0"}), 0.0)
    assert intake.samples.lost_gpus == {"GPU-a"}
    assert states(intake) == {"": (0,), "GPU-a": (1, 0, 0), "GPU-c": (0, 0, 0)}
    assert intake.notice_events()[-1][4] == "replaced by GPU-c (PCI 0000:65:00.0)"


def test_a_replaced_gpu_is_reported_once_no_other_agent_samples_the_node(intake: Intake) -> None:
    """The sampler tells it once. Another agent may know nothing of the former GPU."""
    other = SamplerLease("boot", NODE, "collector")
    assert other.poll(0.0)
    replaced = DeviceEvent("gpu.replaced", "info", "replaced by GPU-2", "GPU-1")
    sampler = Saying(DeviceEvent("gpu.lost", "error", "lost", "GPU-1"), replaced)
    intake.samples._sampler = sampler  # type: ignore[assignment]  # a sampler without a process
    for now in (0.0, 10.0):
        intake.samples.take(set(), now)
    assert intake.notices() == ["sampler"]
    other.close()
    for now in (20.0, 30.0):
        intake.samples.take(set(), now)
    assert intake.notices() == ["sampler", "gpu.replaced"]


def test_a_lost_gpu_that_a_new_sampler_finds_lost_is_one_event(intake: Intake) -> None:
    for _ in range(2):
        intake.samples._take_sample(DeviceEvent("gpu.lost", "error", "GPU-1 is lost", "GPU-1"), 0.0)
    assert intake.notices() == ["gpu.lost"]
    assert intake.samples.lost_gpus == {"GPU-1"}


def test_a_gpu_that_is_back_is_one_event_also_when_a_new_sampler_reports_it_again(intake: Intake) -> None:
    """The first one may end a loss that the agent before this one reported."""
    back = DeviceEvent("gpu.back", "info", "the GPU is back", "GPU-1")
    for trouble in (DeviceEvent("gpu.lost", "error", "GPU-1 is lost", "GPU-1"), DeviceStale("GPU-1"), None):
        for _ in range(2):
            intake.samples._take_sample(back, 0.0)
        if trouble is not None:
            intake.samples._take_sample(trouble, 0.0)
    assert intake.notices() == ["gpu.back", "gpu.lost", "gpu.back", "device_stale", "gpu.back"]


@proves("lateness-without-clock", "a clock that jumps makes no sample late", value="ts_us / 1e6")
def test_a_clock_that_jumps_makes_no_sample_late_and_a_pause_does(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent reads some samples later than they were taken: they are not late."""
    clock_s, late_s = 0.0, []
    monkeypatch.setattr("chiplog_agent.pipeline.sample_intake.now_us", lambda: int(clock_s * 1e6))
    for at_s, read_s, off_s in [(1, 1, 0), (2, 2.5, 0), (3, 3, 3600), (4, 4, -7200), (5, 5.5, 0), (6, 6, 0), (9, 9, 0)]:
        clock_s = read_s + off_s
        sample = Sample(int((at_s + off_s) * 1e6), "", ("cpu.util",), (1.0,))
        intake.samples._take_sample(sample, read_s)
        late_s.append(round(intake.samples.take_late_s(), 3))
    assert late_s == [0, 0, 0, 0, 0, 0, 2]


def test_values_are_shown_for_a_while_also_when_the_clock_jumps(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr("chiplog_agent.pipeline.sample_intake.now_us", lambda: 0)
    intake.samples._take_sample(Sample(10**15, "GPU-1", ("hw.power",), (5.0,)), now - 31)
    intake.samples._take_sample(Sample(5, "GPU-2", ("hw.power",), (7.0,)), now - 29)
    assert [(shown.labels.get("uuid"), shown.values) for shown in intake.samples.exposed()] == [
        ("GPU-1", ()),
        ("GPU-2", (7.0,)),
    ]


def test_a_gpu_is_shown_with_its_place_and_an_instance_with_its_parent(intake: Intake) -> None:
    pci = "00000000:65:00.0"
    intake.samples._take_sample(NodeFacts({"gpus": [{"uuid": "GPU-1", "pci": pci}, {"uuid": "GPU-2"}]}), 1.0)
    intake.samples._take_sample(Gpus((Gpu("GPU-1", 1.0, (MigDevice("MIG-1", 1, 1),)),)), 1.0)
    for device in ("GPU-1", "GPU-2", "MIG-1"):
        intake.samples._take_sample(Sample(1, device, ("hw.power",), (5.0,)), time.monotonic())
    assert [shown.labels for shown in intake.samples.exposed()] == [
        {"node": NODE, "uuid": "GPU-1", "pci": pci},
        {"node": NODE, "uuid": "GPU-2"},
        {"node": NODE, "uuid": "MIG-1", "pci": pci, "parent": "GPU-1"},
    ]
    intake.samples._take_sample(NodeFacts({"gpus": [{"uuid": "GPU-2"}]}), 1.0)
    assert intake.samples.exposed()[0].labels["pci"] == pci, "also while it is lost"


def states(intake: Intake) -> dict[str, tuple[float, ...]]:
    """Return by device how /metrics shows it: lost, stale, fatal XIDs."""
    found: dict[str, tuple[float, ...]] = {}
    for of in intake.samples.exposed_states():  # the XIDs come first
        device = of.labels.get("uuid", of.labels.get("device", ""))
        found[device] = (*of.values, *found.get(device, ()))
    return found


def test_each_gpu_is_shown_with_its_place_as_lost_or_stale_and_with_its_fatal_xids(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All without a user, and from 0 on: an alert compares with what was before."""
    pci = "00000000:65:00.0"
    assert states(intake) == {"": (0,)}
    intake.samples._take_sample(NodeFacts({"gpus": [{"uuid": "GPU-1", "pci": pci}]}), 0.0)
    intake.samples._take_sample(Gpus((Gpu("GPU-1", 1.0, (MigDevice("MIG-1", 1, 0),)), Gpu("GPU-2", 1.0))), 0.0)
    assert states(intake) == {"": (0,), "GPU-1": (0, 0, 0), "MIG-1": (0, 0, 0), "GPU-2": (0, 0, 0)}
    assert [shown.labels for shown in intake.samples.exposed_states() if len(shown.values) == 1] == [
        {"node": NODE, "uuid": "GPU-1", "pci": pci},
        {"node": NODE, "uuid": "MIG-1", "pci": pci, "parent": "GPU-1"},
        {"node": NODE, "uuid": "GPU-2"},
        {"node": NODE},
    ]
    for device, code in (("GPU-1", 79), ("GPU-1", 79), ("MIG-1", 79), ("GPU-2", 13), ("", 79)):
        intake.samples._take_sample(DeviceEvent("gpu.xid", "error", "an XID", device, {"code": code}), 0.0)
    intake.samples._take_sample(DeviceStale("GPU-2"), 0.0)
    for device in ("GPU-1", "GPU 0 of 8"):
        intake.samples._take_sample(DeviceEvent("gpu.lost", "error", "lost", device), 0.0)
    expected = {"": (1,), "GPU-1": (1, 0, 2), "MIG-1": (0, 0, 1), "GPU-2": (0, 1, 0), "GPU 0 of 8": (1, 0, 0)}
    assert states(intake) == expected
    monkeypatch.setattr(ReleaseMark, "is_set", True)
    intake.samples._follow_release()
    intake.samples._take_sample(DeviceEvent("gpu.back", "info", "back", "GPU 0 of 8"), 0.0)
    intake.samples._take_sample(Gpus((Gpu("GPU-1", 1.0), Gpu("GPU-3", 1.0))), 0.0)
    assert states(intake) == {"": (1,), "GPU-1": (1, 0, 2), "GPU-3": (0, 0, 0)}, "what is gone leaves"


def test_each_gpu_is_shown_before_the_node_is_described_for_one_that_hangs_delays_that(intake: Intake) -> None:
    """A count of fatal XIDs that begins with 1 shows no increase."""
    intake.samples._take_sample(GpuAddresses({"GPU-1": "00000000:65:00.0"}), 0.0)
    for device in ("GPU-2", "disk:sda", "pid:7"):
        intake.samples._take_sample(Sample(1, device, ("hw.power",), (5.0,)), 0.0)
    assert states(intake) == {"": (0,), "GPU-1": (0, 0, 0), "GPU-2": (0, 0, 0)}


def test_the_log_has_each_event_by_its_level_and_what_the_node_is(
    intake: Intake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "chiplog.agent")
    intake.samples._lease.poll(0.0)
    for level in ("info", "warning", "error"):
        intake.samples._take_sample(DeviceEvent("gpu.xid", level, "an XID", "GPU-1", {"code": 63}), 0.0)
    intake.samples._take_sample(SamplerLog("the sampler ended", "warning"), 0.0)
    intake.samples._take_sample(NodeFacts({"kernel": "6.1", "driver": "580.65", "gpus": [{}] * 8}), 0.0)
    intake.samples._tell_facts(0.0)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "ERROR", "WARNING", "INFO"]
    assert caplog.messages[-1] == f"{NODE}: 8 GPUs, driver 580.65, kernel 6.1"


def test_facts_of_the_node_are_told_once_and_again_when_they_change(intake: Intake) -> None:
    assert intake.samples._lease.poll(0.0) or intake.samples._lease.is_held
    for kernel in ("6.1", "6.1", "6.2"):  # the second is a new sampler's
        intake.samples._take_sample(NodeFacts({"kernel": kernel, "gpus": []}), 1.0)
        intake.samples._tell_facts(1.0)
    assert intake.notices() == ["node_facts", "node_facts"]


def test_an_agent_that_does_not_sample_the_node_keeps_its_facts_until_it_does(intake: Intake) -> None:
    intake.samples._take_sample(NodeFacts({"kernel": "6.1"}), 1.0)
    intake.samples._tell_facts(1.0)
    assert intake.notices() == []
    intake.samples._lease.poll(0.0)
    intake.samples._tell_facts(1.0)
    assert intake.notices() == ["node_facts"]


def test_what_a_sampled_rank_reports_of_its_sdk_becomes_a_sample_of_its_process(intake: Intake) -> None:
    rank, quiet = b"r" * 16, b"q" * 16
    for producer, interval_s in ((rank, 1.0), (quiet, 0.0)):
        info = {"run_id": "r", "label": "rank3", "rank": 3, "pid": 77, "sample_interval_s": interval_s}
        intake.batcher.register(producer, info)
        intake.batcher.locate(producer, Origin(77, 5), 0.0, 0)
    intake.samples._sampler = Watching()  # type: ignore[assignment]  # a sampler without a process
    intake.samples.watch({rank, quiet})
    intake.events()
    report = {"chiplog.sdk.events": 7.0, "chiplog.sdk.of_a_newer_one": 1.0}
    intake.samples.take_report(quiet, report, 1.0)
    intake.samples.take_report(b"unknown producer", report, 1.0)
    assert intake.events() == [] and not intake.samples.sdk_totals()
    for _ in range(3):  # a peer that floods
        intake.samples.take_report(rank, report, time.monotonic())
    assert intake.events() == [EventKind.SYSTEM]
    [exposed] = intake.samples.exposed()
    assert (exposed.names, exposed.values) == (("chiplog.sdk.events",), (7.0,))
    assert exposed.labels == {"node": NODE, "run_id": "r", "label": "rank3", "rank": "3"}
    assert intake.samples.sdk_totals()["chiplog.sdk.events"] == 7.0
    second = b"s" * 16  # another run of the same process
    intake.batcher.register(second, {"run_id": "s", "label": "rank3", "pid": 77, "sample_interval_s": 1.0})
    intake.batcher.locate(second, Origin(77, 5), 0.0, 0)
    intake.samples.watch({rank, second})
    intake.samples.take_report(second, {"chiplog.sdk.events": 2.0}, time.monotonic())
    [exposed] = intake.samples.exposed()
    assert (exposed.labels["run_id"], exposed.values) == ("r", (9.0,))
    intake.samples.watch(set())
    assert intake.samples.exposed() == [], "an ended rank leaves"
    intake.samples.forget(rank)
    assert intake.samples.sdk_totals()["chiplog.sdk.events"] == 9.0
