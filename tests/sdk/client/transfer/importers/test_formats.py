"""Each format has its module, and a path is guessed by name and first bytes; an unknown path is none."""

import inspect
from pathlib import Path

from chiplog_client.transfer.importers.formats import FORMATS, guess_format, importer_of


def test_each_format_has_an_importer_that_takes_any_path_for_a_guess(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    for name in FORMATS:
        module = importer_of(name)
        assert list(inspect.signature(module.read).parameters) == ["path", "options"]
        for path in (tmp_path / "absent", tmp_path / "empty", tmp_path / "folder", Path("/dev/null")):
            assert module.is_one(path) is False, (name, path)
    assert guess_format(tmp_path / "folder") is None


def test_a_csv_file_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,x\n1,2\n")
    assert guess_format(tmp_path / "a.csv") == "csv"
