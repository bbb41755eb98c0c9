"""What describes a run and may change while it runs: name, notes, project, group, job type and tags."""

from collections.abc import Iterable
from typing import Any, overload

from chiplog.safety.foreign_names import is_stand_in, left_out
from chiplog.settings import as_strings, clean_text


class RunText:
    """A text of a run's settings as an attribute: `run.name = "baseline"` records the new one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: Any, owner: type | None = None) -> Any:
        if run is None:  # accessed on the class, as by inspect
            return self
        text: str | None = getattr(run._settings, self._name)
        return text

    def __set__(self, run: Any, value: Any) -> None:
        if is_stand_in(value):
            run._report_fault(left_out(f"run.{self._name}"))
            return
        text, change = clean_text(self._name, value)
        if change is not None:
            run._report_fault(change)
        run._description.change(**{self._name: text})


class RunTags:
    """Words to find the run by. Assigning replaces them."""

    @overload
    def __get__(self, run: None, owner: type) -> "RunTags": ...

    @overload
    def __get__(self, run: object, owner: type) -> tuple[str, ...]: ...

    def __get__(self, run: Any, owner: type) -> "RunTags | tuple[str, ...]":
        return self if run is None else run._settings.tags

    def __set__(self, run: Any, words: Iterable[str]) -> None:
        run._description.change(tags=as_strings(words))
