"""The directory of an export may have any name: it is never read as a pattern, as Hive partitions, or as SQL."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from chiplog_client.client import Client
from chiplog_client.transfer import chunks, exporter
from chiplog_client.transfer.export_format import TABLES
from chiplog_client.transfer.export_reader import ExportError, ExportReader
from chiplog_client.transfer.exporter import export_run
from chiplog_client.transfer.import_blocks import ImportBlocks
from chiplog_client.transfer.open_directory import OpenDirectory
from chiplog_schemas.query.duckdb_errors import foreign_path_reason
from tests.support.collector_log import contents_of
from tests.support.exported_run import make_place, served
from tests.support.safeguard import proves

pytestmark = pytest.mark.xdist_group("exports")  # one worker makes them
NAMES = (
    *("key=lr", "label=x", "run_id=other", "step=1", "value=2", "attempt=1", "producer=00"),  # columns of the tables
    *("star*", "what?", "[a]", "{a,b}", "back\\slash", "\\*", "*?[\\]"),  # patterns
    *("quo'te", 'quo"te', "$name", "new\nline", "ünï 文", "-dash", "~", "file:", "a b"),
)
DECOYED = ("star*", "what?", "[a]", "{a,b}", "back\\slash", "\\*", "*?[\\]")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with served(make_place(tmp_path_factory.mktemp("place"))) as client:
        yield client


@pytest.fixture(scope="module")
def plain(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export in a directory with a usual name."""
    target = tmp_path_factory.mktemp("plain") / "whole"
    export_run(client, "whole", target)
    return target


def rows_of(export: Path, scratch: Path) -> dict[str, object]:
    """Return the rows of each table, read where the path has no meaning."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(scratch)
    shutil.copytree(export, scratch)
    return {
        path.stem: contents_of(lambda query: duckdb.sql(query).fetchall(), f"'{path}'")
        for path in sorted(scratch.glob("*.parquet"))
    }


@pytest.fixture
def beside(tmp_path: Path, plain: Path) -> Path:
    """A directory with exports that a pattern of NAMES would find as well."""
    for name in ("starA", "whatX", "a", "b", "back/slash", "*", "what"):
        shutil.copytree(plain, tmp_path / "in" / name / "whole")
    return tmp_path / "in"


@pytest.mark.full
def test_an_export_of_many_parts_has_the_rows_of_the_run(
    client: Client, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((chunks, "CHUNK_ROWS"), (chunks, "WIDE_CHUNK_ROWS"), (exporter, "CHUNK_ROWS")):
        monkeypatch.setattr(module, name, 100)  # rows are then read again from parts
    expected = rows_of(plain, tmp_path / "expected")
    assert set(expected) > {"metrics", "texts", "system"} and set(expected) <= {
        *TABLES,
        "producers",
        "system",
        "gpu_events",
    }
    target = tmp_path.joinpath("out", *NAMES, "whole")  # one path has all of them: an export takes a second
    export_run(client, "whole", target)
    assert rows_of(target, tmp_path / "found") == expected


@proves("export-opened-by-descriptor", "an import of `star*` does not read `starA`", value="str(self.path)")
def test_an_export_is_read_under_its_own_name_only(plain: Path, beside: Path, tmp_path: Path) -> None:
    def blocks_of(export: Path, scratch: Path) -> list[bytes]:
        scratch.mkdir(parents=True)
        with ExportReader(export, scratch) as reader:
            assert reader.n_points == 189
            blocks = ImportBlocks(reader)
            found = list(blocks.blocks())
            assert blocks.n_done == blocks.n_rows
            return found

    expected = blocks_of(plain, tmp_path / "scratch")
    # All names in one path, then those that would find other exports.
    for export in (beside.joinpath(*NAMES, "whole"), *(beside / name / "whole" for name in DECOYED)):
        if not export.exists():
            shutil.copytree(plain, export)
        scratch = tmp_path / "tmp" / export.parent.name  # the user's choice, too: TMPDIR
        if foreign_path_reason(scratch / "x"):
            with pytest.raises(ExportError, match="set TMPDIR to another directory"):
                blocks_of(export, scratch)
            scratch = tmp_path / "tmp" / "usual" / export.parent.name.replace("\\", "x").replace("?", "y")
        assert blocks_of(export, scratch) == expected, export


def test_a_relative_name_is_below_the_working_directory(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("~", "file:", "-dash"):
        with OpenDirectory(Path(shutil.copytree(plain, name))) as directory:
            assert duckdb.sql(f"SELECT count(*) FROM {directory.rows('metrics.parquet')}").fetchall() == [(189,)]
            duckdb.sql(f"COPY (SELECT 1) TO {directory.target('new.parquet')} (FORMAT parquet)")
        assert (tmp_path / name / "new.parquet").exists()
