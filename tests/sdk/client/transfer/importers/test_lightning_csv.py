"""Folders of the CSVLogger in SQL: the values that csv reads, the hyperparameters; bad files are one line each."""

import csv
from pathlib import Path

import pytest

from chiplog_client.transfer.importers.formats import guess_format
from chiplog_client.transfer.importers.imported_run import ImporterError
from tests.support.imported_runs import import_path
from tests.support.index import Index

# As Lightning 2.6.6 writes them: a column for each metric of the run, empty where a row has none.
_METRICS = "epoch,label,step,train_loss,val_loss\n0,1.0,49,0.5,\n0,,49,,0.25\n1,,99,nan,\n1,,99,,1e-05\n"
_HYPERPARAMETERS = """
lr: 0.02
layers: !!python/tuple
- 8
- 4
optimizer: !!python/name:torch.optim.adam.Adam ''
model:
  dim: 4
  none: null
"""


def versions(root: Path, n: int) -> Path:
    """Write so many versions, and return the folder of them all."""
    for number in range(n):
        folder = root / "lightning_logs" / f"version_{number}"
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text(_METRICS)
        (folder / "hparams.yaml").write_text(_HYPERPARAMETERS if number == 0 else "{}\n")
    return root / "lightning_logs"


def test_each_version_is_a_run_with_the_values_that_csv_reads(index: Index, tmp_path: Path) -> None:
    folder = versions(tmp_path, 11)
    assert {guess_format(path) for path in (tmp_path, folder, folder / "version_3")} == {"lightning"}
    written = import_path(index, "lightning", folder)
    assert [run.run.name for run in written] == [f"lightning_logs/version_{number}" for number in range(11)]
    run_id = written[0].run.run_id
    with (folder / "version_0" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [
        (key, int(row["step"]), str(float(cell))) for row in rows for key, cell in row.items() if key != "step" and cell
    ]
    found = index.sql(f"SELECT key, step, value FROM metrics WHERE run_id = '{run_id}'")
    assert sorted((key, step, str(value)) for key, step, value in found) == sorted(expected)
    assert index.sql(f"SELECT key, value FROM config WHERE run_id = '{run_id}' ORDER BY key") == [
        ("layers", "[8, 4]"),
        ("lr", "0.02"),
        ("model", '{"dim": 4, "none": null}'),
        ("optimizer", '"torch.optim.adam.Adam"'),
    ]
    [one] = import_path(index, "lightning", folder / "version_0")
    assert one.run.run_id == run_id, "the same run, however it is reached"


@pytest.mark.parametrize(
    ("metrics", "hyperparameters", "message"),
    [
        ("step,a\n1,2,3\n", "", "metrics.csv:2: 3 cells, and the header has 2"),
        ("a\n1\n", "", "metrics.csv:1: no column of steps"),
        (_METRICS, "a: [1\nb: 2\n", "hparams.yaml:2: expected ',' or ']', but got ':'; correct the file"),
        (_METRICS, "- 1\n", "hparams.yaml: it has no names with values; correct the file, or move it away"),
        (_METRICS, b"a: \xff", "hparams.yaml: byte 3 is not UTF-8; save the file as UTF-8"),
    ],
)
def test_bad_files_are_one_line(
    index: Index, tmp_path: Path, metrics: str, hyperparameters: str | bytes, message: str
) -> None:
    (tmp_path / "metrics.csv").write_text(metrics)
    content = hyperparameters.encode() if isinstance(hyperparameters, str) else hyperparameters
    (tmp_path / "hparams.yaml").write_bytes(content)
    with pytest.raises(ImporterError) as error:
        import_path(index, "lightning", tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert index.sql("FROM runs") == []


def test_a_folder_without_metrics_is_one_line(index: Index, tmp_path: Path) -> None:
    with pytest.raises(ImporterError, match="name a folder like lightning_logs/version_0"):
        import_path(index, "lightning", tmp_path)
