"""The dialect of SQLAlchemy: SELECTs and reflection work, a write is one clear error."""

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from chiplog_client.dbapi.sqlalchemy_dialect import ChiplogDialect, column_type


@pytest.fixture(scope="module")
def engine(three_runs: Path) -> Iterator[sa.Engine]:
    made = sa.create_engine(f"chiplog:///{three_runs}")
    yield made
    made.dispose()


@pytest.fixture(scope="module")
def metrics(engine: sa.Engine) -> sa.Table:
    return sa.Table("metrics", sa.MetaData(), autoload_with=engine)


def test_the_entry_point_finds_the_dialect(engine: sa.Engine) -> None:
    assert type(engine.dialect) is ChiplogDialect
    assert sa.inspect(engine).default_schema_name == "main"


def test_text_takes_parameters_by_name(engine: sa.Engine) -> None:
    query = sa.text("SELECT run_id, tags FROM runs WHERE project = :project ORDER BY run_id")
    with engine.connect() as connection:
        rows = connection.execute(query, {"project": "gpt"}).all()
    assert rows == [("gpt-20260102-7f3a91", ["a", "b"]), ("gpt-20260103-11aa22", [])]


@pytest.mark.full
def test_core_selects_are_written_in_the_language_of_the_database(engine: sa.Engine, metrics: sa.Table) -> None:
    key, step, value, ts = (metrics.c[name] for name in ("key", "step", "value", "ts"))
    with engine.connect() as connection:
        grouped = (
            sa.select(key, sa.func.max(value), sa.func.count().label("group"))
            .where(step > 5, key.in_(["lr", "train/loss"]), ts > datetime(2026, 1, 1))
            .group_by(key)
            .order_by(sa.desc("group"))
        )
        assert connection.execute(grouped).all() == [("train/loss", 1.99, 1128), ("lr", 2.99, 282)]
        assert connection.execute(grouped.limit(1).offset(1)).all() == [("lr", 2.99, 282)]
        assert connection.execute(grouped.offset(1)).all() == [("lr", 2.99, 282)]
        assert connection.execute(sa.select(step).where(key.in_([]))).all() == []
        of_five = sa.select(step / 3, step // 3).where(step == 5).limit(1)
        assert connection.execute(of_five).all() == [(5 / 3, 1)]
    with Session(engine) as session:
        assert session.execute(sa.select(sa.func.max(step))).scalar() == 99


def test_a_word_that_the_database_reserves_is_quoted(engine: sa.Engine) -> None:
    words = ("pivot", "qualify", "lambda", "group", "show")
    with engine.connect() as connection:
        row = connection.execute(sa.select(*(sa.literal(1).label(word) for word in words))).one()
    assert row._fields == words


@pytest.mark.full
def test_the_views_are_reflected_with_the_types_of_their_columns(engine: sa.Engine) -> None:
    inspector = sa.inspect(engine)
    assert {"runs", "metrics", "labels"} <= set(inspector.get_view_names())
    assert inspector.get_table_names() == inspector.get_view_names() == inspector.get_table_names(schema="main")
    assert inspector.get_view_names(schema="base") == []
    assert inspector.get_schema_names() == ["main"]
    assert inspector.has_table("metrics") and not inspector.has_table("no_view")
    assert "FROM" in inspector.get_view_definition("metrics").upper()
    columns = {column["name"]: type(column["type"]) for column in inspector.get_columns("metrics")}
    texts, numbers = ("run_id", "label", "key"), {"attempt": sa.INTEGER, "rank": sa.INTEGER, "step": sa.BIGINT}
    others = {"seq": sa.BIGINT, "ts": sa.TIMESTAMP, "value": sa.DOUBLE}
    assert columns == dict.fromkeys(texts, sa.VARCHAR) | numbers | others
    metadata = sa.MetaData()
    metadata.reflect(engine)
    assert set(metadata.tables) == set(inspector.get_view_names())
    assert inspector.get_pk_constraint("metrics")["constrained_columns"] == []
    for missing in (
        *(inspector.get_foreign_keys, inspector.get_indexes, inspector.get_unique_constraints),
        inspector.get_check_constraints,
    ):
        assert missing("metrics") == []
    assert inspector.get_table_comment("metrics") == {"text": None}
    for call in (inspector.get_columns, inspector.get_view_definition):
        with pytest.raises(sa.exc.NoSuchTableError, match="no_view"):
            call("no_view")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("VARCHAR", "VARCHAR"),
        ("VARCHAR[]", "ARRAY"),
        ("DECIMAL(18,3)", "NUMERIC"),
        ("STRUCT(a INTEGER)", "NullType"),
        ("MAP(VARCHAR, JSON)", "NullType"),
    ],
)
def test_a_type_that_sqlalchemy_lacks_converts_nothing(name: str, expected: str) -> None:
    assert type(column_type(name)).__name__ == expected


def test_pandas_reads_through_an_engine_without_a_warning(engine: sa.Engine, metrics: sa.Table) -> None:
    by_text = pd.read_sql("SELECT key, value FROM metrics WHERE step = ? ORDER BY ALL", engine, params=(3,))
    assert (len(by_text), by_text["value"].dtype) == (15, float)
    assert len(pd.read_sql(sa.select(metrics).limit(3), engine)) == 3
    assert len(pd.read_sql_table("runs", engine)) == 3
    assert [len(part) for part in pd.read_sql("SELECT range FROM range(25)", engine, chunksize=10)] == [10, 10, 5]


@pytest.mark.parametrize(
    "write",
    [
        lambda connection, metrics: connection.execute(sa.insert(metrics).values(step=1)),
        lambda connection, metrics: connection.execute(sa.insert(metrics), [{"step": 1}, {"step": 2}]),
        lambda connection, metrics: connection.execute(sa.update(metrics).values(step=1)),
        lambda connection, metrics: connection.execute(sa.delete(metrics)),
        lambda connection, metrics: connection.execute(sa.text("DROP VIEW runs")),
        lambda connection, metrics: sa.Table("t", sa.MetaData(), sa.Column("a", sa.Integer)).create(connection),
        lambda connection, metrics: pd.DataFrame({"a": [1]}).to_sql("t", connection),
    ],
)
def test_a_write_is_one_error_that_says_why(
    engine: sa.Engine, metrics: sa.Table, write: Callable[[sa.Connection, sa.Table], object]
) -> None:
    with engine.connect() as connection, pytest.raises(sa.exc.NotSupportedError, match="queries only read"):
        write(connection, metrics)


@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        ("chiplog://", ([], {})),
        ("chiplog:///data/runs", ([], {"dir": "/data/runs"})),
        ("chiplog:////data/runs", ([], {"dir": "/data/runs"})),
        ("chiplog://host:5555", (["tcp://host:5555"], {})),
        ("chiplog://[::1]:5555", (["tcp://[::1]:5555"], {})),
    ],
)
def test_a_url_names_a_collector_or_a_directory(url: str, arguments: object) -> None:
    assert ChiplogDialect().create_connect_args(sa.make_url(url)) == arguments


def test_a_directory_may_begin_with_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert ChiplogDialect().create_connect_args(sa.make_url("chiplog:///~/runs")) == ([], {"dir": "/home/me/runs"})


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("chiplog://host", "write chiplog://HOST:PORT or chiplog:///PATH"),
        ("chiplog://host:5555/data", "write chiplog://HOST:PORT or chiplog:///PATH"),
        ("chiplog://me:secret@host:5555", "a user, a password and options are not known"),
    ],
)
def test_a_url_that_is_none_is_one_line_without_its_password(url: str, part: str) -> None:
    with pytest.raises(sa.exc.ArgumentError, match=part) as error:
        ChiplogDialect().create_connect_args(sa.make_url(url))
    assert "secret" not in str(error.value)
