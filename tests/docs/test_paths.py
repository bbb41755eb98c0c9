"""Paths in the documents: whatever looks like a file or folder of this repository is on disk, and so is each link."""

import re
from functools import cache
from pathlib import Path

import pytest
from tests.support.packages import PACKAGES

ROOT = Path(__file__).parents[2]
FOLDERS = ("agent", "collector", "deploy", "docs", "schemas", "scripts", "sdk", "tests")
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "schemas/PROTOCOL.md")),
        *ROOT.glob("*/README.md"),
        *ROOT.glob("*/*/README.md"),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
NAMES_MODULES = [ROOT / "CONTRIBUTING.md", *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md")]
OF_THE_CODE = re.compile(r"[\w.-]+(/[\w.-]+)+\.(py|c|js|sql|md|toml|service|env|bin)")
FOLDER = re.compile(r"(agent/chiplog_agent|collector/chiplog_collector|deploy|docs|schemas|scripts|sdk|tests)/[\w./-]*")
BARE = re.compile(r"\w+\.(py|js|sql)")  # a module of the folder that the page is about
NOT_HERE = {
    "sdk/chiplog_cli/commands/care/where.py",  # a recipe of CONTRIBUTING.md makes these
    "tests/sdk/cli/commands/care/test_where.py",
    "schemas/vectors/v1/event-note.bin",
    "sdk/chiplog_page/static/js/views/run/notes.js",
    "tests/page/test_notes.py",
    "tests/system_tests/test_core",  # of W&B's own repository
}


@cache
def paths_on_disk() -> set[str]:
    """Return each file of the repository by its path and by each end of its path: storage/record.py."""
    found = set(FOLDERS)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            parts = path.relative_to(ROOT).parts
            if "__pycache__" not in parts:
                found |= {"/".join(parts[at:]) for at in range(len(parts))}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_looks_like_a_path_of_the_repository_is_one(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    words = {word.split("::")[0] for word in re.findall(r"`([^`\s]+)`", text)}
    patterns = [OF_THE_CODE, FOLDER, *([BARE] if page in NAMES_MODULES else [])]
    named = {word.rstrip("/").lstrip("./") for word in words if any(pattern.fullmatch(word) for pattern in patterns)}
    assert sorted(named - paths_on_disk() - NOT_HERE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_link_to_a_file_leads_to_one(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = set(re.findall(r"\]\((?!\w+:)([^)#\s]+)", text))
    assert sorted(link for link in links if not (page.parent / link).exists() and not (ROOT / link).exists()) == []


def test_the_tree_in_the_readme_is_the_tree_on_disk() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [tree] = re.findall(r"## The tree\n\n```text\n(.*?)```", readme, re.DOTALL)
    listed: dict[str, set[str]] = {}
    top = name = ""
    for line in tree.splitlines():
        head, rest = line[:22], line[22:]
        if head.strip():
            top = head.strip() if not head.startswith(" ") else top
            name = top if not head.startswith(" ") else top + head.strip()
        listed.setdefault(name, set()).update(word for word in rest.split() if re.fullmatch(r"\w+/", word))
    assert [name for name in listed if not (ROOT / name).exists()] == []
    assert {f"{folder}/" for folder in FOLDERS} == {name for name in listed if name.count("/") == 1 and name[-1] == "/"}
    whole = [*(path.relative_to(ROOT).as_posix() + "/" for path in PACKAGES.values()), "docs/", "tests/"]
    on_disk = {name: {f"{path.name}/" for path in folders_with_files(ROOT / name)} for name in whole}
    assert {name: listed[name] for name in whole} == on_disk


def folders_with_files(folder: Path) -> list[Path]:
    """Return the folders in a folder that hold a file of the repository."""
    return [
        path
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(("_", ".")) and any(is_ours(file) for file in path.rglob("*"))
    ]


def is_ours(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
