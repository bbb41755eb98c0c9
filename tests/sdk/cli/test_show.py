"""`chiplog show` for an engineer on call: labels behind or silent, alerts, and where the time goes, on one screen."""

import contextlib
import io
import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chiplog.cli.root import main
from chiplog.cli.run_page import _seconds_text, first_failure_text
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.sql import tables_sql, views_sql
from tests.support.safeguard import Safeguard

SAFEGUARDS = [
    Safeguard(
        "the last step is that of the newest attempt",
        "last-step-of-newest-attempt",
        part="arg_max(step, attempt::HUGEINT * 9223372036854775808 + seq)",
        new="max(step)",
        test="test_the_last_step_of_a_metric_is_that_of_its_last_value",
    ),
    Safeguard(
        "the mean of a phase counts every step of every label",
        "phase-mean-of-all-steps",
        part="sum(seconds) / sum(times)",
        new="median(seconds / times)",
        test="test_the_mean_of_a_phase_is_that_of_all_steps_and_the_straggler_is_named",
    ),
]
pytestmark = pytest.mark.xdist_group("show")  # one worker fills the database

SCREEN_LINES = 70
BEGUN = "TIMESTAMP '2026-01-02 03:00:00'"


def fill(database: duckdb.DuckDBPyConnection) -> None:
    """A run of 200 ranks, of which three crashed, rank7 is behind and rank150 silent; one of two; one that failed."""
    database.execute(tables_sql())
    database.execute(views_sql())
    database.execute(
        "INSERT INTO base.runs (run, run_id, tags, primary_label) "
        "VALUES (1, 'large', [], 'rank0'), (2, 'small', [], 'rank0'), (4, 'skewed', [], 'rank0')"
    )
    database.execute(
        "INSERT INTO base.producers "
        "(producer, role, run, label, attempt, is_primary, rank, node, started_at, produced) "
        f"SELECT run * 10000 + r, 'rank', run, 'rank' || r, 0, r = 0, r, 'node' || r // 8, {BEGUN}, 10 "
        "FROM (VALUES (1, 200), (2, 2), (4, 4)) t(run, n), range(200) u(r) WHERE r < n"
    )
    database.execute(
        f"UPDATE base.producers SET state = 'crashed', exit_signal = 9, ended_at = {BEGUN} + to_seconds(2000 - rank) "
        "WHERE run = 1 AND rank IN (30, 60, 90)"
    )
    database.execute(
        "INSERT INTO base.intervals SELECT producer, 0, 9, now()::TIMESTAMP - to_seconds(CASE WHEN rank = 150 THEN 500 "
        "ELSE 5 END) FROM base.producers"
    )
    database.execute(
        "INSERT INTO base.names VALUES (1, 'loss'), (2, 'chiplog/cuda/peak'), (3, 'step'), (4, 'data'), (5, 'forward')"
    )
    database.execute(
        f"INSERT INTO base.metrics SELECT producer, k, s, s, {BEGUN} + to_seconds(s), 100 - s FROM base.producers, "
        "range(1, 3) t(k), range(90, 100) u(s) WHERE NOT (rank = 7 AND s > 95)"
    )
    database.execute(
        f"INSERT INTO base.phases SELECT producer, k, 99, 99, {BEGUN}, CASE WHEN k = 3 THEN 2 WHEN rank = 1 THEN 1.5 "
        "ELSE 0.5 END FROM base.producers, range(3, 5) t(k) WHERE run = 2"
    )
    database.execute(  # one of four labels is slow: a median over labels would hide it
        f"INSERT INTO base.phases SELECT producer, 5, s, s, {BEGUN}, CASE WHEN rank = 3 THEN 0.0255 ELSE 0.001 END "
        "FROM base.producers, range(2) t(s) WHERE run = 4"
    )
    database.execute(  # a step that was said in two parts, and one whose length is not known
        f"INSERT INTO base.phases SELECT producer, 5, step, step, {BEGUN}, value FROM base.producers, "
        "(VALUES (99, 0.3), (99, 0.2), (89, 2.5)) t(step, value) WHERE run = 2"
    )
    database.execute("INSERT INTO base.definitions VALUES (20000, 1, '2026-01-02', 'loss', 'max', '')")
    database.execute("INSERT INTO base.summary VALUES (20000, 2, '2026-01-02', 'best/epoch', '7')")
    database.execute(
        "INSERT INTO base.events (producer, seq, ts, kind, level, message, body) "
        f"SELECT 20000 + n % 2, n, {BEGUN} + to_seconds(n), 'alert', 'error', 'loss is NaN', "
        "json_object('text', 'at step ' || n) FROM range(30) t(n) UNION ALL "
        f"SELECT 20000, 50, {BEGUN}, 'traceback', 'error', 'ValueError: boom', '{{}}'"
    )
    database.execute("INSERT INTO base.runs (run, run_id, tags, primary_label) VALUES (3, 'again', [], 'rank0')")
    database.execute(
        "INSERT INTO base.producers "
        "(producer, role, run, label, attempt, is_primary, rank, state, reason, started_at, ended_at) "
        f"SELECT 30000 + n, 'rank', 3, label, attempt, false, rank, state, reason, {BEGUN} + to_seconds(begun), "
        f"{BEGUN} + to_seconds(ended) FROM (VALUES "
        "(0, 'rank1', 0, 1, 'failed', 'ValueError: train', 0, 260), (1, 'rank1', 1, 1, 'finished', NULL, 300, 400), "
        "(2, 'eval', 0, NULL, 'failed', 'ValueError: eval 0', 0, 50), "
        "(3, 'eval', 1, NULL, 'failed', 'ValueError: eval 1', 100, 150), "
        "(4, 'eval', 2, NULL, 'failed', 'ValueError: eval 2', 200, 250)"
        ") t(n, label, attempt, rank, state, reason, begun, ended)"
    )
    database.execute(  # the second attempt of rank1 is not as far as the first one was
        f"INSERT INTO base.metrics SELECT 30000 + attempt, 1, s, s, {BEGUN}, 400 - s "
        "FROM (VALUES (0, 363), (1, 20)) t(attempt, n), range(400) u(s) WHERE s < n"
    )
    fill_interrupted(database)


def fill_interrupted(database: duckdb.DuckDBPyConnection) -> None:
    """A run of three ranks that Ctrl-C ended, and one of two that were ended by SIGTERM."""
    database.execute(
        "INSERT INTO base.runs (run, run_id, tags, primary_label) "
        "VALUES (5, 'interrupted', [], 'rank0'), (6, 'ended', [], 'rank0')"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, state, exit_code, "
        "exit_signal, cause, reason, started_at, ended_at) "
        f"SELECT run * 10000 + rank, 'rank', run, 'rank' || rank, 0, rank = 0, rank, 'vm', 'failed', code, signal, "
        f"cause, reason, {BEGUN}, {BEGUN} + to_microseconds(us) FROM (VALUES "
        "(5, 0, NULL, 2, 'exit_status', NULL, 100000001), "
        "(5, 1, 1, NULL, 'interrupted', 'KeyboardInterrupt', 100000000), "
        "(5, 2, 130, NULL, 'exit_status', NULL, 100000002), "
        "(6, 0, NULL, 15, 'exit_status', NULL, 100000004), "
        "(6, 1, 143, NULL, 'interrupted', 'SystemExit: 143', 100000000)"
        ") t(run, rank, code, signal, cause, reason, us)"
    )
    database.execute(
        "INSERT INTO base.events (producer, seq, ts, kind, level, message, body, cause) "
        f"SELECT 50001, 9, {BEGUN} + to_microseconds(100000000), 'traceback', 'error', 'KeyboardInterrupt', "
        "json_object('exception', 'KeyboardInterrupt'), 'interrupted'"
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = paths_for_root(tmp_path_factory.mktemp("shown"))
    ensure_private_dir(where.collector)
    with duckdb.connect(str(where.index)) as database:
        fill(database)
    return where.root


@pytest.fixture(scope="module")
def show(root: Path) -> Any:
    """Return a function that shows a run as a table or json. Results are cached."""

    @cache
    def shown(run: str, *options: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(["show", run, "--dir", str(root), *options]) == 0
        return printed.getvalue()

    return shown


def labels_of(page: str) -> list[list[str]]:
    """Return the rows of the table of labels."""
    rows = page.partition("\nLabels\n")[2].partition("\n* primary")[0].splitlines()
    return [re.split(" {2,}", row.strip()) for row in rows[2:]]


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


def test_all_of_it_can_be_asked_for(show: Any) -> None:
    assert len(labels_of(show("large", "--all"))) == 200
    found = json.loads(show("large", "--format", "json"))
    assert len(found["labels"]) == 200
    behind = [(label["label"], label["last_step"]) for label in found["labels"] if label["steps_behind"]]
    assert behind == [("rank7", 95)]


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


def test_time_per_phase_says_how_much_of_the_step_it_is_and_who_is_slowest(show: Any) -> None:
    page = show("small")
    assert re.search(r"\nstep +2 +2s +100% +rank0 2s\ndata +2 +1s +50% +rank1 1.5s\n", page)
    assert re.search(r"\nforward +4 +1.5s +25% +rank0 1.5s\n", page), "only steps whose length is known"
    phases = json.loads(show("small", "--format", "json"))["phases"]
    assert [(phase["phase"], phase["seconds"], phase["mean_s"]) for phase in phases] == [
        ("forward", 6.0, 1.5),
        ("step", 4.0, 2.0),
        ("data", 2.0, 1.0),
    ]


def test_the_mean_of_a_phase_is_that_of_all_steps_and_the_straggler_is_named(show: Any) -> None:
    page = show("skewed")
    assert re.search(r"\nforward +8 +7.12ms +rank3 25.5ms\n", page), page
    [phase] = json.loads(show("skewed", "--format", "json"))["phases"]
    assert phase["mean_s"] == pytest.approx(phase["seconds"] / phase["times"]) == pytest.approx(0.007125)


def test_the_command_that_a_page_names_shows_all(show: Any, root: Path) -> None:
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


def test_the_last_step_of_a_metric_is_that_of_its_last_value(show: Any) -> None:
    [loss] = json.loads(show("again", "--format", "json"))["keys"]
    assert (loss["points"], loss["last_step"], loss["last_values"]) == (383, 19, {"rank1": 381.0})


def test_who_failed_first_is_of_the_newest_attempt_in_which_a_rank_failed_and_says_which_that_was(show: Any) -> None:
    """A restart of a process that is not a rank does not hide a failure of a rank."""
    first = "eval in attempt 0, 210 s before rank1: ValueError: eval 0; of the ranks first rank1: ValueError: train"
    assert f"failed first {first}" in " ".join(show("again").split())
    assert json.loads(show("again", "--format", "json"))["first_failure"]["attempt"] == 0


@pytest.mark.parametrize(
    ("is_cause", "is_certain", "others", "text"),
    [
        (True, True, [("rank1", 0.5, True)], "rank0, 0.5 s before rank1: boom; rank1 is an echo"),
        (True, True, [("rank1", -0.0107, True)], "rank0: boom; rank1 is an echo, seen up to 0.0107 s sooner"),
        (
            True,
            True,
            [("rank1", -0.2, True), ("rank2", 0.5, True)],
            "rank0, 0.5 s before rank2: boom; rank1, rank2 are echoes, seen up to 0.2 s sooner",
        ),
        (
            False,
            False,
            [("rank1", 0.0, True)],
            "rank0, at the same time as rank1 (uncertain): boom; ended from outside, no cause among the labels",
        ),
        (True, True, [("rank1", 4e-06, True)], "rank0, less than 1 ms before rank1: boom; rank1 is an echo"),
        (True, True, [("rank1", -4e-06, True)], "rank0: boom; rank1 is an echo, seen less than 1 ms sooner"),
        (True, True, [("rank1", 7380.0, True)], "rank0, 2h03m before rank1: boom; rank1 is an echo"),
    ],
    ids=["later", "sooner", "both", "together", "at once", "hardly sooner", "much later"],
)
def test_nobody_fails_first_after_another(
    text: str, others: list[tuple[str, float, bool]], *, is_cause: bool, is_certain: bool
) -> None:
    named = [dict(zip(("label", "after_s", "is_echo"), other, strict=True)) | {"rank": 1} for other in others]
    failure = {"label": "rank0", "rank": 0, "attempt": 0, "reason": "boom", "uncertainty_s": 0.0, "others": named}
    assert first_failure_text(failure | {"is_cause": is_cause, "is_certain": is_certain}) == text


def test_a_run_that_ctrl_c_ended_names_no_first_failure(show: Any) -> None:
    page = " ".join(show("interrupted").split())
    assert "interrupted by Ctrl-C (SIGINT): rank1, rank0, rank2 " in page
    assert "failed first" not in page
    page = " ".join(show("ended").split())
    assert "failed first rank1, less than 1 ms before rank0: SystemExit: 143; ended from outside" in page
    assert "Ctrl-C" not in page


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.99999, "1000ms"), (4e-6, "4µs"), (2e-4, "200µs"), (0.0012, "1.2ms"), (1.5, "1.5s"), (61, "1m01s")],
)
def test_seconds_of_a_phase_are_short_and_never_in_powers_of_ten(seconds: float, text: str) -> None:
    assert _seconds_text(seconds) == text
