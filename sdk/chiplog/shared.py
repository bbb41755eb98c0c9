"""`run.config` and `run.summary`: dicts whose changes become events."""

import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from chiplog.values import Bad, cleaned, shown
from chiplog_schemas.limits import EVENT_BYTES_MAX


class _Said(MutableMapping[str, Any]):
    """A dict that tells every change, also one by attribute: `run.config.lr = 0.5`."""

    def __init__(self, say: Callable[[Mapping[str, Any]], None], complain: Callable[[Bad], None]) -> None:
        self._say = say
        self._complain = complain
        self._values: dict[str, Any] = {}

    def adopt(self, values: Mapping[str, Any]) -> None:
        """Set many at once, as one event."""
        if values:
            self._values.update(values)
            self._say(values)

    def update(self, *arguments: Any, **values: Any) -> None:
        """Set many at once, as one event. What is no dict is counted as bad, not raised."""
        try:
            changes = dict(*arguments, **values)
        except Exception as error:
            name = type(self).__name__.lower()
            message = f"{name}.update() takes a dict, not {', '.join(map(shown, arguments))} ({type(error).__name__})"
            self._complain(Bad("not_a_dict", name, message))
            return
        self.adopt(changes)

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

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self[name] = value


class Config(_Said):
    """What the run was started with. The primary's is the run's; changes on other ranks stay with them."""


class Summary(_Said):
    """What is worth remembering of this label. What is not set here is the last value of each metric."""


def as_json(
    what: str, values: Mapping[str, Any], complain: Callable[[Bad], None], event_bytes_max: int = EVENT_BYTES_MAX
) -> Iterator[dict[str, str]]:
    """Yield the values as JSON, in as many dicts as fit an event each. `what`: config or summary, for complaints."""
    said: dict[str, str] = {}
    for key, value in values.items():
        try:
            said[cleaned(str(key))] = json.dumps(value, default=str)
        except Exception as error:  # whatever a foreign type raises: one value, not all of them
            name = f"{what} {shown(key)}"
            message = f"{name} cannot be written as JSON ({type(error).__name__} {error}); use plain values"
            complain(Bad("not_json", name, message))
    return _split(said, event_bytes_max // 2)


def _split(said: dict[str, str], chars_max: int) -> Iterator[dict[str, str]]:
    if len(said) > 1 and sum(map(len, said)) + sum(map(len, said.values())) > chars_max:
        items = list(said.items())
        yield from _split(dict(items[: len(items) // 2]), chars_max)
        yield from _split(dict(items[len(items) // 2 :]), chars_max)
    elif said:
        yield said
