"""Ports of InfiniBand adapters, from files as mlx5 has them."""

from pathlib import Path

import pytest

from chiplog_agent.stats.host.infiniband import InfinibandSource
from chiplog_agent.stats.source import AbsentError


def test_each_port_is_a_device_with_the_counters_that_it_has(tmp_path: Path) -> None:
    for port, files in (
        (
            "mlx5_0/ports/1",
            {"counters/port_rcv_data": 10, "counters/port_xmit_data": 20, "counters/port_xmit_discards": 3},
        ),
        ("mlx5_1/ports/1", {"hw_counters/np_cnp_sent": 1, "hw_counters/rp_cnp_handled": 2}),
        ("other/ports/1", {}),
    ):
        for folder in ("counters", "hw_counters"):
            (tmp_path / port / folder).mkdir(parents=True)
        for file, value in files.items():
            (tmp_path / port / file).write_text(f"{value}\n")
    assert [
        (of.device, dict(zip(of.names, of.values, strict=True))) for of in InfinibandSource(str(tmp_path)).read()
    ] == [
        ("ib:mlx5_0/1", {"rdma.port.io.receive": 40.0, "rdma.port.io.transmit": 80.0, "rdma.port.discards": 3.0}),
        ("ib:mlx5_1/1", {"rdma.port.cnp": 3.0}),
    ]
    (tmp_path / "mlx5_0/ports/1/counters/port_rcv_data").write_text("N/A\n")
    (tmp_path / "gone").mkdir()
    first, second = InfinibandSource(str(tmp_path)).read()
    assert (first.device, first.names) == ("ib:mlx5_0/1", ("rdma.port.io.transmit", "rdma.port.discards"))
    assert second.device == "ib:mlx5_1/1"


def test_a_host_without_an_adapter_has_no_source(tmp_path: Path) -> None:
    with pytest.raises(AbsentError):
        InfinibandSource(str(tmp_path / "none")).read()
