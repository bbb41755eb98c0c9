"""docs/decisions: one page per decision, in one form, each in the navigation, and short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "decisions"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")
PARTS = ["**Context.**", "**Choice.**", "**Price.**", "Code: `"]
LINES_MAX = 25  # a decision that needs more is two


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_has_context_choice_and_price_on_one_short_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    title, summary, *parts = text.strip().split("\n\n")
    assert re.fullmatch("# .+", title)
    assert summary.endswith("."), "the second paragraph is the sentence that the lists show"
    assert len(parts) == len(PARTS)
    assert [part for part, start in zip(parts, PARTS, strict=True) if not part.startswith(start)] == []
    assert text.count("\n") <= LINES_MAX


def test_each_decision_is_in_the_navigation_once() -> None:
    listed = re.findall(r"decisions/(\S+)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.stem for path in FOLDER.glob("*.md"))
