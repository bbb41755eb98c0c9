"""`chiplog top` on a terminal and into a pipe: which run it shows, its keys, and how it outlives its source."""

import csv
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import duckdb
import pytest

from chiplog_cli.commands.look.top import _Reader
from chiplog_client.reads.live_run import Frame, LiveRun
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.process.procfs import read_proc_stat
from tests.support.command_line import ON_ONE_WORKER, environment, one_line
from tests.support.hand_written import hand_written, kept_open
from tests.support.live_runs import fill_live_runs
from tests.support.marks import everyday
from tests.support.node import Node, end_daemons
from tests.support.safeguard import proves
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

pytestmark = ON_ONE_WORKER

RANK = """
import sys, time, chiplog
run = chiplog.init(run_id="live", label="rank" + sys.argv[1], primary=sys.argv[1] == "0", capture_console=False)
for step in range(100_000):
    run.log({"loss": 1.0 / (step + 1)}, step=step)
    time.sleep(0.05)
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a frame of a thousand labels take as long as a query may: a slow machine needs more than that of a person."""
    monkeypatch.setattr("chiplog_cli.commands.look.top.LiveRun", functools.partial(LiveRun, timeout_s=None))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("live")
    with hand_written(root) as database:
        fill_live_runs(database)
    with kept_open(root):
        yield root


def test_one_frame_goes_into_a_pipe_with_the_label_that_hangs_first(chiplog, root):
    code, text, errors = chiplog("top", "large", "--once", root=root)
    assert (code, errors) == (0, "")
    lines = text.splitlines()
    assert lines[0].startswith("large  gpt  running 3m")
    assert lines[1].startswith("1000 labels: 1 hanging, 999 waiting  step 28 to 29  1s/step")
    assert lines[2].startswith("rank417 hangs, no new step for 1m")
    assert lines[6].split()[:3] == ["rank417", "node52", "hangs"]
    assert len([line for line in lines if line.startswith("node")]) == 126, "each node, and their heading"


@pytest.mark.full
def test_one_frame_is_a_table_for_programs_with_a_row_for_each_label(chiplog, root, tmp_path):
    code, text, errors = chiplog("top", "large", "--once", "--format", "csv", root=root)
    assert (code, errors) == (0, "")
    header, first, *others = csv.reader(text.splitlines())
    row = dict(zip(header, first, strict=True))
    assert len(others) == 999 and row["run_id"] == "large"
    assert (row["label"], row["status"], row["step"], row["steps_behind"]) == ("rank417", "hangs", "28", "1")
    assert (row["open_phase"], row["gpu_utilization"], row["reason"]) == ("forward", "0.97", "")
    path = tmp_path / "top.parquet"
    assert chiplog("top", "healthy", "--filter", "rank3", "-o", str(path), root=root) == (0, "", "")
    [[label, status, step_time_s]] = duckdb.sql(f"SELECT label, status, step_time_s FROM '{path}'").fetchall()
    assert (label, status, step_time_s) == ("rank3", "slow", pytest.approx(2))


@pytest.mark.full
def test_a_frame_in_markdown_keeps_its_lines_apart(chiplog, root):
    lines = chiplog("top", "healthy", "--format", "md", root=root)[1].splitlines()
    assert lines[0].startswith("healthy  gpt") and lines[1] == "" and lines[3] == ""
    assert any(line.startswith("| rank3 |") for line in lines)


@pytest.mark.full
def test_into_a_pipe_it_prints_one_frame_without_being_asked(chiplog, root):
    assert chiplog("top", "healthy", root=root)[1].splitlines()[1].startswith("8 labels: 7 running, 1 slow")


@pytest.mark.full
def test_options_set_the_order_the_group_and_the_filter(chiplog, root):
    def labels(*options: str) -> list[str]:
        lines = chiplog("top", "healthy", "--once", *options, root=root)[1].splitlines()
        return [line.split()[0] for line in lines[4:] if line.startswith(("rank", "node0"))]

    assert labels() == ["rank3", *(f"rank{rank}" for rank in range(8) if rank != 3)]
    assert labels("--sort", "rank") == [f"rank{rank}" for rank in range(8)]
    assert labels("--filter", "rank5") == ["rank5"]
    assert labels("--group", "node") == ["rank3", "node0"]


def test_without_a_run_the_newest_running_run_is_shown(chiplog, recorded):
    assert chiplog("top", "--once")[1].startswith("vit-20260104-0042  vision  running")
    assert chiplog("top", "gpt-20260103", "--once")[1].splitlines()[1].startswith("4 labels: 4 failed")


def test_keys_change_the_screen_and_the_terminal_is_restored(root):
    with Terminal(root, "top", "large", width=100, height=30) as terminal:
        terminal.wait_for("rank417 hangs, no new step for .* wait")
        terminal.wait_for("1 to [0-9]+ of 125 nodes")
        terminal.type("g")
        terminal.type("g")
        terminal.wait_for("1 to [0-9]+ of 1000 labels")
        terminal.type("/node3 \r")
        terminal.wait_for("filter 'node3 '")
        terminal.type("h")
        terminal.wait_for("goodput    share of")
        terminal.type("h")
        terminal.resize(60, 20)
        terminal.wait_for("rank417 hangs")
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.modes_are_restored()


@pytest.mark.parametrize(("number", "code"), everyday(1, [(signal.SIGTERM, 143), (signal.SIGINT, 130)]))
def test_a_signal_ends_it_and_the_terminal_is_restored(root, number, code):
    with Terminal(root, "top", "healthy") as terminal:
        terminal.wait_for("rank3 cost")
        os.kill(terminal.process.pid, number)
        assert terminal.end() == code
        assert terminal.modes_are_restored()
        assert "\x1b[?1049l" in terminal.raw, "the screen before it is back"


@proves("stopped-top-restores-terminal", "Ctrl-Z leaves a usable terminal", condition=False)
def test_ctrl_z_restores_the_terminal_and_the_screen_comes_back_with_the_process(root):
    with Terminal(root, "top", "healthy", controls=True) as terminal:
        terminal.wait_for("rank3 cost")
        for number in (signal.SIGTSTP, signal.SIGSTOP):
            os.kill(terminal.job, number)
            wait_until(lambda: read_proc_stat(terminal.job)[0] == "T", "a process that is stopped")
            if number == signal.SIGTSTP:
                assert terminal.modes_are_restored()
            os.kill(terminal.job, signal.SIGCONT)
            terminal.wait_for("rank3 cost")
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.modes_are_restored()


@proves("top-survives-collector", "top keeps the last frame while no collector answers", value="ZeroDivisionError")
def test_the_last_frame_stays_while_nothing_answers(tmp_path):
    where = paths_for_root(tmp_path)
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
    with Terminal(tmp_path, "top", "healthy", "--interval", "0.2") as terminal:
        terminal.wait_for("rank3 cost")
        where.index.rename(where.collector / "away")
        terminal.wait_for("rank3 cost.*(?s:.*)frame of [1-9][0-9]*s ago: ")
        assert terminal.wait_for(".{24}").group() == "nothing has been recorde"
        (where.collector / "away").rename(where.index)
        terminal.wait_for("\\nby attention, every 0.2s")
        terminal.type("q")
        assert terminal.end() == 0


@pytest.mark.full
def test_it_follows_running_ranks_through_a_collector_that_is_killed(tmp_path):
    node = Node(tmp_path).start()
    env = environment(tmp_path)
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(rank)], env=env) for rank in range(2)]
    try:
        node.until("SELECT 1 FROM rank_progress WHERE step > 5", lambda rows: len(rows) == 2)
        with Terminal(tmp_path, "top", "--interval", "0.3") as terminal:
            terminal.wait_for("2 labels: 2 running")
            assert node.collector is not None
            node.collector.kill()
            node.collector.wait()
            before = int(node_step(terminal))
            node.start_collector()
            while int(node_step(terminal)) <= before + 20:
                pass
            terminal.type("q")
            assert terminal.end() == 0
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        end_daemons(node.place)
        for daemon in (node.agent, node.collector):
            if daemon is not None:
                daemon.wait()


def node_step(terminal: Terminal) -> str:
    return terminal.wait_for(r"rank0 +running +(\d+) ").group(1)


def test_a_directory_without_runs_is_one_line(chiplog, tmp_path):
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
        database.execute("DELETE FROM base.producers")
    code, text, errors = chiplog("top", "--once", root=tmp_path)
    assert (code, text) == (2, "")
    assert "no run has been recorded yet" in one_line(errors)


def test_a_frame_that_is_older_than_two_intervals_says_its_age() -> None:
    reader = object.__new__(_Reader)
    reader.frame, reader.is_paused = Frame("r", datetime(2026, 1, 1), []), False
    reader._asked_at, reader._error, reader._interval_s = None, "", 2.0
    reader.read_at = time.monotonic() - 1.0
    assert reader.status == ""
    reader.read_at -= 8.0
    assert reader.status == "frame of 9s ago"
    reader._error = "no answer"
    assert reader.status == "frame of 9s ago: no answer"
    reader.is_paused = True
    assert reader.status == ""
