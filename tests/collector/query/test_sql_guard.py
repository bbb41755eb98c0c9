"""Which queries may run: one statement that only reads, parsed by DuckDB in a child that may hang or die."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import duckdb
import pytest

from chiplog_collector.query import sql_guard
from chiplog_collector.query.query_references import Condition, Parameter, Reference, Values
from chiplog_collector.query.sql_guard import FUNCTIONS_REFUSED, QueryRejected, SqlGuardProcess, check_query, lock_down
from chiplog_schemas.limits import QUERY_CHARS_MAX
from tests.support.query_client import NOT_A_SELECT
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

# Functions that a SELECT can call, by what makes them harmless. A function of a newer DuckDB is in none of these until
# it has been reviewed.
OF_FILES = {
    *(
        "glob",
        "parquet_file_metadata",
        "parquet_full_metadata",
        "parquet_kv_metadata",
        "parquet_metadata",
        "parquet_page_index",
    ),
    *("parquet_scan", "parquet_schema", "read_blob", "read_csv", "read_csv_auto", "read_duckdb", "read_json"),
    *("read_json_auto", "read_json_objects", "read_json_objects_auto", "read_ndjson", "read_ndjson_auto"),
    *("read_ndjson_objects", "read_parquet", "read_single_csv_file", "read_single_json_file"),
    *("read_single_parquet_file", "read_text", "sniff_csv"),
}
OF_FILES_BY_MORE = {"parquet_bloom_probe": "'/etc/passwd', 'a', 1", "which_secret": "'a', 'b'", "duckdb_secrets": ""}
OF_POINTERS = {  # arguments that no SQL can make
    *("arrow_scan", "arrow_scan_dumb", "pandas_scan", "python_arrow_scan", "python_map_function", "seq_scan"),
}
HARMLESS = {
    *("duckdb_approx_database_count", "duckdb_available_metrics", "duckdb_columns", "duckdb_connection_count"),
    *("duckdb_constraints", "duckdb_coordinate_systems", "duckdb_databases", "duckdb_dependencies", "duckdb_dialects"),
    *("duckdb_eviction_queues", "duckdb_extension_repositories", "duckdb_extensions", "duckdb_external_file_cache"),
    *("duckdb_external_resource_types", "duckdb_external_resources", "duckdb_functions", "duckdb_grammar_extensions"),
    *(
        "duckdb_indexes",
        "duckdb_keywords",
        "duckdb_live_query_metrics",
        "duckdb_log_contexts",
        "duckdb_logs",
        "duckdb_logs_parsed",
        "duckdb_memory",
    ),
    *("duckdb_optimizers", "duckdb_prepared_statements", "duckdb_profiling_settings", "duckdb_schemas"),
    *("duckdb_secret_type_parameters", "duckdb_secret_types", "duckdb_sequences", "duckdb_settings"),
    *("duckdb_table_sample", "duckdb_tables", "duckdb_temporary_files", "duckdb_triggers", "duckdb_types"),
    *("duckdb_variables", "duckdb_views", "generate_series", "histogram", "histogram_values", "icu_calendar_names"),
    *("json_each", "json_tree", "pg_timezone_names", "pragma_collations", "pragma_database_size"),
    *("pragma_metadata_info", "pragma_platform", "pragma_show", "pragma_storage_info", "pragma_table_info"),
    *("pragma_user_agent", "pragma_version", "query_table", "range", "repeat", "repeat_row", "summary"),
    *("test_all_types", "test_vector_types", "unnest"),
    # with side effects, or of a name that sounds like some
    *("current_connection_id", "current_query", "current_query_id", "current_transaction_id", "currval", "error"),
    *("gen_random_uuid", "nextval", "random", "setseed", "setval", "sleep_ms", "stats", "uuid", "uuidv4", "uuidv7"),
    *("vector_type", "in_search_path", "parse_dirname", "parse_dirpath", "parse_duckdb_log_message"),
    *("parse_filename", "parse_path", "path_join", "json_extract_path", "json_extract_path_text"),
    *("__internal_json_copy_to_geojson", "__internal_json_copy_to_json", "json_copy_strftime_if_date"),
    *("json_copy_strftime_if_timestamp", "pg_conf_load_time"),
}
SOUNDS_LIKE_MORE = "read|write|file|path|dir|env|secret|http|load|exec|system|shell|scan|attach|copy|import|export|sql"


@pytest.fixture(scope="module")
def parser() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        lock_down(connection)
        yield connection


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "select 1;",
        "FROM range(3)",
        "VALUES (1)",
        "TABLE runs",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "DESCRIBE runs",
        "SHOW TABLES",
        "SUMMARIZE runs",
        "EXPLAIN SELECT 1",
        "explain analyze select ';'",
        "SELECT ';'; -- and nothing more",
        "PIVOT runs ON state IN ('failed') USING count(*)",
        "SELECT checkpoint, query FROM phases AS query WHERE phase = 'checkpoint()' -- query()",
        """SELECT '"function_name":"checkpoint"' AS "query" """,
        "WITH RECURSIVE a AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM a WHERE n < 5) SELECT ? + $1 FROM a",
        "SELECT 1 FROM range(1)" + ", range(1)" * 1_900,
    ],
)
def test_one_statement_that_reads_is_admitted(sql, parser):
    assert isinstance(check_query(sql, parser), tuple)


def test_what_an_admitted_query_reads_comes_from_the_child_and_is_kept():
    sql = "EXPLAIN SELECT count(*) FROM metrics WHERE run_id = $run"
    expected = (Reference("", "metrics", (Condition("run_id", Values((Parameter("run"),), False)),)),)
    with contextlib.closing(SqlGuardProcess()) as examiner:
        assert examiner.check(sql) == expected
        assert examiner.check(sql) is examiner.check(sql)


@proves(
    "text-parsing-functions-refused",
    "functions that parse a text which only they see are refused",
    part='*("json_serialize_sql", "json_serialize_plan", "json_deserialize_sql"),',
)
@pytest.mark.parametrize("sql", NOT_A_SELECT)
def test_everything_else_is_refused_in_one_line(sql, parser):
    with pytest.raises(QueryRejected) as refusal:
        check_query(sql, parser)
    assert str(refusal.value) and "\n" not in str(refusal.value)


def test_every_function_that_is_refused_exists(parser):
    found = {name for (name,) in parser.execute("SELECT function_name FROM duckdb_functions()").fetchall()}
    assert found >= FUNCTIONS_REFUSED


@proves(
    "functions-reviewed",
    "a function of DuckDB that was not reviewed is detected",
    part='"checkpoint", "force_checkpoint"',
    new='"force_checkpoint"',
)
def test_every_function_that_may_touch_more_than_the_database_is_known(parser):
    query = (
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type IN ('table', 'table_macro') "
        "OR has_side_effects OR function_type <> 'pragma' AND regexp_matches(function_name, $1)"
    )
    found = {name for (name,) in parser.execute(query, [SOUNDS_LIKE_MORE]).fetchall()}
    known = HARMLESS | OF_FILES | set(OF_FILES_BY_MORE) | OF_POINTERS | FUNCTIONS_REFUSED
    assert found - known == set(), "check what they do, and add them here or to FUNCTIONS_REFUSED"


def test_functions_of_files_read_none(parser, tmp_path):
    path = tmp_path / "there.csv"
    path.write_text("a,b\n1,2\n")
    calls = dict.fromkeys(OF_FILES, f"'{path}'") | OF_FILES_BY_MORE
    for name, arguments in calls.items():
        # A connection that failed to read secrets has another message the next time.
        with duckdb.connect() as connection:
            lock_down(connection, files=tmp_path / "files")
            with pytest.raises(duckdb.PermissionException, match="file system operations are disabled"):
                connection.execute(f"FROM {name}({arguments})")
    for name in OF_POINTERS:
        for arguments in ("", "1", "NULL", "1, 2, 3", "NULL, NULL, NULL", "(SELECT 1)", f"'{path}'"):
            with pytest.raises((duckdb.BinderException, duckdb.InvalidInputException)):
                parser.execute(f"FROM {name}({arguments})")


def test_functions_of_files_change_nothing_where_they_may_read(tmp_path):
    """A content may be anything, also a database that was not closed."""
    files = tmp_path / "files"
    files.mkdir()
    with duckdb.connect(str(files / "database")) as database:
        database.execute(f"CREATE TABLE t AS SELECT 1 AS a; COPY t TO '{files}/parquet' (FORMAT parquet)")
        database.execute("CHECKPOINT; INSERT INTO t VALUES (2)")
        unclosed = {name: (files / name).read_bytes() for name in ("database", "database.wal")}
    for name, data in unclosed.items():
        (files / name).write_bytes(data)
    (files / "text").write_text("a,b\n1,2\n")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in files.iterdir()}
    with duckdb.connect() as connection:
        lock_down(connection, files=files)
        answered = set()
        for name in OF_FILES:
            for path in sorted(before):
                with contextlib.suppress(duckdb.Error):
                    connection.execute("BEGIN TRANSACTION READ ONLY")
                    connection.execute(f"FROM {name}('{files / path}')").fetchall()
                    answered.add(name)
                connection.execute("ROLLBACK")
    assert answered >= {"glob", "read_blob", "read_csv", "read_duckdb", "read_parquet", "read_text"}
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in files.iterdir()} == before


def test_a_text_that_would_overflow_the_parser_is_refused_by_its_size(parser):
    with pytest.raises(QueryRejected, match=f"limit of {QUERY_CHARS_MAX}; pass long values as parameters"):
        check_query("SELECT '" + "x" * QUERY_CHARS_MAX + "'", parser)
    with pytest.raises(QueryRejected, match="words and signs"):
        check_query("SELECT 1 FROM range(1)" + ", range(1)" * 100_000, parser)
    with pytest.raises(QueryRejected, match="words and signs"):
        check_query("DESCRIBE " * 100_000 + "SELECT 1", parser)


def test_an_examiner_whose_child_was_killed_takes_another(tmp_path):
    with contextlib.closing(SqlGuardProcess()) as examiner:
        examiner.check("SELECT 1")
        assert examiner._child is not None
        examiner._child.kill()
        examiner._child.wait()
        examiner.check("SELECT 2")
        assert examiner._child.poll() is None
        with pytest.raises(QueryRejected):
            examiner.check("DELETE FROM base.runs")


def test_a_text_that_was_admitted_is_not_parsed_again(monkeypatch):
    monkeypatch.setattr(sql_guard, "ADMITTED_MAX", 2)
    long = "SELECT '" + "x" * sql_guard.ADMITTED_CHARS_MAX + "'"
    examiner = SqlGuardProcess()
    asked = []
    ask = examiner._ask
    monkeypatch.setattr(examiner, "_ask", lambda sql: asked.append(sql) or ask(sql))
    try:
        for text in ("SELECT 1", "SELECT 2", "SELECT 1", "SELECT 3", "SELECT 2", "SELECT 1", long, long):
            examiner.check(text)
        for _ in range(2):
            with pytest.raises(QueryRejected):
                examiner.check("DELETE FROM base.runs")
    finally:
        examiner.close()
    assert asked == ["SELECT 1", "SELECT 2", "SELECT 3", "SELECT 1", long, long, *["DELETE FROM base.runs"] * 2]


FORK = """
import ctypes, json, os, signal, sys
from pathlib import Path
from chiplog_collector.query.sql_guard import ForkedChild, QueryRejected, SqlGuardProcess
signal.alarm(50)  # also when no test waits for this process any longer
signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = open(sys.argv[1])
# A killed test must leave no children, even if these hold each other's pipes: PR_SET_PDEATHSIG is 1.
setsid = os.setsid
os.setsid = lambda: (setsid(), ctypes.CDLL(None).prctl(1, signal.SIGKILL))
children = [ForkedChild(64 << 20) for _ in range(2)]
guards = [SqlGuardProcess(child) for child in children]
for guard in guards:
    guard.check("SELECT 1")
pid = children[1].pid
[limit] = [line.split()[3] for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if "Max data" in line]
found = {
    "files": [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()],
    "limit": limit,
    "session": os.getsid(pid) == pid,
}
children[0].stdin.close()
children[0].wait()  # although the second was forked while the pipe was open
os.kill(pid, signal.SIGTERM)
children[1].wait()
guards[1].check("SELECT 2")
found["replaced"] = guards[1]._child is not children[1] and guards[1]._child.poll() is None
print(json.dumps(found), flush=True)
os.setsid = setsid
SqlGuardProcess(ForkedChild(64 << 20))._start()
os._exit(0)  # the parser of a killed process ends, and with it this pipe
"""


@proves("parser-inherits-no-files", "a forked parser has no file of the index", condition=False)
@proves("parser-memory-bounded", "the memory of a forked parser is limited")
def test_a_forked_parser_has_nothing_of_its_process_and_ends_with_it(tmp_path):
    (tmp_path / "of the index").touch()
    command = [sys.executable, "-P", "-c", FORK, str(tmp_path / "of the index")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    found = json.loads(done.stdout)
    assert not [path for path in found["files"] if str(tmp_path) in path]
    assert found["limit"] != "unlimited"
    assert found["session"] and found["replaced"]


HANG = """
from chiplog_collector.query.sql_guard import ForkedChild, QueryRejected, SqlGuardProcess
guard = SqlGuardProcess(ForkedChild(1 << 30))
for text in ("DELETE FROM base.runs", "WITH a AS (" * 40):
    try:
        guard.check(text)
    except QueryRejected as error:
        print(guard.n_replaced, error)
guard.check("SELECT 1")
guard.close()
"""


def test_a_text_that_hangs_a_forked_parser_costs_only_that(tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-c", HANG], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    refused, hung = done.stdout.splitlines()
    assert refused.startswith("0 DELETE statement is refused")
    assert hung.startswith("1 query could not be parsed within")
