"""`chiplog failures`: the first failure, its echoes, and the labels that ended otherwise."""

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from chiplog_cli.commands.look.failures import _sheets, failures
from tests.support.hand_written import hand_written, kept_open
from tests.support.page_run import fill_page_run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("failed")
    with hand_written(root) as database:
        fill_page_run(database)
    with kept_open(root):
        yield root


def call(root: Path, *arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(failures, [*arguments, "--dir", str(root)])


def test_the_first_failure_comes_first_and_each_label_has_its_role_and_time(root: Path) -> None:
    rows = [line.split() for line in call(root, "slow").stdout.splitlines()[2:]]
    assert rows[0][:5] == ["rank2", "first", "0s", "failed", "node0"]
    assert rows[1][:5] == ["rank6", "echo", "2s", "crashed", "node0"] and "SIGTERM" in rows[1]
    assert {row[0] for row in rows[2:]} == {f"rank{rank}" for rank in (0, 1, 3, 4, 5, 7)}
    assert "ValueError:" in rows[0] and rows[0][-4:] == ["line", "999", "of", "rank2"]


def test_json_has_what_the_page_has(root: Path) -> None:
    found = json.loads(call(root, "slow", "--format", "json").stdout)
    assert (found["rounds"], found["first"]["label"], len(found["labels"])) == ([0], "rank2", 8)


def test_a_run_without_a_failure_and_a_round_without_one_are_one_line(root: Path) -> None:
    assert call(root, "even").stdout == "no label of run even has failed\n"
    done = call(root, "slow", "--attempt", "3")
    assert done.exit_code == 2 and "attempt=3 has no failure; choose one of 0" in done.stderr


@pytest.mark.parametrize(("shown", "is_whole"), [(32, False), (None, True)])
def test_a_long_error_is_cut_on_a_narrow_terminal(root: Path, shown: int | None, is_whole: bool) -> None:
    found = json.loads(call(root, "slow", "--format", "json").stdout)
    found["labels"][0]["reason"] = "word " * 100 + "the-end"
    printed = StringIO()
    [sheet] = _sheets(found, shown)
    Console(file=printed, width=100, force_terminal=True).print(sheet)
    assert ("the-end" in printed.getvalue(), "…" in printed.getvalue()) == (is_whole, not is_whole)
