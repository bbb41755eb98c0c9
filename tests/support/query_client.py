"""A client of the query protocol that is independent of the SDK, and queries that must be refused or stopped."""

import os
import re

import pyarrow as pa

from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import ID_BYTES, QueryMessageKind
from tests.support.dealer_by_hand import DealerByHand

FOR_EVER = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE (a.range * 7 + b.range) % 13 = 3"
# Each is one way out of reading the database, or into its settings. The first part is refused before it is run, the
# second is a SELECT to the parser, and stopped by the transaction or the locked settings.
NOT_A_SELECT = [
    "SELECT 1; SELECT 2",
    "COMMIT; BEGIN; DELETE FROM base.runs",
    "SELECT 1; COPY (SELECT 1) TO '{dir}/stolen.csv'",
    "COPY (SELECT 1) TO '{dir}/stolen.csv'",
    "COPY (SELECT 1) TO '{files}/stolen.csv'",
    "COPY base.runs FROM '/etc/passwd'",
    "ATTACH '{dir}/other.duckdb' AS other",
    "ATTACH '{files}/new.duckdb' AS other",
    "SET VARIABLE media_tables = [{'path': '/etc/passwd'}]",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "SET memory_limit = '100GB'",
    "RESET enable_external_access",
    "INSERT INTO base.names VALUES (1, 'x', 0)",
    "UPDATE base.runs SET project = 'x' RETURNING *",
    "DELETE FROM base.runs",
    "MERGE INTO base.names n USING base.names m ON n.id = m.id WHEN MATCHED THEN DELETE",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TEMP VIEW runs AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "DROP VIEW runs",
    "ALTER TABLE base.runs ADD COLUMN x INT",
    "CALL pragma_version()",
    "CHECKPOINT",
    "VACUUM",
    "LOAD json",
    "INSTALL httpfs",
    "EXPORT DATABASE '{dir}/stolen'",
    "IMPORT DATABASE '{dir}/stolen'",
    "USE system",
    "DETACH index",
    "PREPARE p AS DELETE FROM base.runs",
    "EXECUTE p",
    "BEGIN",
    "EXPLAIN ANALYZE INSERT INTO base.names VALUES (1, 'x', 0)",
    "EXPLAIN COPY (SELECT 1) TO '{dir}/stolen.csv'",
    "SELECT * FROM checkpoint()",
    'SELECT * FROM system.main."CheckPoint" /* ( */ ()',
    "SELECT 1 FROM range(3), LATERAL (SELECT 1 WHERE EXISTS (FROM checkpoint('index')))",
    "WITH a AS MATERIALIZED (FROM checkpoint()) SELECT 1 UNION ALL SELECT count(*) FROM a",
    "EXPLAIN ANALYZE SELECT * FROM checkpoint()",
    "SUMMARIZE SELECT * FROM checkpoint()",
    "SELECT * FROM query('FROM check' || 'point()')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('FROM checkpoint()'))",
    "SELECT * FROM force_checkpoint()",
    "SELECT * FROM add_grammar_extension('x')",
    "SELECT * FROM read_duckdb('{dir}/other.duckdb')",
    "SELECT * FROM read_duckdb('{files}/ab/*')",
    "SELECT * FROM remove_grammar_extension('x')",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM truncate_duckdb_logs()",
    "WITH more AS (INSERT INTO base.names SELECT 1, 'x' FROM checkpoint() RETURNING *) SELECT * FROM more",
    "SELECT json_serialize_sql(repeat('WITH a AS (', 40))",
    "SELECT list_transform(['WITH a AS ('], lambda text: repeat(text, 40).json_serialize_plan())",
    "SELECT json_deserialize_sql('{}')",
    "PIVOT base.names ON name USING sum(id)",
    "",
    " ;; -- nothing",
]
NO_FILES = "Permission Error: Cannot access .* file system operations are disabled by configuration"
NO_WRITES = "transaction is launched in read-only mode"
A_SELECT_THAT_IS_STOPPED = {  # and the text that proves what stopped it
    "SELECT * FROM read_csv('/etc/passwd')": NO_FILES,
    "SELECT * FROM read_text('/etc/passwd')": NO_FILES,
    "SELECT * FROM read_blob('/proc/self/environ')": NO_FILES,
    "SELECT * FROM read_parquet('{dir}/x.parquet')": NO_FILES,
    "SELECT * FROM read_json('/etc/passwd')": NO_FILES,
    "SELECT * FROM glob('/etc/*')": NO_FILES,
    "SELECT * FROM glob('{files}/../*')": NO_FILES,
    "SELECT * FROM glob('{dir}/f*/*')": NO_FILES,
    "SELECT * FROM glob('{files}-more/*')": NO_FILES,
    "SELECT * FROM read_text('{files}/../../x.csv')": NO_FILES,
    "SELECT * FROM read_text('{files}/link')": NO_FILES,
    "SELECT * FROM read_text('file://{files}/../x.csv')": NO_FILES,
    "SELECT * FROM read_csv(['/etc/passwd', '{files}/link'])": NO_FILES,
    "SELECT * FROM media_table('../..', '/etc/passwd', 0)": "media_table: no table /etc/passwd of run ../.. at step 0",
    "SELECT * FROM sniff_csv('/etc/passwd')": NO_FILES,
    "SELECT * FROM duckdb_secrets()": NO_FILES,
    "SELECT getenv('HOME')": "Catalog Error: Scalar Function with name getenv does not exist",
    "FROM '/etc/passwd'": "Catalog Error: Table with name /etc/passwd does not exist",
    "FROM '{dir}/other.duckdb'": NO_FILES,
    "FROM os": "Catalog Error: Table with name os does not exist",
    "WITH gone AS (DELETE FROM base.runs RETURNING *) SELECT * FROM gone": NO_WRITES,
    "WITH more AS (INSERT INTO base.names VALUES (1, 'x', 0) RETURNING *) SELECT * FROM more": NO_WRITES,
    "SELECT nextval('counter')": f"{NO_WRITES}|Sequence with name counter does not exist",  # only here there is one
    "SELECT * FROM query_table('checkpoint()')": r"Table with name checkpoint\(\) does not exist",
}
# Reasons for which a query is refused before it runs. A parser time-out is not among them, because it proves nothing.
REFUSALS = (
    r"queries only read; write one SELECT|send exactly one SELECT at a time|EXPLAIN is answered only before one SELECT|"
    r"PIVOT without values needs several statements|query is empty; write one SELECT"
)


def assert_is_stopped(sql: str, answer: query_messages.QueryMessage, words: str) -> None:
    """Assert that a text was stopped by its own limit, and not because the machine was slow."""
    kind = "refused" if words == REFUSALS else "sql"
    assert answer.kind == QueryMessageKind.ERROR, f"{sql} was answered"
    assert answer.error_kind == kind, f"{sql}: {answer.error_kind} {answer.message}"
    assert re.search(words, answer.message), f"{sql}: {answer.message}"
    assert "\n" not in answer.message


class Asker(DealerByHand):
    """A client of the wire, independent of the SDK's."""

    def send(self, sql, params=None, timeout_s=30.0, time_zone="") -> bytes:
        id = os.urandom(ID_BYTES)
        self.socket.send_multipart(query_messages.request(id, sql, params, timeout_s, time_zone))
        return id

    def receive(self) -> query_messages.QueryMessage:
        return query_messages.parse(self.frames())

    def ask(self, sql, params=None, timeout_s=30.0, time_zone="") -> query_messages.QueryMessage:
        id = self.send(sql, params, timeout_s, time_zone)
        answer = self.receive()
        assert answer.id == id
        return answer

    def rows(self, sql, params=None) -> list[dict]:
        answer = self.ask(sql, params)
        assert answer.kind == QueryMessageKind.RESULT, answer.message
        table = pa.ipc.open_stream(answer.payload).read_all()
        assert table.num_rows == answer.n_rows
        return table.to_pylist()
