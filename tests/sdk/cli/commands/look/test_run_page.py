"""The page of a run for an engineer on call: labels behind or silent, alerts, and what failed first, on one screen."""

import contextlib
import io
import json
import re
import shlex
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from chiplog_cli.commands.look.run_page import _environment_rows, _labels, _places_text, _seconds_text
from chiplog_cli.commands.look.show import show as show_command
from chiplog_cli.root import main
from tests.support.command_line import ON_ONE_WORKER
from tests.support.hand_written import filled
from tests.support.logged_media import fill_logged_media
from tests.support.run_builder import RunBuilder
from tests.support.shown_runs import labels_of

pytestmark = ON_ONE_WORKER

SCREEN_LINES = 70


def test_the_collectors_of_a_run_are_named_with_the_age_of_what_they_have() -> None:
    now = datetime(2026, 1, 3, 3, 4, 5)
    here = {"collector": "a", "is_here": True, "is_silent": False, "n_labels": 2, "seen_at": None}
    other = {**here, "collector": "b", "is_here": False, "n_labels": 1, "seen_at": now - timedelta(seconds=200)}
    assert _places_text([], now) == ""
    assert _places_text([other], now) == "b, as of 3m20s ago"
    text = _places_text([here, {**other, "is_silent": True}], now)
    assert text == "here (2 labels); b (1 label), as of 3m20s ago, silent"


def test_of_many_ranks_those_that_need_a_look_come_first_and_the_others_are_counted(show: Any) -> None:
    page = show("large")
    rows = labels_of(page)
    assert len(rows) == 16
    assert [row[0] for row in rows[:5]] == ["rank90", "rank60", "rank30", "rank7", "rank150"]
    assert rows[3][4] == "95 (-4)"
    assert re.fullmatch(r"8m\d\ds ago", rows[4][5])
    assert "worst first, and 184 more (184 running): chiplog show large --all" in page
    assert re.search(r"last event +\d+\.\ds ago, of rank\d+; longest ago of rank150, 8m\d\ds", page)
    assert len(page.splitlines()) <= SCREEN_LINES


@pytest.mark.full
def test_few_labels_stand_in_the_order_of_their_ranks(show: Any) -> None:
    page = show("small")
    assert [(row[0], row[4]) for row in labels_of(page)] == [("rank0 *", "99"), ("rank1", "99")]
    assert "more" not in page


def test_alerts_are_shown_with_their_text_once_for_a_title_and_do_not_crowd_out_what_else_happened(show: Any) -> None:
    page = show("small")
    assert re.search(r"rank1 +error +30 +loss is NaN: at step 29\n", page)
    assert re.search(r"traceback +error +ValueError: boom", page)
    [alert] = json.loads(show("small", "--format", "json"))["alerts"]
    assert (alert["title"], alert["text"], alert["times"]) == ("loss is NaN", "at step 29", 30)


@pytest.mark.full
def test_the_command_that_a_page_names_shows_all(show: Any) -> None:
    named = re.findall(r": (chiplog .+)", show("large"))
    assert named
    for command in named:
        program, *arguments = shlex.split(command)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert (program, main(arguments)) == ("chiplog", 0)
        assert len(labels_of(printed.getvalue())) == 200


def test_the_summary_stands_beside_its_metric_where_it_is_not_the_last_value(show: Any) -> None:
    page = show("small")
    assert re.search(r"\nloss +20 +2 +99 +rank0 1, rank1 1 +10\n", page)
    assert re.search(r"\nbest/epoch +7\n", page)
    assert page.index("\nloss ") < page.index("\nchiplog/cuda/peak "), "the training's own metrics come first"
    assert json.loads(show("small", "--format", "json"))["summary"]["loss"] == 10.0


def test_how_a_label_ended_is_said_once(show: Any) -> None:
    page = show("killed")
    assert [row[-1] for row in labels_of(page)] == ["killed by SIGKILL", "1 ValueError: bad batch"]
    events = page.partition("\nRecent events\n")[2]
    assert re.findall(r"(environment|traceback|failed|crashed) +\w+ +(.+)", events) == [
        ("environment", "no commit: train.py"),
        ("traceback", "OSError: while it ended"),
    ]
    assert len(re.findall(r"\n2026-", show("killed", "--all").partition("\nRecent events\n")[2])) == 5


@pytest.mark.parametrize(("lines_max", "is_whole"), [(3, False), (0, True)])
def test_a_long_error_has_three_lines_of_a_narrow_terminal(show: Any, lines_max: int, is_whole: bool) -> None:
    [label, _] = json.loads(show("killed", "--format", "json"))["labels"]
    label |= {
        "reason": "RuntimeError: connection closed by peer " * 9 + "the end",
        "started_at": None,
        "ended_at": None,
    }
    printed = io.StringIO()
    Console(file=printed, width=80).print(_labels([label], [label], lines_max))
    assert ("the end" in printed.getvalue(), "…" in printed.getvalue()) == (is_whole, not is_whole)
    assert is_whole or len(printed.getvalue().splitlines()) <= 3 + 3 + 2, "title, heading, rule; captions"
    assert max(map(len, printed.getvalue().splitlines())) <= 80


@pytest.mark.full
def test_a_run_that_ctrl_c_ended_names_no_first_failure(show: Any) -> None:
    page = " ".join(show("interrupted").split())
    assert "interrupted by Ctrl-C (SIGINT): rank1, rank0, rank2 " in page
    assert " first, " not in page
    page = " ".join(show("ended").split())
    assert "verdict rank1 was ended from outside first, less than 1 ms before rank0: SystemExit: 143; no label" in page
    assert "Ctrl-C" not in page


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.99999, "1000ms"), (4e-6, "4µs"), (2e-4, "200µs"), (0.0012, "1.2ms"), (1.5, "1.5s"), (61, "1m01s")],
)
def test_seconds_of_a_phase_are_short_and_never_in_powers_of_ten(seconds: float, text: str) -> None:
    assert _seconds_text(seconds) == text


def test_the_command_that_launched_a_run_is_a_line_beside_that_of_its_primary() -> None:
    told = {"command": ["python", "-u", "train.py"], "launched": ["torchrun", "train.py", "--name", "a b"]}
    assert _environment_rows(told) == {
        "commit": None,
        "command": "python -u train.py",
        "launched by": "torchrun train.py --name 'a b'",
    }


def test_media_and_artifacts_of_a_run_are_a_line_each(tmp_path: Path) -> None:
    def fill(database: Any) -> None:
        fill_logged_media(database)
        for name in ("a", "b"):
            of = {"project": "p", "n_files": 0, "bytes": 0, "metadata": "{}"}
            RunBuilder(database).artifact(name, name, **of, version=3, where="run_id = 'logged' AND rank = 0")

    with filled(tmp_path, fill):
        pass
    done = CliRunner().invoke(show_command, ["logged", "--dir", str(tmp_path)])
    [media] = [line for line in done.stdout.splitlines() if line.startswith("media ")]
    assert media.split(maxsplit=1)[1].startswith("cloud (3), digits (15), ") and media.endswith(", 4 more")
    assert re.search(r"^artifacts +a:v3, b:v3$", done.stdout, re.MULTILINE)
    every = CliRunner().invoke(show_command, ["logged", "--all", "--dir", str(tmp_path)])
    assert "2 more" not in every.stdout and "tone (" in every.stdout
    as_json = json.loads(
        CliRunner().invoke(show_command, ["logged", "--format", "json", "--dir", str(tmp_path)]).stdout
    )
    assert {row["key"]: row["n"] for row in as_json["media"]}["digits"] == 15
    assert [(row["name"], row["version"]) for row in as_json["artifacts"]] == [("a", "v3"), ("b", "v3")]
