"""What an importer yields is in SQL: every part, in its place, once; a second import changes nothing."""

import hashlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chiplog_client.transfer.importers.export_writer import write_exports
from chiplog_client.transfer.importers.imported_run import (
    Config,
    ConsoleLine,
    Definition,
    End,
    HistogramOf,
    ImportedRun,
    ImporterError,
    Label,
    MediaOf,
    Notice,
    Part,
    Points,
    RunTag,
    SavedFile,
    Summary,
    SystemSample,
    Text,
    Unmapped,
)
from tests.support.imported_runs import import_parts
from tests.support.index import Index
from tests.support.safeguard import proves

T0 = 1_700_000_000_000_000


def described(path: Path) -> list[Part]:
    """Return a run with each kind of part, on two labels, and a second run."""
    (path / "ckpt.pt").write_bytes(b"weights")
    return [
        ImportedRun(source=path, run_id="r1", project="p", name="first", host="h", created_us=T0, tags=["a", "\ud800"]),
        Label(label="rank1", rank=1, world_size=2),
        Config(values={"lr": 0.1, "deep": {"a": [1, None]}, "nan": math.nan, "gone": 1}, ts=T0),
        Config(values={"lr": 0.2}, ts=T0 + 1),
        Points(
            keys=["loss", "acc"],
            key_of=np.array([0, 1, 0]),
            steps=np.array([5, 5, -(1 << 63)]),
            times=np.array([T0, T0, T0 + 1]),
            values=np.array([0.5, math.nan, math.inf]),
            rows=np.array([7, 7, 9]),
        ),
        Points.of_series("loss", np.array([1, 1]), np.array([T0, T0]), np.array([1.0, 2.0]), "rank1"),
        Text(key="note", step=3, ts=T0, value="ü \ud800"),
        HistogramOf(key="w", step=3, ts=T0, edges=[0, 1, math.inf], counts=[3, 4]),
        MediaOf(key="pic", step=4, ts=T0, kind="image", content=b"png", metadata={"caption": "c", "item": 0}),
        ConsoleLine(line="one", ts=T0),
        ConsoleLine(line="two", ts=T0 + 5, stream="stderr"),
        SystemSample(ts=T0 + 9_000_000, values={"system.cpu.utilization": 0.5}),
        SavedFile(path="ckpt/last.pt", content=path / "ckpt.pt", ts=T0),
        Summary(values={"best": 0.1}, ts=T0),
        Definition(name="eval/*", ts=T0, step_metric="epoch", summary="min", is_hidden=False),
        RunTag(key="mlflow.user", value="u", ts=T0),
        Notice(kind="alert", level="warning", message="hot", ts=T0, body={"text": "x"}),
        End(state="failed", exit_code=3, reason="boom", ended_us=T0 + 7_000_000),
        ImportedRun(source=path, run_id="r1", project="p", name="re\nnamed", host="h", created_us=T0),
        ImportedRun(source=path, run_id="r2"),
    ]


def test_every_part_is_in_its_view_and_a_second_import_changes_nothing(index: Index, tmp_path: Path) -> None:
    written = import_parts(index, described(tmp_path))
    assert [run.run.run_id for run in written] == ["r1", "r2"]
    query = "SELECT run_id, project, name, tags, state, exit_code, primary_label, n_labels FROM runs ORDER BY run_id"
    assert index.sql(query) == [
        ("r1", "p", "re named", [], "failed", 3, "main", 2),
        ("r2", None, None, [], "finished", None, "main", 1),
    ]
    labels = "SELECT label, rank, world_size, state, reason, epoch_us(started_at), epoch_us(ended_at) FROM labels"
    assert index.sql(f"{labels} WHERE run_id = 'r1' ORDER BY label") == [
        ("main", None, None, "failed", "boom", T0, T0 + 9_000_001),
        ("rank1", 1, 2, "finished", None, T0, T0),
    ]
    metrics = index.sql("SELECT label, rank, key, step, epoch_us(ts), value::VARCHAR FROM metrics ORDER BY ALL")
    assert metrics == [
        ("main", None, "acc", 5, T0, "nan"),
        ("main", None, "loss", -(1 << 63), T0 + 1, "inf"),
        ("main", None, "loss", 5, T0, "0.5"),
        ("rank1", 1, "loss", 1, T0, "1.0"),
        ("rank1", 1, "loss", 1, T0, "2.0"),
    ]
    found: dict[str, list[tuple[Any, ...]]] = {
        "SELECT key, value FROM config ORDER BY key": [
            ("deep", '{"a": [1, null]}'),
            ("gone", "1"),
            ("lr", "0.2"),
            ("nan", '"NaN"'),
        ],
        "SELECT key, step, value FROM texts": [("note", 3, "ü \\ud800")],
        "SELECT key, step, edges, counts FROM histograms": [("w", 3, [0, 1, math.inf], [3, 4])],
        "SELECT key, step, kind, metadata->>'caption', bytes, sha256, is_stored FROM media": [
            ("pic", 4, "image", "c", 3, hashlib.sha256(b"png").hexdigest(), True)
        ],
        "SELECT stream, line_no, line FROM console ORDER BY line_no": [("stdout", 0, "one"), ("stderr", 1, "two")],
        "SELECT label, node, name, epoch_us(ts), value FROM system": [
            ("main", "h/r1", "system.cpu.utilization", T0 + 9_000_000, 0.5)
        ],
        "SELECT path, bytes, sha256 FROM files": [("ckpt/last.pt", 7, hashlib.sha256(b"weights").hexdigest())],
        "SELECT value FROM run_summary WHERE key = 'best'": [("0.1",)],
        "SELECT name, summary, step_metric, is_hidden FROM metric_definitions": [("eval/*", "min", "epoch", False)],
        "SELECT key, value, label FROM run_tags": [("mlflow.user", "u", "main")],
        "SELECT level, message, body->>'text' FROM events WHERE kind = 'alert'": [("warning", "hot", "x")],
    }
    assert {query: index.sql(query) for query in found} == found
    before = index.views()
    import_parts(index, described(tmp_path))
    assert index.views() == before


@proves("imported-path-stays-below-run", "a file of an imported run has a path below the run", condition=False)
def test_what_has_no_place_is_counted_with_an_example(index: Index, tmp_path: Path) -> None:
    [run] = import_parts(
        index,
        [
            ImportedRun(source=tmp_path, run_id="r"),
            Unmapped(what="dashes", count=2, example="first"),
            Unmapped(what="dashes", example="second"),
            Points.of_series("k" * 600, np.array([1, 2]), np.array([T0, T0]), np.array([1.0, 2.0])),
            Points.of_series("line\nbreak", np.array([1]), np.array([T0]), np.array([1.0])),
            HistogramOf(key="h", step=1, ts=T0, edges=[0, 1], counts=[1, 2]),
            SavedFile(path="../evil", content=b"x", ts=T0),
            SavedFile(path="absent", content=tmp_path / "absent", ts=T0),
            Definition(name="n" * 600, ts=T0),
            Text(key="long", step=0, ts=T0, value="x" * 70_000),
        ],
    )
    assert {what.partition(":")[0]: told for what, told in run.unmapped.items()} == {
        "dashes": (3, "first"),
        "values of names over 512 bytes, without a character, or beyond 10,000": (2, "k" * 600),
        "histograms whose edges do not fit their counts": (1, "h"),
        "files whose path no run has": (1, "../evil"),
        "files that are missing or cannot be read": (1, str(tmp_path / "absent")),
        "definitions of names over 512 characters": (1, "n" * 60),
        "texts cut to 65,536 characters": (1, "x" * 60),
    }
    assert index.sql("SELECT key, value FROM metrics") == [("line\nbreak", 1.0)]
    assert index.sql("FROM files") == []


@proves("impossible-run-id-refused", "an imported run has an ID that `init` would take", condition=False)
@pytest.mark.parametrize("run_id", ["x" * 10_000, "a/b", "", "a\nb"])
def test_a_run_id_or_a_time_that_no_run_has_is_one_line(tmp_path: Path, run_id: str) -> None:
    parts: list[Part] = [ImportedRun(source=tmp_path / "source", run_id=run_id)]
    with pytest.raises(
        ImporterError, match=r"source: run ID .* has .*; import this run by itself with --as '"
    ) as error:
        write_exports("test", parts, tmp_path)
    assert "\n" not in str(error.value)
    late = Points.of_series("k", np.array([1]), np.array([1 << 62]), np.array([1.0]))
    with pytest.raises(ImporterError, match=r"source: a time of .* is none; correct the source"):
        write_exports("test", [*parts, late], tmp_path / "with", run_id="fine")
    with pytest.raises(ImporterError, match=r"source has 2 runs; --as names one$"):
        write_exports("test", [*parts, ImportedRun(source=tmp_path, run_id="b")], tmp_path / "two", run_id="fine")


def test_a_resumed_run_has_an_attempt_for_each_piece(index: Index, tmp_path: Path) -> None:
    series = Points.of_series("k", np.array([1]), np.array([T0]), np.array([1.0]))
    pieces = [ImportedRun(source=tmp_path, run_id="r", piece=piece) for piece in ("1", "2")]
    import_parts(index, [pieces[0], series, pieces[1], series])
    assert index.sql("SELECT attempt FROM labels ORDER BY attempt") == [(0,), (1,)]
    assert index.sql("SELECT attempt, value FROM metrics ORDER BY attempt") == [(0, 1.0), (1, 1.0)]


@pytest.mark.full
def test_a_million_values_take_bounded_memory(tmp_path: Path) -> None:
    script = """
import sys
import numpy as np
from pathlib import Path
from chiplog_client.transfer.export_reader import ExportReader
from chiplog_client.transfer.import_blocks import ImportBlocks
from chiplog_client.transfer.importers.export_writer import write_exports
from chiplog_client.transfer.importers.imported_run import ImportedRun, Points

def parts():
    yield ImportedRun(source=Path("s"), run_id="r")
    for first in range(0, 1_000_000, 50_000):
        steps = np.arange(first, first + 50_000)
        yield Points.of_series(f"k{first}", steps, steps * 1000, steps / 7)

root = Path(sys.argv[1])
(root / "e").mkdir(), (root / "s").mkdir()
[run] = write_exports("test", parts(), root / "e")
with ExportReader(run.path, root / "s") as reader:
    blocks = ImportBlocks(reader)
    blocks.check()
    n_bytes = sum(map(len, blocks.blocks()))
    assert blocks.n_done == 1_000_001 and n_bytes < 60_000_000, (blocks.n_done, n_bytes)
status = Path("/proc/self/status").read_text()  # ru_maxrss begins with that of the process that forked this one
print(status.partition("VmHWM:")[2].split()[0])
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 500_000, "KB of memory"
