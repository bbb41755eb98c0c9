"""Pure: parameters of a request. A BadRequestError names the one that is wrong, its value and what it may be."""

import math
from collections.abc import Mapping

from starlette.datastructures import QueryParams

from chiplog_client.reads.parameters import STEP_MAX, STEP_MIN, BadRequestError

LABELS_MAX = 1_024  # in one request


def integer(query: Mapping[str, str], name: str, default: int, least: int = STEP_MIN, most: int = STEP_MAX) -> int:
    """Return an integer within bounds; the default if the parameter is missing."""
    text = query.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise BadRequestError(f"{name}={text!r:.80} is not an integer") from None
    if not least <= value <= most:
        raise BadRequestError(f"{name}={value} is not within {least} and {most}")
    return value


def optional_integer(query: Mapping[str, str], name: str, least: int = STEP_MIN, most: int = STEP_MAX) -> int | None:
    """Return an integer within bounds; None if the parameter is missing."""
    return integer(query, name, 0, least, most) if query.get(name) else None


def number(query: Mapping[str, str], name: str) -> float | None:
    """Return a finite number; None if the parameter is missing."""
    text = query.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRequestError(f"{name}={text!r:.80} is not a finite number")
    return value


def choice(query: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    """Return one of the known words; the first one if the parameter is missing."""
    text = query.get(name, "") or known[0]
    if text not in known:
        raise BadRequestError(f"{name}={text!r:.80} must be one of {', '.join(known)}")
    return text


def repeated(query: QueryParams, name: str, most: int, least: int = 0) -> list[str]:
    """Return the values of a parameter that may be repeated, each once, in their order."""
    values = list(dict.fromkeys(query.getlist(name)))
    if not least <= len(values) <= most:
        raise BadRequestError(f"{len(values)} values of {name}; give {f'{least} to' if least else 'at most'} {most}")
    return values
