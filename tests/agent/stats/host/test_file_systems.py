"""How full file systems are."""

import os
import shutil
from pathlib import Path

import pytest

from chiplog_agent.stats.host.file_systems import FileSystemSource, RootFileSystemSource, file_system_sources
from chiplog_agent.stats.source import AbsentError


def test_the_root_file_system_is_as_full_as_df_says() -> None:
    [(device, names, [used])] = RootFileSystemSource().read()
    assert (device, names) == ("", ("system.filesystem.usage",))
    assert abs(used - shutil.disk_usage("/").used) < 1 << 30


def test_a_directory_has_the_file_system_that_it_is_on(tmp_path: Path) -> None:
    [(device, names, (used, limit))] = FileSystemSource(str(tmp_path)).read()
    assert (device, names) == (f"fs:{tmp_path}", ("system.filesystem.usage", "system.filesystem.limit"))
    found = shutil.disk_usage(tmp_path)
    assert limit == found.total and abs(used - found.used) < 1 << 30
    with pytest.raises(FileNotFoundError):
        FileSystemSource(str(tmp_path / "none")).read()
    with pytest.raises(AbsentError):
        FileSystemSource(str(tmp_path / "none"), is_named=False).read()


def test_the_directories_are_those_of_a_training_and_those_that_are_named() -> None:
    environ = {"CHIPLOG_DIR": "/d", "CHIPLOG_FILE_SYSTEMS": os.pathsep.join(["/scratch", " /d ", "", "/dev/shm"])}
    sources = list(file_system_sources(environ))
    assert [source.title for source in sources] == ["fs:/d", "fs:/tmp", "fs:/dev/shm", "fs:/scratch"]
    assert all(source.deadline_s == 5.0 for source in sources)
    many = os.pathsep.join(f"/{number}" for number in range(100))
    assert len(list(file_system_sources({"CHIPLOG_FILE_SYSTEMS": many}))) == 16
