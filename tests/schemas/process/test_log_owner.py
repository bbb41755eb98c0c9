"""Never two writers of one log: what a lock decides on a local disk, and a record on a file system that nodes share."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chiplog_schemas.paths import Paths
from chiplog_schemas.process import log_owner as module
from chiplog_schemas.process.log_owner import (
    LogOwnership,
    OwnedElsewhereError,
    belongs_elsewhere,
    may_write_log,
    read_owner,
    served_elsewhere,
)
from tests.support.safeguard import proves
from tests.support.threads import run_side_by_side
from tests.support.waiting import WAIT_S, wait_until


@pytest.fixture
def local(tmp_path: Path) -> Paths:
    return Paths(tmp_path, tmp_path, tmp_path / "run")


@pytest.fixture
def shared(local: Paths) -> Paths:
    return replace(local, may_be_shared=True)


@pytest.fixture(autouse=True)
def short_watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "_POLL_S", 0.02)
    monkeypatch.setattr(module, "WATCH_S", 0.5)
    monkeypatch.setattr(module, "RENEW_S", 0.05)
    yield


class Machine:
    """This process on another machine, or in another boot or container of this one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._patch, self._name = monkeypatch, name

    def __call__(self, machine: str | None = None, boot: str = "", world: int = 1) -> None:
        self._patch.setattr(module, "machine_id", lambda: self._name if machine is None else machine)
        self._patch.setattr(module, "boot_id", lambda: boot or f"boot of {self._name}")
        self._patch.setattr(module, "pid_namespace", lambda: world)
        self._patch.setattr(module.socket, "gethostname", lambda: self._name)


@pytest.fixture
def node1(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch, "node1")


@pytest.fixture
def node2(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch, "node2")


@proves("host-name-irrelevant-on-local-disk", "the name of a host does not count on a local disk")
def test_on_a_local_disk_a_new_host_name_or_machine_changes_nothing(
    local: Paths, node1: Machine, node2: Machine
) -> None:
    node1()
    LogOwnership(local)
    node2()
    assert served_elsewhere(local) == ""
    assert may_write_log(local)
    LogOwnership(local)
    assert [path.name for path in local.collector.glob("owner-*")] == ["owner-000002"]


@proves("log-of-another-machine-left-alone", "no machine takes over the log of another one by itself", new="pass")
def test_another_machine_does_not_take_over_by_itself(shared: Paths, node1: Machine, node2: Machine) -> None:
    node1()
    LogOwnership(shared).release()
    assert served_elsewhere(shared) == ""
    node2()
    line = (
        f"the data in {shared.collector} belongs to the collector of host node1; what is logged here waits in "
        f"{shared.local}; set CHIPLOG_COLLECTOR to the address of that collector, or if that host is gone, run "
        "`chiplog up --take-over node1`"
    )
    assert served_elsewhere(shared) == line
    assert not may_write_log(shared)
    for named in ("", "node3"):
        with pytest.raises(OwnedElsewhereError, match="belongs to the collector of host node1; set CHIPLOG_COLLECTOR"):
            LogOwnership(shared, take_over=named)
    LogOwnership(shared, take_over="node1")
    assert read_owner(shared.collector).host == "node2"
    node1()
    assert "belongs to the collector of host node2" in served_elsewhere(shared)


@proves("renewed-record-not-taken-over", "a record that is renewed is not taken over", condition=False)
def test_a_living_owner_is_not_replaced_even_on_demand(shared: Paths, node1: Machine, node2: Machine) -> None:
    node1()
    alive = LogOwnership(shared)
    alive.renew_in_background()
    node2()
    with pytest.raises(OwnedElsewhereError, match="host node1, which runs; stop it there first"):
        LogOwnership(shared, take_over="node1")
    node1(boot="another container of the machine, or a clone of its disk")
    with pytest.raises(OwnedElsewhereError, match="which runs"):
        LogOwnership(shared)
    alive.release()


def test_the_former_boot_of_this_machine_is_followed_once_it_is_silent(shared: Paths, node1: Machine) -> None:
    node1(boot="former")
    LogOwnership(shared)
    node1()
    assert served_elsewhere(shared) == ""
    assert not may_write_log(shared), "a reader does not wait until the record is silent"
    LogOwnership(shared)
    assert read_owner(shared.collector).generation == 2


def test_containers_without_a_machine_id_are_told_apart_by_boot_and_life(
    shared: Paths, node1: Machine, node2: Machine
) -> None:
    node1(machine="", boot="one kernel", world=1)
    alive = LogOwnership(shared)
    alive.renew_in_background()
    node1(machine="", boot="one kernel", world=2)
    with pytest.raises(OwnedElsewhereError, match="which runs"):
        LogOwnership(shared)
    assert "belongs to the collector of host node1; what is logged here waits in" in served_elsewhere(shared)
    assert belongs_elsewhere(shared) == "", "an agent here starts a collector, which waits for the other one's end"
    node1(machine="", boot="another kernel")
    with pytest.raises(OwnedElsewhereError, match="run `chiplog up --take-over node1`"):
        LogOwnership(shared)
    alive.release()
    node1(machine="", boot="one kernel", world=2)
    assert served_elsewhere(shared) == ""


def test_a_machine_with_the_same_id_names_the_collector_of_the_other_one(
    shared: Paths, node1: Machine, node2: Machine
) -> None:
    """The nodes of a cluster may have been installed from one image."""
    node1(machine="of the image")
    alive = LogOwnership(shared)
    node2(machine="of the image")
    assert "belongs to the collector of host node1; what is logged here waits in" in served_elsewhere(shared)
    node1(machine="of the image", boot="next")
    assert served_elsewhere(shared) == "", "the next boot follows the former one"
    node1(machine="of the image")
    alive.release()
    node2(machine="of the image")
    assert served_elsewhere(shared) == ""


def test_a_killed_owner_of_this_boot_is_followed_at_once(
    shared: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import sys; from dataclasses import replace; from pathlib import Path; "
        "from chiplog_schemas.paths import Paths;"
        "from chiplog_schemas.process.log_owner import LogOwnership; root = Path(sys.argv[1]);"
        "LogOwnership(Paths(root, root, root / 'run', (), True)); print('owns', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=-1, stdout=-1)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"owns\n"
    with pytest.raises(OwnedElsewhereError, match="which runs"), monkeypatch.context() as patch:
        patch.setattr(module, "_is_renewed", lambda places, former: True)
        LogOwnership(shared)
    process.kill()
    process.communicate()
    monkeypatch.setattr(module, "WATCH_S", 3600.0)
    assert may_write_log(shared)
    LogOwnership(shared)


@proves(
    "one-claim-of-two-succeeds",
    "of two claims at the same time one succeeds",
    part="replaces=False",
    new="replaces=True",
)
def test_of_two_claims_at_the_same_time_one_succeeds(
    shared: Paths, node1: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    node1(boot="former")
    LogOwnership(shared).release()
    node1()
    both_read = threading.Barrier(2)
    decided = module._require_ended

    def wait_for_the_other(*arguments: object) -> None:
        decided(*arguments)  # type: ignore[arg-type]
        both_read.wait(WAIT_S)

    monkeypatch.setattr(module, "_require_ended", wait_for_the_other)
    won: list[LogOwnership] = []

    def claim(number: int) -> None:
        try:
            won.append(LogOwnership(shared))
        except OwnedElsewhereError as error:
            assert "was claimed by another collector just now" in str(error)

    # atomic_write() names its temporary file by the process: two machines have two, threads take turns.
    write, turn = module.atomic_write, threading.Lock()

    def write_in_turn(*arguments: object, **options: object) -> None:
        with turn:
            write(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "atomic_write", write_in_turn)
    run_side_by_side(claim, range(2))
    assert len(won) == 1


@proves("stalled-owner-checks-record", "an owner that stood still checks its record before it writes", condition=False)
def test_an_owner_that_stood_still_notices_its_successor_before_it_writes(
    shared: Paths, node1: Machine, node2: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    node1()
    stalled = LogOwnership(shared)
    stalled.confirm()
    now_s = module._now_s
    node2()
    LogOwnership(shared, take_over="node1")
    monkeypatch.setattr(module, "_now_s", lambda: now_s() + 60.0)
    with pytest.raises(OwnedElsewhereError, match="host node2"):
        stalled.confirm()
    assert "host node2" in stalled.renew()
    stalled.release()
    assert read_owner(shared.collector).host == "node2"


def test_an_owner_that_cannot_reach_its_record_does_not_write(shared: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = LogOwnership(shared)
    now_s = module._now_s
    monkeypatch.setattr(module, "_now_s", lambda: now_s() + 60.0)

    def refuse(collector: Path) -> None:
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as hung:
        hung.setattr(module, "read_owner", refuse)
        with pytest.raises(OSError, match="Stale"):
            owner.confirm()
        assert owner.renew() == "", "it may be back in a moment"
    owner.confirm()


@pytest.mark.parametrize("name", ["node1", "former"])
def test_the_record_of_an_earlier_version_names_only_a_host(shared: Paths, node1: Machine, name: str) -> None:
    node1()
    shared.collector.mkdir()
    (shared.collector / "host").write_text(f"{name}\n")
    if name == "node1":
        assert served_elsewhere(shared) == "" and may_write_log(shared)
        LogOwnership(shared)
    else:
        assert "host former" in served_elsewhere(shared)
        with pytest.raises(OwnedElsewhereError):
            LogOwnership(shared)
        LogOwnership(shared, take_over="former")
    assert (shared.collector / "host").read_text() == "node1", "an earlier version elsewhere starts no collector"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": 1}', b'{"host": 1, "machine": {}, "x": 0}', b"\xff"])
def test_a_record_that_cannot_be_read_is_another_machines(shared: Paths, content: bytes) -> None:
    shared.collector.mkdir()
    (shared.collector / "owner-000007").write_bytes(content)
    with pytest.raises(OwnedElsewhereError):
        LogOwnership(shared)
    assert not may_write_log(shared)


def test_a_service_is_left_to_its_operator(local: Paths) -> None:
    assert not may_write_log(local), "no collector has recorded that the log is its own"
    LogOwnership(local, is_service=True).release()
    assert not may_write_log(local)
    LogOwnership(local).release()
    assert may_write_log(local)


def test_a_record_has_what_it_promises(shared: Paths) -> None:
    owner = LogOwnership(shared)
    wait_until(lambda: owner.renew() or read_owner(shared.collector).renewals >= 2, "renewals")
    found = json.loads((shared.collector / "owner-000001").read_bytes())
    assert found["machine"] == module.machine_id() and found["boot"] == module.boot_id() and not found["has_ended"]
    owner.release()
    assert read_owner(shared.collector).has_ended
