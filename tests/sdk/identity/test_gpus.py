"""A rank's claim of its GPUs: raw, for the agent to resolve, and never with an initialisation of CUDA."""

import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import chiplog
from chiplog.identity.gpus import gpu_claim, known_gpus
from chiplog.identity.identity import Identity
from chiplog.recording.log import device_events
from chiplog.torch.current_device import CurrentDevice, current_device
from chiplog_schemas.model.events import EventKind
from tests.support.safeguard import proves
from tests.support.waiting import wait_until

A, B = "GPU-3b53f6a1-9d0e-4c5f-8f5e-1c6f5a0d7e10", "GPU-3b9c1f22-0f4b-4d9a-9a77-5e2f6b8c4d21"
RANK1 = Identity("r", "rank1", "launch", rank=1, local_rank=1, world_size=2)
ALONE = Identity("r", "host-word", "launch")
CHILD = Identity("r", "rank1.7", "launch", joined_existing_run=True)
ONE = CurrentDevice(1, B[4:])


@pytest.mark.parametrize(
    ("environ", "identity", "given", "device", "expected"),
    [
        ({}, ALONE, None, None, {}),
        ({}, RANK1, None, None, {"local": 1}),
        ({"CUDA_VISIBLE_DEVICES": ""}, ALONE, None, None, {"visible": ""}),
        (
            {"CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            RANK1,
            None,
            None,
            {"visible": "1,0", "order": "PCI_BUS_ID", "local": 1},
        ),
        ({"LOCAL_RANK": "3"}, ALONE, None, None, {"local": 3}),
        ({"LOCAL_RANK": "x"}, ALONE, None, None, {}),
        ({}, RANK1, None, ONE, {"local": 1, "current": 1, "uuid": B[4:]}),
        ({"CUDA_VISIBLE_DEVICES": "0"}, RANK1, ("0",), ONE, {"given": ["0"]}),
        ({"LOCAL_RANK": "1"}, CHILD, None, None, {"visible": ""}),
        ({"LOCAL_RANK": "1"}, CHILD, None, ONE, {"visible": "", "uuid": B[4:]}),
    ],
)
def test_a_claim_holds_what_the_process_knows(
    environ: dict[str, str], identity: Identity, given: Any, device: Any, expected: dict[str, Any]
) -> None:
    claim = gpu_claim(environ, identity, given, device, is_child=identity.joined_existing_run, speaks_for_node=False)
    assert claim == expected


def test_rank0_alone_claims_all_that_it_sees() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    claim = gpu_claim(environ, RANK1, None, ONE, is_child=False, speaks_for_node=True)
    assert claim == {"visible": "0,1", "whole": True}


@pytest.mark.parametrize(
    ("claim", "known"),
    [
        ({"given": [A, B]}, [A, B]),
        ({"given": ["0"]}, []),
        ({"visible": f"{A}, {B}", "local": 1}, [B]),
        ({"visible": f"{A},{B}"}, [A, B]),
        ({"visible": A, "local": 5}, [A]),
        ({"visible": "GPU-3b5"}, []),
        ({"visible": "0,1", "local": 1}, []),
        ({"visible": ""}, []),
        ({"given": []}, []),
        ({}, []),
    ],
)
def test_uuids_in_full_need_no_nvml(claim: dict[str, Any], known: list[str]) -> None:
    assert known_gpus(claim) == known


def refuse() -> None:
    raise AssertionError("CUDA would be initialised")


@proves(
    "torch-asked-when-initialised",
    "torch is asked for its device only once CUDA is initialised",
    new="if cuda is None:",
)
def test_cuda_that_is_not_initialised_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace(is_initialized=lambda: False, current_device=refuse))
    assert current_device() is None
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace())  # while another thread imports it
    assert current_device() is None
    monkeypatch.delitem(sys.modules, "torch.cuda")
    assert current_device() is None


def test_the_device_of_torch_has_a_number_and_where_torch_knows_it_a_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    of = {2: SimpleNamespace(uuid=A[4:])}
    cuda = SimpleNamespace(is_initialized=lambda: True, current_device=lambda: 2, get_device_properties=of.get)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    assert current_device() == (2, A[4:])
    of[2] = SimpleNamespace()  # before torch 2.4
    assert current_device() == (2, "")


def claims(events: Any) -> list[dict[str, Any]]:
    return [event.fields["identity"]["gpu_claim"] for event in events(EventKind.IDENTITY)]


@proves("device-recorded-once-known", "the GPU that torch uses is recorded once it is known", condition=False)
def test_the_device_that_torch_uses_becomes_part_of_the_identity(chiplog_dir, offline, monkeypatch) -> None:
    """Only in the main thread: in CUDA each thread has its own device, by default the first one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    known: list[CurrentDevice] = []
    monkeypatch.setattr(device_events, "current_device", lambda: known[0] if known else None)
    run = chiplog.init(mode="offline", run_id="r", label="rank0", capture_console=False)
    run.log({"before": 1.0})
    known.append(ONE)
    thread = threading.Thread(target=run.log, args=({"of a thread": 1.0},))
    thread.start()
    thread.join()
    assert claims(offline) == [{"visible": "0,1"}]
    run.log({"after": 1.0})
    wait_until(lambda: len(claims(offline)) == 2, "an identity with the device")
    assert claims(offline)[1] == {"visible": "0,1", "current": 1, "uuid": B[4:]}
    known[:] = [CurrentDevice(0, A[4:])]
    run.log({"much later": 1.0})
    run.finish()
    assert len(claims(offline)) == 2


def test_a_forked_child_claims_nothing_of_its_parents(chiplog_dir, offline, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", A)
    run = chiplog.init(mode="offline", run_id="r", label="rank0", capture_console=False)
    pid = os.fork()
    if pid == 0:
        run.log({"x": 1.0})
        run.finish()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    run.finish()
    said = {event.fields["identity"]["label"]: event.fields["identity"] for event in offline(EventKind.IDENTITY)}
    assert (said["rank0"]["gpus"], said["rank0"]["gpu_claim"]) == ([A], {"visible": A})
    assert (said[f"rank0.{pid}"]["gpus"], said[f"rank0.{pid}"]["gpu_claim"]) == ([], {"visible": ""})


@pytest.mark.parametrize("options", [{"mode": "rank0"}, {}])
def test_mode_rank0_speaks_for_its_node(chiplog_dir, monkeypatch, options) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("CHIPLOG_MODE", "offline")
    run = chiplog.init(run_id="r", capture_console=False, **options)
    assert run._settings.speaks_for_node == bool(options)
    run.finish()
