"""Texts of a run as attributes: an assigned text is checked, recorded and read back."""

from types import SimpleNamespace
from typing import Any

from chiplog.recording.sharing.run_text import RunTags, RunText


class Run:
    name = RunText("name")
    tags = RunTags()

    def __init__(self) -> None:
        self._settings = SimpleNamespace(name="first", tags=("a",))
        self.described: list[dict[str, Any]] = []
        self.diagnostics: list[Any] = []
        self._report_fault = self._report = self.diagnostics.append
        self._description = self

    def change(self, **changes: Any) -> None:
        self.described.append(changes)
        vars(self._settings).update(changes)


def test_a_text_is_read_from_the_settings_and_an_assignment_is_recorded() -> None:
    run = Run()
    assert run.name == "first"
    run.name = "second"
    assert run.described == [{"name": "second"}]
    assert run.name == "second"
    assert run.diagnostics == []


def test_what_is_no_text_is_reported_and_raises_nothing() -> None:
    run = Run()
    run.name = "half a character: \ud800"
    assert len(run.diagnostics) == 1
    run.name.encode("utf-8")


def test_read_from_the_class_it_is_itself() -> None:
    assert isinstance(Run.name, RunText)


def test_tags_are_read_from_the_settings_and_replaced_by_an_assignment() -> None:
    run = Run()
    assert run.tags == ("a",) and isinstance(Run.tags, RunTags)
    run.tags = ["b", "c"]
    assert run.described == [{"tags": ("b", "c")}] and run.tags == ("b", "c")
