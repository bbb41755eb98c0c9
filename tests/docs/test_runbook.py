"""docs/runbook.md and docs/operations.md: each query runs, and each command has the options that it is called with."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.support.index import Index

from chiplog_cli.root import chiplog

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [(DOCS / name).read_text(encoding="utf-8") for name in ("runbook.md", "operations.md")]
QUERIES = [query for page in PAGES for query in re.findall(r"```sql\n(.*?)```", page, re.DOTALL)]
COMMANDS = sorted(
    {
        line.split("  #")[0].strip()
        for page in PAGES
        for line in (
            "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines()
            + re.findall(r"`(chiplog [a-z][^`]*)`", page)
        )
        if line.startswith("chiplog ")
    }
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    index = Index(tmp_path_factory.mktemp("runbook"))
    yield index
    index.close()


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query[:50])
def test_each_query_runs(index: Index, query: str) -> None:
    index.sql(query.strip().rstrip(";"))


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_exists_with_its_options(line: str) -> None:
    context, command = click.Context(chiplog), chiplog
    words = shlex.split(line)[1:]
    known: set[str] = set()
    for before, word in zip(["", *words], words, strict=False):
        if word.startswith("--"):
            assert word.split("=")[0] in known, f"{line}: {word}"
        elif isinstance(command, click.Group) and not before.startswith("--"):  # else it may be an option's value
            found = command.get_command(context, word)
            assert found is not None, line
            command = found
            known = {option for parameter in found.params for option in parameter.opts + parameter.secondary_opts}


def test_each_symptom_in_the_first_table_is_a_section() -> None:
    listed = re.findall(r"^\| \[([^\]]+)\]\(#", PAGES[0], re.MULTILINE)
    sections = [title.lower() for title in re.findall(r"^## (.+)$", PAGES[0], re.MULTILINE)]
    assert {name.lower() for name in listed} <= set(sections)
