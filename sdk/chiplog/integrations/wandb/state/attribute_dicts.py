"""Dicts whose entries are attributes, too, as W&B's config and summary have them."""

from collections.abc import MutableMapping
from typing import Any


class AttributeMapping(MutableMapping[str, Any]):
    """A mapping whose entries are attributes, too. Names that begin with _ are its own: `vars()` sets them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __repr__(self) -> str:
        return repr(dict(self))


class AttributeDict(dict[str, Any]):
    """A dict whose entries can be read as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None
