"""The CHIPLOG_DIR of a process that only reads. As a child of a run: tests/sdk/identity/test_inherited_env.py."""

from pathlib import Path

import pytest

from chiplog.identity.identity import Identity, encode_parent_run
from chiplog_schemas.process.inherited_run import PARENT_RUN, encode_places
from chiplog_schemas.process.recording_dir import recording_dir


def test_an_argument_wins_over_the_directory_of_an_ancestor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPLOG_DIR", "data")
    places = encode_places({"CHIPLOG_DIR": "data"}, {"CHIPLOG_DIR": "/there"})
    monkeypatch.setenv(PARENT_RUN, encode_parent_run(99, "r", Identity("r", "x", "launch"), places=places))
    assert recording_dir(None) == Path("/there")
    assert recording_dir(tmp_path) == tmp_path
    monkeypatch.setenv("CHIPLOG_DIR", str(tmp_path / "own"))
    assert recording_dir(None) == tmp_path / "own"
