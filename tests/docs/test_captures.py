"""The screens of a terminal in the documentation are what the commands show.

After a change of a command, `python -m tests.docs.test_captures` takes all of them again. Read them before you commit.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.captures import BLOCK, capture
from tests.support.hand_written import hand_written, kept_open
from tests.support.marks import everyday
from tests.support.recorded import fill_three_runs
from tests.support.tools import needs

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCREENS = [
    pytest.param(page, *found, id=f"{page.stem}: {found[1].partition(' | ')[0]}, {found[0]} columns")
    for page in sorted(DOCS.rglob("*.md"))
    for found in BLOCK.findall(page.read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("captured")
    with hand_written(root) as database:
        fill_three_runs(database)
    with kept_open(root):
        yield root


def masked(screen: str) -> str:
    """Return a screen without what changes with the time of day: ages, and how long a query takes."""
    return re.sub(r"\d", "0", re.sub(r"\d+ ms", "0 ms", screen))


@needs("tmux")
@pytest.mark.parametrize(("page", "width", "command", "shown"), everyday(1, SCREENS))
def test_a_screen_is_what_the_command_shows(root: Path, page: Path, width: str, command: str, shown: str) -> None:
    assert masked(capture(root, int(width), command)) == masked(shown), (
        f"python -m {__name__} writes it into {page.name}"
    )


def test_the_screens_have_the_widths_that_they_name() -> None:
    assert len(SCREENS) >= 3
    for _, width, _, shown in (screen.values for screen in SCREENS):
        assert max(map(len, str(shown).splitlines())) <= int(str(width))


def write() -> None:
    """Take all screens again, and write them into the pages."""
    with tempfile.TemporaryDirectory() as directory:
        with hand_written(Path(directory)) as database:
            fill_three_runs(database)
        for page in sorted({screen.values[0] for screen in SCREENS}, key=str):
            text = page.read_text(encoding="utf-8")
            page.write_text(
                BLOCK.sub(
                    lambda found: (
                        f"<!-- capture {found[1]}: {found[2]} -->\n\n```text\n"
                        f"{capture(Path(directory), int(found[1]), found[2])}```"
                    ),
                    text,
                ),
                encoding="utf-8",
            )


if __name__ == "__main__":
    write()
