"""Events that the readings of a GPU show."""

import pynvml

from chiplog_agent.stats.gpu import changes as changes_module
from chiplog_agent.stats.gpu.changes import GpuChanges
from tests.support.safeguard import proves

FAST = ("hw.gpu.utilization", "hw.energy")
SLOW = ("hw.errors.pcie_replay", "hw.gpu.row_remap.pending")


@proves("reset-noticed", "a GPU whose counters start from zero is reported", condition=False)
def test_a_counter_that_falls_is_a_reset_once() -> None:
    changes = GpuChanges()
    assert [changes.take("GPU-1", FAST, (0.5, energy)) for energy in (100.0, 100.0, 250.0)] == [[], [], []]
    [change] = changes.take("GPU-1", FAST, (0.5, 3.0))
    assert change.kind == "gpu.reset" and change.level == "warning" and change.text.startswith("counters started")
    assert not changes.take("GPU-1", FAST, (0.5, 3.0)) and not changes.take("GPU-2", FAST, (0.5, 1.0))


@proves("state-noticed", "a state that asks for an operator is reported", condition=False)
def test_a_state_is_reported_when_it_is_first_seen_and_when_it_begins() -> None:
    changes = GpuChanges()
    pending = [1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    found = [[change.level for change in changes.take("GPU-1", SLOW, (0.0, value))] for value in pending]
    assert found == [["warning"], [], [], ["warning"], [], [], ["warning"]]


def test_each_recovery_action_and_a_failure_are_reported_with_what_to_do() -> None:
    changes = GpuChanges()
    names = ("hw.gpu.row_remap.failure", "hw.gpu.recovery_action")
    values = [(0.0, 0.0), (0.0, 1.0), (1.0, 2.0), (1.0, 2.0), (1.0, 99.0), (1.0, 0.0)]
    found = [changes.take("GPU-1", names, of) for of in values]
    kinds = [[change.kind for change in of] for of in found]
    both = ["gpu.row_remap_failure", "gpu.recovery_action"]
    assert kinds == [[], ["gpu.recovery_action"], both, [], ["gpu.recovery_action"], []]
    assert {change.level for of in found for change in of} == {"error"}
    texts = [of[-1].text for of in found if of]
    assert texts[0].endswith("action 1: reset the GPU") and texts[1].endswith("action 2: reboot the node")
    known = {value for name, value in vars(pynvml).items() if name.startswith("NVML_GPU_RECOVERY_ACTION_")}
    assert known == {0, *changes_module._ACTIONS}


def test_other_devices_are_ignored_and_little_is_remembered(monkeypatch) -> None:
    monkeypatch.setattr(changes_module, "_DEVICES_MAX", 8)
    changes = GpuChanges()
    for number in range(100):
        assert not changes.take(f"pid:{number}", (f"process.{number}",), (1.0,))
        assert not changes.take(f"GPU-{number}", FAST, (1.0, 1.0))
    assert len(changes._places) <= 8 and len(changes._last) <= 32
