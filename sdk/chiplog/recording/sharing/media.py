"""Media of `log()`: the bytes go into the outbox by their SHA-256, then an event names them.

So a reader of the event can rely on the bytes, as with saved files.
"""

import json
from collections.abc import Callable
from typing import Any

from chiplog.recording.sharing.files import NotSavedError
from chiplog.safety.diagnostics import Diagnostic, error_text
from chiplog.safety.text import clean_utf8
from chiplog.values.media_value import Content, MediaError, MediaValue
from chiplog.values.metrics import Media
from chiplog_schemas.interrupts import unless_interrupt
from chiplog_schemas.limits import MEDIA_BYTES_MAX, MEDIA_PER_LOG_MAX, PARTS_PER_MEDIA_MAX


class MediaStorage:
    """Stores media of one run.

    store: keeps bytes and returns their digest. emit: called with the fields of a MEDIA event. report_fault: called for
    each value that is not stored.
    """

    def __init__(
        self, store: Callable[[bytes], bytes], *, emit: Callable[..., None], report_fault: Callable[[Diagnostic], None]
    ) -> None:
        self._store = store
        self._emit = emit
        self._report_fault = report_fault

    def log(self, step: int, key: str, value: Media) -> None:
        """Store one value, or the items of a list, whose metadata then have the number of each as `item`."""
        items = value if isinstance(value, tuple) else (value,)
        if len(items) > MEDIA_PER_LOG_MAX:
            message = f"{key!r:.80} has {len(items)} media; the first {MEDIA_PER_LOG_MAX} are stored, log fewer at once"
            self._report_fault(Diagnostic("too_many_media", key, message))
        for number, item in enumerate(items[:MEDIA_PER_LOG_MAX]):
            try:
                place = {"item": number} if isinstance(value, tuple) else {}
                self._log_content(step, key, item.to_content(), place)
            except MediaError as error:
                self._refuse(key, item, str(error))
            except NotSavedError as error:
                self._refuse(key, item, error.args[1], error.args[0])
            except unless_interrupt(Exception) as error:  # an encoder may raise anything
                self._refuse(key, item, f"{error_text(error)}; it is not stored")

    def _log_content(self, step: int, key: str, content: Content, place: dict[str, Any]) -> None:
        if len(content.data) > MEDIA_BYTES_MAX:
            raise MediaError(f"it has {len(content.data)} bytes, the limit is {MEDIA_BYTES_MAX}; save() it as a file")
        if len(content.parts) > PARTS_PER_MEDIA_MAX:
            raise MediaError(f"it holds {len(content.parts)} media, the limit is {PARTS_PER_MEDIA_MAX}; log fewer")
        for name, part in content.parts:  # stored first, so that the whole never refers to missing parts
            self._log_content(step, f"{key}/{name}", part, place)
        digest = self._store(content.data)
        metadata = json.dumps({**content.metadata, **place}, allow_nan=False)
        self._emit(step, clean_utf8(key), content.kind, digest, len(content.data), metadata)

    def _refuse(self, key: str, item: MediaValue, why: str, kind: str = "media") -> None:
        message = f"{key!r:.80} ({type(item).__name__}) is not stored: {clean_utf8(why)}"
        self._report_fault(Diagnostic(kind, key, message))
