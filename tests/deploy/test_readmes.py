"""The README of each folder, held to the code: views, columns, environment variables, modules."""

import re
from pathlib import Path

import duckdb
import pytest

from chiplog_schemas.sql import tables_sql, views_sql

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"agent": "chiplog_agent", "collector": "chiplog_collector", "sdk": "chiplog"}


def documented_views() -> dict[str, list[str]]:
    """Return the columns of each `### view:` section of collector/README.md, in order."""
    views: dict[str, list[str]] = {}
    columns: list[str] = []
    for line in (ROOT / "collector" / "README.md").read_text().splitlines():
        if heading := re.match(r"### (\w+)", line):
            columns = views.setdefault(heading[1], [])
        elif views and (row := re.match(r"\| (\w+) \| (.+) \|$", line)) and row[1] != "column":
            columns.append(row[1])
    return views


def views_in_sql() -> dict[str, list[str]]:
    with duckdb.connect() as connection:
        connection.execute(tables_sql())
        connection.execute(views_sql())
        names = connection.execute("SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal")
        return {
            name: [row[0] for row in connection.execute(f"DESCRIBE {name}").fetchall()] for (name,) in names.fetchall()
        }


def test_collector_readme_lists_every_view_with_its_columns_in_order() -> None:
    assert documented_views() == views_in_sql()


@pytest.mark.parametrize("folder", PACKAGES)
def test_readme_names_every_module(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text()
    for path in (ROOT / folder / PACKAGES[folder]).rglob("*.py"):
        inside = path.relative_to(ROOT / folder / PACKAGES[folder])
        if not path.stem.startswith("__") and inside.parts[0] != "cli":
            assert path.name in text, f"{inside} is not in {folder}/README.md"


def test_variables_in_the_docs_are_read_by_the_code() -> None:
    code = "".join(
        path.read_text() for folder in (*PACKAGES, "schemas") for path in (ROOT / folder).rglob("chiplog*/**/*.py")
    )
    pages = [ROOT / "sdk" / "README.md", *(ROOT / "deploy").iterdir()]
    for page in pages:
        for variable in set(re.findall(r"\bCHIPLOG_[A-Z_]+\b", page.read_text())):
            assert f'"{variable}"' in code, f"{page.name} names {variable}, which no code reads"


def test_the_readme_lists_every_kind_of_event_that_the_code_emits() -> None:
    emitted = set()
    for area in ("sdk/chiplog", "agent/chiplog_agent", "collector/chiplog_collector"):
        for path in (ROOT / area).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            emitted |= set(re.findall(r'"([a-z]+(?:[_.][a-z]+)*)",\s*"(?:debug|info|warning|error)"', text))
    emitted -= {"debug", "info", "warning", "error", "ok", "end"}  # levels, and names of fields
    [row] = [
        line for line in (ROOT / "collector/README.md").read_text().splitlines() if line.startswith("| kind | `alert`")
    ]
    assert {"gpu.lost", "node_lost"} <= emitted
    assert emitted - set(re.findall("`([a-z_.]+)`", row)) == set()
