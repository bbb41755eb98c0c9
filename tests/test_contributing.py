"""CONTRIBUTING.md and SECURITY.md: each path, make target and name in them exists."""

import re
from pathlib import Path

import pytest

from tests.support.packages import PACKAGES

ROOT = Path(__file__).parent.parent
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "SECURITY.md")}
README = (ROOT / "README.md").read_text(encoding="utf-8")
MADE_BY_A_RECIPE = {
    "sdk/chiplog_cli/commands/care/where.py",
    "tests/sdk/cli/commands/care/test_where.py",
    "schemas/vectors/v1/event-note.bin",
    "sdk/chiplog_page/static/js/views/run/notes.js",
    "tests/page/test_notes.py",
}
# What the recipes name in a file.
NAMED = {
    "collector/chiplog_collector/index/apply/event_handlers.py": ["_by_kind"],
    "schemas/chiplog_schemas/model/events.py": ["EventKind", "EventSpec", "Field"],
    "schemas/chiplog_schemas/sql/__init__.py": ["MIGRATION", "READS"],
    "sdk/chiplog_cli/health_checks.py": ["TESTED_DUCKDB"],
    "sdk/chiplog_cli/root.py": ["COMMANDS"],
    "tests/collector/views/test_macros.py": ["COLUMNS"],
    "sdk/chiplog/recording/log/recorder.py": ["_emit"],
    "sdk/chiplog_page/static/js/views/run.js": ["TABS"],
    "sdk/chiplog_page/static/js/views/run/run_view.js": ["RunView"],
    "tests/support/page_run.py": ["fill_page_run"],
    "tests/support/waiting.py": ["CHIPLOG_TEST_WAIT_TIMES"],
    "tests/support/rounds.py": ["CHIPLOG_FAULT_SEED", "CHIPLOG_ROUNDS_TIMES"],
    "agent/chiplog_agent/daemon.py": ["AgentDaemon", "_poll"],
    "collector/chiplog_collector/receiver/daemon.py": ["ReceiverDaemon", "turn"],
    "collector/chiplog_collector/index/daemon.py": ["_input_ended"],
    "tests/agent/stats/host/test_sources.py": ["EVERYWHERE"],
    "tests/collector/index/test_database.py": ["TABLES"],
    "tests/collector/views/test_views.py": ["COLUMNS"],
    "tests/schemas/make_vectors.py": ["EVENTS"],
    "tests/sdk/recording/api/test_functions.py": ["DOCUMENTED"],
    "tests/support/collector_log.py": ["VIEWS"],
}


@pytest.mark.parametrize("page", PAGES)
def test_each_path_and_link_leads_to_a_file(page: str) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", PAGES[page])
    paths = re.findall(r"`((?:sdk|agent|collector|schemas|tests|docs)/[^`\s]*)`", PAGES[page])
    assert [name for name in {*links, *paths} - MADE_BY_A_RECIPE if not (ROOT / name).exists()] == []


def test_the_version_of_python_is_that_of_the_package() -> None:
    needs = re.findall(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(re.findall(r"Python ([\d.]+\d) or newer", PAGES["CONTRIBUTING.md"] + README)) == set(needs)


def test_each_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", PAGES["CONTRIBUTING.md"] + README, re.MULTILINE)) <= targets


@pytest.mark.parametrize("file", NAMED)
def test_each_name_that_a_recipe_gives_is_in_its_file(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    for name in NAMED[file]:
        assert name in PAGES["CONTRIBUTING.md"]
        assert re.search(rf"\b{name}\b", text), f"{file} has no {name}"


def test_the_packages_are_those_of_the_product() -> None:
    table = PAGES["CONTRIBUTING.md"].split("## Find your way")[1].split("**The test")[0]
    listed = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(path.relative_to(ROOT).as_posix() for path in PACKAGES.values())


def test_the_map_of_the_page_has_each_folder_of_modules() -> None:
    table = PAGES["CONTRIBUTING.md"].split("## Recipe: the page")[1].split("\n1. ")[0]
    scripts = ROOT / "sdk/chiplog_page/static/js"
    folders = {path.parent.relative_to(scripts).as_posix() + "/" for path in scripts.rglob("*.js")} - {"./"}
    assert set(re.findall(r"^\| `([^`]+/)` \|", table, re.MULTILINE)) == folders


def test_each_named_thread_is_started() -> None:
    section = PAGES["CONTRIBUTING.md"].split("## A daemon that hangs")[1].split("## ")[0]
    code = "".join(path.read_text(encoding="utf-8") for package in PACKAGES.values() for path in package.rglob("*.py"))
    for name in re.findall(r"`(chiplog-[a-z]+)", section):
        assert f'"{name}' in code, name
