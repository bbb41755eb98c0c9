"""Dicts whose entries are attributes, too."""

from collections.abc import Iterator
from typing import Any

import pytest

from chiplog.integrations.wandb.state.attribute_dicts import AttributeDict, AttributeMapping


class Entries(AttributeMapping):
    """A mapping over a dict of its own."""

    def __init__(self) -> None:
        vars(self)["_entries"] = {}

    def __getitem__(self, key: str) -> Any:
        return self._entries[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._entries[key] = value

    def __delitem__(self, key: str) -> None:
        del self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def test_entries_of_a_mapping_are_attributes_and_names_with_an_underscore_are_its_own() -> None:
    entries = Entries()
    entries.lr = 0.1
    entries["_step"] = 3
    assert (entries["lr"], entries.lr, repr(entries)) == (0.1, 0.1, "{'lr': 0.1, '_step': 3}")
    for name in ("_step", "typo"):
        with pytest.raises(AttributeError):
            getattr(entries, name)


def test_entries_of_a_dict_can_be_read_as_attributes() -> None:
    found = AttributeDict(lr=0.1, _step=3)
    assert (found.lr, found._step) == (0.1, 3)
    with pytest.raises(AttributeError):
        _ = found.typo
