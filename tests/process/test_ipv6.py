"""Collector, agent, rank and reader over IPv6, with and without keys."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import chiplog
from chiplog_cli.root import main
from chiplog_schemas.security.key_files import host_key_name
from tests.support.marks import everyday
from tests.support.node import Node
from tests.support.ports import free_ports
from tests.support.safeguard import proves
from tests.support.waiting import wait_until


@pytest.fixture
def ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")


@pytest.fixture
def nodes(tmp_path: Path, ipv6: None) -> Iterator[tuple[Node, Node]]:
    centre, host = Node(tmp_path / "centre"), Node(tmp_path / "host")
    yield centre, host
    if chiplog.run is not None:
        chiplog.finish()
    host.stop()
    centre.stop()


@proves("bind-ipv6", "an IPv6 address can be bound")
@proves("dealer-connects-ipv6", "a rank and an agent connect to an IPv6 address")
@proves("reader-connects-ipv6", "a reader connects to an IPv6 address")
@proves("files-over-ipv6", "files go over IPv6")
@pytest.mark.parametrize("keyed", everyday(1, [True, False]), ids=["keys", "plain"])
def test_events_and_answers_go_over_ipv6(nodes, keyed, monkeypatch, tmp_path) -> None:
    centre, host = nodes
    first = free_ports(3, "::1")
    collector, agent = f"tcp://[::1]:{first}", f"tcp://[::1]:{first + 2}"
    if keyed:
        for root in (centre.root, host.root):
            (root / "keys").mkdir(parents=True, mode=0o700)
        run = lambda node, *words: main(["keys", "--keys", str(node.root / "keys"), *words])  # noqa: E731
        assert run(centre, "new", "collector") == 0
        for role, flags in (("agent", ("--node", host_key_name())), ("reader", ()), ("rank", ())):
            assert run(host, "new", role) == 0
            of = host if role == "rank" else centre
            assert run(of, "allow", str(host.root / "keys" / f"{role}.pub"), *flags) == 0
        (host.root / "keys" / "collector.pub").write_bytes((centre.root / "keys" / "collector.pub").read_bytes())
        monkeypatch.setenv("CHIPLOG_KEYS", str(host.root / "keys"))
    centre.collector = centre._start("chiplog_collector", "--bind", collector, "--keys", str(centre.root / "keys"))
    host.start_agent("--collector", collector, "--bind", agent, "--keys", str(host.root / "keys"))
    saved = tmp_path / "saved.txt"
    saved.write_text("hello")
    # The agent of the run's own directory delivers a file, even if its events go to another address.
    with chiplog.init(run_id="over", dir=host.root, agent=agent, capture_console=False) as run_:
        run_.log({"x": 1.5})
        run_.save(saved)
    wait_until(lambda: centre.try_sql("SELECT 1 FROM metrics WHERE value = 1.5"), "the value in SQL")
    wait_until(lambda: list(centre.place.files.glob("??/*")), "the file at the collector")
    with chiplog.connect(collector) as client:
        assert client.sql("SELECT run_id FROM runs").rows() == [{"run_id": "over"}]


@pytest.mark.parametrize(
    "address", ["tcp://[::1]:70000", "tcp://[:::1]:5555", "tcp://[1.2.3.4]:5555", "tcp://::1:5555"]
)
def test_an_address_that_is_none_is_one_line(address, chiplog_dir, capsys) -> None:
    assert main(["collector", "--bind", address]) == 2
    assert address in capsys.readouterr().err
