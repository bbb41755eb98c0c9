"""Events that the readings of a GPU show."""

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


@proves("pending-remap-noticed", "a row remapping that waits for a reset is reported", condition=False)
def test_a_row_remapping_that_waits_is_reported_when_it_begins_to() -> None:
    changes = GpuChanges()
    pending = [1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    found = [len(changes.take("GPU-1", SLOW, (0.0, value))) for value in pending]
    assert found == [0, 0, 0, 1, 0, 0, 1], "what was so at the start is no change"


def test_other_devices_are_ignored_and_little_is_remembered(monkeypatch) -> None:
    monkeypatch.setattr(changes_module, "_DEVICES_MAX", 8)
    changes = GpuChanges()
    for number in range(100):
        assert not changes.take(f"pid:{number}", (f"process.{number}",), (1.0,))
        assert not changes.take(f"GPU-{number}", FAST, (1.0, 1.0))
    assert len(changes._places) <= 8 and len(changes._last) <= 16
