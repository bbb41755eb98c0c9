"""Rows of the views of a store, as text by which engines are compared. Other Pythons import it, with no package."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

# By view: its columns of JSON, which is text in a store.
VIEWS: dict[str, tuple[str, ...]] = {
    "runs": (),
    "labels": (),
    "metrics": (),
    "phases": (),
    "texts": (),
    "histograms": (),
    "console": (),
    "system": (),
    "system_samples": (),
    "config": ("value",),
    "run_tags": (),
    "metric_definitions": (),
    "keys": (),
    "summary": ("value",),
    "events": ("body",),
    "files": (),
    "completeness": (),
    "step_skew": (),
    "stragglers": (),
}


def plain_rows(view: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return rows as sorted texts: by column, times without a zone, lists as such, JSON as what it says."""
    is_json = [name in VIEWS.get(view, ()) for name in names]
    return sorted(
        repr([(name, _plain(value, json_text)) for name, value, json_text in zip(names, row, is_json, strict=True)])
        for row in rows
    )


def _plain(value: Any, is_json: bool) -> Any:
    if is_json and value is not None:
        return json.loads(value)
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "tzinfo"):
        return str(value.replace(tzinfo=None))
    return [_plain(one, False) for one in value] if isinstance(value, list | tuple) else value
