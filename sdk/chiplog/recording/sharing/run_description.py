"""The texts and tags that describe a run, and the events that a change of them emits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chiplog.identity.identity import Identity
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import Diagnostic, Diagnostics
from chiplog.settings import RunSettings
from chiplog.values.metrics import flatten
from chiplog_schemas.model.events import EventKind


class RunDescription:
    """The description of one run by one label: the primary's is the run's. settings: as they are now.

    is_finished: called with the name of a call; True, with a warning, once the run has finished. record_identity:
    emits the identity with the settings as they are now.
    """

    def __init__(
        self,
        settings: RunSettings,
        identity: Callable[[], Identity],
        emit: Callable[..., None],
        diagnostics: Diagnostics,
        *,
        is_finished: Callable[[str], bool],
        record_identity: Callable[[], None],
    ) -> None:
        self.settings = settings
        self._identity = identity
        self._emit = emit
        self._diagnostics = diagnostics
        self._report_internal_error = diagnostics.report_internal_error
        self._is_finished = is_finished
        self._record_identity = record_identity

    def change(self, **changes: Any) -> None:
        """Record the identity again with other texts or tags. Never raises."""
        what = ", ".join(f"run.{name}" for name in changes)
        try:
            if self._is_finished(what):
                return
            self.settings = replace(self.settings, **changes)
            if self.settings.mode == "disabled":
                return
            identity = self._identity()
            if not identity.primary:
                message = f"{what} on {identity.label} stays with it: only the primary's is the run's"
                self._diagnostics.report(Diagnostic("not_primary", what, f"{message}; set it where run.is_primary"))
            self._record_identity()  # safeguard: renamed-run-recorded
        except Exception as error:
            self._diagnostics.report_internal_error(what, error)

    @never_raises("set_tag")
    def set_tag(self, key: str, value: str | None) -> None:
        """Set a tag of the run, from any label; None removes it. The last call of all labels counts. Never raises."""
        if self.settings.mode == "disabled" or self._is_finished("set_tag()"):
            return
        text = "" if value is None else str(value)
        for item in flatten({key: text}):  # the bounds of a text in log()
            if isinstance(item, Diagnostic):
                self._diagnostics.report(item)
            else:
                self._emit(EventKind.TAG, item[0], None if value is None else item[1])
