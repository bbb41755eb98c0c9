"""/metrics, /healthz and /readyz over a real socket, read by prometheus_client's own parser."""

import contextlib
import logging
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chiplog_schemas.model.exposed import Exposed, Health
from chiplog_schemas.transport.metrics_server import MetricsServer
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

EXPOSED = [
    Exposed({"node": "a", "uuid": "GPU-1"}, ("hw.power", "hw.energy", "of.another.agent"), (250.0, 9e12, 1.0)),
    Exposed({"node": 'b"\\\n'}, ("chiplog.agent.events.received", "chiplog.agent.events.lost"), (7.0, 0.0)),
]


class Served:
    def __init__(self) -> None:
        self.reason = ""
        self.exposed = EXPOSED
        health = Health(lambda: self.exposed, lambda: "", lambda: self.reason)
        self.server = MetricsServer("127.0.0.1", 0, health)

    def get(self, path: str) -> tuple[int, str]:
        assert self.server.address is not None
        url = "http://{}:{}{}".format(*self.server.address, path)
        try:
            with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.server.close()


def test_metrics_are_read_back_with_their_labels_units_and_kinds(served: Served) -> None:
    status, text = served.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert status == 200 and families.keys() == {"hw_power_watts", "hw_energy_joules", "chiplog_events"}
    assert [(family.name, family.type) for family in families.values()][:2] == [
        ("hw_power_watts", "gauge"),
        ("hw_energy_joules", "counter"),
    ]
    assert [tuple(sample)[:3] for sample in families["hw_power_watts"].samples] == [
        ("hw_power_watts", {"node": "a", "uuid": "GPU-1"}, 250.0)
    ]
    found = {
        (sample.labels["result"], sample.labels["node"], sample.value) for sample in families["chiplog_events"].samples
    }
    assert found == {("received", 'b"\\\n', 7.0), ("lost", 'b"\\\n', 0.0)}


def test_health_is_a_status_and_a_line(served: Served) -> None:
    assert served.get("/healthz") == served.get("/readyz") == (200, "ok\n")
    served.reason = "no event reached the collector for 31 s"
    assert served.get("/readyz") == (503, "no event reached the collector for 31 s\n")
    assert served.get("/healthz")[0] == 200
    assert served.get("/")[0] == 404


def test_a_port_in_use_is_one_line_and_is_served_when_it_is_free(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    assert served.server.address is not None
    with caplog.at_level(logging.INFO):
        second = MetricsServer(*served.server.address, Health(list, str, str), retry_s=0.1)
        assert second.address is None
        served.server.close()
        wait_until(lambda: second.address is not None, "the port")
    shown = "{}:{}".format(*served.server.address)
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        f"metrics cannot be served at {shown}",
        f"metrics are at http://{shown}/metrics",
    ]
    served.server = second
    assert served.get("/healthz") == (200, "ok\n")


def test_head_has_the_status_alone(served: Served) -> None:
    assert served.server.address is not None
    request = urllib.request.Request("http://{}:{}/readyz".format(*served.server.address), method="HEAD")
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        assert (answer.status, answer.read()) == (200, b"")


@proves("metrics-threads-bounded", "connections that send nothing do not become threads", condition=True)
@proves("metrics-threads-used-again", "a connection that ended makes room for another")
def test_hundreds_of_connections_that_send_nothing_cost_a_few_threads(
    served: Served, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    assert served.server.address is not None
    n_before = threading.active_count()
    with contextlib.ExitStack() as connections, caplog.at_level(logging.WARNING):
        sockets = [connections.enter_context(socket.create_connection(served.server.address)) for _ in range(400)]
        sockets[-1].settimeout(WAIT_S)
        assert sockets[-1].recv(1) == b"", "it is closed"
        assert threading.active_count() - n_before <= 16
        for connection in sockets:  # they are reset, and not closed in order
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: threading.active_count() == n_before, "the threads' end")
    for _ in range(20):
        assert served.get("/healthz") == (200, "ok\n")
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "more than 16 connections ask for metrics at once"
    ]
    assert capfd.readouterr().err == ""


def test_without_prometheus_client_health_is_served_and_metrics_name_the_remedy() -> None:
    code = (
        "import sys, urllib.request, urllib.error; sys.modules['prometheus_client'] = None\n"
        "from chiplog_schemas.model.exposed import Health\n"
        "from chiplog_schemas.transport.metrics_server import MetricsServer\n"
        "url = 'http://{}:{}'.format(*MetricsServer('127.0.0.1', 0, Health(list, str, str)).address)\n"
        "print(urllib.request.urlopen(url + '/healthz').read())\n"
        "try: urllib.request.urlopen(url + '/metrics')\n"
        "except urllib.error.HTTPError as error: print(error.code, error.read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout.splitlines()[0] == "b'ok\\n'" and "501" in done.stdout and "chiplog[metrics]" in done.stdout
    assert done.stderr.count("\n") == 1 and "chiplog[metrics]" in done.stderr
