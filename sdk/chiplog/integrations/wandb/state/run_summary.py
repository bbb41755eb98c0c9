"""`run.summary` as W&B has it: logged and assigned values at once, by the words of `define_metric`, nested."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chiplog.integrations.wandb.state.attribute_dicts import AttributeMapping
from chiplog.recording.run.run import Run as ChiplogRun
from chiplog.safety.text import short_repr
from chiplog.values.logged_values import Tally

_WORDS = ("min", "max", "mean", "first", "last")


class Definitions:
    """What `define_metric` was told: the words of the summary by a metric's name, or by a pattern that ends with *."""

    def __init__(self) -> None:
        self._words: dict[str, list[str]] = {}

    def define(self, name: str, words: list[str], *, is_overwritten: bool = False) -> list[str]:
        """Add the words of a name to those that it has, or replace these; return all."""
        before = [] if is_overwritten else self._words.get(name, [])
        self._words[name] = [word for word in (*_WORDS, "none") if word in words or word in before]
        return self._words[name]

    def words(self, key: str) -> list[str]:
        """Return the words for a metric: an exact name counts, then the longest pattern."""
        if key in self._words:
            return self._words[key]
        patterns = [name for name in self._words if name.endswith("*") and key.startswith(name[:-1])]
        return self._words[max(patterns, key=len)] if patterns else []


class Summary(AttributeMapping):
    """The summary of one run, or with a prefix a part of it. Reading shows at once what was logged.

    A metric with a word of `define_metric` is a dict: `{"min": 0.5}`. `summary["a"]` has what is below `a/`. former:
    returns what the run had before this process resumed it.
    """

    def __init__(
        self,
        run: ChiplogRun,
        definitions: Definitions,
        former: Callable[[], Mapping[str, Any]] = dict,
        prefix: str = "",
    ) -> None:
        vars(self).update(_run=run, _definitions=definitions, _former=former, _prefix=prefix)
        vars(self)["_assigned"] = {}  # by key: the number of the last event that had logged it then
        vars(self)["_removed"] = set()
        vars(self)["_texts"] = {}  # logged ones, by key
        vars(self)["_nested"] = set()  # keys that had a dict

    def _part(self, key: str) -> "Summary":
        part = Summary(self._run, self._definitions, self._former, f"{self._prefix}{key}/")
        vars(part).update(_assigned=self._assigned, _removed=self._removed, _texts=self._texts, _nested=self._nested)
        return part

    def __getitem__(self, key: str) -> Any:
        name = f"{self._prefix}{key}"
        found = self._value(name)
        if found is not None:
            return found
        if any(other.startswith(f"{name}/") for other in self._all_names()):
            return self._part(key)
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        name = f"{self._prefix}{key}"
        if isinstance(value, Mapping):
            self._nested.add(name)
            for inner, entry in value.items():
                self._part(key)[str(inner)] = entry
            return
        self._removed.discard(name)
        self._texts.pop(name, None)
        self._assigned[name] = self._last_number(name)
        self._run.summary[name] = value

    def __delitem__(self, key: str) -> None:
        name = f"{self._prefix}{key}"
        for other in [other for other in self._all_names() if other == name or other.startswith(f"{name}/")]:
            self._removed.add(other)
            self._assigned.pop(other, None)
            self._texts.pop(other, None)
            self._run.summary._values.pop(other, None)
            self._run.define_metric(other, "none")

    def __iter__(self) -> Iterator[str]:
        names = [name.removeprefix(self._prefix) for name in self._all_names() if name.startswith(self._prefix)]
        return iter(dict.fromkeys(map(self._key_of, names)))

    def _key_of(self, name: str) -> str:
        """Return the first part of a name that had a dict, the whole name without one."""
        places = [place for place, letter in enumerate(name) if letter == "/"]
        return next((name[:place] for place in places if self._prefix + name[:place] in self._nested), name)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def note_logged(self, data: Mapping[Any, Any]) -> None:
        """Take the texts of a dict that is being logged, also of dicts in it, and the keys of those."""
        for key, value in data.items():
            if isinstance(value, str):
                name = f"{self._prefix}{key}"
                self._removed.discard(name)
                self._assigned[name] = self._last_number(name)
                self._texts[name] = value
            elif isinstance(value, Mapping):
                self._nested.add(f"{self._prefix}{key}")
                self._part(str(key)).note_logged(value)

    def publish(self) -> None:
        """Record what chiplog's own summary lacks: several words of a metric, NaN, values after assigned ones."""
        for key in self._names():
            words, tally = self._definitions.words(key), self._tally(key)
            if key in self._texts and not words:
                self._run.summary[key] = self._value(key)
            if tally is None or (key in self._assigned and not self._is_logged_since(key, tally)):
                continue
            is_own = len(words) < 2 and not (_has_nan(tally) and set(words) & {"min", "max", "mean"})
            if key in self._assigned or not is_own:
                value = self._value(key)
                self._run.summary[key] = value[words[0]] if len(words) == 1 else value

    # -- values --

    def _names(self) -> list[str]:
        names = dict.fromkeys([*self._run._logged.list_keys(), *self._run.summary._values, *self._texts])
        return [name for name in names if self._is_shown(name)]

    def _all_names(self) -> list[str]:
        return list(dict.fromkeys([*filter(self._is_shown, self._former()), *self._names()]))

    def _is_shown(self, name: str) -> bool:
        return name not in self._removed and self._definitions.words(name) != ["none"]

    def _value(self, name: str) -> Any:
        """Return what counts: the value that was assigned or logged last; None without one."""
        tally = self._tally(name)
        if name in self._texts and self._definitions.words(name) and tally is not None:
            pass  # minimum and mean are of the numbers
        elif name in self._assigned and (tally is None or not self._is_logged_since(name, tally)):
            return self._texts.get(name, self._run.summary._values.get(name))
        if not self._is_shown(name):
            return None
        words = self._definitions.words(name)
        if tally is None:
            former = self._former().get(name)
            return former if former is None or isinstance(former, dict) or len(words) != 1 else {words[0]: former}
        return {word: _summed_up(tally, word) for word in words} if words else tally.last

    def _tally(self, name: str) -> Tally | None:
        found: Tally | None = self._run._logged.tally(name)
        return found

    def _last_number(self, name: str) -> float:
        tally = self._tally(name)
        return -1.0 if tally is None else tally.last_number

    def _is_logged_since(self, name: str, tally: Tally) -> bool:
        return bool(tally.last_number > self._assigned[name])


def _has_nan(tally: Tally) -> bool:
    return tally.n_all > tally.n


def _summed_up(tally: Tally, word: str) -> float:
    """Return a value by W&B's rules: one NaN makes the minimum, maximum and mean NaN."""
    return math.nan if word in ("min", "max", "mean") and _has_nan(tally) else tally.summarize(word)


def fault_of(name: Any, step_metric: Any, summary: Any) -> str:
    """Return what is wrong in the arguments of `define_metric`, as W&B has it; '' if nothing is."""
    if not isinstance(name, str) or not name or "*" in name[:-1]:
        return f"name {short_repr(name)} is no text, or has a * before its end; name a metric, or a pattern as val/*"
    if step_metric is not None and not isinstance(step_metric, str):
        return f"step_metric {short_repr(step_metric)} is no text; name a metric"
    words = summary.split(",") if isinstance(summary, str) else [] if summary is None else [summary]
    known = (*_WORDS, "none", "copy", "best")
    unknown = [word for word in words if not isinstance(word, str) or word.strip().lower() not in known]
    return f"summary {short_repr(unknown[0])} is unknown; give some of {', '.join(known)}" if unknown else ""


def words_of(summary: str | None, goal: str | None) -> list[str]:
    """Return the words of `define_metric(summary=)`: min, max, mean, first, last; none alone; [] for copy."""
    words = [word.strip().lower() for word in (summary or "").split(",")]
    if "none" in words:
        return ["none"]
    if "best" in words:
        words += ["min" if str(goal).startswith("min") else "max"]
    return [word for word in _WORDS if word in words]
