"""`chiplog runs`: the newest first, on any terminal, and whether each is complete."""

import io
import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from rich.console import Console

from chiplog_cli.commands.look.runs import complete_text, duration_s, table_of
from tests.support.command_line import COLOURS, ON_ONE_WORKER, one_line
from tests.support.hand_written import hand_written, kept_open
from tests.support.recorded import fill_three_runs
from tests.support.run_builder import RunBuilder, Sql
from tests.support.safeguard import proves

pytestmark = ON_ONE_WORKER

NOW = datetime(2026, 1, 2, 3, 4, 5)


def test_runs_lists_the_newest_first_with_what_is_missing(chiplog):
    code, text, _ = chiplog("runs", "--format", "json")
    assert code == 0
    rows = json.loads(text)
    assert [row["run_id"] for row in rows] == ["vit-20260104-0042", "gpt-20260103-11aa22", "gpt-20260102-7f3a91"]
    crashed = rows[1]
    assert {name: crashed[name] for name in ("state", "labels", "attempts", "complete", "pending", "lost")} == {
        "state": "crashed",
        "labels": 4,
        "attempts": 1,
        "complete": False,
        "pending": 28,
        "lost": 12,
    }
    assert (crashed["created_at"], crashed["duration_s"]) == ("2026-01-03T03:04:05Z", 7600.0)
    assert rows[0]["state"] == "running" and rows[0]["ended_at"] is None and rows[0]["duration_s"] > 0
    assert [row["complete"] for row in rows] == [False, False, True]


@pytest.mark.full
def test_a_run_is_complete_only_when_every_label_has_ended(chiplog):
    """What a running or stopped rank has logged and not sent is unknown."""
    lines = {line.split()[0]: line.rstrip() for line in chiplog("runs")[1].splitlines() if line}
    assert lines["vit-20260104-0042"].endswith("so far")
    assert lines["gpt-20260102-7f3a91"].endswith("yes")
    assert "so far" in chiplog("show", "vit-20260104-0042")[1]
    assert "so far" not in chiplog("show", "gpt-20260102-7f3a91")[1]


def test_runs_can_be_narrowed(chiplog):
    def ids(*arguments: str) -> list[str]:
        return [row["run_id"] for row in json.loads(chiplog("runs", "--format", "json", *arguments)[1])]

    assert ids("--project", "vision") == ["vit-20260104-0042"]
    assert ids("--state", "crashed") == ["gpt-20260103-11aa22"]
    assert chiplog("runs", "--project", "vision", "--state", "failed") == (0, "", "no runs match\n")
    assert ids("--project", "none") == [], "a program may ask before the first run begins"


@proves("unknown-project-refused", "a project or a group that no run has is bad input of runs", condition=False)
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--project", "visoin"], "project 'visoin' is unknown; did you mean 'vision'?"),
        (["--group", "ablatoin"], "group 'ablatoin' is unknown; did you mean 'ablation'?"),
        (["--project", "vision", "--group", "x"], "group 'x' is unknown; chiplog runs shows the group of each run"),
    ],
)
def test_an_unknown_project_or_group_is_one_line_with_the_nearest(chiplog, arguments: list[str], line: str) -> None:
    code, text, errors = chiplog("runs", *arguments)
    assert (code, text, errors) == (2, "", f"chiplog runs: {line}\n")


GPT_1, GPT_2, VIT = "gpt-20260102-7f3a91", "gpt-20260103-11aa22", "vit-20260104-0042"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--tag", "a"], [GPT_1]),
        (["--tag", "a", "--tag", "b"], [GPT_1]),
        (["--tag", "a", "--tag", "c"], []),
        (["--group", "ablation"], [GPT_1]),
        (["GPT"], [GPT_2, GPT_1]),
        (["gpt", "FIRST"], [GPT_1]),
        (["ablation"], [GPT_1]),
        (["100%_"], []),
        (["--since", "2026-01-03"], [VIT, GPT_2]),
        (["--since", "2026-01-03T03:04:05Z"], [VIT, GPT_2]),
        (["--since", "2026-01-03T04:04:05", "--local"], [VIT, GPT_2]),
        (["--since", "2026-01-03T03:04:05", "--local"], [VIT, GPT_2]),
        (["--since", "2026-01-03T04:04:06", "--local"], [VIT]),
        (["--since", "100000d"], [VIT, GPT_2, GPT_1]),
        (["--since", "5m"], []),
        (["--sort", "created_at"], [GPT_1, GPT_2, VIT]),
        (["--sort", "-run_id"], [VIT, GPT_2, GPT_1]),
        (["--sort", "took"], [GPT_2, GPT_1, VIT]),
    ],
)
def test_runs_are_filtered_and_sorted(chiplog, arguments, found):
    code, text, errors = chiplog("runs", *arguments, "--format", "json")
    assert (code, errors) == (0, "")
    assert [row["run_id"] for row in json.loads(text)] == found


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with runs r0 … r5 whose config and summary differ."""
    root = tmp_path_factory.mktemp("tuned")
    with hand_written(root) as database:
        build = RunBuilder(database, "TIMESTAMP '2026-01-02'")
        for number, lr in enumerate((9, 10, "text", None, Sql("'2.5e-1'"), 100)):
            of_run = f"run_id = 'r{number}'"
            build.run(f"r{number}")
            build.ranks(f"r{number}", started_s=number)
            if lr is not None:
                build.config({"a.b/lr": lr}, where=of_run)
            value = f"CASE WHEN {number} = 5 AND step > 40 THEN 'nan' ELSE step * {number} + 1 / 3 END"
            steps = {3: range(0), 4: range(24, 48)}.get(number, range(48))
            build.metrics({"loss": value}, steps=steps, at=0, where=of_run)
        build.metrics({"loss": 7}, where="run_id = 'r4'")
    with kept_open(root):
        yield root


@proves(
    "keyed-sort-by-number",
    "runs are sorted by the numbers of a config or summary value",
    part="{number} {direction} NULLS LAST, ",
)
def test_runs_are_sorted_by_numbers_and_missing_values_are_last(chiplog, tuned):
    def ids(*arguments: str) -> list[str]:
        text = chiplog("runs", "--format", "jsonl", "--columns", "run_id", *arguments, root=tuned)[1]
        return [json.loads(line)["run_id"] for line in text.splitlines()]

    assert ids("--sort", "config.a.b/lr") == ["r4", "r0", "r1", "r5", "r2", "r3"]
    assert ids("--sort", "-config.a.b/lr") == ["r5", "r1", "r0", "r4", "r2", "r3"]
    assert ids("--sort", "summary.loss", "--limit", "3") == ["r0", "r1", "r2"]
    assert ids("--sort", "-summary.loss") == ["r4", "r2", "r1", "r0", "r5", "r3"], "NaN, then no value"


def test_columns_are_those_that_are_asked_for_in_any_format(chiplog, tuned, tmp_path):
    arguments = ("runs", "--columns", "took,run,config.a.b/lr,summary.loss,name", "--sort", "run_id")
    header, _, *lines = chiplog(*arguments, root=tuned)[1].splitlines()
    assert header.split() == ["took", "run", "config.a.b/lr", "summary.loss", "name"]
    assert lines[3].split()[1:] == ["r3", "NULL", "NULL", "NULL"]
    assert lines[1].split()[1:3] == ["r1", "10"] and lines[5].split()[3] == "nan"
    row = json.loads(chiplog(*arguments, "--format", "json", root=tuned)[1])[4]
    assert list(row) == ["duration_s", "run_id", "config.a.b/lr", "summary.loss", "name"]
    assert (row["config.a.b/lr"], row["summary.loss"], row["name"]) == (0.25, 4 * 47 + 1 / 3, None)
    target = tmp_path / "runs.parquet"
    assert chiplog(*arguments, "-o", str(target), root=tuned)[:2] == (0, "")
    relation = duckdb.sql(f"FROM '{target}'")
    assert list(map(str, relation.types)) == ["DOUBLE", "VARCHAR", "VARCHAR", "DOUBLE", "VARCHAR"], "one value is text"
    assert [row[2] for row in relation.fetchall()] == ["9", "10", "text", None, "0.25", "100"]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_all_columns_that_are_asked_for_are_on_a_terminal_of_any_width(on_terminal, width):
    columns = (
        "run_id,project,name,tags,state,primary_label,created_at,ended_at,config.model,summary.train/loss,complete"
    )
    text = COLOURS.sub("", on_terminal(width, "runs", "--columns", columns))
    assert max(map(len, text.splitlines())) <= width
    for part in ("gpt-20260103-11aa22", "first try", "a, b", "rank0", "gpt2", "1.99", "28 pending", "NULL", "03:04"):
        assert part in text
    assert "wider terminal" not in text


def test_the_name_of_a_run_stays_beside_a_sparkline_on_a_narrow_terminal(on_terminal):
    text = COLOURS.sub("", on_terminal(76, "runs", "--sparkline", "train/loss"))
    assert max(map(len, text.splitlines())) <= 76
    assert "first try" in text and "gpt-20260102-7f3a91" in text and "▁" in text


def test_a_sparkline_is_the_mean_over_labels_in_equal_parts_of_the_steps(chiplog, tuned):
    header, _, *lines = chiplog("runs", "--sparkline", "loss", "--sort", "run_id", root=tuned)[1].splitlines()
    assert header.split()[-1] == "loss"
    drawn = [line[header.index("loss") :] for line in lines]
    assert drawn[0] == "▁" * 24
    assert drawn[1] == "".join(bar * 3 for bar in "▁▂▃▄▅▆▇█")
    assert drawn[3] == "" and drawn[5].endswith("█×××"), "a part with NaN and numbers has their mean"
    assert drawn[4][0] == "▁" and drawn[4][1:12] == "·" * 11 and drawn[4].endswith("█"), "steps without a point"
    text, errors = chiplog("runs", "--sparkline", "loss", "--sort", "run_id", "--format", "json", root=tuned)[1:]
    values = json.loads(text)[1]["loss"]
    assert len(values) == 24 and values[0] == pytest.approx(0.5 + 1 / 3)
    assert "NaN or infinite" in errors


def test_a_sparkline_of_a_metric_named_like_a_column_replaces_nothing(chiplog, tmp_path):
    with hand_written(tmp_path) as database:
        build = RunBuilder(database)
        build.run("r", tags=["a"])
        build.ranks("r", state="finished", produced=0)
        build.metrics({"lost": 7, "tags": 7}, steps=48, at=0)
    [row] = json.loads(chiplog("runs", "--sparkline", "lost", "--format", "json", root=tmp_path)[1])
    assert (row["lost"], row["lost_1"]) == (0, [7.0] * 24)
    header, _, line = chiplog("runs", "--sparkline", "lost", root=tmp_path)[1].splitlines()
    assert header.split()[-2:] == ["complete", "lost"] and line.split()[-2:] == ["yes", "▁" * 24]
    [row] = json.loads(
        chiplog("runs", "--columns", "run_id,name", "--sparkline", "tags", "--format", "json", root=tmp_path)[1]
    )
    assert row == {"run_id": "r", "name": None, "tags": [7.0] * 24}


def test_a_filter_and_a_saved_view_narrow_sort_and_choose_columns(chiplog, tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_three_runs(database)
        view = {"query": "filter=lr%3E0&sort=started&config=lr&column=state"}
        RunBuilder(database).saved_view("runs/with lr", view)
    code, text, errors = chiplog("runs", "--filter", "-state:finished", "--limit", "1", root=tmp_path)
    assert (code, errors) == (0, "1 of 2 runs; --all or --limit N shows more\n")
    assert text.splitlines()[2].startswith("vit-20260104-0042")
    lines = chiplog("runs", "--view", "with lr", root=tmp_path)[1].splitlines()
    assert [line.split() for line in (lines[0], *lines[2:])] == [
        ["run", "name", "state", "config.lr"],
        ["gpt-20260102-7f3a91", "first", "try", "finished", "0.0003"],
    ]
    assert chiplog("runs", "--view", "with lr", "--filter", "vit", root=tmp_path) == (0, "", "no runs match\n")
    rows = json.loads(chiplog("runs", "--view", "with lr", "--columns", "run", "--format", "json", root=tmp_path)[1])
    assert rows == [{"run_id": "gpt-20260102-7f3a91"}]
    for arguments, message in (
        (["--view", "with"], "view 'with' of the runs is unknown; did you mean 'with lr'?"),
        (["--filter", "lrr<1"], "--filter: no run has a column 'lrr'"),
    ):
        code, text, errors = chiplog("runs", *arguments, root=tmp_path)
        assert (code, text) == (2, "") and message in one_line(errors)


@proves("unknown-keyed-column-refused", "a column of config or summary that no run has is bad input", condition=False)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--columns", "run_id,sate"], "column 'sate' is unknown; did you mean 'state'"),
        (
            ["--columns", "zzzz"],
            "column 'zzzz' is unknown; for a key write 'config.zzzz' or 'summary.zzzz'; columns are",
        ),
        (["--columns", " , "], "names no column"),
        (["--columns", "config.a.b/lrr"], "column 'config.a.b/lrr' is unknown; did you mean 'config.a.b/lr'?"),
        (["--columns", "summary.lost"], "column 'summary.lost' is unknown; did you mean 'summary.loss'?"),
        (["--sort", "config.lr"], "column 'config.lr' is unknown; did you mean 'config.a.b/lr'?"),
        (["--sort", "-stat"], "column 'stat' is unknown; did you mean 'state'?"),
        (["--sort", "lost"], "--sort lost: lost is counted for the listed runs only"),
        (["--sparkline", "los"], "key 'los' is unknown; did you mean 'loss'?"),
        (["--since", "yesterday"], "--since 'yesterday' is no time; write a time as 2026-01-02"),
        (["--since", "1e300d"], "--since '1e300d' is no time"),
        (["--state", "asleep"], "'asleep'"),
    ],
)
def test_an_unknown_column_or_key_is_one_line_with_the_nearest(chiplog, tuned, arguments, message):
    code, text, errors = chiplog("runs", *arguments, root=tuned)
    assert (code, text) == (2, "")
    assert message in one_line(errors)


@proves("left-out-runs-counted", "runs that are left out are counted", condition=False)
def test_runs_say_how_many_they_leave_out_and_how_to_see_them(chiplog):
    code, text, errors = chiplog("runs", "--limit", "1")
    assert (code, errors) == (0, "1 of 3 runs; --all or --limit N shows more\n")
    assert "vit-20260104-0042" in text and "gpt" not in text
    assert chiplog("runs", "--limit", "1", "--format", "json")[2] == errors
    assert chiplog("runs", "--limit", "1", "--project", "gpt")[2] == "1 of 2 runs; --all or --limit N shows more\n"
    for options in (["--all"], ["--limit", "3"], []):
        assert chiplog("runs", *options)[2] == ""
    assert "exclude each other" in chiplog("runs", "--all", "--limit", "3")[2]


def test_runs_show_name_group_and_tags(chiplog):
    lines = [re.split(r"\s{2,}", line.rstrip()) for line in chiplog("runs")[1].splitlines()]
    assert lines[0][:6] == ["run", "project", "name", "group", "tags", "state"]
    assert lines[4][:6] == ["gpt-20260102-7f3a91", "gpt", "first try", "ablation", "a, b", "finished"]
    row = json.loads(chiplog("runs", "--format", "json")[1])[2]
    assert (row["name"], row["run_group"], row["tags"]) == ("first try", "ablation", ["a", "b"])


@pytest.mark.parametrize("width", [80, 120])
def test_runs_fit_a_terminal_with_whole_run_ids_and_names(on_terminal, width):
    text = COLOURS.sub("", on_terminal(width, "runs"))
    assert max(map(len, text.splitlines())) <= width
    for part in ("gpt-20260103-11aa22", "first try", "crashed", "03:04", "UTC", "pending", "12 lost"):
        assert part in text


@proves("table-names-its-runs", "a table of chosen columns names its runs", value="chosen")
def test_a_table_of_chosen_columns_names_its_runs(chiplog):
    code, text, _ = chiplog("runs", "--columns", "state,config.lr")
    assert (code, text.split()[:4]) == (0, ["run", "name", "state", "config.lr"])
    assert chiplog("runs", "--columns", "name,state")[1].split()[:2] == ["name", "state"]
    assert chiplog("runs", "--columns", "state", "--format", "csv")[1].split()[0] == "state"


@proves("lost-label-is-incomplete", "a run with a lost label is not complete", value="[]")
@pytest.mark.parametrize(
    ("pending", "lost", "is_over", "text"),
    [
        (0, 0, True, "yes"),
        (0, 0, False, "so far"),
        (None, 0, True, "unknown"),
        (None, 3, False, "unknown, 3 lost"),
        (2, 3, True, "2 pending, 3 lost"),
    ],
)
def test_a_run_is_complete_only_when_no_label_runs_or_was_lost(pending, lost, is_over, text):
    assert complete_text(pending, lost, is_over) == text


@pytest.mark.parametrize("width", [80, 100])
def test_one_long_run_id_leaves_the_state_of_all_runs_in_sight(width):
    moment = datetime(2026, 1, 3, 3, 4, 5)
    named = {"project": "gpt", "state": "crashed", "labels": 1024, "attempts": 2, "created_at": moment}
    rest = {"duration_s": 7600.0, "pending": 0, "lost": 0, "is_over": True, "name": None, "run_group": None, "tags": []}
    ids = ["gpt-20260103-11aa22", ("a-long-name-of-a-sweep-" * 6)[:128]]
    rows = [{"run_id": run_id, **named, **rest} for run_id in ids]
    target = io.StringIO()
    Console(file=target, width=width, color_system=None).print(table_of(rows))
    lines = [line.rstrip() for line in target.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert sum("crashed" in line and "01-03 03:04" in line for line in lines) == 2
    assert ids[0] in target.getvalue()
    first = next(number for number, line in enumerate(lines) if line.startswith("a-long"))
    assert "".join(line.split()[0] for line in lines[first:] if line and line[0] != "+") == ids[1]
    target = io.StringIO()
    Console(file=target, width=1_000, color_system=None).print(table_of(rows))
    assert ids[1] in target.getvalue()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_where_runs_live_is_shown_if_another_collector_has_one(width):
    moment = datetime(2026, 1, 3, 3, 4, 5)
    row = {"run_id": "gpt-20260103-11aa22", "project": "gpt", "state": "unknown", "labels": 4, "attempts": 1}
    row |= {"created_at": moment, "duration_s": None, "pending": None, "lost": 0, "is_over": False, "name": None}
    row |= {"run_group": None, "tags": [], "collectors": None, "seen_at": None}
    elsewhere = row | {"collectors": ["here", "node-17"], "seen_at": moment}
    many = row | {"collectors": ["a-1", "b-2", "c-3", "d-4"], "seen_at": moment - timedelta(minutes=3)}

    def shown(rows):
        target = io.StringIO()
        now = moment + timedelta(seconds=12)
        Console(file=target, width=width, color_system=None).print(table_of(rows, now=now))
        return target.getvalue()

    text = shown([row, elsewhere, many])
    assert re.search(r"^run .* collector *\n", text)
    ends = [re.sub(".*unknown +", "", line.rstrip()) for line in text.splitlines() if line.startswith("gpt-")]
    assert ends == ["here", "here, node-17, 12s ago", "a-1, b-2, 2 more, 3m12s ago"]
    assert "collector" not in shown([row])


def test_at_eighty_columns_runs_lose_their_tags_before_their_project():
    moment = datetime(2026, 1, 3, 3, 4, 5)
    row = {"run_id": "gpt-20260103-11aa22", "project": "transformers", "name": "first try", "run_group": "ablation"}
    row |= {
        "state": "finished",
        "labels": 8,
        "attempts": 1,
        "created_at": moment,
        "duration_s": 7600.0,
        "tags": ["a", "b"],
    }
    target = io.StringIO()
    Console(file=target, width=80, color_system=None).print(
        table_of([row | {"pending": 0, "lost": 0, "is_over": True}])
    )
    text = target.getvalue()
    assert text.split()[:2] == ["run", "project"]
    assert "transformers" in text
    assert "tags" in text.splitlines()[-1], "among those that a wider terminal shows"


def test_runs_are_listed_in_local_time(chiplog):
    text = chiplog("runs", "--local")[1]
    assert "04:04 " in text and "started CET" in text
    assert json.loads(chiplog("runs", "--local", "--format", "json")[1])[0]["created_at"] == "2026-01-04T04:04:05+01:00"


@pytest.mark.parametrize(
    ("started", "ended", "state", "seconds"),
    [
        (None, None, "running", None),
        (NOW - timedelta(seconds=5), None, "running", 5.0),
        (NOW - timedelta(seconds=5), None, "crashed", None),
        (NOW - timedelta(seconds=5), NOW - timedelta(seconds=3), "crashed", 2.0),
        (NOW + timedelta(seconds=5), None, "running", 0.0),
    ],
)
def test_a_run_lasts_until_its_end_or_while_it_runs_until_now(started, ended, state, seconds):
    assert duration_s(started, ended, state, NOW) == seconds
