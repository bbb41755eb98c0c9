"""How full file systems are."""

import shutil

from chiplog_agent.stats.host.file_systems import RootFileSystemSource


def test_the_root_file_system_is_as_full_as_df_says() -> None:
    [(device, names, [used])] = RootFileSystemSource().read()
    assert (device, names) == ("", ("system.filesystem.usage",))
    assert abs(used - shutil.disk_usage("/").used) < 1 << 30
