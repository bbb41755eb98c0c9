"""A progress bar shows names as they are."""

import pytest

from chiplog_cli.progress import progress_bar
from tests.support.safeguard import proves


@proves(
    "progress-shows-no-markup",
    "a run or a file whose name looks like markup ends no command",
    new="return Text.from_markup(task.description)",
)
def test_a_name_is_not_markup_and_controls_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "80")
    with progress_bar() as progress:
        progress.add_task("[red]a[/b]\x1b[2J", total=2)
        progress.refresh()
    shown = capsys.readouterr().err
    assert "[red]a[/b]" in shown
    assert "\x1b[2J" not in shown


def test_nothing_is_drawn_beside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as progress:
        progress.add_task("a", total=2)
    assert capsys.readouterr().err == ""
