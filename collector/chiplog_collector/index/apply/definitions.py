"""Validate the definitions of metrics and the hashes of configs that ranks send; raise TypeError or ValueError."""

import json
from typing import Any

from chiplog_collector.index.apply.validation import clean, text_of
from chiplog_schemas.codec import short_repr
from chiplog_schemas.limits import KEY_BYTES_MAX
from chiplog_schemas.model.events import DEFINITION_FIELDS, SUMMARIES, select_typed

_NAME_CHARS_MAX = 4 * KEY_BYTES_MAX  # each byte may be shown as \\xNN
_HASHES_MAX = 10_000  # of one config; an SDK sends at most a tenth of it
_HASH_CHARS_MAX = 64


def definition_of(name: Any, definition: Any) -> tuple[str, str, str, str]:
    """Return (name, summary, step metric, true or false for hidden) of a DEFINE event; empty if not given."""
    fields = select_typed(definition, DEFINITION_FIELDS)
    summary = fields.get("summary", "")
    if summary and summary not in SUMMARIES:
        raise ValueError(f"summary {short_repr(summary)} must be one of {', '.join(SUMMARIES)}")
    pattern = text_of(name)
    if not 0 < len(pattern) <= _NAME_CHARS_MAX:
        raise ValueError(f"name of {len(pattern)} characters, the limit is 1 to {_NAME_CHARS_MAX}")
    hidden = {True: "true", False: "false", None: ""}[fields.get("hidden")]
    return pattern, summary, clean(fields.get("step_metric", ""))[:_NAME_CHARS_MAX], hidden


def hashes_of(hashes: Any) -> str:
    """Return the hashes of a CONFIG_HASHES event as JSON: equal hashes give equal texts."""
    if not isinstance(hashes, dict) or len(hashes) > _HASHES_MAX:
        raise ValueError(f"hashes must be a map of at most {_HASHES_MAX} entries")
    named = {text_of(key)[:_NAME_CHARS_MAX]: text_of(value)[:_HASH_CHARS_MAX] for key, value in hashes.items()}
    return json.dumps(named, sort_keys=True)
