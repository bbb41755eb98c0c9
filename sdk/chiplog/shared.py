"""`run.config` and `run.summary`: dicts whose changes become events."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any


class _Said(MutableMapping[str, Any]):
    """A dict that tells every change."""

    def __init__(self, say: Callable[[Mapping[str, Any]], None]) -> None:
        self._say = say
        self._values: dict[str, Any] = {}

    def adopt(self, values: Mapping[str, Any]) -> None:
        """Set many at once, as one event."""
        if values:
            self._values.update(values)
            self._say(values)

    def update(self, *arguments: Any, **values: Any) -> None:
        """Set many at once, as one event."""
        self.adopt(dict(*arguments, **values))

    def __setitem__(self, key: str, value: Any) -> None:
        self.adopt({str(key): value})

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __delitem__(self, key: str) -> None:
        """Forget a value here. What was said stays said."""
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(name) from None


class Config(_Said):
    """What the run was started with. The primary's is the run's; changes on other ranks stay with them."""


class Summary(_Said):
    """What is worth remembering of this label. What is not set here is the last value of each metric."""
