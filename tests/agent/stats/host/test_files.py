"""Which devices of a folder of /sys count."""

from pathlib import Path

import pytest

from chiplog_agent.stats.host.files import PhysicalDevices, read_file


def test_only_names_with_a_device_count_unless_there_are_none(tmp_path: Path) -> None:
    for name in ("lo", "bond0", "eth0"):
        (tmp_path / name).mkdir()
    devices = PhysicalDevices(str(tmp_path))
    assert devices.choose(["lo", "bond0", "eth0", "gone"]) == ["bond0", "eth0"]  # as in a container
    (tmp_path / "eth0/device").mkdir()
    assert devices.choose(["lo", "bond0", "eth0"]) == ["eth0"]


def test_a_file_is_read_and_one_that_is_absent_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1\n")
    assert read_file(str(tmp_path / "file")) == b"1\n"
    with pytest.raises(FileNotFoundError):
        read_file(str(tmp_path / "none"))
