"""Events of GPUs: each arrives once, whatever else happens, and nothing else needs them."""

import pytest

from chiplog_agent.stats.gpu.events import WAIT_MS, GpuEvents
from chiplog_agent.stats.gpu.threads import _STOP_WAIT_S
from chiplog_agent.stats.sampler_process import DeviceEvent, Message
from tests.support.gpu_sampler import GPU0, GPU1, GPU2, GpuSampler, events, lines, of
from tests.support.safeguard import proves


def codes(messages: list[Message]) -> list[tuple[str, int]]:
    """Return device and code of each XID, in their order."""
    found = [message for message in messages if isinstance(message, DeviceEvent) and message.kind == "gpu.xid"]
    return [(message.device, message.body["code"]) for message in found]


@proves(
    "every-event-posted",
    "every event of a GPU is posted, and not only the last",
    new="while self._nvml.nvmlEventSetWait_v2(self._set, 0):\n    pass",
)
def test_each_xid_is_an_event_with_code_severity_and_advice(node: GpuSampler) -> None:
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU1)) >= 2)
    node.tell("xids=1:79,0:63,0:63,1:4711,0:ecc")
    messages = node.run(lambda messages: bool(events(messages, "gpu.ecc_uncorrected", GPU0)))
    assert codes(messages) == [(GPU1, 79), (GPU0, 63), (GPU0, 63), (GPU1, 4711)]
    lost, unknown = events(messages, "gpu.xid", GPU1)
    assert lost.level == lost.body["severity"] == "error" and "fallen off the bus" in lost.text
    assert lost.body["pci"] == "00000000:11:00.0" and lost.body["advice"]
    assert unknown.level == "warning" and "4711" in unknown.text
    [memory] = events(messages, "gpu.ecc_uncorrected", GPU0)
    assert memory.level == "error" and memory.body["pci"] == "00000000:10:00.0"
    node.tell("xids=1:79,0:63,0:63,1:4711,0:ecc,0:31")
    assert codes(node.run(lambda messages: bool(codes(messages)))) == [(GPU0, 31)]


def test_an_xid_of_a_mig_instance_names_the_instance_and_one_of_its_gpu_all_of_them(node: GpuSampler) -> None:
    node.tell("mig1")
    instance = "MIG-00000001-0000-0000-0000-000000000001"
    node.feed.start()
    node.run(lambda messages: bool(of(messages, instance)))
    node.tell("mig1 xids=m1:94")
    [event] = events(node.run(lambda messages: bool(codes(messages))), "gpu.xid", instance)
    assert event.body["gpu"] == GPU1 and "instances" not in event.body
    node.tell("mig1 xids=m1:94,1:79,0:31")
    messages = node.run(lambda messages: len(codes(messages)) >= 2)
    [whole], [plain] = (events(messages, "gpu.xid", gpu) for gpu in (GPU1, GPU0))
    assert instance in whole.body["instances"] and "instances" not in plain.body


@pytest.mark.parametrize(("word", "n_lines"), [("no_events", 2), ("no_event_permission", 1)])
def test_without_events_one_line_says_why_and_all_else_works(node: GpuSampler, word: str, n_lines: int) -> None:
    node.tell(word)
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, GPU0)) >= 5 and len(of(messages, "")) >= 5)
    node.tell(f"{word} gpus=3")  # NVML is initialised again
    messages += node.run(lambda messages: len(of(messages, GPU2)) >= 5)
    found = [line for line in lines(messages) if "events of GPUs are absent" in line]
    assert len(found) == n_lines, "again only if it names another GPU"


def test_a_wait_for_events_that_fails_is_one_line_and_events_continue_when_it_works(node: GpuSampler) -> None:
    """Registering works there. Two pauses of the thread pass."""
    node.tell("no_event_wait")
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, "")) >= 30)
    node.tell("xids=0:13")
    messages += node.run(lambda messages: bool(codes(messages)))
    assert len([line for line in lines(messages) if "events of GPUs are absent" in line]) == 1
    assert codes(messages) == [(GPU0, 13)]


@proves("held-wait-said-once", "a wait for events that hangs is one line", value="False")
def test_a_wait_for_events_that_hangs_is_one_line_and_so_is_its_end() -> None:
    """A process that stood still for a minute has looked once in between."""
    watched = GpuEvents(None, {}, list, print, print)
    told = []
    for second, n_calls in [*enumerate(range(30)), *((at, 30) for at in range(90, 130)), (130, 31), (131, 32)]:
        watched._n_calls = n_calls
        line, level = watched.look(float(second))
        if line:
            told.append((second, line, level))
    assert [(second, level) for second, _, level in told] == [(100, "warning"), (130, "info")]
    assert "hangs for 10 s" in told[0][1] and "arrive" in told[1][1]


def test_a_process_that_stood_still_has_no_wait_that_hangs_also_when_it_looks_often() -> None:
    watched = GpuEvents(None, {}, list, print, print)
    watched._n_calls = 1  # a wait of a second, of which 10 s of standstill are a part
    shown = [watched.look(now) for now in (*(0.05 * look for look in range(20)), *(11 + 0.05 * at for at in range(3)))]
    assert shown == [("", "info")] + [("", "")] * 22
    later = [watched.look(11.2 + 0.05 * look)[0] for look in range(200)]
    assert len([line for line in later if "hangs" in line]) == 1


@proves("last-events-taken", "what happened until NVML is shut down is posted", condition=False)
def test_what_has_happened_when_the_thread_ends_is_posted(node: GpuSampler) -> None:
    shown = node.ask(
        """
from chiplog_agent.stats.gpu.events import GpuEvents
posts = []
handles = {"GPU": device().handle}
events = GpuEvents(pynvml, handles, list, lambda *frames: posts.extend(frames), print)
assert events.register()
tell("xids=0:13,1:43,0:31")
events.close()
show([post[-1]["code"] for post in posts])
"""
    )
    assert shown == [[13, 31]], "GPU 1 is not registered"


def test_no_event_is_lost_while_gpus_are_lost_and_return(node: GpuSampler) -> None:
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU1)) >= 2)
    node.tell("lost1 xids=1:79,0:13,0:31")
    messages = node.run(lambda messages: bool(events(messages, "gpu.lost", GPU1)) and len(codes(messages)) >= 3)
    assert codes(messages) == [(GPU1, 79), (GPU0, 13), (GPU0, 31)]
    node.tell("xids=1:79,0:13,0:31")
    messages = node.run(lambda messages: bool(events(messages, "gpu.back", GPU1)))
    node.tell("xids=1:79,0:13,0:31,1:43")
    messages += node.run(lambda messages: bool(codes(messages)))
    assert codes(messages) == [(GPU1, 43)]


@proves("nvml-open-under-events", "NVML is not shut down while the thread of events is in a call", condition=False)
def test_a_wait_for_events_that_hangs_keeps_no_gpu_from_being_sampled(node: GpuSampler) -> None:
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU1)) >= 2)
    node.tell("hang_events")
    node.run(lambda messages: len(of(messages, GPU1)) >= 10 and len(of(messages, "")) >= 10)
    node.tell("hang_events lost1")
    messages = node.run(lambda messages: bool(events(messages, "gpu.lost", GPU1)) and len(of(messages, GPU0)) >= 10)
    assert len(of(messages, "")) >= 10
    node.tell("")
    node.run(lambda messages: bool(events(messages, "gpu.back", GPU1)) and len(of(messages, GPU1)) >= 2)


@proves("events-watched-after-hang", "events are watched again after a wait for them hung", condition=False)
def test_events_are_watched_again_after_a_hang_that_outlasted_a_change(node: GpuSampler) -> None:
    """The thread was told to end for a change that was over before it could."""
    node.feed.start()
    node.run(lambda messages: len(of(messages, GPU1)) >= 2)
    node.tell("hang_events gpus=3")
    node.run(lambda messages: len(of(messages, "")) >= 20)
    node.tell("")
    node.run(lambda messages: len(of(messages, "")) >= 20)
    node.tell("xids=0:13")
    assert codes(node.run(lambda messages: bool(codes(messages)))) == [(GPU0, 13)]


def test_the_thread_ends_within_the_wait_for_its_end() -> None:
    assert WAIT_MS / 1000 < _STOP_WAIT_S
