"""What disks transfer, beside the kernel's own list."""

from pathlib import Path

import psutil

from chiplog_agent.stats.host.disks import DiskSource, EachDiskSource


def test_the_sum_is_that_of_the_disks_with_a_device(tmp_path: Path) -> None:
    before = psutil.disk_io_counters(perdisk=True, nowrap=False)
    readings = DiskSource().read()
    after = psutil.disk_io_counters(perdisk=True, nowrap=False)
    real = [name for name in before if Path(f"/sys/block/{name}/device").exists()]
    whole = [name for name in before if Path(f"/sys/block/{name}").exists()]
    for _, names, values in readings:
        for name, value in zip(names, values, strict=True):
            field = "read_bytes" if name.endswith("read") else "write_bytes"
            low, high = (sum(getattr(of[disk], field) for disk in real or whole) for of in (before, after))
            assert low <= value <= high


def test_the_disks_for_themselves_sum_up_to_all() -> None:
    each = {of.device: of.values for of in EachDiskSource().read()}
    assert all(device.startswith("disk:") for device in each) and EachDiskSource.period_s == 10.0
    for _, _, values in DiskSource().read():
        assert [sum(of[i] for of in each.values()) <= value for i, value in enumerate(values)] == [True, True]
