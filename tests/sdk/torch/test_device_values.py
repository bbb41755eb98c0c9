"""Values on a device: nothing waits for them, nothing is read too early, doubled, or lost undeclared.

The device is a substitute; tests/gpu/test_cuda.py has the tests that need a GPU.
"""

import math
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import chiplog
from chiplog.journal.deferred import DeferredEvents
from chiplog.journal.journal import Journal
from chiplog.recording.run.run import Run
from chiplog.torch import device_values as device_module
from chiplog.torch.device_values import DeviceRing, DeviceValues
from chiplog_schemas.model.events import EventKind, decode, encode
from chiplog_schemas.storage.journal_dir import HEAD_NAME, decode_head, list_journals
from chiplog_schemas.storage.record import Record, scan_records
from tests.support.safeguard import proves
from tests.support.sdk_events import counted, losses, notices, numbers
from tests.support.stand_in_device import Mark, StandIn, install, resolve, uninstall
from tests.support.waiting import wait_until


@pytest.fixture
def device():
    device = StandIn()
    install(device)
    yield device
    uninstall()


@pytest.fixture
def run(chiplog_dir, device):
    with chiplog.init(mode="offline", run_id="r", label="rank0", capture_console=False) as run:
        yield run
        device.advance()


@proves(
    "read-after-device-event",
    "values are read once their event has happened, not before",
    value="self.error is not None or self.launched",
)
def test_a_value_on_a_device_arrives_when_its_copy_is_complete_with_the_step_and_time_of_its_call(
    run, device, offline
) -> None:
    run.log({"loss": torch.tensor(0.5), "lr": 0.1}, step=3)
    after = time.time_ns() // 1000
    run.log({"lr": 0.2}, step=4)
    for _ in range(5):
        run._devices.deferred.poll()
    assert numbers(offline()) == [("lr", 3, 0.1), ("lr", 4, 0.2)], "host values are durable at once"
    assert run._devices.deferred.pending == 1
    device.advance()
    resolve(run)
    run.finish()
    assert numbers(offline()) == [("lr", 3, 0.1), ("lr", 4, 0.2), ("loss", 3, 0.5)]
    [event] = [event for event in offline(EventKind.METRICS) if event.fields["step"] == 3][1:]
    assert event.ts <= after
    assert counted(offline()) == {}


def test_a_reader_of_the_summary_waits_for_values_on_a_device(run, device) -> None:
    run.log({"loss": torch.tensor(0.5), "lr": 0.1}, step=3)
    threading.Timer(0.05, device.advance).start()
    assert run.summary["loss"] == 0.5
    assert dict(run.summary) == {"lr": 0.1, "loss": 0.5}
    disabled = chiplog.init(mode="disabled", reinit="create_new")
    disabled.log({"loss": torch.tensor(0.25)})
    assert disabled.summary["loss"] == 0.25


@proves(
    "device-values-polled-often",
    "the ring of a device is emptied often",
    part="self._devices.deferred.is_used",
    new="False",
)
def test_values_on_a_device_keep_the_ticks_of_the_sender_thread_frequent(run, device) -> None:
    # A group that may come has the same effect during the first minute.
    run._membership.rendezvous._expected_until = 0.0
    run.log({"lr": 0.1})
    assert not run._run_journal.sender._must_hurry()
    run.log({"loss": torch.tensor(0.5)})
    device.advance()
    resolve(run)
    assert run._run_journal.sender._must_hurry(), "also once it is resolved: the next values may come at any rate"


def test_a_run_of_another_process_whose_first_word_is_a_value_on_a_device_is_opened_for_it(
    run, device, offline
) -> None:
    handed = Run(
        replace(run._settings, identity=replace(run._membership.identity, label="child", primary=False)), opens=False
    )
    handed.log({"loss": torch.tensor(0.5)}, step=3)
    device.advance()
    wait_until(lambda: numbers(offline()) == [("loss", 3, 0.5)], "a sender thread that looks for it")
    handed.finish()


def test_a_later_change_in_place_is_not_seen(run, device, offline) -> None:
    loss = torch.tensor(1.0)
    for step in range(3):
        run.log({"loss": loss}, step=step)
        loss.add_(1.0)
    device.advance()
    resolve(run)
    run.finish()
    assert numbers(offline()) == [("loss", 0, 1.0), ("loss", 1, 2.0), ("loss", 2, 3.0)]


EXACT = {
    "f64": torch.tensor(0.1, dtype=torch.float64),
    "f32": torch.tensor(0.1),
    "f16": torch.tensor(0.5, dtype=torch.float16),
    "bf16": torch.tensor(3.0e38, dtype=torch.bfloat16),
    "i64": torch.tensor(2**53 + 1),
    "i32": torch.tensor(-(2**31), dtype=torch.int32),
    "u8": torch.tensor(255, dtype=torch.uint8),
    "bool": torch.tensor(True),
    "one element": torch.tensor([[7.0]]),
    "again f32": torch.tensor(-0.0),
    "nan": torch.tensor(math.nan),
    "inf": torch.tensor(-math.inf, dtype=torch.float64),
    "parameter": torch.nn.Parameter(torch.tensor(2.5)),
}


def test_every_dtype_arrives_as_the_host_would_have_read_it_in_the_order_logged(run, device, offline) -> None:
    run.log({"nested": EXACT, "lr": 1.0}, step=1)
    assert len(device.waiting) == 1, "one copy, whatever the dtypes"
    device.advance()
    resolve(run)
    run.finish()
    found = numbers(offline())
    assert [key for key, _, _ in found] == ["lr", *(f"nested/{key}" for key in EXACT)]
    for (_, _, value), tensor in zip(found[1:], EXACT.values(), strict=True):
        assert value == float(tensor.item()) or math.isnan(value)
    assert counted(offline()) == {"not_finite": 2}


def test_no_graph_is_kept_alive(run, device) -> None:
    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad

    loss = Watched.apply(torch.ones((), requires_grad=True))
    node = weakref.ref(loss.grad_fn)
    run.log({"loss": loss})
    del loss
    assert node() is None
    assert run._devices.deferred.pending == 1


def test_a_full_ring_drops_counts_and_declares_and_holds_nobody_up(run, device, offline, monkeypatch, caplog) -> None:
    monkeypatch.setattr(device_module, "RING_BYTES", 64)
    monkeypatch.setattr(DeviceRing.__init__, "__defaults__", (64, 1024))
    for step in range(20):
        run.log({"loss": torch.tensor(float(step)), "host": step}, step=step)
    resolved_before = run._devices.deferred.pending
    device.advance()
    resolve(run)
    run.log({"loss": torch.tensor(20.0)}, step=20)
    device.advance()
    resolve(run)
    run.finish()
    events = offline()
    arrived = [step for key, step, _ in numbers(events) if key == "loss"]
    assert arrived == [*range(8), 20]
    assert [step for key, step, _ in numbers(events) if key == "host"] == list(range(20))
    assert counted(events) == {"device_values_dropped": 12}
    assert notices(events) == [("device_values_dropped", "cpu")]
    assert sum(count for count, _ in losses(events)) == 12
    assert {reason for _, reason in losses(events)} == {"values on a device: ring full"}
    assert resolved_before <= 20
    assert len(caplog.records) == 1
    assert run._journal.next_seq == len(events) + 12


def test_what_interrupts_log_in_the_ring_is_declared_and_takes_nobodys_place(run, device, offline, monkeypatch) -> None:
    interrupting = [lambda: run.log({"handler": torch.tensor(222.0)}, step=7)]

    def event() -> Mark:  # where a signal handler or a __del__ may run
        if interrupting:
            interrupting.pop()()
        return Mark()

    monkeypatch.setattr(device, "event", event)
    run.log({"loss": torch.tensor(111.0)}, step=1)
    run.log({"loss": torch.tensor(333.0)}, step=2)
    device.advance()
    resolve(run)
    run.finish()
    assert numbers(offline()) == [("loss", 1, 111.0), ("loss", 2, 333.0)]
    assert counted(offline()) == {"device_values_dropped": 1}
    assert losses(offline()) == [(1, "values on a device: logged by what interrupted log()")]


def test_one_call_larger_than_the_ring_is_declared_and_the_next_one_arrives(run, device, offline, monkeypatch) -> None:
    monkeypatch.setattr(DeviceRing.__init__, "__defaults__", (64, 1024))
    run.log({f"k{number}": torch.tensor(1.0, dtype=torch.float64) for number in range(9)}, step=0)
    run.log({"x": torch.tensor(1.0)}, step=1)
    device.advance()
    resolve(run)
    run.finish()
    assert numbers(offline()) == [("x", 1, 1.0)]
    assert losses(offline()) == [(1, "values on a device: ring full")]


def test_while_a_graph_is_captured_nothing_is_launched_and_that_is_said_once(run, device, offline, caplog) -> None:
    device.capturing = True
    for step in range(3):
        run.log({"loss": torch.tensor(1.0), "lr": 0.1}, step=step)
    assert (device.allocated, len(device.waiting)) == (0, 0)
    device.capturing = False
    run.log({"loss": torch.tensor(2.0)}, step=3)
    device.advance()
    resolve(run)
    run.finish()
    assert numbers(offline()) == [("lr", 0, 0.1), ("lr", 1, 0.1), ("lr", 2, 0.1), ("loss", 3, 2.0)]
    assert counted(offline()) == {"device_values_in_capture": 3}
    assert sum(count for count, _ in losses(offline())) == 3
    [said] = caplog.records
    assert "log the graph's output after replay()" in said.getMessage()


def test_a_device_that_fails_costs_its_values_and_nothing_else(run, device, offline) -> None:
    device.error = RuntimeError("CUDA error: an illegal memory access")
    run.log({"loss": torch.tensor(1.0), "lr": 0.1}, step=0)
    device.error = None
    run.log({"loss": torch.tensor(2.0)}, step=1)
    _, _, mark = device.waiting[0]
    mark.error = RuntimeError("CUDA error: device-side assert")
    run.log({"lr": 0.2}, step=1)
    resolve(run)
    run.finish()
    events = offline()
    assert [entry for entry in numbers(events) if entry[0] == "lr"] == [("lr", 0, 0.1), ("lr", 1, 0.2)]
    assert sum(count for count, _ in losses(events)) >= 1
    assert counted(events)["device_values_dropped"] >= 1


def test_finish_waits_a_moment_for_a_device_and_declares_the_rest(run, device, offline) -> None:
    polls: list[None] = []

    def poll_context() -> nullcontext[None]:
        """Let the device continue when finish() polls again."""
        if is_finishing and threading.current_thread() is threading.main_thread():
            polls.append(None)
            device.advance(len(polls) == 2)
        return nullcontext()

    is_finishing = False
    device.poll_context = poll_context
    for step in range(5):
        run.log({"loss": torch.tensor(float(step))}, step=step)
    device.advance(2)
    is_finishing = True
    run.finish()  # ends although the device does not
    events = offline()
    assert [step for _, step, _ in numbers(events)] == [0, 1, 2]
    assert losses(events) == [(2, "values on a device: not copied when the run finished")]
    assert events[-1].kind == EventKind.STATE
    assert run._journal.next_seq == len(events) + 2
    [(_, directory)] = list_journals(run._settings.places.local / "offline")
    assert decode_head((directory / HEAD_NAME).read_bytes()).promised == 0


def test_values_that_are_not_here_are_named_and_never_raised(run, device, offline, caplog) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.tensor(1.0)
    run.log({"fake": fake})
    torch.func.vmap(lambda x: run.log({"mapped": x.sum()}) or x)(torch.ones(2, 3))
    torch.func.grad(lambda x: run.log({"inside": x * 2}) or x)(torch.tensor(1.0))
    run.log({"complex": torch.tensor(1j), "many": torch.zeros(3)})
    run.finish()
    assert sorted(notices(offline())) == [
        ("array", "many"),
        ("not_a_number", "complex"),
        ("wrapped_tensor", "fake"),
        ("wrapped_tensor", "inside"),
        ("wrapped_tensor", "mapped"),
    ]


def test_a_step_on_a_device_is_not_waited_for(run, device, offline) -> None:
    run.log({"x": 1.0}, step=torch.tensor(70))
    run.finish()
    assert numbers(offline()) == [("x", 0, 1.0)]
    assert counted(offline()) == {"bad_step": 1}


def test_a_disabled_run_touches_no_device(chiplog_dir, device, caplog) -> None:
    run = chiplog.init(mode="disabled")
    model = torch.nn.Linear(2, 1)
    run.watch(model, every=1)
    for step in range(3):
        run.log({"loss": torch.tensor(1.0)}, step=step)
    run.finish()
    assert (device.allocated, len(device.waiting), len(run._watches)) == (0, 0, 0)
    assert caplog.records == []


def test_log_from_many_threads_keeps_every_value(run, device, offline) -> None:
    def work(name: str) -> None:
        for step in range(50):
            run.log({name: torch.tensor(float(step))}, step=step)

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        device.advance(3)
        run._devices.deferred.poll()
    device.advance()
    resolve(run)
    run.finish()
    found = numbers(offline())
    for number in range(4):
        assert [step for key, step, _ in found if key == f"t{number}"] == list(range(50))


ROOT = str(Path(__file__).parents[3])
KILLED = """
import os, sys, time, torch, chiplog
sys.path.append(sys.argv[1])
from tests.support.stand_in_device import StandIn, install
device = StandIn()
install(device)
run = chiplog.init(project="p", run_id="killed", label="rank0", capture_console=False)
for step in range(10):
    run.log({"loss": torch.tensor(float(step)), "host": step}, step=step)
device.advance(4)
while run._devices.deferred.pending > 6:
    time.sleep(0.01)
run.log({"host": 10}, step=10)
print(run._journal.next_seq, flush=True)
time.sleep(60)
"""


@proves("pending-count-on-head-page", "the number of pending events is on the journal's head page")
@proves("promised-loss-declared", "the agent declares what the head page promises", condition=False)
@pytest.mark.full
def test_what_was_still_on_a_device_when_its_process_was_killed_is_declared_lost(node) -> None:
    process = subprocess.Popen([sys.executable, "-P", "-c", KILLED, ROOT], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    produced = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    [row] = node.until(
        "SELECT c.*, l.state FROM completeness c JOIN labels l USING (run_id, label, attempt) WHERE run_id = 'killed'",
        lambda rows: rows[0]["state"] == "crashed" and rows[0]["pending"] == 0,
    )
    assert (row["produced"], row["stored"], row["lost"]) == (produced + 6, produced, 6)
    assert row["reasons"] == "values on a device: not copied when the process died"
    stored = node.sql("SELECT key, count(*) AS n, max(value) AS last FROM metrics GROUP BY key ORDER BY key")
    assert [(entry["key"], entry["n"], entry["last"]) for entry in stored] == [("host", 11, 10.0), ("loss", 4, 3.0)]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("log"), st.lists(st.sampled_from(["f32", "f64", "bool", "i64"]), min_size=1, max_size=9)),
        st.tuples(st.just("advance"), st.integers(1, 4)),
        st.tuples(st.just("poll"), st.none()),
        st.tuples(st.just("capture"), st.booleans()),
        st.tuples(st.just("fail"), st.booleans()),
        st.tuples(st.just("host"), st.none()),
    ),
    max_size=60,
)


@proves(
    "ring-place-free-after-copy",
    "a place in the ring is used again only after its copy is complete",
    part="begin + size - self._tail > self._size",
    new="False",
)
@settings(max_examples=150, deadline=None)
@given(OPERATIONS, st.integers(8, 200), st.integers(1, 6))
def test_whatever_the_device_does_every_call_is_stored_once_or_declared_lost(operations, n_bytes, slots_max) -> None:
    # Invariant: each call's event is in the journal once, in order and with its own values, or its seq is declared
    # lost; seqs have no gap; and the head page counts at every moment what is neither.
    journal = Journal(None, bytes(16), b"")
    later = DeferredEvents(lambda: journal, lambda error: None)
    stored: list[tuple[int, list[float]]] = []

    def append(step, ts, values) -> None:
        stored.append((step, list(values.values())))
        journal.append(encode(EventKind.TEXT, ts, step, "k", "v"))

    stand_in = StandIn()
    install(stand_in)
    try:
        devices = DeviceValues(later, append, lambda bad: None)
        ring = DeviceRing(torch, stand_in, n_bytes, slots_max)
        devices._rings[torch.device("cpu")] = (stand_in, ring)
        logged: dict[int, list[float]] = {}
        n_host = 0
        for name, argument in operations:
            if name == "log":
                step = len(logged)
                tensors = {f"{i}": EXACT[dtype] * 1 for i, dtype in enumerate(argument)}
                logged[step] = [float(tensor) for tensor in tensors.values()]
                devices.log_scalars(torch, step, tensors)
            elif name == "advance":
                stand_in.advance(argument)
            elif name == "poll":
                later.poll()
            elif name == "capture":
                stand_in.capturing = argument
            elif name == "fail":
                stand_in.error = RuntimeError("no") if argument else None
            else:
                n_host += 1
                journal.append(encode(EventKind.TEXT, 1, 1, "host", "v"))
            assert journal._promised == later.pending
            assert journal.next_seq + later.pending == n_host + len(logged) + _n_losses(journal)
        stand_in.advance()
        later.close(0.0, "end")
        later.poll()
    finally:
        uninstall()
    assert later.pending == journal._promised == 0
    assert [step for step, _ in stored] == sorted({step for step, _ in stored}), "in order, none twice"
    for step, values in stored:
        assert values == logged[step]
    lost, seqs = _losses_of(journal)
    assert len(stored) + sum(last - first + 1 for first, last in lost) == len(logged)
    covered = sorted([(seq, seq) for seq in seqs] + lost)
    assert [first for first, _ in covered] == [0, *(last + 1 for _, last in covered)][: len(covered)]


def _losses_of(journal) -> tuple[list[tuple[int, int]], list[int]]:
    end, _, layout = journal._tail
    lost, seqs = [], []
    for item in scan_records(bytes(layout.memory[48:end])):
        assert isinstance(item, Record)
        event = decode(item.payload)
        seqs.append(item.number)
        if event[0] == EventKind.LOST:
            lost.append((event[3], event[4]))
    return lost, seqs


def _n_losses(journal) -> int:
    return len(_losses_of(journal)[0])
