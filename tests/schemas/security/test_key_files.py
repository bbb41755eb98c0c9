"""Keys as files: files that others could read or write are refused, and an unreadable list admits no client."""

import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from chiplog_schemas.security.key_files import (
    POLL_INTERVAL_S,
    AllowList,
    KeyPair,
    Keys,
    KeysError,
    PublicKey,
    key_name,
    keys_dir,
    node_pattern,
    read_permit,
    read_public,
    write_pair,
    write_permit,
    write_toml,
)
from chiplog_schemas.security.permissions import Permission, Role, scoped_sender_id
from tests.support.keys import new_pair
from tests.support.safeguard import proves
from tests.support.tools import ROOT, needs
from tests.support.waiting import WAIT_S


def permit_of(pair: KeyPair, *nodes: str, roles: tuple[str, ...] = ("agent",)) -> Permission:
    return Permission(pair.name, frozenset(roles), nodes, pair.public)


def test_a_key_is_read_as_it_was_written_and_its_secret_is_of_its_owner_alone(keys: Keys) -> None:
    pair = new_pair()
    secret, public = write_pair(keys.directory, pair)
    assert keys.pair(Role.AGENT) == pair
    assert keys.server(Role.AGENT) == read_public(public) == PublicKey("node1", "agent", pair.public)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert pair.secret not in public.read_text()
    assert sorted(path.name for path in keys.directory.iterdir()) == ["agent.key", "agent.pub", "allowed"]


def test_a_key_is_never_overwritten(keys: Keys) -> None:
    pair = new_pair()
    write_pair(keys.directory, pair)
    with pytest.raises(FileExistsError):
        write_pair(keys.directory, new_pair())
    assert keys.pair(Role.AGENT) == pair
    assert read_public(keys.directory / "agent.pub").public == pair.public


def test_keys_that_are_not_there_are_none(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "nowhere")
    assert keys.pair(Role.AGENT) is None
    assert keys.server(Role.COLLECTOR) is None
    assert AllowList(keys.allowed).find("x" * 40, 0.0) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_that_others_can_read_is_refused(keys: Keys, mode: int) -> None:
    secret, _ = write_pair(keys.directory, new_pair())
    os.chmod(secret, mode)
    with pytest.raises(KeysError, match="chmod 600"):
        keys.pair(Role.AGENT)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_can_write_is_refused(keys: Keys, mode: int) -> None:
    pair = new_pair()
    write_pair(keys.directory, pair)
    os.chmod(keys.directory, mode)
    for read in (keys.pair, keys.server):
        with pytest.raises(KeysError, match="chmod go-w"):
            read(Role.AGENT)


@needs(ROOT)
def test_a_directory_and_a_secret_of_somebody_else_are_refused(keys: Keys) -> None:
    secret, _ = write_pair(keys.directory, new_pair())
    os.chown(secret, 65534, 65534)
    with pytest.raises(KeysError, match="chown"):
        keys.pair(Role.AGENT)
    os.chown(secret, 0, 0)
    os.chown(keys.directory, 65534, 65534)
    with pytest.raises(KeysError, match="belongs to uid 65534"):
        keys.pair(Role.AGENT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no toml",
        "name = 'a'",
        "name = 1\nrole = 'agent'\npublic = 'x'",
        "name = 'a'\nrole = 'agent'\npublic = 'short'",
        "name = '../a'\nrole = 'agent'\npublic = '" + "x" * 40 + "'",
        "name = 'a'\nrole = 'king'\npublic = '" + "x" * 40 + "'",
        "a = [[[[" * 500,
        "x" * 20_000,
        "\ud800",
    ],
)
def test_a_file_that_is_no_key_is_refused_in_one_line_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.pub"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for read in (read_public, read_permit):
        with pytest.raises(KeysError) as caught:
            read(path)
        assert str(path) in str(caught.value) or "../a" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "a b", "a\n", "ä", "x" * 65])
def test_a_key_name_is_a_safe_file_name(name: str) -> None:
    with pytest.raises(KeysError):
        key_name(name)


@pytest.mark.parametrize("node", ["", "a b", "a\n", "x" * 129])
def test_a_node_is_one_word(node: str) -> None:
    with pytest.raises(KeysError):
        node_pattern(node)


def test_a_permit_speaks_for_its_nodes_alone() -> None:
    permit = Permission("a", frozenset({"agent"}), ("node1", "gpu-*"), "x")
    for node in ("node1", "gpu-7", "gpu-"):
        assert permit.denial_reason(node) is None
    for other in ("node2", "node", "xgpu-7", "NODE1", "", None, 7, b"node1", ["node1"]):
        assert permit.denial_reason(other) is not None
        assert "\n" not in str(permit.denial_reason(other))
    assert Permission("a", frozenset({"agent"}), (), "x").denial_reason("node1") is not None


def test_a_sender_has_another_id_with_each_key() -> None:
    sender = bytes(range(16))
    one, other = (Permission(name, frozenset(), (), "x") for name in ("one", "other"))
    assert len({sender, scoped_sender_id(sender, one), scoped_sender_id(sender, other)}) == 3
    assert scoped_sender_id(sender, one) == scoped_sender_id(sender, one)
    assert len(scoped_sender_id(sender, one)) == 16


# -- the list of allowed keys --


def test_the_list_follows_its_directory(keys: Keys) -> None:
    allowed, now = AllowList(keys.allowed), 100.0
    pair = new_pair()
    assert allowed.find(pair.public, now) is None
    permit = permit_of(pair, "node1")
    path = write_permit(keys.allowed, permit)
    assert allowed.find(pair.public, now + POLL_INTERVAL_S / 2) is None
    assert allowed.find(pair.public, now := now + POLL_INTERVAL_S) == permit
    write_permit(keys.allowed, changed := permit_of(pair, "node2", roles=("agent", "reader")))
    assert allowed.find(pair.public, now := now + POLL_INTERVAL_S) == changed
    path.unlink()
    assert allowed.find(pair.public, now + POLL_INTERVAL_S) is None
    assert allowed.name_of(pair.public) == "node1"


def test_a_bad_file_costs_itself_and_is_said_once(keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    pair = new_pair()
    write_permit(keys.allowed, permit_of(pair, "node1"))
    (keys.allowed / "bad.pub").write_text("no toml")
    (keys.allowed / "dir.pub").mkdir()
    write_permit(keys.allowed, permit_of(new_pair(name="loose")))
    os.chmod(keys.allowed / "loose.pub", 0o666)
    twin = permit_of(KeyPair("zwin", "agent", pair.public, ""), "*")
    write_permit(keys.allowed, twin)
    allowed = AllowList(keys.allowed)
    with caplog.at_level(logging.WARNING):
        for look in range(5):
            os.utime(keys.allowed / "bad.pub", ns=(look, look))
            found = allowed.find(pair.public, look * POLL_INTERVAL_S)
            assert found is not None and found.nodes == ("node1",)
    assert len(caplog.records) == 4
    assert all("skipped" in record.getMessage() for record in caplog.records)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory)


def _open_to_all(directory: Path) -> None:
    os.chmod(directory, 0o777)


def _replace_by_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("")


@pytest.mark.parametrize("spoil", [_remove, _open_to_all, _replace_by_file])
def test_whatever_keeps_us_from_the_list_lets_nobody_in_until_it_is_mended(
    keys: Keys, spoil: Callable[[Path], None]
) -> None:
    pair = new_pair()
    write_permit(keys.allowed, permit_of(pair, "node1"))
    allowed = AllowList(keys.allowed)
    assert allowed.find(pair.public, 0.0) is not None
    spoil(keys.allowed)
    assert allowed.find(pair.public, 1.0) is None
    if keys.allowed.is_file():
        keys.allowed.unlink()
    keys.allowed.mkdir(exist_ok=True)
    os.chmod(keys.allowed, 0o700)
    write_permit(keys.allowed, permit_of(pair, "node1"))
    assert allowed.find(pair.public, 2.0) is not None


class Interrupted(AllowList):
    """A list that suspends one of its threads between two stores of its state."""

    def __init__(self, directory: Path) -> None:
        self.is_between, self.go_on = threading.Event(), threading.Event()
        super().__init__(directory)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_permits" and threading.current_thread().name == "handler":
            self.is_between.set()
            assert self.go_on.wait(WAIT_S)
        super().__setattr__(name, value)


@proves(
    "key-list-read-under-lock",
    "a revoked key is rejected, whichever two threads read the list at the same time",
    new="if True:",
)
def test_a_key_that_is_revoked_while_another_thread_looks_does_not_stay(keys: Keys) -> None:
    revoked, other = new_pair(), new_pair(name="node2")
    path = write_permit(keys.allowed, permit_of(revoked, "node1"))
    allowed = Interrupted(keys.allowed)
    assert allowed.find(revoked.public, 0.0) is not None
    write_permit(keys.allowed, permit_of(other, "node2"))
    handler = threading.Thread(target=allowed.find, args=(revoked.public, 1.0), name="handler")
    handler.start()
    assert allowed.is_between.wait(WAIT_S)
    path.unlink()
    loop = threading.Thread(target=allowed.find, args=(revoked.public, 2.0))
    loop.start()
    loop.join(0.5)  # with a lock it waits for the other, without one it is through by then
    allowed.go_on.set()
    handler.join()
    loop.join()
    for now in (3.0, 10.0, 100.0):
        assert allowed.find(revoked.public, now) is None
    assert allowed.find(other.public, 100.0) is not None


def test_half_written_files_are_never_seen(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    pair = new_pair()
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_toml(keys.allowed / "a.pub", {"name": "a"})
    monkeypatch.undo()
    assert list(keys.allowed.iterdir()) == []
    (keys.allowed / ".a.pub.1").write_text("half")
    assert AllowList(keys.allowed).find(pair.public, 0.0) is None


def test_the_directory_is_the_argument_else_the_variable_else_under_chiplog_dir(tmp_path: Path) -> None:
    assert keys_dir("/a", {"CHIPLOG_KEYS": "/b"}, tmp_path) == Path("/a")
    assert keys_dir(None, {"CHIPLOG_KEYS": "/b/../c"}, tmp_path) == Path("/c")
    assert keys_dir(None, {}, tmp_path) == tmp_path / "keys"
