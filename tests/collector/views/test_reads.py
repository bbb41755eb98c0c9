"""The read model: the views and macros of the schema `reads`, which the readers of chiplog ask in place of tables."""

import hashlib
import re
from collections.abc import Iterator

import pytest

from chiplog_schemas.sql import READS, views_sql
from tests.support.index import Index
from tests.support.packages import PACKAGES, ROOT

TEXTS = {
    1: "04c947cf7370cbe1",
    2: "52aa290318ef1c4c",
    3: "781260566da50c40",
    4: "84669219b10132f5",
    5: "4b2fa6d3ecd93322",
}  # number of a read model -> digest of the words of its statements
OF_THE_COLLECTOR = ("collector", "schemas")  # folders that may name tables
FILES = sorted(
    path
    for folder in {package.relative_to(ROOT).parts[0] for package in PACKAGES.values()}
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".sql", ".js")
)
SQL = ROOT / "schemas/chiplog_schemas/sql/reads.sql"


@pytest.fixture
def names(index: Index) -> set[str]:
    """Return the views and macros of the read model."""
    found = index.sql(
        "SELECT view_name FROM duckdb_views() WHERE schema_name = 'reads' UNION "
        "SELECT function_name FROM duckdb_functions() WHERE schema_name = 'reads'"
    )
    return {name for (name,) in found}


def named(schema: str) -> Iterator[tuple[str, str]]:
    """Yield what the product outside of the collector names of a schema, and the file."""
    for path in FILES:
        place = path.relative_to(ROOT)
        if place.parts[0] not in OF_THE_COLLECTOR:
            for name in re.findall(rf"(?<![\w.]){schema}\.([a-z_{{]+)", path.read_text(encoding="utf-8")):
                yield name, str(place)


def test_only_the_collector_names_tables() -> None:
    """A name of base. elsewhere needs a view or a macro in reads.sql."""
    assert list(named("base")) == []


def test_each_view_and_macro_of_the_read_model_is_asked(names: set[str]) -> None:
    asked = {name for name, _ in named("reads")}
    assert names - asked == set(), "remove what has no reader"


def test_a_read_model_with_another_text_has_another_number(index: Index) -> None:
    """A client asks only a collector with its own number: it knows no other views."""
    lines = [line.partition("--")[0].split() for line in SQL.read_text(encoding="utf-8").splitlines()]
    words = [word for line in lines for word in line]
    found = hashlib.sha256(repr(words).encode()).hexdigest()[:16]
    assert TEXTS.get(READS) == found, f"add 1 to READS, here and in reads.sql, and its number with {found!r} to TEXTS"
    assert index.sql("SELECT version FROM reads.state") == [(READS,)]


def test_the_read_model_hides_no_view_from_the_views_themselves(index: Index) -> None:
    """reads.runs and the view runs have one name: made a second time, each must still read its own source."""
    index.database.connection.execute(views_sql())
    assert index.sql("SELECT count(*) FROM reads.runs") == [(0,)]
