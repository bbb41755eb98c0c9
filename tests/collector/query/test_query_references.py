"""Which relations a query reads, and which constants restrict their rows."""

from collections.abc import Iterator

import duckdb
import pytest

from chiplog_collector.query import query_references
from chiplog_collector.query.query_references import (
    EVERYTHING,
    Argument,
    Condition,
    Parameter,
    Reference,
    References,
    Values,
    from_plain,
    references,
    to_plain,
)
from tests.support.safeguard import proves


@pytest.fixture(scope="module")
def parser() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def read_by(parser: duckdb.DuckDBPyConnection, sql: str) -> References:
    [(parsed,)] = parser.execute("SELECT json_serialize_sql($1::VARCHAR)", [sql]).fetchall()
    assert parsed.startswith('{"error":false'), parsed
    return references(parsed)


def described(found: References) -> list[str]:
    """Return references as texts: `name column=value,value`."""

    def value(item: str | Parameter) -> str:
        return item if isinstance(item, str) else f"${item.name}{'[]' * item.is_list}"

    return [
        " ".join(
            [
                f"{reference.schema}.{reference.name}".strip("."),
                *(f"{one.column}={','.join(map(value, one.values.items))}" for one in reference.conditions),
            ]
        )
        for reference in found
    ]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("FROM metrics WHERE run_id = 'A' AND key IN ('a', $1) AND 'x' = label", ["metrics run_id=A key=a,$1 label=x"]),
        ("FROM metrics WHERE (run_id = ? AND step > 3) AND (key = ?)", ["metrics run_id=$1 key=$2"]),
        ("FROM main.METRICS AS M WHERE m.Run_ID = $run", ["main.metrics run_id=$run"]),
        ("FROM metrics WHERE list_contains($keys::VARCHAR[], key)", ["metrics key=$keys[]"]),
        ("FROM metrics WHERE key IN ['a', 'b'] AND label = $1::TEXT", ["metrics key=a,b label=$1"]),
        ("FROM metrics m JOIN labels l USING (run_id) WHERE run_id = 'A'", ["metrics run_id=A", "labels run_id=A"]),
        ("FROM metrics m, texts t WHERE m.run_id = 'A'", ["metrics run_id=A", "texts"]),
        ("FROM runs r LEFT JOIN metrics m ON true WHERE m.key = 'a'", ["runs", "metrics key=a"]),
        ("SELECT run_id AS r FROM metrics WHERE run_id = 'A' UNION FROM texts", ["metrics run_id=A", "texts"]),
        ("WITH a AS (FROM metrics WHERE key = 'a') FROM a", ["metrics key=a"]),
        ("WITH metrics AS (FROM metrics WHERE key = 'a') FROM metrics", ["metrics key=a"]),
        ("WITH metrics AS (SELECT 1) FROM main.metrics", ["main.metrics"]),
        ("SELECT (SELECT max(step) FROM phases WHERE phase = 'data') FROM runs", ["phases phase=data", "runs"]),
        ("SUMMARIZE SELECT * FROM metrics WHERE run_id = 'A'", ["metrics run_id=A"]),
        ("DESCRIBE metrics", []),
        ("SHOW TABLES", []),
        ("SELECT 1", []),
        ("PIVOT metrics ON key IN ('a') USING avg(value)", ["metrics"]),
        ("FROM texts WHERE run_id IN (SELECT run_id FROM metrics WHERE key = 'a')", ["metrics key=a", "texts"]),
        ("VALUES ((SELECT count(*) FROM metrics))", ["metrics"]),
        ("FROM runs ORDER BY (SELECT max(step) FROM metrics) LIMIT (SELECT count(*) FROM texts)", None),
    ],
)
def test_a_relation_is_bound_by_the_conjuncts_of_its_own_select(parser, sql, expected):
    found = described(read_by(parser, sql))
    assert sorted(found) == sorted(expected if expected is not None else ["runs", "metrics", "texts"])


@proves(
    "conjuncts-alone-bind",
    "files are chosen by the conjuncts of a WHERE alone",
    part='== "CONJUNCTION_AND"',
    new='in ("CONJUNCTION_AND", "CONJUNCTION_OR")',
)
@pytest.mark.parametrize(
    "sql",
    [
        "FROM metrics WHERE run_id = 'A' OR step = 1",
        "FROM metrics WHERE NOT (run_id = 'A')",
        "FROM metrics WHERE NOT (step = 1 OR NOT run_id = 'A')",
        "FROM metrics WHERE (run_id = 'A') IS TRUE",
        "FROM metrics WHERE CASE WHEN true THEN run_id = 'A' END",
        "FROM metrics WHERE run_id LIKE 'A'",
        "FROM metrics WHERE run_id <> 'A'",
        "FROM metrics WHERE run_id NOT IN ('A')",
        "FROM metrics WHERE run_id = 'A' COLLATE NOCASE",
        "FROM metrics WHERE run_id COLLATE NOCASE = 'A'",
        "FROM metrics WHERE run_id = 5",
        "FROM metrics WHERE run_id IN ('A', 5)",
        "FROM metrics WHERE run_id = 'A'::BLOB",
        "FROM metrics WHERE run_id = lower('A')",
        "FROM metrics WHERE upper(run_id) = 'A'",
        "FROM metrics WHERE run_id IN (SELECT 'A')",
        "FROM metrics WHERE run_id = ANY(['A'])",
        "FROM metrics WHERE list_contains(main.names, run_id)",
        "FROM metrics WHERE contains('A and B', run_id)",
        "FROM metrics WHERE list_contains('[A]'::VARCHAR[], run_id)",
        "FROM metrics WHERE main.list_contains(['A'], run_id)",
        "FROM metrics m WHERE other.run_id = 'A'",
        "FROM metrics m WHERE metrics.run_id = 'A'",
        "FROM metrics m WHERE m.run_id.run_id = 'A'",
        "FROM metrics AS m(label, run_id) WHERE run_id = 'A'",
        "SELECT upper(label) AS run_id FROM metrics WHERE run_id = 'A'",
        "SELECT label AS run_id FROM metrics WHERE run_id = 'A'",
        "FROM metrics TABLESAMPLE 10% (bernoulli) WHERE run_id = 'A'",
        "FROM metrics WHERE run_id = 'A' USING SAMPLE 3",
        "SELECT key FROM metrics GROUP BY key HAVING any_value(run_id) = 'A'",
        "FROM metrics QUALIFY run_id = 'A'",
        "SELECT run_id = 'A' FROM metrics",
        "FROM (FROM metrics) WHERE run_id = 'A'",
        "WITH a AS (FROM metrics) FROM a WHERE run_id = 'A'",
        "FROM metrics PIVOT (avg(value) FOR key IN ('a')) WHERE run_id = 'A'",
        "FROM metrics WHERE EXISTS (SELECT 1 WHERE metrics.run_id = 'A')",
        "SELECT (SELECT 1 WHERE run_id = 'A') FROM metrics",
        "FROM metrics WHERE step = 1 ORDER BY run_id = 'A'",
    ],
)
def test_a_condition_that_may_keep_other_rows_binds_nothing(parser, sql):
    assert described(read_by(parser, sql)) == ["metrics"]


@proves(
    "whole-sides-of-joins",
    "a side of a join whose absent rows would add rows is read whole",
    part=" and kind in _SIDES_KEPT",
)
@pytest.mark.parametrize(
    "sql",
    [
        "FROM labels l JOIN metrics m ON m.run_id = 'A'",
        "FROM labels l SEMI JOIN metrics m ON m.label = l.label WHERE run_id = 'A'",
        "FROM labels l ANTI JOIN metrics m USING (run_id) WHERE run_id = 'A'",
        "FROM labels l POSITIONAL JOIN metrics m WHERE m.run_id = 'A'",
        "FROM labels l ASOF JOIN metrics m ON l.started_at >= m.ts WHERE m.run_id = 'A'",
        "FROM labels l NATURAL JOIN metrics m WHERE run_id = 'A'",
        "FROM (SELECT 1 AS run_id) a JOIN labels l USING (run_id) JOIN metrics m ON true WHERE run_id = 'A'",
        "FROM labels m JOIN metrics m ON true WHERE m.run_id = 'A'",
    ],
)
def test_a_side_of_a_join_that_must_be_whole_is_not_bound(parser, sql):
    assert "metrics" in described(read_by(parser, sql))


def test_arguments_of_macros_are_texts_lists_and_parameters(parser):
    sql = "FROM reads.Downsample('A', keys := ['a', $k], points := 5) d, history($1, $2::VARCHAR[]) WHERE d.key = 'a'"
    sql = sql.replace("$1", "$r").replace("$2", "$s")
    first, second = read_by(parser, sql)
    assert first == Reference(
        "reads",
        "downsample",
        (Condition("key", Values(("a",), False)),),
        (
            Argument("", Values(("A",), False)),
            Argument("keys", Values(("a", Parameter("k")), True)),
            Argument("points", None),
        ),
    )
    assert second.arguments == (
        Argument("", Values((Parameter("r"),), None)),
        Argument("", Values((Parameter("s", True),), True)),
    )


@proves("unknown-tree-reads-everything", "a query with a part that is not known reads all files")
def test_what_is_not_understood_reads_everything(parser, monkeypatch):
    [(parsed,)] = parser.execute("SELECT json_serialize_sql('FROM metrics')").fetchall()
    assert described(references(parsed)) == ["metrics"]
    for unknown in (
        parsed.replace('"BASE_TABLE"', '"NEW_TABLE"'),
        parsed.replace('"SELECT_NODE"', '"NEW_NODE"'),
        parsed.replace('"table_name"', '"title"'),
        parsed[:-1],
        '{"error":false,"statements":[]}',
        "[" * 100_000,
    ):
        assert references(unknown) == EVERYTHING
    deep = "FROM metrics WHERE " + "NOT (" * 900 + "run_id = 'A'" + ")" * 900
    assert read_by(parser, deep) in (EVERYTHING, (Reference("", "metrics"),))
    monkeypatch.setattr(query_references, "TREE_CHARS_MAX", len(parsed) - 1)
    assert references(parsed) == EVERYTHING


def test_what_a_query_reads_is_bounded(parser):
    many = ", ".join(f"'{'x' * 100}{number}'" for number in range(1_000))
    assert read_by(parser, f"FROM metrics WHERE key IN ({many})") == EVERYTHING
    some = ", ".join(f"'{number}'" for number in range(1_000))
    assert read_by(parser, f"FROM metrics WHERE key IN ({some})") != EVERYTHING
    assert read_by(parser, " UNION ALL ".join(f"FROM t{number}" for number in range(300))) == EVERYTHING
    assert len(read_by(parser, " UNION ALL ".join(["FROM metrics"] * 300))) == 1


def test_references_pass_as_plain_values(parser):
    sql = "FROM history($1, ['a', $2]), metrics m, range(3) WHERE m.run_id IN ('A', $3) AND m.key IN $4"
    found = read_by(parser, sql)
    assert from_plain(to_plain(found)) == found
    for broken in (None, 5, [5], [["", "metrics"]], [["", 5, [], None]], [["", "m", [["key", [True, [5]]]], None]]):
        assert from_plain(broken) == EVERYTHING
