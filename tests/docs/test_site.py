"""The documentation site: it builds without a warning or a network, and its lists match the code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import chiplog
from chiplog_schemas.query.query_messages import disable_faulty_optimizers
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CODE = ("sdk/chiplog", "agent/chiplog_agent", "collector/chiplog_collector", "schemas/chiplog_schemas")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory in which the site was built in strict mode, in a process that cannot reach a network."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    without_network = os.environ | {
        "NO_MKDOCS_2_WARNING": "1",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    done = subprocess.run(command, cwd=ROOT, env=without_network, capture_output=True, text=True, timeout=2 * WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.mark.full
def test_the_site_builds_in_strict_mode_and_no_page_loads_from_a_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 5
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)"', text)
        loaded += re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="(https?:[^"]+)"', text)
        assert loaded == [], page.name
        assert 'class="language-mermaid' not in text, f"{page.name} has a diagram that was not drawn"


def test_lists_that_repeat_code_are_up_to_date() -> None:
    pages = [str(path) for path in sorted(DOCS.rglob("*.md")) if "[[[cog" in path.read_text(encoding="utf-8")]
    assert pages
    command = [sys.executable, "-m", "cogapp", "--check", "--diff", *pages]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, f"run `make docs` and commit the pages\n{done.stdout}{done.stderr}"


def test_every_public_name_is_in_the_api_reference() -> None:
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^::: chiplog(?:\.\w+)*\.(\w+)$", page, re.MULTILINE)) | set(re.findall(r"`chiplog\.(\w+)`", page))
    assert set(chiplog.__all__) - named == {"__version__"}


def test_the_page_of_variables_names_exactly_those_that_the_code_reads() -> None:
    code = "".join(path.read_text(encoding="utf-8") for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    page = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(CHIPLOG_[A-Z_]+)` \|", page, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == set(re.findall(r'"(CHIPLOG_[A-Z_]+)"', code))


def test_every_variable_that_a_page_names_is_read_by_the_code() -> None:
    code = "".join(path.read_text(encoding="utf-8") for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    for page in DOCS.rglob("*.md"):
        for variable in set(re.findall(r"\bCHIPLOG_[A-Z_]+\b", page.read_text(encoding="utf-8"))):
            assert f'"{variable}"' in code, f"{page.name} names {variable}, which no code reads"


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} == set(re.findall(r"[\w/-]+\.md", menu))


def test_the_page_about_the_file_names_every_optimizer_that_chiplog_switches_off() -> None:
    [statement] = re.findall(r"^SET disabled_optimizers = .*;$", (DOCS / "sql/index.md").read_text(), re.MULTILINE)
    with duckdb.connect() as by_hand, duckdb.connect() as chiplogs:
        by_hand.execute(statement)
        disable_faulty_optimizers(chiplogs)
        off = [
            set(connection.sql("SELECT current_setting('disabled_optimizers')").fetchall()[0][0].split(","))
            for connection in (by_hand, chiplogs)
        ]
    assert off[0] == off[1]
