"""The table macros: their columns, examples by hand, and calls through the service that answers queries."""

import math
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog_collector.query.service import QueryService, lock_down
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.query.execute import tables_found
from tests.support.collector_log import START_US, Rank, whole
from tests.support.index import Index
from tests.support.query_client import Asker
from tests.support.safeguard import proves
from tests.support.stored_media import log_table, store_content

_SUMMED = "label attempt rank n_steps wait_s median_wait_s max_wait_s max_wait_step step_s share"
_RUN = "run_id project name run_group job_type tags state created_at ended_at"
COLUMNS = {
    "history('r', 'loss')": "label attempt rank step seq ts value",
    "ema('r', 'loss', 0.5)": "label rank step ts value ema",
    "config_history('r')": "key value previous ts label attempt",
    "compare('r', 's')": "kind key step a b change",
    "pivot_runs(['lr'], ['loss'])": f"{_RUN} config summary",
    "downsample('r', 'loss')": "run_id label attempt rank key step ts n min mean max",
    "pivot_steps('r', ['loss'])": "label rank step metrics",
    "media_table('r', 'samples', 1)": "label x y",
    "stragglers_between('r', 0, 1)": "phase label rank n_steps n_slowest median_s typical_s excess_s share",
    "data_wait_between('r', 0, 1)": _SUMMED,
    "excess_between('r', 'forward', 0, 1)": "label rank step seconds typical_s excess_s",
    "gpu_event_context('node-a', 'GPU-0', '2026-11-18 11:06:45')": "ts offset_s source name device value level message "
    "run_id label rank step",
}


def two_runs(index: Index) -> Index:
    """Record run r, whose rank0 was restarted at step 1, and run s."""
    first, other = Rank(0, gpus=["GPU-0"]), Rank(1)
    again = Rank(2, rank=0, label="rank0", restart=1, started_at=START_US + 9_000_000)
    second = Rank(5, label="rank0", rank=0, run_id="s", primary=True, launch="other")
    first.say(EventKind.CONFIG, {"lr": "0.1", "width": "512"})
    first.say(EventKind.CONFIG, {"lr": "0.1"})
    again.say(EventKind.CONFIG, {"lr": "0.2"})
    second.say(EventKind.CONFIG, {"lr": "0.2", "width": "256", "seed": "1"})
    for rank, steps in (
        (first, {0: 4.0, 1: 9.0}),
        (other, {0: 2.0, 1: 1.0}),
        (again, {1: 3.0, 2: 1.0}),
        (second, {1: 8.0, 2: 0.5, 3: 7.0}),
    ):
        for step, loss in steps.items():
            rank.log(step, loss=loss, lr=0.5)
    tables = [
        log_table(first, 1, "samples", [{"old": 1}]),
        log_table(other, 1, "samples", [{"x": 1, "y": "b"}, {"x": 0, "y": "a"}]),
        log_table(again, 1, "samples", [{"x": 7}]),
        log_table(again, 1, "samples", [{"x": 0.5}]),
    ]
    stored = [store_content(index.files, data) for data in tables]
    agent = Rank(9, label="agent", role="agent", node="node-a", run_id="", rank=None)
    agent.say(EventKind.NOTICE, "gpu.xid", "error", "lost", {"device": "GPU-0", "code": 79}, ts=START_US + 5_000_000)
    return index.take(whole(first), whole(again, other, second, agent), *stored)


@pytest.fixture
def asker(index: Index, tmp_path: Path) -> Iterator[Asker]:
    """Return a client of the service that answers queries of two runs."""
    two_runs(index)
    lock_down(index.database.connection, files=index.files)
    service = QueryService(index.database.connection, f"ipc://{tmp_path}/query.sock")
    service.start()
    asker = Asker(service.address)
    yield asker
    asker.close()
    service.close()


def test_the_service_answers_calls_of_every_macro(asker: Asker) -> None:
    for call, columns in COLUMNS.items():
        described = asker.rows(f"DESCRIBE FROM {call}")
        assert [column["column_name"] for column in described] == columns.split(), call
        assert asker.rows(f"SELECT * FROM {call}") or "between" in call, call
    [row] = asker.rows("SELECT config, summary FROM pivot_runs($keys, ['loss']) WHERE run_id = 's'", {"keys": ["lr"]})
    assert row == {"config": [("lr", "0.2")], "summary": [("loss", "7.0")]}


def test_a_pivot_without_a_list_names_the_macros_that_replace_it(asker: Asker) -> None:
    answer = asker.ask("PIVOT metrics ON key USING first(value) GROUP BY step")
    assert answer.error_kind == "refused" and "pivot_steps(run, keys) or pivot_runs(" in answer.message


def test_parameters_of_macros_have_names_and_may_be_values_of_a_query(index: Index) -> None:
    two_runs(index)
    execute = index.database.connection.execute
    named = "SELECT count(*) FROM history(run := ?, key := ?)"
    assert execute(named, ["r", "loss"]).fetchall() == [(6,)]
    assert execute("SELECT count(*) FROM pivot_steps(?, ?)", ["r", ["loss", "lr"]]).fetchall() == [(5,)]
    assert execute("SELECT * FROM history('unknown', 'loss')").fetchall() == []


def test_macros_are_exactly_these(index: Index) -> None:
    query = """SELECT DISTINCT function_name FROM duckdb_functions()
        WHERE function_type = 'table_macro' AND schema_name = 'main' AND NOT internal"""
    assert {name for (name,) in index.sql(query)} == {call.partition("(")[0] for call in COLUMNS}


@proves("macros-replaced-at-start", "macros are replaced when a database is opened", part=', "macros.sql"')
def test_macros_of_another_version_are_replaced_when_the_database_is_opened(index: Index) -> None:
    index.sql("CREATE OR REPLACE MACRO history(run, key) AS TABLE SELECT 'old' AS version")
    index.sql("COMMENT ON VIEW reads.state IS 'made by another version'")
    index.reopen(has_views=False)
    assert len(index.sql("DESCRIBE FROM history('r', 'loss')")) == 7


def test_the_history_of_a_metric_has_all_attempts_in_order(index: Index) -> None:
    rows = two_runs(index).sql("SELECT label, attempt, step, value FROM history('r', 'loss')")
    assert rows == [
        ("rank0", 0, 0, 4.0),
        ("rank0", 0, 1, 9.0),
        ("rank0", 1, 1, 3.0),
        ("rank0", 1, 2, 1.0),
        ("rank1", 0, 0, 2.0),
        ("rank1", 0, 1, 1.0),
    ]


@proves(
    "newest-value-of-step",
    "of a step that was done again the newest attempt counts in a macro",
    part="arg_max(f.value, ",
    new="arg_min(f.value, ",
)
def test_of_a_step_that_was_done_again_the_newest_value_counts(index: Index) -> None:
    rows = two_runs(index).sql("SELECT label, step, metrics FROM pivot_steps('r', ['loss', 'lr', 'unknown'])")
    assert rows == [
        ("rank0", 0, {"loss": 4.0, "lr": 0.5}),
        ("rank0", 1, {"loss": 3.0, "lr": 0.5}),
        ("rank0", 2, {"loss": 1.0, "lr": 0.5}),
        ("rank1", 0, {"loss": 2.0, "lr": 0.5}),
        ("rank1", 1, {"loss": 1.0, "lr": 0.5}),
    ]
    # Worked by hand: 4; 0.5 * 3 + 0.5 * 4 = 3.5; 0.5 * 1 + 0.5 * 3.5 = 2.25.
    assert index.sql("SELECT label, ema FROM ema('r', 'loss', 0.5)") == [
        ("rank0", 4.0),
        ("rank0", 3.5),
        ("rank0", 2.25),
        ("rank1", 2.0),
        ("rank1", 1.5),
    ]


def test_a_step_is_one_row_also_if_its_label_got_another_rank(index: Index) -> None:
    first, again = Rank(0, label="worker"), Rank(1, label="worker", rank=3, restart=1, started_at=START_US + 9_000_000)
    first.log(0, loss=4.0, lr=0.5)
    again.log(0, loss=3.0)
    index.take(whole(first), whole(again))
    rows = index.sql("SELECT * FROM pivot_steps('r', ['loss', 'lr'])")
    assert rows == [("worker", 3, 0, {"loss": 3.0, "lr": 0.5})]


@pytest.mark.parametrize("alpha", ["0", "-0.5", "1.5", "'nan'::DOUBLE", "NULL"])
def test_an_average_is_refused_for_an_alpha_that_is_none(asker: Asker, alpha: str) -> None:
    answer = asker.ask(f"SELECT * FROM ema('r', 'loss', {alpha})")
    shown = alpha.partition("::")[0].strip("'")
    assert answer.error_kind is not None and f"ema: alpha {shown} must be in (0, 1]" in answer.message
    assert len(asker.rows("SELECT * FROM ema('r', 'loss', $alpha)", {"alpha": 1})) == 5


@proves(
    "average-beyond-its-block",
    "an average that decays includes the block of steps before",
    part=" + coalesce(pow(s.keep, s.j + 1) * b.own, 0)",
)
@pytest.mark.parametrize("alpha", [1e-6, 0.01, 0.3, 0.9, 0.999, 1.0])
def test_an_average_that_decays_is_that_of_the_recursion(index: Index, alpha: float) -> None:
    """Invariant: y(0) = x(0), y(t) = alpha x(t) + (1 - alpha) y(t - 1); NaN and infinite values change nothing."""
    chance = random.Random(7)
    values = [chance.choice((chance.gauss(0, 1), chance.gauss(5, 100), math.nan, math.inf)) for _ in range(3_000)]
    rank = Rank(0)
    for step, value in enumerate(values):
        rank.log(step, x=value)
    index.take(whole(rank))
    expected: list[float] = []
    for value in values:
        if not math.isfinite(value):
            expected += expected[-1:]
        else:
            expected.append(alpha * value + (1 - alpha) * expected[-1] if expected else value)
    found = [row[0] for row in index.sql(f"SELECT ema FROM ema('r', 'x', {alpha})")]
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_history_of_a_config_has_each_change_once(index: Index) -> None:
    rows = two_runs(index).sql("SELECT key, value, previous, label, attempt FROM config_history('r')")
    assert rows == [
        ("lr", "0.1", None, "rank0", 0),
        ("lr", "0.2", "0.1", "rank0", 1),
        ("width", "512", None, "rank0", 0),
    ]


def test_two_runs_are_compared_by_config_summary_and_the_steps_that_both_have(index: Index) -> None:
    rows: list[Any] = two_runs(index).sql("SELECT * FROM compare('r', 's') WHERE kind <> 'metric' OR key = 'loss'")
    assert rows == [
        ("config", "seed", None, None, "1", None),
        ("config", "width", None, "512", "256", -256.0),
        ("metric", "loss", 1, "2.0", "8.0", 6.0),  # (3 + 1) / 2: the mean over labels
        ("metric", "loss", 2, "1.0", "0.5", -0.5),
        ("summary", "loss", None, "1.0", "7.0", 6.0),
        ("summary", "lr", None, "0.5", "0.5", 0.0),
    ]


def test_runs_are_rows_with_the_chosen_config_and_summary(index: Index) -> None:
    query = "SELECT run_id, state, config, summary FROM pivot_runs(['lr', 'seed'], ['loss']) ORDER BY run_id"
    assert two_runs(index).sql(query) == [
        ("r", "running", {"lr": "0.2"}, {"loss": "1.0"}),
        ("s", "running", {"lr": "0.2", "seed": "1"}, {"loss": "7.0"}),
    ]
    assert index.sql("SELECT DISTINCT config, summary FROM pivot_runs([], ['unknown'])") == [({}, {})]
    best = "SELECT run_id FROM pivot_runs(['lr'], ['loss']) ORDER BY (summary['loss'])::DOUBLE LIMIT 1"
    assert index.sql(best) == [("r",)]


@proves(
    "newest-table-of-step",
    "of a table that was logged again the newest attempt counts",
    part="i.attempt = max(i.attempt) OVER (PARTITION BY i.run_id, n.name, f.step, i.label)",
    new="true",
)
def test_a_logged_table_has_the_rows_of_all_labels_at_a_step(index: Index) -> None:
    """Of the newest attempt, and there the last table; missing columns are NULL."""
    query = "SELECT * FROM media_table('r', 'samples', 1)"
    assert two_runs(index).sql(query) == [("rank0", 0.5, None), ("rank1", 1.0, "b"), ("rank1", 0.0, "a")]


def test_items_of_a_list_and_equal_tables_are_each_there_once(index: Index) -> None:
    ranks = [Rank(0), Rank(1)]
    for rank in ranks:
        for item in range(2):
            data = log_table(rank, 0, "list", [{"x": 1}], item=item)
    index.take(whole(*ranks), store_content(index.files, data))
    assert index.sql("FROM media_table('r', 'list', 0)") == [("rank0", 1), ("rank0", 1), ("rank1", 1), ("rank1", 1)]


def test_columns_of_a_logged_table_may_have_any_name(index: Index) -> None:
    rank, names = Rank(0), ("label", "filename", "file_row_number", "step", "key")
    data = log_table(rank, 0, "odd", [dict.fromkeys(names, number) for number in (2, 1)])
    index.take(whole(rank), store_content(index.files, data))
    described = index.sql("DESCRIBE FROM media_table('r', 'odd', 0)")
    assert [row[0] for row in described] == ["label", "label_1", *names[1:]]
    query = "SELECT label, label_1 FROM media_table('r', 'odd', 0) ORDER BY label_1"
    assert index.sql(query) == [("rank0", 1), ("rank0", 2)]


def test_contents_that_are_not_stored_are_left_out(index: Index) -> None:
    ranks = [Rank(0), Rank(1)]
    data = [log_table(rank, 0, "part", [{"x": number}]) for number, rank in enumerate(ranks)]
    index.take(whole(*ranks), store_content(index.files, data[1]))
    assert index.sql("FROM media_table('r', 'part', 0)") == [("rank1", 1)]


@pytest.mark.parametrize(
    ("call", "params", "n_read"),
    [
        ("'r', 'k', 1", None, 1),
        ("step := 1, run := 'r', key := 'k'", None, 1),
        ("?, ?, ?", ["r", "k", 1], 1),
        ("$run, 'k', $step", {"run": "r", "step": 1, "other": 0.5}, 1),
        ("'r', 'k', -1", None, 1),
        ("lower('R'), 'k', 1", None, 2),
        ("'r', 'k', 1 + 0", None, 3),
        ("'r', 'k', 1.0", None, 3),
        ("step := 1.0, key := 'k', run := 'r'", None, 3),
        ("'r', 'k', $step", {"step": 1.0}, 3),
        ("lower('R'), lower('K'), 1 + 0", None, 8),
    ],
)
def test_a_query_looks_only_for_the_tables_that_its_arguments_name(
    index: Index, call: str, params: list[Any] | dict[str, Any] | None, n_read: int
) -> None:
    """An argument that is an expression is not known before it runs: then the others narrow the search."""
    ranks = [Rank(number, label="rank0", run_id=run, launch=run) for number, run in enumerate("rs")]
    for rank in ranks:
        for key, step in (("k", 1), ("k", 2), ("k", -1), ("other", 1)):
            data = log_table(rank, step, key, [{"x": 1}])
    index.take(whole(*ranks), store_content(index.files, data))
    query = f"SELECT label, x FROM media_table({call})"
    connection = index.database.connection
    with tables_found(connection, query, params):
        assert connection.execute("SELECT len(getvariable('media_tables'))").fetchall() == [(n_read,)]
        named = {name: params[name] for name in params if name != "other"} if isinstance(params, dict) else params
        assert connection.execute(query, named).fetchall() == [("rank0", 1)]


def test_two_tables_of_a_query_are_both_found(index: Index) -> None:
    rank = Rank(0)
    for step in (1, 2):
        index.take(store_content(index.files, log_table(rank, step, "k", [{"x": step}])))
    index.take(whole(rank))
    query = "SELECT a.x, b.x FROM media_table('r', 'k', 1) a JOIN media_table('r', 'k', 2) b USING (label)"
    assert index.sql(query) == [(1, 2)]


def test_an_unknown_table_is_one_line_with_its_run_key_and_step(asker: Asker) -> None:
    for run, key, step in (("s", "samples", 1), ("r", "loss", 1), ("r", "samples", 2), ("r", None, 1)):
        answer = asker.ask("FROM media_table(?, ?, ?)", [run, key, step])
        assert answer.error_kind == "sql"
        assert f"media_table: no table {key or ''} of run {run} at step {step} is stored; see run_id" in answer.message
    assert "\n" not in answer.message


def test_a_logged_table_is_read_with_parameters_twice_and_by_name(asker: Asker) -> None:
    query = """SELECT a.label, a.x FROM Media_Table(step := $step, run := $run, key := $key) a
        JOIN "media_table"($run, $key, $step) b USING (label) WHERE a.x = 0.5"""
    assert asker.rows(query, {"run": "r", "key": "samples", "step": 1}) == [{"label": "rank0", "x": 0.5}]
    assert asker.rows("SELECT getvariable('media_tables') AS v") == [{"v": None}]


def test_the_context_of_a_gpu_event_has_a_minute_before_and_after_it(index: Index) -> None:
    """Events of the node and samples of the GPU and the host; other nodes and GPUs' samples are left out."""
    rank, other = Rank(0, gpus=["GPU-0"]), Rank(1, gpus=["GPU-1"])
    agents = [Rank(8 + n, label="agent", role="agent", node=f"node-{'ab'[n]}", run_id="", rank=None) for n in range(2)]
    rank.log(3, loss=1.0)
    rank.say(EventKind.NOTICE, "alert", "warning", "slow", {}, ts=START_US + 99_000_000)
    for agent in agents:
        for at_s in (39.9, 40.0, 160.0, 160.1):
            for device, name in (("GPU-0", "hw.power"), ("GPU-1", "hw.power"), ("", "system.memory.usage")):
                values = pack([name]), struct.pack("<d", at_s)
                agent.say(EventKind.SYSTEM, device, *values, ts=START_US + round(at_s * 1e6))
        for device, at_s in (("GPU-0", 100), ("GPU-1", 101)):
            body = {"device": device, "code": 94}
            agent.say(EventKind.NOTICE, "gpu.xid", "error", "contained", body, ts=START_US + at_s * 1_000_000)
    index.take(whole(rank, other, *agents))
    query = """SELECT offset_s, source, name, device, value, label, step
        FROM gpu_event_context('node-a', 'GPU-0', make_timestamp($1)) ORDER BY ALL"""
    assert index.database.connection.execute(query, [START_US + 100_000_000]).fetchall() == [
        (-60.0, "sample", "hw.power", "GPU-0", 40.0, "rank0", 3),
        (-60.0, "sample", "system.memory.usage", "", 40.0, None, None),
        (-1.0, "event", "alert", None, None, "rank0", None),
        (0.0, "event", "gpu.xid", "GPU-0", 94.0, "rank0", 3),
        (1.0, "event", "gpu.xid", "GPU-1", 94.0, "rank1", None),
        (60.0, "sample", "hw.power", "GPU-0", 160.0, "rank0", 3),
        (60.0, "sample", "system.memory.usage", "", 160.0, None, None),
    ]
