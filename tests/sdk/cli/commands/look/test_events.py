"""`chiplog events`: the last events, in the order of time, by kind, level and label."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chiplog_cli.commands.look.events import events
from chiplog_cli.commands.look.run_page import events_table
from chiplog_cli.tables.format_values import UTC_ZONE
from tests.support.hand_written import hand_written, kept_open
from tests.support.page_run import fill_page_run
from tests.support.sampled_run import fill_sampled_run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("events")
    with hand_written(root) as database:
        fill_page_run(database)
    with kept_open(root):
        yield root


def listed(root: Path, *arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(events, ["slow", *arguments, "--format", "json", "--dir", str(root)])
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_the_last_events_come_in_the_order_of_time_and_filters_choose_among_them(root: Path) -> None:
    rows = listed(root)
    assert [row["ts"] for row in rows] == sorted(row["ts"] for row in rows)
    assert listed(root, "-n", "2") == rows[-2:]
    assert listed(root, "--kind", "alert") == [row for row in rows if row["kind"] == "alert"] != []
    assert listed(root, "--level", "error") == [row for row in rows if row["level"] == "error"] != []
    assert listed(root, "--label", "rank2") == [row for row in rows if row["label"] == "rank2"] != []


def test_a_table_has_a_line_for_each_event(root: Path) -> None:
    done = CliRunner().invoke(events, ["slow", "--kind", "traceback", "--dir", str(root)])
    assert done.stdout.splitlines()[-1].split()[2:] == ["rank2", "traceback", "error", "ValueError:", "boom"]


def test_an_alert_has_its_text_and_bad_values_their_number(root: Path) -> None:
    done = CliRunner().invoke(events, ["slow", "--kind", "alert", "--dir", str(root)])
    assert done.stdout.splitlines()[-1].endswith("  loss spike: at step 2")
    row = {"ts": None, "label": "rank0", "kind": "bad_values", "level": "warning", "message": "not logged"}
    advised = events_table([{**row, "kind": "gpu.xid", "body": {"code": 79, "advice": "drain the node"}}], UTC_ZONE)
    assert advised is not None and str(advised.rows[0][-1]) == f"{row['message']}; to do: drain the node"
    table = events_table([{**row, "body": {"media": 17, "not_finite": 1}}], UTC_ZONE)
    assert table is not None and str(table.rows[0][-1]) == "not logged: 17 media, 1 not finite"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "alrt"], "kind 'alrt' of an event is unknown; did you mean 'alert'?"),
        (["--level", "fatal"], "level 'fatal' of an event is unknown"),
        (["--label", "rank99"], "label 'rank99'"),
    ],
)
def test_an_unknown_name_is_one_line(root: Path, arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(events, ["slow", *arguments, "--dir", str(root)])
    assert done.exit_code == 2 and message in done.stderr


def test_a_run_without_events_is_one_line(root: Path) -> None:
    done = CliRunner().invoke(events, ["even", "--dir", str(root)])
    assert (done.exit_code, done.stdout) == (0, "no event\n")


def test_events_of_a_node_need_no_run(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_sampled_run(database)
    with kept_open(tmp_path):
        of = ["--dir", str(tmp_path), "--node"]
        done = CliRunner().invoke(events, [*of, "node-1-1", "--format", "json"])
        [event] = json.loads(done.stdout)
        assert (event["kind"], event["node"]) == ("gpu.lost", "node-1-1")
        for arguments, message in (
            ([*of, "nod-1-1"], "node 'nod-1-1' is unknown; did you mean 'node-1-1'?"),
            ([*of, "node-1-1", "sampled"], "--node prints events that are of no run"),
            ([*of, "node-1-1", "--kind", "gpu.xid"], "node 'node-1-1' has no such event"),
        ):
            done = CliRunner().invoke(events, arguments)
            assert done.exit_code == 2 and message in done.output
