"""What records and warnings share."""

from typing import Any

import chiplog
from chiplog.integrations.logging.notices import add_notice, being_warned, cut_text, is_being_warned


def test_a_notice_needs_an_open_run(run: chiplog.Run, recorded: Any) -> None:
    assert add_notice("log", "info", "t", lambda: ("text", {}))
    assert [row["message"] for row in recorded()] == ["text"]
    assert not add_notice("log", "info", "t", lambda: ("text", {})), "it has finished"


def test_notices_inside_each_other_have_an_end(run: chiplog.Run, recorded: Any) -> None:
    def describe() -> tuple[str, dict[str, Any]]:
        add_notice("log", "info", "t", describe)
        return "text", {}

    add_notice("log", "info", "t", describe)
    assert len(recorded()) == 3


def test_a_mark_ends_with_its_block() -> None:
    with being_warned():
        with being_warned():
            assert is_being_warned()
        assert is_being_warned()
    assert not is_being_warned()


def test_a_text_is_cut_and_encodable() -> None:
    assert cut_text("\ud800" + "x" * 10, 3) == "\\ud800xx"
