"""What network interfaces transfer."""

import psutil
import pytest

from chiplog_agent.stats.host.network import EachInterfaceSource, NetworkSource


def test_values_lie_between_two_readings_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    source = NetworkSource()
    monkeypatch.setattr(source._interfaces, "choose", lambda counters: sorted(counters))
    before = psutil.net_io_counters(pernic=False, nowrap=False)
    [(device, _, values)] = source.read()
    after = psutil.net_io_counters(pernic=False, nowrap=False)
    assert device == ""
    assert before.bytes_recv <= values[0] <= after.bytes_recv and before.bytes_sent <= values[1] <= after.bytes_sent
    assert before.errin + before.errout <= values[2] and before.dropin + before.dropout <= values[3]


def test_a_host_without_interfaces_has_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: {})
    assert NetworkSource().read() == []


def test_the_interfaces_for_themselves_lie_between_two_readings_of_the_kernel() -> None:
    before = psutil.net_io_counters(pernic=True, nowrap=False)
    each = EachInterfaceSource().read()
    after = psutil.net_io_counters(pernic=True, nowrap=False)
    for device, _, values in each:
        name = device.removeprefix("nic:")
        assert before[name].bytes_recv <= values[0] <= after[name].bytes_recv
        assert before[name].bytes_sent <= values[1] <= after[name].bytes_sent
