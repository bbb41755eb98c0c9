"""What another place of a directory still holds, and the lines about it that are printed once per node."""

from pathlib import Path

import pytest

from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.storage import former_places as module
from chiplog_schemas.storage.former_places import MOVING, find_leftovers, new_notices, why_elsewhere


@pytest.fixture
def places(tmp_path: Path) -> Paths:
    found = Paths(tmp_path / "root", tmp_path / "local", tmp_path / "local" / "run", (tmp_path / "root",), True)
    ensure_private_dir(found.local)
    return found


def leave(place: Path) -> None:
    (place / "journals" / ("ab" * 16)).mkdir(parents=True)
    (place / "journals" / f"{MOVING}{'cd' * 16}").mkdir()
    (place / "agent" / "spool").mkdir(parents=True)
    (place / "agent" / "spool" / f"{0:020d}.seg").touch()
    (place / "outbox").mkdir()
    (place / "outbox" / ("e" * 64)).touch()


def test_what_is_left_is_counted(places: Paths) -> None:
    assert find_leftovers(places) == []
    leave(places.root)
    assert [str(left) for left in find_leftovers(places)] == [f"2 journals, a spool, 1 saved file in {places.root}"], (
        "a journal that an agent has begun to move counts"
    )


def test_what_is_left_is_one_line_of_one_process(places: Paths) -> None:
    assert new_notices(places) == []
    leave(places.root)
    [line] = new_notices(places)
    assert line.startswith(f"journals, spool and sockets are now in {places.local} because {places.root} is on ")
    assert f"an agent moves what was left: 2 journals, a spool, 1 saved file in {places.root}" in line
    assert new_notices(places) == []


def test_another_decision_is_one_line_also_if_nothing_is_left(places: Paths) -> None:
    (places.root / "journals").mkdir(parents=True)
    [line] = new_notices(places)
    assert line.startswith(f"journals, spool and sockets are now in {places.local} because {places.root} is on ")
    assert "what was left" not in line
    assert new_notices(places) == []


@pytest.mark.parametrize(
    ("kind", "n_lines"), [("overlay", 1), ("tmpfs", 1), ("fuse.fuse-overlayfs", 1), ("nfs4", 1), ("ext4", 0)]
)
def test_a_substitute_that_is_no_disk_of_this_node_is_one_line(
    places: Paths, kind: str, n_lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "file_system_type", lambda path: kind if path == places.local else "fuse")
    lines = new_notices(places)
    assert len(lines) == n_lines
    assert all("set CHIPLOG_LOCAL_DIR to a directory on a disk of this node" in line for line in lines)
    assert new_notices(places) == []
    own = Paths(places.local, places.local, places.run)
    assert new_notices(own) == [], "what the user chose needs no line"


def test_the_reason_names_the_file_system_or_the_variable(places: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "file_system_type", lambda path: "fuse.juicefs")
    assert why_elsewhere(places) == f"because {places.root} is on fuse.juicefs, which other nodes may share"
    monkeypatch.setenv("CHIPLOG_LOCAL_DIR", "/scratch")
    assert why_elsewhere(places) == "by CHIPLOG_LOCAL_DIR"
    assert why_elsewhere(Paths(places.root, places.root, places.run)) == ""
