"""`chiplog logs`: lines in the order of time, of one label or all, and those that are still to come."""

import signal
import subprocess
import sys

from chiplog_cli.commands.look.logs import COLOURS, colour_of
from tests.support.command_line import CLI, ON_ONE_WORKER, environment
from tests.support.hand_written import hand_written
from tests.support.recorded import fill_three_runs
from tests.support.waiting import WAIT_S

pytestmark = ON_ONE_WORKER

COLLECTOR = """
import sys, duckdb
from pathlib import Path
from chiplog_collector.query.service import QueryService, lock_down
from chiplog_schemas.process.file_lock import Lock
from chiplog_schemas.storage.journal_dir import list_journals
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from tests.support.run_builder import RunBuilder
where = paths_for_root(Path(sys.argv[1]))
ensure_private_dir(where.run)
lock = Lock(where.collector / "lock")
connection = duckdb.connect(str(where.index))
lock_down(connection)
service = QueryService(connection, where.query_address)
service.start()
build = RunBuilder(connection, "TIMESTAMP '2026-01-04 04:00:00'")
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
service.close()
"""


def test_logs_are_in_the_order_of_time_with_labels_and_without_control_characters(chiplog):
    code, text, _ = chiplog("logs", "gpt-20260102")
    assert code == 0
    assert text.splitlines() == [f"rank{rank} | step {step} ok" for step in range(20) for rank in range(4)]


def test_logs_can_be_narrowed(chiplog):
    assert chiplog("logs", "gpt-20260102", "--label", "rank1", "--tail", "2")[1] == "step 18 ok\nstep 19 ok\n"
    lines = chiplog("logs", "gpt-20260102", "--stream", "stderr", "--label", "rank0")[1].splitlines()
    assert lines == [f"step {step} ok" for step in range(0, 20, 3)]
    assert chiplog("logs", "gpt-20260102", "--tail", "0") == (0, "", "")
    timed = chiplog("logs", "gpt-20260102", "--tail", "1", "--times", "--label", "rank3")[1]
    assert timed == "2026-01-02 03:04:05.193Z step 19 ok\n"


def test_logs_on_a_terminal_keep_colours_and_nothing_else(on_terminal):
    shown = on_terminal(80, "logs", "gpt-20260102", "--tail", "1")
    assert "\x1b[32m ok" in shown
    assert "\x1b[2J" not in shown and "\x07" not in shown


def test_following_a_run_that_has_ended_ends(chiplog):
    code, text, _ = chiplog("logs", "gpt-20260102", "--follow", "--tail", "1")
    assert (code, text) == (0, "rank3 | step 19 ok\n")


def test_following_prints_what_comes_whatever_its_clock_says_until_the_run_ends_or_ctrl_c(tmp_path):
    with hand_written(tmp_path) as database:
        fill_three_runs(database)
    collector = subprocess.Popen(
        [sys.executable, "-c", COLLECTOR, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert collector.stdin and collector.stdout
    assert collector.stdout.readline() == "ready\n"

    def write(statement: str) -> None:
        collector.stdin.write(statement + "\n")
        collector.stdin.flush()
        assert collector.stdout.readline() == "done\n"

    vit = "run_id LIKE 'vit%' AND rank ="
    write(f"build.console('first', where={vit + ' 0'!r})")
    follower = subprocess.Popen(
        [*CLI, "logs", "vit", "--follow"], stdout=subprocess.PIPE, text=True, env=environment(tmp_path)
    )
    assert follower.stdout
    assert follower.stdout.readline() == "rank0 | first\n"
    interrupted = subprocess.Popen(
        [*CLI, "logs", "vit", "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    )
    assert interrupted.stdout and interrupted.stdout.readline() == "rank0 | first\n"
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.communicate(timeout=WAIT_S) == ("", "\n"), "a new line after ^C, and nothing else"
    assert interrupted.returncode == 130
    write(f"build.console('clock is wrong', seq=5, line_no=0, at=-1767499200, where={vit + ' 1'!r})")
    assert follower.stdout.readline() == "rank1 | clock is wrong\n"
    write(f"build.console('second', seq=1, at=1, where={vit + ' 0'!r})")
    assert follower.stdout.readline() == "rank0 | second\n"
    write("build.update('run = 3', state='finished', ended_s=3600)")
    assert follower.stdout.read() == ""
    assert follower.wait(WAIT_S) == 0
    follower.stdout.close()
    collector.stdin.close()
    assert collector.wait(WAIT_S) == 0
    collector.stdout.close()


def test_times_may_be_local(chiplog):
    timed = chiplog("logs", "gpt-20260102", "--tail", "1", "--times", "--label", "rank3", "--local")[1]
    assert timed == "2026-01-02 04:04:05.193+01:00 step 19 ok\n"


def test_a_label_has_the_same_colour_each_time_and_eight_ranks_have_several():
    assert colour_of("rank0") == colour_of("rank0")
    assert len({colour_of(f"rank{rank}") for rank in range(8)}) > len(COLOURS) // 2
    assert colour_of("half a character: \ud83d") in COLOURS
