"""An export is checked before anything of it is sent: each kind of damage is one line that names it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.support.exported_run import SAVES, export_of_whole
from tests.support.safeguard import Safeguard

from chiplog.transfer.export_reader import ExportError, ExportReader

SAFEGUARDS = [
    Safeguard(
        "an export of a newer version is not imported as if it were understood",
        "newer-export-refused",
        condition=False,
        test="test_what_is_wrong_is_named_in_one_line",
    ),
    Safeguard(
        "a damaged table is not imported",
        "damaged-table-refused",
        condition=False,
        test="test_what_is_wrong_is_named_in_one_line",
    ),
    Safeguard(
        "a run is not imported without one of its saved files, or with a damaged one",
        "damaged-file-refused",
        condition=False,
        test="test_what_is_wrong_is_named_in_one_line",
    ),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_of_whole(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def export(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "whole"))


def read(export: Path, scratch: Path) -> dict[str, Path]:
    scratch.mkdir()
    with ExportReader(export, scratch) as reader:
        assert reader.run["run_id"] == "whole"
        assert reader.n_points == 189
        assert list(reader.rows("SELECT ?::INTEGER", [5])) == [(5,)]
        assert reader.has("metrics")
        assert not reader.has("media")
        return reader.contents


def test_a_sound_export_names_its_files(export: Path, tmp_path: Path) -> None:
    contents = read(export, tmp_path / "scratch")
    assert sorted(path.read_bytes() for path in contents.values()) == sorted(data for _, data in SAVES)


def edit(export: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads((export / "run.json").read_text())
    change(content)
    (export / "run.json").write_text(json.dumps(content))


def rewrite(export: Path, table: str, query: str) -> None:
    """Replace a table by a query of it, and its digest."""
    import hashlib

    path = export / f"{table}.parquet"
    duckdb.execute(f"COPY ({query.format(table=f'{path!s}')}) TO '{path}.new' (FORMAT parquet)")
    (export / f"{table}.parquet.new").rename(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(export, lambda content: content["tables"][path.name].update(sha256=digest))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no export": (lambda e: (e / "run.json").unlink(), "is no export of chiplog: name a directory with run.json"),
    "no directory": (shutil.rmtree, "is no export of chiplog"),
    "no JSON": (lambda e: (e / "run.json").write_text("{"), "run.json cannot be read: "),
    "other JSON": (lambda e: (e / "run.json").write_text("[]"), "is no export of chiplog"),
    "other format": (lambda e: edit(e, lambda c: c.update(format="x")), "is no export of chiplog"),
    "newer": (lambda e: edit(e, lambda c: c.update(version=2)), "its version 2 is newer than 1; install that release"),
    "no version": (lambda e: edit(e, lambda c: c.update(version="1")), "its version '1' is no number"),
    "no run": (lambda e: edit(e, lambda c: c.pop("run")), "run.json lacks run"),
    "no run ID": (lambda e: edit(e, lambda c: c["run"].update(run_id="")), "run ID '' is none"),
    "lost table": (lambda e: (e / "texts.parquet").unlink(), "texts.parquet cannot be read: No such file"),
    "damaged table": (lambda e: flip(e / "metrics.parquet"), "metrics.parquet is damaged or was changed"),
    "changed table": (
        lambda e: duckdb.execute(f"COPY (SELECT 1 AS x) TO '{e}/texts.parquet'"),
        "texts.parquet is damaged or was changed",
    ),
    "foreign table": (lambda e: rewrite(e, "texts", "SELECT 1 AS x"), "texts.parquet has no column run_id of type"),
    "other type": (
        lambda e: rewrite(e, "metrics", "SELECT * REPLACE (value::VARCHAR AS value) FROM '{table}'"),
        "metrics.parquet has no column value of type DOUBLE",
    ),
    "unknown table": (
        lambda e: edit(e, lambda c: c["tables"].update({"../x.parquet": {}})),
        "run.json lists '../x.parquet', which is no table of an export",
    ),
    "no producers": (lambda e: edit(e, lambda c: c["tables"].pop("producers.parquet")), "it has no producers.parquet"),
    "bad producer": (
        lambda e: rewrite(e, "producers", "SELECT * REPLACE ('x' AS producer) FROM '{table}'"),
        "producer 'x' is not 32 hex digits",
    ),
    "nothing stored": (
        lambda e: rewrite(
            e,
            "producers",
            "SELECT * REPLACE ([]::STRUCT(first_seq BIGINT, last_seq BIGINT)[] AS stored) FROM '{table}'",
        ),
        "has no stored events",
    ),
    "unknown producer": (
        lambda e: rewrite(e, "texts", "SELECT * REPLACE ('x' AS producer) FROM '{table}'"),
        "texts.parquet has rows of 'x', which no producer is",
    ),
    "damaged file": (lambda e: flip(e / "files" / "ckpt"), "is missing or damaged; export the run again"),
    "lost file": (lambda e: shutil.rmtree(e / "contents"), "is missing or damaged; export the run again"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_in_one_line(export: Path, tmp_path: Path, what: str) -> None:
    spoil, message = WRONG[what]
    spoil(export)
    with pytest.raises(ExportError) as raised:
        read(export, tmp_path / "scratch")
    text = str(raised.value)
    assert text.startswith(str(export))
    assert message in text
    assert "\n" not in text


def test_a_file_that_is_a_link_is_not_followed(export: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"a file")
    (export / "files" / "ckpt").unlink()
    (export / "files" / "ckpt").symlink_to(tmp_path / "secret")
    with pytest.raises(ExportError, match="is missing or damaged"):
        read(export, tmp_path / "scratch")
