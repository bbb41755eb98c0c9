"""A conversion is complete or absent, and counts what it left out."""

from pathlib import Path

import pytest

from chiplog_client.transfer.exporters import csv_file
from chiplog_client.transfer.exporters.conversion import FORMATS, convert_run, require
from tests.support.exported_run import make_place, served


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with served(make_place(tmp_path)) as client:
        monkeypatch.setattr(csv_file, "write_csv", fail)
        with pytest.raises(OSError, match="No space left"):
            convert_run(client, "whole", tmp_path / "out" / "whole", "csv")
        assert list((tmp_path / "out").iterdir()) == []
        monkeypatch.undo()
        reported: set[str] = set()
        done = convert_run(client, "whole", tmp_path / "out" / "whole", "csv", lambda name, *_: reported.add(name))
        assert (done.written, done.is_running, reported) == ({"points": 189, "texts": 3}, False, {"metrics", "texts"})
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["whole"]
        with pytest.raises(FileExistsError):
            convert_run(client, "whole", tmp_path / "out" / "whole", "csv")


def test_csv_needs_no_library() -> None:
    require("csv")
    assert "csv" in FORMATS
