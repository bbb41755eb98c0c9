"""What only a GPU can prove: that logging from it never waits for it, and that what arrives is right.

Skipped where there is none; the logic behind it is tested with a stand-in in tests/sdk/torch/test_device_values.py.
"""

import math
import os
import time
from collections import Counter

import pytest
import torch

import chiplog
from chiplog.torch.current_device import current_device
from chiplog_schemas.model.events import EventKind
from tests.support.sdk_events import counted, losses, numbers, phases
from tests.support.stand_in_device import resolve
from tests.support.waiting import WAIT_S

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature"),  # torch says so once
]

_LONG_CYCLES = 2_000_000_000  # for torch.cuda._sleep: a second or more at any clock
_WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")


@pytest.fixture
def run(chiplog_dir):
    with chiplog.init(mode="offline", run_id="r", label="rank0", capture_console=False) as run:
        run.log({"first": torch.ones((), device="cuda")})  # allocates the rings, which may wait
        torch.cuda.synchronize()
        resolve(run)
        yield run
        torch.cuda.synchronize()


@pytest.fixture
def no_waiting():
    """Have torch raise where it waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def await_device_timing(run) -> None:
    """Wait until phases are timed by the device."""
    deadline = time.monotonic() + WAIT_S
    while run._timing.device is None and time.monotonic() < deadline:
        run._tick()


def logged(events) -> list[tuple[str, int, float]]:
    """Return what was logged, without the ring's first value and the allocator's statistics."""
    return [entry for entry in numbers(events) if entry[0] != "first" and not entry[0].startswith("chiplog/")]


def test_log_returns_while_the_device_is_busy_and_the_value_arrives_behind_it(run, no_waiting, offline) -> None:
    loss = torch.zeros((), device="cuda")
    loss += 0.0  # the first launch of a kernel loads it, which waits for the device
    torch.cuda._sleep(_LONG_CYCLES)
    loss += 0.5
    busy = torch.cuda.Event()
    busy.record()
    run.log({"loss": loss, "host": 1.0}, step=3)
    assert not busy.query(), "log() returned only when the device was done"
    loss += 1.0  # in place, behind the call
    assert logged(offline()) == [("host", 3, 1.0)]
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    resolve(run)
    assert logged(offline()) == [("host", 3, 1.0), ("loss", 3, 0.5)]


def test_a_thousand_steps_of_training_never_wait_and_every_value_is_right(run, no_waiting, offline) -> None:
    first, last = torch.nn.Linear(64, 64, device="cuda"), torch.nn.Linear(64, 1, device="cuda")  # cuda() would wait
    model = torch.nn.Sequential(first, torch.nn.Tanh(), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.watch(model, every=50)
    data = torch.randn(32, 64, device="cuda")
    kept = []
    for step in range(1000):
        with run.phase("forward"):
            loss = model(data).square().mean()
        with run.phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        run.log(
            {"loss": loss, "half": loss.bfloat16(), "n": torch.full((), step, device="cuda"), "lr": 0.01}, step=step
        )
        kept.append(loss.detach().clone())
        run.step()
        if step % 100 == 99:
            time.sleep(0.2)  # for the sender thread: the ring has room for 1,024 calls
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    resolve(run)
    run.finish()
    events = offline()
    found = logged(events)
    assert [value for key, _, value in found if key == "loss"] == [float(loss) for loss in kept]
    assert [value for key, _, value in found if key == "n"] == list(range(1000))
    assert [step for key, step, _ in found if key == "lr"] == list(range(1000))
    assert len([1 for key, _, _ in found if key == "watch/grad_norm"]) == 20
    assert losses(events) == []
    assert counted(events) == {}
    timed = Counter(name for _, seconds in phases(events) for name in seconds)
    assert timed["forward"] == timed["backward"] == 1000
    assert all(value >= 0 for _, seconds in phases(events) for value in seconds.values())


def test_a_trace_of_the_profiler_shows_no_wait_inside_of_log(run) -> None:
    from torch.profiler import ProfilerActivity, profile, record_function

    loss = torch.ones((), device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        for step in range(20):
            with record_function("chiplog"):
                with run.phase("forward"):
                    loss = loss * 1.5
                run.log({"loss": loss, "other": loss.double()}, step=step)
        torch.cuda.synchronize()
    events = list(profiler.events())
    spans = [event.time_range for event in events if event.name == "chiplog"]
    assert len(spans) >= 20
    waits = [
        event.name
        for event in events
        if event.name.startswith(_WAITS)
        and not event.name.startswith("cudaMemcpyAsync")
        and any(span.start <= event.time_range.start <= span.end for span in spans)
    ]
    assert waits == []
    assert any("Memcpy DtoH (Device -> Pinned)" in event.name for event in events), "copied to pinned memory"


def test_phases_have_the_devices_seconds(run, no_waiting, offline) -> None:
    await_device_timing(run)
    with run.phase("busy"):
        torch.cuda._sleep(_LONG_CYCLES)
    with run.phase("load", on_host=True):
        pass
    run.log({"x": 1.0}, step=1)
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    resolve(run)
    run.finish()
    seconds = {name: value for _, of_step in phases(offline()) for name, value in of_step.items()}
    assert seconds["busy"] > 0.1, "the host only queued it"
    assert seconds["load"] < 0.1


def test_a_capture_goes_on_while_the_sender_thread_asks_events(run, offline) -> None:
    static = torch.zeros(16, device="cuda")
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        static.add_(1.0).sum()
    torch.cuda.synchronize()
    torch.cuda._sleep(_LONG_CYCLES)
    for step in range(50):
        run.log({"before": static[0]}, step=step)  # events for the sender thread to ask about
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # captures in the mode that any unsafe call of any thread would spoil
        static.add_(1.0)
        total = static.sum()
        run.log({"inside": total}, step=0)
        with run.phase("captured"):
            pass
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            time.sleep(0.01)
    for step in range(3):
        graph.replay()
        run.log({"total": total}, step=step)
    torch.cuda.synchronize()
    resolve(run)
    run.finish()
    events = offline()
    totals = [value for key, _, value in logged(events) if key == "total"]
    assert len(totals) == 3
    assert totals[1] - totals[0] == totals[2] - totals[1] == 16.0
    assert not [1 for key, _, _ in logged(events) if key == "inside"]
    assert counted(events) == {"device_values_in_capture": 1}


def test_every_dtype_arrives_as_item_reads_it(run, offline) -> None:
    values = {
        "f64": torch.tensor(0.1, dtype=torch.float64),
        "f32": torch.tensor(0.1),
        "f16": torch.tensor(0.1, dtype=torch.float16),
        "bf16": torch.tensor(0.1, dtype=torch.bfloat16),
        "i64": torch.tensor(2**53 + 1),
        "bool": torch.tensor(True),
        "nan": torch.tensor(math.nan),
    }
    on_device = {key: value.cuda() for key, value in values.items()}
    run.log(on_device, step=1)
    torch.cuda.synchronize()
    resolve(run)
    for key, _, value in logged(offline()):
        assert value == float(values[key].item()) or key == "nan"
    assert len(logged(offline())) == len(values)


def test_a_stream_of_its_own_and_torch_compile_are_no_trouble(run, no_waiting, offline) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_LONG_CYCLES // 10)
        run.log({"side": torch.full((), 4.0, device="cuda")}, step=1)

    def forward(x):
        run.log({"compiled": x.sum()}, step=2)
        return x * 2

    compiled = torch.compile(forward, backend="eager")
    compiled(torch.ones(4, device="cuda"))
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    resolve(run)
    assert sorted(logged(offline())) == [("compiled", 2, 4.0), ("side", 1, 4.0)]


def test_the_allocators_statistics_come_unasked(run, no_waiting, offline) -> None:
    deadline = time.monotonic() + WAIT_S
    found: set[str] = set()
    while "chiplog/cuda/reserved_bytes" not in found and time.monotonic() < deadline:
        time.sleep(0.1)
        found = {key for key, _, _ in numbers(offline())}
    assert {"chiplog/cuda/allocated_bytes", "chiplog/cuda/ooms", "chiplog/cuda/fragmentation"} <= found


def test_the_device_in_use_is_named_as_the_driver_names_it() -> None:
    import pynvml

    torch.cuda.set_device(torch.cuda.device_count() - 1)
    device = current_device()
    assert device is not None and device.number == torch.cuda.device_count() - 1
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    assert f"GPU-{device.uuid}" in [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    pynvml.nvmlShutdown()


def test_a_forked_child_touches_no_cuda(run, offline) -> None:
    run.log({"x": torch.ones((), device="cuda")}, step=1)
    await_device_timing(run)
    with run.phase("before"):
        pass
    pid = os.fork()
    if pid == 0:
        run.log({"childs": 1.0})
        run.finish()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    torch.cuda.synchronize()
    resolve(run)
    run.finish()
    assert sorted(key for key, _, _ in logged(offline())) == ["childs", "x"]
    assert offline(EventKind.LOST) == []


def test_media_of_tensors_on_the_device_have_their_values() -> None:
    pixels = torch.arange(4 * 5 * 3, dtype=torch.uint8).reshape(3, 4, 5)
    for dtype in (torch.uint8, torch.bfloat16):
        content = chiplog.Image(pixels.to("cuda", dtype)).to_content()
        assert content.data == chiplog.Image(pixels).to_content().data
    assert chiplog.Audio(torch.ones(8, device="cuda"), 8).to_content().metadata["n_channels"] == 1
    table = chiplog.Table(columns=["loss"], data=[[torch.tensor(0.5, device="cuda")]])
    assert table.to_content().data == chiplog.Table(columns=["loss"], data=[[0.5]]).to_content().data
