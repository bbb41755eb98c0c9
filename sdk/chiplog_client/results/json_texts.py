"""Decode the columns of views that hold JSON, and keep numbers that JSON lacks."""

import json
import math
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


def json_number(value: Any) -> Any:
    """Return a number that JSON lacks as the text "nan", "inf" or "-inf"; any other value unchanged."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
