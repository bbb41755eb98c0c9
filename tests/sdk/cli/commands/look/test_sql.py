"""`chiplog sql`: where a query comes from, its parameters and zone, and the prompt."""

import csv
import io
import json

import pytest

from chiplog_client.saved_queries import NAMES
from tests.support.command_line import ON_ONE_WORKER, one_line
from tests.support.hand_written import hand_written
from tests.support.marks import everyday
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves

pytestmark = ON_ONE_WORKER

# Each query has a literal as on the screen: with --local, the local time.
OF_ONE_SECOND = (
    "SELECT ts FROM metrics WHERE {of_one} AND ts = '{shown}'",
    "FROM metrics WHERE {of_one} AND ts BETWEEN '{shown}' AND TIMESTAMP '{shown}'; -- of one step\n",
    "WITH chosen AS (FROM metrics WHERE ts = '{shown}') SELECT * FROM chosen WHERE {of_one} ORDER BY ts",
    "SELECT ts FROM metrics WHERE {of_one} AND ts = $at",
    "SELECT ts FROM metrics WHERE {of_one} AND strftime(ts, '%Y-%m-%d %H:%M:%S') = '{shown}'",
    "SELECT DISTINCT ts FROM metrics WHERE {of_one} AND ts::TIMESTAMP = '{shown}'",
    "SELECT ts FROM metrics WHERE {of_one} AND ts = '2026-01-02 03:04:05Z'",
)


@proves("literal-is-local", "a literal without a zone is local where --local prints local time", condition=True)
@pytest.mark.parametrize("query", OF_ONE_SECOND)
@pytest.mark.parametrize("options", everyday(3, [(), ("--local",)]))
def test_a_time_that_is_on_the_screen_finds_its_row(chiplog, options, query):
    shown = "2026-01-02 04:04:05" if options else "2026-01-02 03:04:05"
    query = query.format(shown=shown, of_one="key = 'lr' AND run_id = 'gpt-20260102-7f3a91'")
    arguments = [query, *options, *(["--param", f"at={shown}"] if "$at" in query else [])]
    _, text, errors = chiplog("sql", *arguments)
    lines = text.splitlines()
    assert len(lines) == 3, errors
    assert shown in lines[2] and ("ts (CET)" if options else "ts (UTC)") in lines[0]


def test_the_local_zone_is_used_by_all_that_a_query_makes_of_times(chiplog):
    query = (
        "SELECT date_trunc('day', max(created_at)) AS day, max(created_at)::DATE AS date, max(created_at)::TIMESTAMP "
        "AS wall, count(*) FILTER (created_at > now() - INTERVAL 100 YEAR) AS n FROM runs"
    )
    (row,) = json.loads(chiplog("sql", query, "--local", "--format", "json")[1])
    assert row == {
        "day": "2026-01-04T00:00:00+01:00",
        "date": "2026-01-04",
        "wall": "2026-01-04T04:04:05",
        "n": 3,
    }
    header, first = csv.reader(io.StringIO(chiplog("sql", query, "--local", "--format", "csv")[1]))
    assert (header[0], first[0], first[2]) == ("day", "2026-01-04T00:00:00+01:00", "2026-01-04T04:04:05")
    (row,) = json.loads(chiplog("sql", query, "--format", "json")[1])
    assert (row["day"], row["wall"]) == ("2026-01-04T00:00:00Z", "2026-01-04T03:04:05Z")


@pytest.mark.parametrize(
    "query", everyday(1, ["DESCRIBE metrics", "SHOW TABLES", "EXPLAIN FROM runs", "SELECT 1 AS runs", "VALUES (1)"])
)
def test_what_has_no_times_is_the_same_in_every_zone(chiplog, query):
    assert chiplog("sql", query, "--local") == chiplog("sql", query)


def test_a_zone_that_the_database_does_not_know_is_named(chiplog):
    code, text, errors = chiplog("sql", "SELECT 1", "--local", TZ="XYZ-3:17")
    assert (code, text) == (2, "")
    assert "set TZ to an IANA name" in one_line(errors)


def test_the_query_may_come_through_a_pipe(chiplog):
    expected = (0, "a\n1\n", "")
    assert chiplog("sql", "--format", "csv", stdin="SELECT 1 AS a\n") == expected
    assert chiplog("sql", "-", "--format", "csv", stdin="SELECT 1 AS a;\n-- done") == expected


def test_params_are_json_or_text(chiplog):
    query = "SELECT $a + 1 AS a, $b AS b, len($c) AS c"
    code, text, _ = chiplog(
        "sql", query, "--param", "a=41", "--param", "b=gpt-1=x", "--param", "$c=[1,2]", "--format", "json"
    )
    assert (code, json.loads(text)) == (0, [{"a": 42, "b": "gpt-1=x", "c": 2}])


@proves("json-columns-are-json", "columns of JSON are JSON in JSON", value="[]")
def test_columns_of_json_are_json_in_json(chiplog):
    def ask(query: str, *more: str) -> list[dict]:
        return json.loads(chiplog("sql", query, "--format", "json", *more)[1])

    assert ask("SELECT key, value FROM config ORDER BY key") == [
        {"key": "lr", "value": 3e-4},
        {"key": "model", "value": "gpt2"},
    ]
    assert ask("SELECT body FROM events WHERE kind = 'exit'") == [{"body": {"signal": 9}}]
    assert ask("SELECT body, body FROM events WHERE kind = $k", "--param", "k=exit") == [
        {"body": {"signal": 9}, "body_1": {"signal": 9}}
    ]
    assert ask("SELECT body->>'signal' AS text, list(body) AS bodies FROM events WHERE kind = 'exit' GROUP BY 1") == [
        {"text": "9", "bodies": [{"signal": 9}]}
    ]
    assert ask("SELECT tags FROM runs WHERE run_id = 'gpt-20260102-7f3a91'") == [{"tags": ["a", "b"]}]
    assert ask("SELECT '{\"no\": 1}' AS text") == [{"text": '{"no": 1}'}]
    assert ask("SELECT 'not json'::VARCHAR AS a, NULL::JSON AS b") == [{"a": "not json", "b": None}]
    assert ask("EXPLAIN SELECT 1")
    assert ask("SELECT body FROM events WHERE kind = 'exit'", "--local") == [{"body": {"signal": 9}}]


@proves("unknown-suffix-refused", "a file name with an unknown ending is refused", condition=False)
def test_a_file_of_an_unknown_kind_is_refused(chiplog, tmp_path):
    target = tmp_path / "out.xlsx"
    code, text, errors = chiplog("sql", "FROM runs", "-o", str(target))
    assert (code, text, target.exists()) == (2, "", False)
    assert (
        ".xlsx is not a known format; use one of .csv, .json, .jsonl, .parquet, .arrow, .md, .txt, .feather"
        in one_line(errors)
    )
    assert chiplog("sql", "FROM runs", "-o", str(target), "--format", "csv")[0] == 0


@proves("misspelt-option-is-no-query", "an option that does not exist is not taken for a query", condition=False)
def test_a_query_may_begin_with_a_comment_and_an_unknown_option_is_no_query(chiplog):
    for query in ("-- one\nSELECT 1 AS a", "--one\nSELECT 1 AS a", "-- SELECT 2\n  SELECT 1 AS a"):
        assert chiplog("sql", query, "--format", "csv") == (0, "a\n1\n", "")
    for arguments in (["--fromat", "csv", "FROM runs"], ["--fromat=csv", "FROM runs"], ["FROM runs", "--fromat"]):
        code, text, errors = chiplog("sql", *arguments)
        assert (code, text) == (2, "")
        assert "'--fromat'; did you mean --format?" in one_line(errors)


def test_the_prompt_answers_line_by_line_and_survives_errors(on_terminal):
    shown = on_terminal(80, "sql", typed="SELECT 40 +\n2 AS answer;\nselec;\nSELECT 'more' AS x\n\nexit\n")
    assert "42" in shown and "more" in shown
    assert 'Parser Error: syntax error at or near "selec"' in shown


def test_a_query_that_the_page_saved_runs_by_its_name(chiplog, tmp_path):
    with hand_written(tmp_path) as database:
        RunBuilder(database).saved_view("sql/one more", {"query": "SELECT 41 + 1 AS n, $run AS run"})
        RunBuilder(database).run("r")
        RunBuilder(database).ranks("r")
    for name in ("one more", "sql/one more"):
        code, text, errors = chiplog("sql", "--saved", name, "--run", "r", "--format", "csv", root=tmp_path)
        assert (code, text, errors) == (0, "n,run\n42,r\n", "")
    code, text, errors = chiplog("sql", "--saved", "onemore", root=tmp_path)
    assert (code, text) == (2, "") and "query 'onemore' is unknown; did you mean 'one more'?" in errors


def test_a_saved_query_is_of_the_latest_run_or_of_one_that_is_named(chiplog):
    assert [line.split()[0] for line in chiplog("sql", "--list-saved")[1].splitlines()] == list(NAMES)
    for run, n_rows in (("vit", 0), ("gpt-20260103", 4)):
        code, text, _ = chiplog("sql", "--saved", "failed", "--run", run, "--format", "json")
        assert (code, len(json.loads(text))) == (0, n_rows)
    assert chiplog("sql", "--saved", "failed") == chiplog("sql", "--saved", "failed", "--run", "vit")
