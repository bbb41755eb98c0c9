"""The step that a script gives to `log()`: any object that is meant as a number."""

from collections.abc import Callable
from math import nan
from typing import Any

from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.foreign_names import is_stand_in
from chiplog.safety.text import short_repr
from chiplog.torch.backends import BACKENDS
from chiplog_schemas.interrupts import unless_interrupt


def parse_step(step: Any, report: Callable[[Diagnostic], None]) -> int | None:
    """Return a 64-bit integer; None if the label's own count is used instead. Report what is not an integer."""
    if step is None:
        return None
    try:
        if getattr(getattr(step, "device", None), "type", "") in BACKENDS:
            what = f"a step on {step.device} is not waited for"
            report(Diagnostic("bad_step", what, f"{what}; pass int(), or the loop's own count"))
            return None
        given = nan if is_stand_in(step) else step.item() if hasattr(step, "item") else step
        number = int(given)
        if given != number:
            message = f"step {short_repr(step)} is not an integer; {number} is used, so pass int() of it"
            report(Diagnostic("bad_step", short_repr(step), message))
    except unless_interrupt(Exception):  # a foreign type may raise anything
        number = 1 << 70
    if -(1 << 63) <= number < 1 << 63:
        return number
    message = f"step {short_repr(step)} is not a 64-bit integer; the label's own count is used instead"
    report(Diagnostic("bad_step", short_repr(step), message))
    return None
