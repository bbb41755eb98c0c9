"""`chiplog compare`: two runs, or several, beside each other at any width, and as json."""

import json
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow.feather
import pytest

from chiplog_cli.commands.look.compare import change_text
from tests.support.command_line import COLOURS, ON_ONE_WORKER, one_line
from tests.support.hand_written import hand_written, kept_open
from tests.support.marks import everyday
from tests.support.plotted_runs import fill_plotted_runs
from tests.support.run_builder import RunBuilder
from tests.support.terminal import Terminal

pytestmark = ON_ONE_WORKER


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("compared")
    with hand_written(root) as database:
        fill_plotted_runs(database)
    with kept_open(root):
        yield root


def test_a_page_has_runs_config_metrics_phases_and_machines(chiplog, root):
    code, text, errors = chiplog("compare", "gpt-a", "gpt-b", root=root)
    assert (code, errors) == (0, "")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "took 16m40s 33m20s",
        "Config: 2 of 3 keys differ",
        "lr 0.0003 0.001",
        "warmup (none) 100",
        "loss 499 0.005 0.01 +100.0% 0.001, 0.004 0.0025, 0.01",
        "acc 499 0.499 0.499 = 0.999, 0.499 max 0.999, 0.499",
        "only in B only_b",
        "data 100ms 200ms +100.0% 1.0s, 2.0s",
        "GPU utilization 50% 90% +80.0%",
    ):
        assert line in lines


@pytest.mark.parametrize("width", everyday(1, [60, 80, 100]))
def test_a_page_fits_a_terminal(root, width):
    with Terminal(root, "compare", "gpt-a", "gpt-b", width=width, height=60) as terminal:
        assert terminal.end() == 0
        lines = [line.rstrip("\r") for line in COLOURS.sub("", terminal.raw).splitlines()]
    assert max(map(len, lines)) <= width
    assert any(line.startswith("loss") and "+100.0%" in line for line in lines)


def test_more_than_two_runs_have_a_column_each(chiplog, root):
    code, text, errors = chiplog("compare", "gpt-b", "gpt-a", "gpt-64", root=root)
    assert (code, errors) == (0, "")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "A gpt-b finished 2026-01-02 03:00:00 UTC 33m20s 4",
        "Config: 3 of 3 differ",
        "lr 0.001 0.0003 (none)",
        "warmup 100 (none) (none)",
        "loss 499 0.01 0.005 0.065",
        "acc 0.499 max 0.999 max 0.999 max",
        "forward 500ms 500ms (none)",
        "data 200ms 100ms (none)",
        "GPU utilization 90% 50% (none)",
        "GPU memory used 20.00 GiB 20.00 GiB (none)",
    ):
        assert line in lines, text
    assert "only_b" in text and "nan" in text


@pytest.mark.parametrize("runs", [("gpt-a", "gpt-b"), ("gpt-a", "gpt-b", "gpt-64")])
def test_metrics_may_be_those_of_an_earlier_step(chiplog, root, runs):
    text = chiplog("compare", *runs, "--key", "acc", "--step", "100", root=root)[1]
    [line] = [line.split() for line in text.splitlines() if line.startswith("acc") and "100" in line]
    assert line[1:4] == ["100", "0.1", "0.1"]


def test_programs_get_all_of_several_runs_or_a_row_for_each_value(chiplog, root):
    runs = ("gpt-a", "gpt-b", "gpt-64")
    found = json.loads(chiplog("compare", *runs, "--key", "loss", "--format", "json", root=root)[1])
    assert [run["run_id"] for run in found["runs"]] == list(runs)
    assert [(entry["key"], entry["step"]) for entry in found["metrics"]] == [("loss", 499)]
    assert {entry["key"] for entry in found["final"] + found["best"]} == {"loss"}
    lines = chiplog("compare", *runs, "--format", "csv", root=root)[1].splitlines()
    assert lines[0] == "kind,key,step,run_id,value"
    assert "config,warmup,,gpt-b,100" in lines
    assert [line.rpartition(",")[0] for line in lines if line.startswith("metric,loss")] == [
        f"metric,loss,499,{run}" for run in runs
    ]
    assert [line for line in lines if line.startswith("final,only_b")] == ["final,only_b,,gpt-b,7.0"]


def test_a_long_name_pads_no_other_row(chiplog, tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_plotted_runs(database)
        database.execute("UPDATE base.names SET name = repeat(name, 60) WHERE name IN ('acc', 'data')")
    lines = chiplog("compare", "gpt-a", "gpt-b", root=tmp_path)[1].splitlines()
    assert sum(len(line) > 150 for line in lines) == 2, "the rows of both"


def test_json_has_everything(chiplog, root):
    found = json.loads(chiplog("compare", "gpt-a", "gpt-b", "--key", "loss", "--format", "json", root=root)[1])
    assert [found["runs"][side]["run_id"] for side in "ab"] == ["gpt-a", "gpt-b"]
    assert [row["key"] for row in found["metrics"]] == ["loss"]
    assert found["config"][0] == {"key": "lr", "a": 0.0003, "b": 0.001, "in_a": True, "in_b": True}


@pytest.mark.parametrize("form", everyday(1, ["jsonl", "parquet", "csv", "arrow"]))
def test_formats_for_programs_have_a_row_for_each_pair_of_values(chiplog, root, tmp_path, form):
    path = tmp_path / f"pairs.{form}"
    code, text, _ = chiplog("compare", "gpt-a", "gpt-b", "-o", str(path), root=root)
    assert (code, text) == (0, "")
    if form == "arrow":
        table = pyarrow.feather.read_table(path)
        rows = [tuple(row.values()) for row in table.to_pylist()]
    elif form == "jsonl":
        rows = [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]
    else:
        rows = duckdb.sql(f"FROM '{path}'").fetchall()

    def number(value: object) -> object:
        try:
            return round(float(str(value)), 9)
        except ValueError:
            return value

    found = {row[:3]: tuple(map(number, row[3:])) for row in rows}
    assert found["metric", "loss", "at_step"] == (499, 0.005, 0.01, 0.005)
    assert found["metric", "only_b", "final"][1] is None and ("metric", "only_b", "at_step") not in found
    assert found["phase", "data", "mean_s"] == (None, 0.1, 0.2, 0.1)
    assert found["machine", "hw.gpu.utilization", "mean"] == (None, 0.5, 0.9, 0.4)
    assert found["config", "lr", None] == (None, 0.0003, 0.001, 0.0007)
    assert found["run", "run_id", None] == (None, "gpt-a", "gpt-b", None)


@pytest.mark.full
def test_a_page_in_markdown_has_a_heading_for_each_table(chiplog, root):
    code, text, errors = chiplog("compare", "gpt-a", "gpt-b", "--format", "md", root=root)
    assert (code, errors) == (0, "")
    lines = [line for line in text.splitlines() if line.startswith("### ")]
    assert lines[0] == "### Config: 2 of 3 keys differ" and len(lines) == 5
    assert "| GPU utilization |       50% |       90% | +80.0% |" in text


@pytest.mark.full
def test_json_counts_the_numbers_that_it_lacks(chiplog, tmp_path):
    with hand_written(tmp_path) as database:
        build = RunBuilder(database)
        for run_id, value in (("a", "'inf'"), ("b", 1)):
            build.run(run_id)
            build.ranks(run_id)
            build.metrics({"loss": value}, where=f"run_id = '{run_id}'")
    code, text, errors = chiplog("compare", "a", "b", "--format", "json", root=tmp_path)
    [row] = json.loads(text)["metrics"]
    assert (code, row["a"], row["b"]) == (0, None, 1.0)
    assert "NaN or infinite: null in JSON" in one_line(errors)


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (1.0, 1.5, "+50.0%"),
        (-2.0, -1.0, "+50.0%"),
        (2.0, 2.0, "="),
        (0.3, 0.1 + 0.2, "="),
        (1.0, 50.0, "x50"),
        (1.0, -50.0, "-5100.0%"),
        (0.0, 1.0, ""),
        (None, 1.0, ""),
        (float("nan"), 1.0, ""),
        (float("inf"), float("inf"), "="),
    ],
)
def test_a_change_is_a_percentage_or_a_factor(a, b, text):
    assert change_text(a, b) == text


@pytest.mark.parametrize(
    ("arguments", "part"),
    everyday(
        2,
        [
            (["gpt-a", "gpt-c"], "run 'gpt-c' is unknown; did you mean"),
            (["gpt-a", "gpt-a"], "'gpt-a' and 'gpt-a' are the same run 'gpt-a'; give two runs"),
            (["gpt-a", "gpt-b", "--key", "lss"], "key 'lss' of run 'gpt-a' is unknown; did you mean 'loss'?"),
            (["gpt-a"], "1 run given, 2 to 10 can be compared; name a run"),
            (["gpt-a"] * 11, "11 runs given, 2 to 10 can be compared; leave some out"),
            (["gpt-a", "gpt-b", "gpt-a"], "'gpt-a' and 'gpt-a' are the same run 'gpt-a'; give different runs"),
            (["gpt-a", "gpt-b", "gpt-64", "--key", "lss"], "key 'lss' of run 'gpt-a' is unknown; did you mean 'loss'?"),
        ],
    ),
)
def test_bad_input_is_one_line_that_names_it(chiplog, root, arguments, part):
    code, text, errors = chiplog("compare", *arguments, root=root)
    assert (code, text) == (2, "")
    assert part in one_line(errors)
