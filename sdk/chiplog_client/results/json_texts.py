"""Decode the columns of views that hold JSON."""

import json
from typing import Any


def decoded(value: Any) -> Any:
    """Decode a JSON text, or a list of JSON texts; return any other value unchanged."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
