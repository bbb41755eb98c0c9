"""Tables about runs without SQL: rows per run with config and summary, and curves with a column per key."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import chiplog
from chiplog_client.reads.runs.run_tables import run_history, runs
from tests.support.hand_written import hand_written
from tests.support.run_builder import RunBuilder

TIME = "TIMESTAMP '2026-01-0{}'"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory with the runs old and new of gpt, and one of vit without a config."""
    root = tmp_path_factory.mktemp("runs")
    with hand_written(root) as database:
        build = RunBuilder(database, "TIMESTAMP '2026-01-01'")
        for number, (run_id, project, tags, state) in enumerate(
            (("gpt-old", "gpt", ["a"], "finished"), ("gpt-new", "gpt", ["a", "b"], None), ("vit", "vit", [], "failed"))
        ):
            build.run(run_id, project=project, tags=tags)
            times = {"started_s": 86400 * number, "ended_s": 86400 * 8 if state else None}
            for rank, attempt in ((0, 0), (1, 0), *([(1, 1)] if number == 0 else [])):
                label = "rank0" if attempt else f"rank{rank}"
                is_primary = label == "rank0"
                of_label = {"attempt": attempt, "rank": rank, "is_primary": is_primary, "state": state}
                build.label(run_id, label, **of_label, **times)
        old, new = (f"run_id = '{run}' AND label = 'rank0' AND attempt = 0" for run in ("gpt-old", "gpt-new"))
        build.config({"lr": 0.1, "sizes": [1, 2]}, where=old)
        build.config({"lr": 0.2, "name": "nan"}, where=new)
        build.summary({"best": {"at": 7}}, seq=9, where=old)
        build.summary({"note": "nan"}, seq=9, where=new)
        for where, key, step, value in (
            (old, "loss", 0, 4.0),
            (old, "loss", 1, 2.0),
            (old, "loss", 2, 9.0),
            ("run_id = 'gpt-old' AND attempt = 1", "loss", 2, 1.0),
            ("run_id = 'gpt-old' AND label = 'rank1'", "loss", 0, 8.0),
            (old, 'a "quoted" key', 1, 5.0),
            (old, "step", 1, 6.0),
            (new, "loss", 0, "'nan'"),
        ):
            build.metrics({key: value}, steps=[step], at=0, where=where)
    return root


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


def test_a_history_has_a_column_for_each_key_and_the_newest_attempt_counts(root: Path) -> None:
    table = run_history("gpt-old", ["loss", 'a "quoted" key', "step", "nothing", "loss"], dir=root)
    assert table.columns == ["label", "step", "loss", 'a "quoted" key', "metric.step", "nothing"]
    assert table.tuples() == [
        ("rank0", 0, 4.0, None, None, None),
        ("rank0", 1, 2.0, 5.0, 6.0, None),
        ("rank0", 2, 1.0, None, None, None),
        ("rank1", 0, 8.0, None, None, None),
    ]
    assert run_history("gpt-old", "loss", label="rank1", dir=root).tuples() == [("rank1", 0, 8.0)]
    assert {"label", "loss", 'a "quoted" key'} <= set(run_history("gpt-old", dir=root).columns), "all without keys"


def test_a_history_of_few_points_has_the_mean_of_each_bucket(root: Path) -> None:
    table = run_history("gpt-old", ["loss", 'a "quoted" key'], points=2, dir=root)
    assert table.columns == ["label", "step", "loss", 'a "quoted" key']
    assert table.tuples() == [("rank0", 0, 3.0, 5.0), ("rank0", 2, 1.0, None), ("rank1", 0, 8.0, None)]
    assert run_history("gpt-old", "loss", points=2, label="rank1", dir=root).tuples() == [("rank1", 0, 8.0)]
    assert math.isnan(run_history("gpt-new", "loss", points=2, dir=root).tuples()[0][2])


def test_a_run_without_the_key_has_no_rows_and_an_unknown_run_is_named_with_the_nearest(root: Path) -> None:
    assert len(run_history("vit", "loss", dir=root)) == 0
    for points in (None, 10):
        with pytest.raises(chiplog.QueryError, match=r"^run 'gpt-nwe' is unknown; did you mean 'gpt-new'"):
            run_history("gpt-nwe", "loss", points=points, dir=root)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: runs(limit=0), "limit is 0; give 1 or more"),
        (lambda: run_history("r", "loss", points=0), "points is 0; give 1 or more"),
        (lambda: run_history("r", []), "keys is empty; name at least one metric"),
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
