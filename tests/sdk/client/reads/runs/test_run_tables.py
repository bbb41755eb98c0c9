"""The table of runs without SQL: rows per run with config and summary."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import chiplog
from chiplog_client.reads.runs.run_tables import runs


def test_runs_are_the_newest_first_with_config_and_summary_as_python_values(root: Path) -> None:
    table = runs(dir=root)
    assert table.columns[:3] == ["run_id", "project", "name"]
    assert table.columns[-2:] == ["config", "summary"]
    new, old = (row for row in table.rows() if row["project"] == "gpt")
    assert [row["run_id"] for row in table] == ["vit", "gpt-new", "gpt-old"]
    assert (old["config"], new["config"]) == ({"lr": 0.1, "sizes": [1, 2]}, {"lr": 0.2, "name": "nan"})
    assert old["summary"] == {"best": {"at": 7}, "loss": 1.0, 'a "quoted" key': 5.0, "step": 6.0}
    assert math.isnan(new["summary"]["loss"]) and new["summary"]["note"] == "nan"
    assert table.rows()[0]["config"] == table.rows()[0]["summary"] == {}
    assert "<th>config</th>" in table._repr_html_()


def test_runs_are_chosen_by_project_state_and_tags(root: Path) -> None:
    def ids(**chosen: object) -> list[str]:
        return [row["run_id"] for row in runs(dir=root, **chosen)]  # type: ignore[arg-type]

    assert ids(project="gpt") == ["gpt-new", "gpt-old"]
    assert ids(project="gpt", limit=1) == ["gpt-new"]
    assert ids(state="failed") == ["vit"]
    assert ids(tags="a") == ["gpt-new", "gpt-old"]
    assert ids(tags=["a", "b"]) == ["gpt-new"]
    assert ids(project="none") == []


def test_a_frame_of_runs_has_a_column_for_each_key(root: Path) -> None:
    frame = runs("gpt", dir=root).df()
    assert list(frame["config.lr"]) == [0.2, 0.1]
    assert frame["config.sizes"][1] == [1, 2]
    assert list(frame["summary.loss"].isna()) == [True, False]
    assert not {"config", "summary"} & set(frame.columns)
    assert frame["created_at"].dtype.kind == "M"
    empty = runs("none", dir=root).df()
    assert len(empty) == 0
    assert "run_id" in empty.columns


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: runs(limit=0), "limit is 0; give 1 or more"),
    ],
)
def test_a_bad_argument_is_refused_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(chiplog.QueryError) as error:
        call()
    assert (error.value.kind, str(error.value)) == ("refused", message)


def test_the_names_of_the_package_load_no_database() -> None:
    code = "import chiplog, sys; chiplog.runs, chiplog.run_history; "
    code += "print([m for m in ('duckdb', 'arro3', 'pandas', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
