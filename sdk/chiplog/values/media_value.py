"""Values of `log()` that are stored as a content of their own: bytes by their SHA-256, beside an event that names them.

The classes are in `chiplog.media`. Here is what `log()` knows of them.
"""

from dataclasses import dataclass, field
from typing import Any


class MediaError(Exception):
    """Why a value cannot be stored, as one clause with the remedy: `it has 0 pixels; log an image that has some`."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a value becomes.

    Args:
        kind: table, image, audio, video, html, figure, object3d or mask: the column `kind` of the view `media`.
        data: The bytes that are stored.
        metadata: Plain values, as JSON has them: format, caption, width …
        parts: Contents that belong to this one, each with its name below the key: media in the cells of a table under
            the name of their column, masks of an image. All parts may have one name; metadata tell them apart, as
            `row` does.

    """

    kind: str
    data: bytes
    metadata: dict[str, Any] = field(default_factory=dict)
    parts: tuple[tuple[str, "Content"], ...] = ()


class MediaValue:
    """A value that `log()` stores as a content. Its constructor never raises: `to_content` says what is wrong."""

    def to_content(self) -> Content:
        """Return the bytes and what describes them, as they are now. Raises MediaError."""
        raise NotImplementedError
