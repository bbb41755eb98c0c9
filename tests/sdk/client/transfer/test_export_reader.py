"""An export is checked before anything of it is sent: each kind of damage is one line that names it."""

import os
import re
import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chiplog_client.transfer.export_format import PARQUET_FILES
from chiplog_client.transfer.export_reader import ExportError, ExportReader
from chiplog_client.transfer.import_blocks import ImportBlocks
from tests.support.exported_run import edit, export_of_whole, rewrite, stored_contents
from tests.support.marks import everyday
from tests.support.safeguard import proves

pytestmark = pytest.mark.xdist_group("exports")  # one worker makes them


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
        assert not reader.has("videos")
        return reader.contents


def test_a_sound_export_names_its_files(export: Path, tmp_path: Path) -> None:
    contents = read(export, tmp_path / "scratch")
    assert sorted(path.read_bytes() for path in contents.values()) == sorted(stored_contents())


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
    "seq out of range": (
        lambda e: rewrite(e, "texts", "SELECT * REPLACE (1::BIGINT << 53 AS seq) FROM '{table}'"),
        "texts.parquet has 3 rows that no run has: seq >= 9007199254740992",
    ),
    "stored seqs out of range": (
        lambda e: rewrite(
            e,
            "producers",
            "SELECT * REPLACE ([{'first_seq': 0::BIGINT, 'last_seq': 1::BIGINT << 53}] AS stored) FROM '{table}'",
        ),
        "are no ranges",
    ),
    "damaged file": (lambda e: flip(e / "files" / "ckpt"), "a file is missing or damaged: "),
    "lost file": (lambda e: shutil.rmtree(e / "contents"), "a file is missing or damaged: "),
}


@proves(
    "newer-export-refused", "an export of a newer version is not imported as if it were understood", condition=False
)
@proves("damaged-table-refused", "a damaged table is not imported", condition=False)
@proves(
    "damaged-file-refused",
    "a run is not imported without one of its saved files, or with a damaged one",
    condition=False,
)
@pytest.mark.parametrize("what", everyday(12, WRONG))
def test_what_is_wrong_is_named_in_one_line(export: Path, tmp_path: Path, what: str) -> None:
    spoil, message = WRONG[what]
    spoil(export)
    with pytest.raises(ExportError) as raised:
        read(export, tmp_path / "scratch")
    text = str(raised.value)
    assert text.startswith(str(export))
    assert message in text
    assert "\n" not in text


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def replace_by_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(path))


def empty(path: Path) -> None:
    path.write_bytes(b"")


FILE_CHANGES = (
    *(Path.unlink, truncate, flip, empty),
    *(replace_by_directory, replace_by_pipe, replace_by_link, replace_by_socket),
)


@proves("export-pipe-not-awaited", "a pipe in an export does not stop the import", part="os.O_NONBLOCK", new="0")
@pytest.mark.timeout(60)  # a pipe that is opened blocks
@pytest.mark.parametrize("change", everyday(3, FILE_CHANGES), ids=lambda change: change.__name__)
def test_each_changed_file_is_named_in_one_line(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], Any]
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with ExportReader(export, tmp_path) as reader:
        needed = {path for path in reader.contents.values() if path.stat().st_size or change is not empty}
    names = ["run.json", "metrics.parquet", "producers.parquet", *(str(path.relative_to(export)) for path in needed)]
    for number, name in enumerate(names):
        changed = Path(shutil.copytree(export, tmp_path / f"changed{number}"))
        if change in (truncate, flip) and (name == "run.json" or not (changed / name).stat().st_size):
            continue  # a change of one bit in run.json may be harmless
        change(changed / name)
        with pytest.raises(ExportError) as raised:
            read(changed, tmp_path / f"scratch{number}")
        text = str(raised.value)
        assert text.startswith(str(changed)) and name in text and "\n" not in text, text


@proves("export-link-refused", "an import reads no file outside of the export", part="| os.O_NOFOLLOW ")
def test_a_link_above_a_saved_file_is_not_followed(export: Path, tmp_path: Path) -> None:
    for name in ("files", "contents"):
        changed = Path(shutil.copytree(export, tmp_path / name))
        replace_by_link(changed / name)
        with pytest.raises(ExportError, match=f"{name} is a link, which is not followed"):
            read(changed, tmp_path / f"scratch-{name}")


ODD = "SELECT * REPLACE ({value}::{kind} AS {column}) FROM '{{table}}'"
# Values that no run has: by table, an expression for each column.
ODD_VALUES = {
    "producers": {"stored": ["[NULL]", "[{'first_seq': 5, 'last_seq': 1}]", "[{'first_seq': NULL, 'last_seq': 1}]"]},
    "metrics": {"key": ["NULL"], "step": ["NULL"], "seq": ["NULL", "-1"], "ts": ["'infinity'"], "value": ["NULL"]},
    "histograms": {"edges": ["NULL", "[NULL]"], "counts": ["[1, NULL]"]},
    "console": {"stream": ["'x'", "NULL"], "line_no": ["NULL"]},
    "config_hashes": {"hashes": ["'x'", "NULL"]},
    "saves": {"sha256": ["'../../x'", "repeat('g', 64)", "NULL"]},
    "system": {"node": ["NULL"], "name": ["NULL"]},
}
ODD_FIELDS: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("run", lambda c: c["run"].update(run_id="\ud800")),
    ("run", lambda c: c["run"].update(project=5)),
    ("run", lambda c: c["run"].update(primary_restart=1 << 70)),
    ("run", lambda c: c["run"].update(tags="x")),
    ("metrics.parquet", lambda c: c["tables"].update({"metrics.parquet": None})),
    ("metrics.parquet", lambda c: c["tables"]["metrics.parquet"].update(rows="x")),
    ("tables", lambda c: c.update(tables=[])),
]


@proves("impossible-rows-refused", "rows that no run has are refused before anything is sent", condition=False)
@pytest.mark.full
def test_each_odd_value_is_named_in_one_line(export: Path, tmp_path: Path) -> None:
    changes: list[tuple[str, Callable[[Path], Any]]] = [
        (
            f"{table}.parquet",
            partial(rewrite, table=table, query=f"SELECT * REPLACE ({value}::{kind} AS {column}) FROM '{{table}}'"),
        )
        for table, columns in ODD_VALUES.items()
        for column, values in columns.items()
        for kind in [PARQUET_FILES[table][column]]
        for value in values
    ]
    changes += [(f"run.json .*{name}", partial(edit, change=change)) for name, change in ODD_FIELDS]
    changes += [("run.json", lambda e: (e / "run.json").write_text("[" * 100_000))]
    for number, (named, change) in enumerate(changes):
        changed = Path(shutil.copytree(export, tmp_path / f"changed{number}"))
        change(changed)
        (tmp_path / f"scratch{number}").mkdir()
        with pytest.raises(ExportError) as raised, ExportReader(changed, tmp_path / f"scratch{number}") as reader:
            blocks = ImportBlocks(reader)
            blocks.check()
            list(blocks.blocks())
        text = str(raised.value)
        assert text.startswith(str(changed)) and re.search(named, text) and "\n" not in text, (number, text)


def test_a_file_that_is_a_link_is_not_followed(export: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"a file")
    (export / "files" / "ckpt").unlink()
    (export / "files" / "ckpt").symlink_to(tmp_path / "secret")
    with pytest.raises(ExportError, match="ckpt is a link, which is not followed"):
        read(export, tmp_path / "scratch")
