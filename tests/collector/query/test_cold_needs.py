"""Which rows of the large tables of a store a query needs."""

import re
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from chiplog_collector.query.cold_needs import RESTRICTIONS, Need, Relations, Restriction, needs, read_relations
from chiplog_collector.query.query_references import EVERYTHING, references
from chiplog_schemas.sql import LARGE, views_sql
from tests.support.marks import everyday
from tests.support.narrowed_database import NarrowedDatabase
from tests.support.random_queries import SLOW, VIEWS, QueryWriter
from tests.support.rounds import Rounds
from tests.support.safeguard import proves

ANY = Need()


@pytest.fixture(scope="module")
def parser() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


@pytest.fixture(scope="module")
def relations(parser: duckdb.DuckDBPyConnection) -> Relations:
    return read_relations(parser, views_sql())


def need(runs: set[str] | None = None, labels: set[str] | None = None, keys: set[str] | None = None) -> Need:
    return Need(*(None if texts is None else frozenset(texts) for texts in (runs, labels, keys)))


def needs_of(parser: Any, relations: Relations, sql: str, params: Any = None) -> dict[str, list[Need]]:
    [(parsed,)] = parser.execute("SELECT json_serialize_sql($1::VARCHAR)", [sql]).fetchall()
    return needs(references(parsed), params, relations)


@pytest.mark.parametrize(
    ("sql", "params", "expected"),
    [
        ("FROM metrics WHERE run_id = 'A'", None, {"metrics": [need({"A"})]}),
        ("FROM phases WHERE phase = ? AND label = ?", ["data", "w"], {"phases": [need(None, {"w"}, {"data"})]}),
        ("FROM metrics WHERE run_id IN ('A', $R)", {"r": "B"}, {"metrics": [need({"A", "B"})]}),
        ("FROM metrics WHERE run_id = 'A' AND run_id IN ('A', 'B')", None, {"metrics": [need({"A"})]}),
        ("FROM metrics WHERE run_id = 'A' AND run_id = 'B'", None, {}),
        ("FROM metrics WHERE key IN $keys", {"keys": ["a", "b"]}, {"metrics": [need(None, None, {"a", "b"})]}),
        ("FROM console WHERE run_id = 'A' AND stream = 1", None, {"console": [need({"A"})]}),
        ("FROM system WHERE run_id = 'A' AND name = 'hw.power'", None, {"system": [need({"A"}, None, {"hw.power"})]}),
        ("FROM goodput WHERE run_id = 'A'", None, {"phases": [need({"A"}, None, {"step"})]}),
        ("FROM history('A', 'a') WHERE label = 'w'", None, {"metrics": [need({"A"}, {"w"}, {"a"})]}),
        ("FROM history(key := 'a', run := $1)", ["A"], {"metrics": [need({"A"}, None, {"a"})]}),
        ("FROM downsample('A', 'a')", None, {"metrics": [need({"A"}, None, {"a"})]}),
        ("FROM downsample('A', $1, points := 10)", [["a", "b"]], {"metrics": [need({"A"}, None, {"a", "b"})]}),
        ("FROM pivot_steps('A', ['a', 'b'])", None, {"metrics": [need({"A"}, None, {"a", "b"})]}),
        ("FROM compare('A', 'B')", None, {"metrics": [need({"A", "B"})]}),
        ("FROM reads.compared(0, 9) c WHERE c.run_id = 'A'", None, {"phases": [need({"A"})]}),
        ("FROM reads.node_steps('A', 1)", None, {"metrics": [need({"A"})], "phases": [need({"A"})]}),
        ("FROM reads.points f JOIN c USING (key) WHERE reads.of_runs([$r])", {"r": "A"}, {"metrics": [need({"A"})]}),
        ("FROM system_samples WHERE name = 'a'", None, {"system": [need(None, None, {"a"})]}),
        ("FROM metrics LIMIT 0", None, {}),
        ("FROM metrics LIMIT 10 OFFSET 0", None, {"metrics": [ANY]}),
        ("FROM reads.points f WHERE NOT reads.of_runs(['A'])", None, {"metrics": [ANY]}),
        ("FROM metrics WHERE reads.of_runs(['A'])", None, {"metrics": [ANY]}),
        ("SELECT 1 AS of_runs FROM reads.points WHERE of_runs = 'A'", None, {"metrics": [ANY]}),
        ("FROM restarts WHERE run_id = 'A'", None, {"metrics": [need({"A"})], "phases": [need({"A"})]}),
        ("FROM metrics WHERE key = 'a' UNION ALL FROM metrics", None, {"metrics": [ANY]}),
        ("FROM store.main.metrics WHERE key = 'a'", None, {"metrics": [need(None, None, {"a"})]}),
        ("FROM store.merged.metrics_recent", None, {"metrics": [ANY]}),
        (
            "FROM metrics WHERE key = 'a' UNION ALL FROM metrics WHERE label = 'w'",
            None,
            {"metrics": [need(None, None, {"a"}), need(None, {"w"})]},
        ),
        ("FROM range(3), duckdb_views(), information_schema.tables, unnest([1])", None, {}),
        ("DESCRIBE metrics", None, {}),
    ],
)
def test_a_query_needs_the_rows_that_its_constants_name(parser, relations, sql, params, expected):
    assert needs_of(parser, relations, sql, params) == expected


@proves("texts-alone-bind", "files are chosen by parameters that are texts alone", new="continue")
@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("FROM metrics WHERE run_id = ?", [5]),
        ("FROM metrics WHERE run_id = ?", [None]),
        ("FROM metrics WHERE run_id = ?", [["A"]]),
        ("FROM metrics WHERE run_id = ?", None),
        ("FROM metrics WHERE run_id IN ('A', ?)", [b"A"]),
        ("FROM metrics WHERE key IN $keys", {"keys": ["a", 5]}),
        ("FROM metrics WHERE key IN $keys", {"keys": "a and b"}),
        ("FROM metrics WHERE key = $k", {"k": "a", "K": "b"}),
        ("FROM history($1, $2)", [5, None]),
        ("FROM history(['A'], ['a'])", None),
        ("FROM pivot_steps(lower('A'), 'a')", None),
        ("FROM compare('A', lower('B'))", None),
        ("FROM metrics m, history(m.run_id, m.key)", None),
    ],
)
def test_a_value_that_is_not_known_to_be_text_needs_all_rows(parser, relations, sql, params):
    assert needs_of(parser, relations, sql, params) == {"metrics": [ANY]}


@proves(
    "unknown-function-reads-everything",
    "a function that may read any relation reads all files",
    condition=False,
)
@pytest.mark.parametrize(
    "sql", ["FROM query_table('metrics')", "FROM histogram(metrics, value)", "FROM new_function('metrics')"]
)
def test_a_function_that_may_read_any_relation_needs_all_rows_of_all_tables(parser, relations, sql):
    assert needs_of(parser, relations, sql) == {table: [ANY] for table in LARGE}


def test_a_query_that_is_not_understood_needs_all_rows_of_all_tables(relations):
    assert needs(EVERYTHING, None, relations) == {table: [ANY] for table in LARGE}


@pytest.mark.parametrize("view", ["runs", "labels", "summary", "run_summary", "rank_progress", "completeness", "keys"])
def test_a_view_of_rollups_needs_no_file(parser, relations, view):
    assert needs_of(parser, relations, f"FROM {view}") == {}


def test_relations_are_found_in_the_text_of_the_views(parser, relations):
    assert relations.cold["main.throttle_cost"] == {"phases", "system"}
    assert relations.cold["reads.step_after_failure"] == {"phases"}
    assert relations == read_relations(parser, views_sql().replace("base.", "merged."))
    assert {name for name in RESTRICTIONS if not relations.cold.get(name)} == set()
    defined = {f"base.{table}" for table in LARGE} | {f"base.{table}_recent" for table in LARGE[:3]}
    for statement in duckdb.extract_statements(views_sql()):
        words = statement.query.split("CREATE OR REPLACE ")[-1].split()
        if words[0] in ("VIEW", "MACRO") and not (words[0] == "MACRO" and " AS TABLE" not in statement.query):
            name = words[1].split("(")[0]
            defined.add(name if "." in name else f"main.{name}")
        if words[0] == "MACRO" and " AS TABLE" not in statement.query:
            expression = re.split(r"\)\s+AS\b", statement.query, maxsplit=1)[1]
            assert needs_of(parser, relations, f"SELECT {expression}") == {}, "an expression that reads a table"
    assert relations.cold.keys() == defined


@pytest.fixture(scope="module")
def narrowed() -> Iterator[NarrowedDatabase]:
    database = NarrowedDatabase()
    yield database
    database.close()


# Of each macro that restricts facts, calls with arguments that make a difference.
CALLS = {
    "main.history": ["('A', 'loss')", "('it''s', 'it''s')"],
    "main.ema": ["('A', 'loss', 0.5)"],
    "main.downsample": ["('A', 'loss')", "('b b', ['loss', 'acc/1'], points := 3)"],
    "main.pivot_steps": ["('A', ['loss', 'Loss'])"],
    "main.compare": ["('A', 'a')", "('a', 'it''s')"],
    "main.stragglers_between": ["('A', 0, 7)"],
    "main.data_wait_between": ["('A', 0, 7)"],
    "main.excess_between": ["('A', 'forward', 0, 7)", "('A', 'outside', 0, 7)"],
    "base.compared": ["(0, 7)"],
    "base.outside": ["(0, 7)"],
    "base.compared_with_outside": ["(0, 7)"],
    "base.stragglers_in": ["(0, 7)"],
    "base.straggler_windows_until": ["(7)"],
    "base.data_wait_in": ["(0, 7)"],
    "reads.compared": ["(0, 7)"],
    "reads.outside": ["(0, 7)"],
    "reads.straggler_windows": ["(7)"],
    "reads.step_after_failure": ["('A', ['w0'], 100)"],
    "reads.node_steps": ["('A', 1)"],
}

PROMISED = {name for name, one in RESTRICTIONS.items() if isinstance(one, Restriction) and "of_runs" in one.columns}


@pytest.mark.parametrize("n_max", everyday(1, [6, 20]))
@pytest.mark.parametrize("relation", sorted(set(RESTRICTIONS) - PROMISED))
def test_the_rows_of_a_relation_follow_from_the_facts_that_it_is_restricted_to(narrowed, relation, n_max):
    restricted = RESTRICTIONS[relation]
    parts = [restricted] if not isinstance(restricted, dict) else list(restricted.values())
    columns = sorted({column for part in parts for column in part.columns})
    assert (relation in narrowed.relations.macros) == (relation in CALLS)
    for arguments in CALLS.get(relation, [""]):
        source = f"{relation}{arguments} r"
        conditions = [""]
        for column in columns:
            values = narrowed.connection.execute(f"SELECT DISTINCT r.{column} FROM {source} ORDER BY ALL").fetchall()
            texts = [f"r.{column} = '{value.replace(chr(39), chr(39) * 2)}'" for (value,) in values if value]
            assert len(texts) >= (1 if relation in CALLS else 2)
            conditions = [f"{one} AND {text}" for one in conditions for text in texts] + conditions
        n_narrowed = 0
        for condition in conditions[:: -(-len(conditions) // n_max)]:  # spread over all
            sql = f"FROM {source} WHERE true{condition}"
            wanted = narrowed.needs(sql)
            whole = narrowed.rows(sql)
            assert narrowed.rows(sql, wanted=wanted) == whole, sql
            n_narrowed += bool(whole) and any(need != ANY for needed in wanted.values() for need in needed)
        assert n_narrowed


@pytest.mark.parametrize("relation", sorted(PROMISED))
def test_a_select_that_promises_what_it_uses_has_its_rows(narrowed, relation):
    key = "1" if relation == "reads.logged_console" else "r.key"
    joined = f"{relation} r JOIN base.identified i ON i.producer = r.producer JOIN base.names n ON n.id = {key}"
    by_key = ["", " AND n.name = $key AND reads.of_keys([$key])"] if relation == "reads.points" else [""]
    for run_id in ("A", "b b"):
        for more in by_key:
            sql = f"SELECT r.* FROM {joined} WHERE i.run_id = $run AND reads.of_runs([$run]){more}"
            params = {"run": run_id, **({"key": "loss"} if more else {})}
            wanted = narrowed.needs(sql, params)
            assert [*wanted.values()] == [[need({run_id}, None, {"loss"} if more else None)]]
            rows = narrowed.rows(sql, params)
            assert rows and narrowed.rows(sql, params, wanted) == rows


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("n", [100, pytest.param(2_000, marks=[pytest.mark.full, pytest.mark.soak])])
def test_random_queries_have_the_same_rows_without_what_they_do_not_need(narrowed, rounds: Rounds, n: int) -> None:
    columns = {view: narrowed.columns(view) for view in (*VIEWS, *SLOW)}
    for seed in rounds(n):
        query = QueryWriter(seed, columns).write()
        try:
            wanted = narrowed.needs(query.sql, query.params)
            whole = narrowed.rows(query.sql, query.params)
        except duckdb.Error:
            rounds.count("refused")
            continue
        rounds.count("with rows", bool(whole))
        if narrowed.is_whole(wanted):
            continue
        try:
            rows = narrowed.rows(query.sql, query.params, wanted)
        except duckdb.ConversionException:  # of a text that is compared with a number; the plan decides which rows are
            rounds.count("refused")
            continue
        assert rows == whole, (seed, query.sql, query.params, wanted)
        by_constants = any(need != ANY for needed in wanted.values() for need in needed)
        rounds.count("narrowed by constants", by_constants)
        rounds.count("narrowed by constants, with rows", by_constants and bool(whole))
    assert rounds.counts["refused"] < rounds.n_rounds / 4
    assert rounds.counts["narrowed by constants, with rows"] > rounds.n_rounds / 6
