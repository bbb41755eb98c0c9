"""Addresses are checked before a socket sees them; a socket's directory is private and its dead file removed."""

import os
from pathlib import Path

import pytest

from chiplog_schemas.addresses import (
    AddressError,
    check_bind,
    check_connect,
    check_store,
    check_store_exists,
    ipc_path,
    is_ipc,
    is_loopback,
    is_store,
    parse_host_port,
    parse_tcp,
    port_after,
    prepare_ipc,
    query_address_of,
    store_of,
)
from chiplog_schemas.paths import SOCKET_PATH_BYTES_MAX


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:5555", "tcp://localhost:1", "tcp://[::1]:5555", "ipc:///tmp/a.sock"]
)
def test_loopback_and_sockets_may_be_bound_and_connected_to(address: str) -> None:
    assert check_bind(address) == address
    assert check_connect(address) == address


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:5555", "tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://node-a:5555"])
def test_what_other_hosts_can_reach_is_not_bound_without_keys(address: str) -> None:
    with pytest.raises(AddressError, match="CURVE"):
        check_bind(address)
    assert check_connect(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "5555",
        "tcp://host",
        "tcp://host:0",
        "tcp://host:65535",
        "tcp://host:99999",
        "tcp://:5555",
        "udp://h:1",
        "tcp://h:1/x",
        "ipc://relative.sock",
        "ipc:///" + "x" * SOCKET_PATH_BYTES_MAX,
    ],
)
def test_a_bad_address_is_named_in_one_line(address: str) -> None:
    for check in (check_bind, check_connect):
        with pytest.raises(AddressError) as caught:
            check(address)
        assert repr(address) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_sql_is_answered_at_the_next_port() -> None:
    assert port_after("tcp://127.0.0.1:5555") == "tcp://127.0.0.1:5556"


def test_a_socket_gets_a_private_directory_and_a_dead_one_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"
    prepare_ipc(f"ipc://{path}")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.touch()
    prepare_ipc(f"ipc://{path}")
    assert not path.exists()
    prepare_ipc("tcp://127.0.0.1:5555")


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.chmod(tmp_path / "run", 0o777)
    with pytest.raises(AddressError, match="chmod go-w"):
        prepare_ipc(f"ipc://{tmp_path}/run/agent.sock")


@pytest.mark.parametrize(
    ("collector", "address"),
    [
        ("tcp://host:7777", "tcp://host:7778"),
        ("tcp://[::1]:7777", "tcp://[::1]:7778"),
        ("ipc:///run/chiplog/collector.sock", "ipc:///run/chiplog/query.sock"),
        ("ipc:///run/chiplog/query.sock", "ipc:///run/chiplog/query.sock"),
        ("ipc:///run/other", "ipc:///run/other.query"),
    ],
)
def test_the_query_address_follows_from_the_collector_s(collector: str, address: str) -> None:
    assert query_address_of(collector) == address


@pytest.mark.parametrize("collector", ["", "host:7777", "tcp://host", "tcp://host:x", "tcp://host:70000", "udp://h:1"])
def test_an_address_that_is_none_is_refused_with_an_example(collector: str) -> None:
    with pytest.raises(ValueError, match="write tcp://HOST:PORT or ipc:///PATH"):
        query_address_of(collector)


def test_a_tcp_address_has_a_host_and_a_port() -> None:
    assert parse_tcp("tcp://node-a:5555") == ("node-a", 5555)
    assert parse_tcp("tcp://[fe80::1]:1") == ("[fe80::1]", 1)
    assert parse_tcp("tcp://[fe80::1%eth0]:1") == ("[fe80::1%eth0]", 1)
    with pytest.raises(AddressError, match="in brackets"):
        parse_tcp("tcp://[fe80::1::2]:1")
    for address in ("ipc:///run/agent.sock", "node-a:5555", "tcp://fe80::1:5555"):
        with pytest.raises(AddressError, match="is not an address"):
            parse_tcp(address)


def test_the_address_of_a_unix_socket_is_its_path() -> None:
    assert is_ipc("ipc:///run/agent.sock") and not is_ipc("tcp://h:1")
    assert ipc_path("ipc:///run/agent.sock") == Path("/run/agent.sock")


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("tcp://127.1.2.3:1", True), ("tcp://[::1]:1", True), ("tcp://[::2]:1", False), ("tcp://h:1", False)],
)
def test_loopback_is_an_address_of_this_host_only(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_the_address_of_a_store_has_a_known_scheme_and_no_final_slash() -> None:
    assert check_store("file:///lake/") == "file:///lake"
    assert check_store("s3://lake/chiplog") == "s3://lake/chiplog"
    assert not is_store("/lake")
    for wrong in ("/lake", "http://lake", "file://lake", "s3://"):
        with pytest.raises(AddressError, match=f"{wrong} is no address of a store; give file:///DIRECTORY"):
            check_store(wrong)


def test_a_server_of_s3_that_no_request_can_reach_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    for url, says in (("127.0.0.1:9000", "has no scheme"), ("http://h", "set AWS_ALLOW_HTTP=true")):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert check_store("file:///lake") == "file:///lake"
        for check in (lambda: check_store("s3://lake"), lambda: store_of({"CHIPLOG_STORE": "s3://lake"})):
            with pytest.raises(AddressError, match=f"^AWS_ENDPOINT_URL={url} .*{says}"):
                check()
    monkeypatch.setenv("AWS_ALLOW_HTTP", "True")
    assert check_store("s3://lake") == "s3://lake"


def test_a_bad_store_of_the_environment_is_named_with_its_variable() -> None:
    assert store_of({}) == store_of({"CHIPLOG_STORE": ""}) == ""
    assert store_of({"CHIPLOG_STORE": "s3://bucket/"}) == "s3://bucket"
    with pytest.raises(AddressError, match=r"^CHIPLOG_STORE=bucket is no address of a store; give file:///DIRECTORY"):
        store_of({"CHIPLOG_STORE": "bucket"})


def test_a_directory_that_is_read_as_a_store_exists(tmp_path: Path) -> None:
    check_store_exists("s3://lake/chiplog")
    (tmp_path / "a lake").mkdir()
    check_store_exists(f"file://{tmp_path}/a%20lake")
    with pytest.raises(AddressError, match=f"{tmp_path}/lake is no directory, so no collector publishes to file:"):
        check_store_exists(f"file://{tmp_path}/lake")


def test_the_address_of_an_option_is_host_and_port_or_one_line() -> None:
    assert parse_host_port("--metrics-bind", "9464", "9465") == ("127.0.0.1", 9464)
    assert parse_host_port("--metrics-bind", "[::1]:9464", "9465") == ("::1", 9464)
    with pytest.raises(AddressError, match="has no port"):
        parse_host_port("--metrics-bind", "localhost", "9465")
    for wrong in ("tcp://127.0.0.1:9464", "*:9464", "::1:9464", "a b:9464"):
        with pytest.raises(AddressError, match=r"--metrics-bind .* has no host's name .* such as 127.0.0.1:9464, or 0"):
            parse_host_port("--metrics-bind", wrong, "9465")
