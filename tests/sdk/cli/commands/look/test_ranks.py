"""`chiplog ranks`: the sentence of the page, `show` and `top`; a map of excesses; the phases of one step."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chiplog_cli.commands.look.ranks import ROWS_MAX, ranks
from chiplog_cli.commands.look.show import show
from chiplog_client.client import connect
from chiplog_client.reads.live_run import LiveRun
from tests.support.hand_written import hand_written, kept_open
from tests.support.page_client import serving
from tests.support.slow_ranks import fill_rank_outside


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("slow")
    with hand_written(root) as database:
        fill_rank_outside(database)
    with kept_open(root):
        yield root


def call(root: Path, *arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(ranks, [*arguments, "--dir", str(root)])


@pytest.mark.parametrize("run", ["slow", "apart", "even"])
def test_the_page_show_top_and_ranks_have_the_same_sentence(root: Path, run: str) -> None:
    with serving(root) as page:
        of_page = page.sign_in().get(f"runs/{run}/verdict")["text"]
    shown = CliRunner().invoke(show, [run, "--format", "json", "--dir", str(root)])
    with connect(dir=root, start=False) as client:
        frame = LiveRun(run).read(client)
    assert frame is not None and frame.verdict is not None
    printed = call(root, run).stdout.split("\n\n")[0]
    assert of_page == json.loads(shown.stdout)["verdict"]["text"] == frame.verdict["text"] == printed


def test_the_map_is_of_the_phase_of_the_slow_rank_and_shows_it_alone(root: Path) -> None:
    lines = call(root, "slow").stdout.split("\n\n")[1].splitlines()
    assert lines[0].startswith("phase data, steps 0 to ")
    rows = {line.partition("│")[0].strip(): line.partition("│")[2] for line in lines[1:-1]}
    assert set("".join(cells for label, cells in rows.items() if label != "rank5")) <= {"·"}
    assert rows["rank5"].strip("·") == "█" * len(rows["rank5"].strip("·")) != ""
    assert lines[-1].startswith("· at most the median … █ 300ms")


def test_many_labels_share_rows_and_a_single_slow_step_stays_visible(root: Path) -> None:
    lines = call(root, "wide").stdout.split("\n\n")[1].splitlines()[1:-1]
    assert len(lines) <= ROWS_MAX
    assert ["█" in line for line in lines].count(True) == 1


def test_a_step_is_a_table_with_the_medians_first(root: Path) -> None:
    lines = call(root, "slow", "--step", "450").stdout.splitlines()
    heading, median, slowest = (line.split() for line in (lines[0], *lines[2:4]))
    assert (heading[:2], median[0], slowest[0]) == (["label", "step"], "median", "rank5")
    at = heading.index("data")
    assert (median[at], slowest[at]) == ("100ms", "400ms")
    assert call(root, "slow", "--step", "99999999").stdout.splitlines()[-1] == "no phases in step 99999999"


def test_a_timeline_shows_where_the_slow_rank_was_later_than_the_others(root: Path) -> None:
    lines = call(root, "slow", "--timeline", "--first", "450", "--last", "453").stdout.splitlines()
    assert lines[0].startswith("steps 450 to 453, ") and lines[-1] == "d data, f forward, b backward, · no phase"
    lanes = {line.partition("│")[0].strip(): line.partition("│")[2] for line in lines[1:-1]}
    assert lanes.keys() == {f"rank{rank}" for rank in range(8)}
    assert {lane.count("d") > 10 for label, lane in lanes.items() if label != "rank5"} == {False}
    assert lanes["rank5"].count("d") > 10
    one = json.loads(call(root, "slow", "--timeline", "--label", "rank5", "--format", "json").stdout)
    assert (one["labels"], one["first"], one["last"]) == (["rank5"], 980, 999)
    assert (
        call(root, "slow", "--timeline", "--first", "90000", "--last", "90001").stdout == "no phases in these steps\n"
    )


def test_json_has_what_the_page_has(root: Path) -> None:
    found = json.loads(call(root, "slow", "--phase", "forward", "--label", "rank5", "--format", "json").stdout)
    assert (found["phase"], found["labels"], found["n_rows"]) == ("forward", ["rank5"], 1)
    assert "rank5 cost" in found["verdict"]
    step = json.loads(call(root, "slow", "--step", "450", "--format", "json").stdout)
    assert step["rows"][0]["label"] == "rank5"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slow", "--phase", "forwrd"], "run 'slow' has no phase 'forwrd'; it has step, data, forward"),
        (["slow", "--step", "1", "--first", "2"], "--step shows all phases of one step"),
        (["slow", "--timeline", "--phase", "data"], "--timeline shows all phases"),
        (["slow", "--label", "rank99"], "label 'rank99'"),
    ],
)
def test_a_wrong_question_is_one_line(root: Path, arguments: list[str], message: str) -> None:
    done = call(root, *arguments)
    assert done.exit_code == 2 and message in done.stderr


def test_a_run_of_one_label_has_nothing_to_compare(root: Path) -> None:
    assert call(root, "alone").stdout.strip() == "no phases of several labels to compare"
