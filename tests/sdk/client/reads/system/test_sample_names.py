"""What the names of samples mean: each name that an agent sends has words."""

from chiplog_agent.stats.gpu import FIELDS, READERS
from chiplog_agent.stats.process_tree import GROUP_NAMES, PROCESS_NAMES
from chiplog_client.reads.system.sample_names import SAMPLE_NAMES, sample_name, sample_place


def test_names_of_gpus_and_processes_have_words() -> None:
    sent = {name for reader in READERS for name in reader.names} | {field.name for field in FIELDS}
    sent |= {*PROCESS_NAMES, *GROUP_NAMES}
    assert sent - SAMPLE_NAMES.keys() == {"hw.gpu.throttle.reasons"}  # bits, which the page shows as marks


def test_an_unknown_name_is_its_own_title_and_comes_last() -> None:
    assert sample_name("rdma.port.io") == ("rdma.port.io", "")
    assert sorted(["rdma.port.io", "system.disk.io.read", "hw.power"], key=sample_place)[-1] == "rdma.port.io"
