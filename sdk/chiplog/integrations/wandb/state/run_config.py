"""`run.config` as W&B has it, with what the run had before it was resumed."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chiplog.integrations.wandb.state.attribute_dicts import AttributeMapping
from chiplog.recording.sharing.config import Config as ChiplogConfig


class Config(AttributeMapping):
    """The config of a run: a dict, also by attribute.

    target: chiplog's config. former: returns the entries that the run had before this process resumed it. check: called
    before each change; raises if the run is finished, in strict mode.
    """

    def __init__(
        self,
        target: ChiplogConfig | None = None,
        former: Callable[[], Mapping[str, Any]] = dict,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        unsaid = ChiplogConfig(lambda values: None, lambda bad: None)
        vars(self).update(_target=unsaid if target is None else target, _former=former, _check=check)

    def __getitem__(self, key: str) -> Any:
        if key in self._target:
            return self._target[key]
        return self._former()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._check()
        self._target[key] = value

    def __delitem__(self, key: str) -> None:
        self._check()
        del self._target[key]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._former(), **self._target})

    def __len__(self) -> int:
        return len({**self._former(), **self._target})

    def update(self, *given: Any, allow_val_change: bool | None = None, **values: Any) -> None:
        """Set many entries at once. allow_val_change: accepted, entries may always change."""
        self._check()
        self._target.update(*given, **values)

    def setdefaults(self, values: Mapping[str, Any]) -> None:
        """Set the entries that are not there."""
        self.update({key: value for key, value in dict(values).items() if key not in self})

    update_locked = merge_locked = update

    def as_dict(self) -> dict[str, Any]:
        """Return a copy as a plain dict."""
        return dict(self)

    def persist(self) -> None:
        """Do nothing: each change is recorded at once."""
