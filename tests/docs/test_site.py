"""The documentation site: it builds without a warning or a network, and its lists match the code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from playwright.sync_api import expect
from tests.support.packages import PACKAGES
from tests.support.page_site import running_browser
from tests.support.tools import needs
from tests.support.waiting import WAIT_MS, WAIT_S

import chiplog
from chiplog_schemas.query.query_messages import disable_faulty_optimizers

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


# The site's own configuration with one page. Nothing in it has to be drawn or read from code.
ONE_PAGE = "INHERIT: {root}/mkdocs.yml\ndocs_dir: docs\nhooks: []\nnav: [index.md]\nplugins: [{plugins}]\n"


def build(site: Path, *arguments: str) -> Path:
    """Build the site into a directory, in strict mode, in a process that cannot reach a network."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site), *arguments]
    without_network = os.environ | {
        "NO_MKDOCS_2_WARNING": "1",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    done = subprocess.run(command, cwd=ROOT, env=without_network, capture_output=True, text=True, timeout=2 * WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory in which the site was built."""
    return build(tmp_path_factory.mktemp("site"))


def search(page_file: Path, words: str) -> list[str]:
    """Return the titles that the search of a page finds which a browser without a network opened as a file."""
    requests: list[str] = []
    with running_browser() as browser:
        page = browser.new_context(offline=True).new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.goto(page_file.as_uri())
        page.locator("input[name=query]").press_sequentially(words)  # the search reads its field at each key
        titles = page.locator(".md-search-result__item h1, .md-search-result__item h2")
        expect(titles.first).to_be_attached(timeout=WAIT_MS)
        found = [" ".join(title.split()) for title in titles.all_text_contents()]
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    return found


@needs("chromium")
def test_a_page_that_is_opened_as_a_file_finds_words_without_a_network(tmp_path: Path) -> None:
    plugins = (ROOT / "mkdocs.yml").read_text().partition("\nplugins:\n")[2].partition("\n\n")[0]
    plugins = ", ".join(re.findall(r"^  - (\w+)(?:  #.*)?$", plugins, re.MULTILINE))
    (tmp_path / "mkdocs.yml").write_text(ONE_PAGE.format(root=ROOT, plugins=plugins))
    (tmp_path / "docs/assets").mkdir(parents=True)
    for asset in ("site.css", "iframe-worker.js"):
        (tmp_path / "docs/assets" / asset).write_bytes((DOCS / "assets" / asset).read_bytes())
    (tmp_path / "docs/index.md").write_text("# First\n\nnothing\n\n## Segments\n\nA zeppelin, and other words.\n")
    site = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert "Segments" in search(site / "index.html", "zeppelin")


@pytest.mark.full
@needs("chromium")
def test_the_site_that_is_opened_as_a_file_finds_words_of_other_pages(site: Path) -> None:
    assert "straggler_windows" in search(site / "index.html", "straggler_windows")


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
    named = set(re.findall(r"^::: chiplog(?:\.\w+)*\.(\w+)$", page, re.MULTILINE)) | set(
        re.findall(r"`chiplog\.(\w+)`", page)
    )
    assert set(chiplog.__all__) - named == {"__version__"}


def test_the_page_of_variables_names_exactly_those_that_the_code_reads() -> None:
    code = "".join(path.read_text(encoding="utf-8") for package in PACKAGES.values() for path in package.rglob("*.py"))
    page = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(CHIPLOG_[A-Z_]+)` \|", page, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == set(re.findall(r'"(CHIPLOG_[A-Z_]+)"', code))


def test_every_variable_that_a_page_names_is_read_by_the_code() -> None:
    code = "".join(path.read_text(encoding="utf-8") for package in PACKAGES.values() for path in package.rglob("*.py"))
    deployed = (path for path in (ROOT / "deploy").rglob("*") if path.is_file())
    for page in (*DOCS.rglob("*.md"), ROOT / "sdk" / "README.md", *deployed):
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
