"""The known names that are nearest to an unknown one, and one line that suggests them."""

from collections.abc import Iterable

KNOWN_MAX = 10_000  # compared names: a second of CPU; as many as a run may have keys
SUGGESTED_MAX = 3
_SIMILAR = 0.6  # difflib's own default for close matches
_PART = 0.8  # a name that contains the other one ranks with those that have one or two wrong characters
_WORSE_MAX = 0.15  # a name that is less similar than the best one by more is no suggestion
_PART_CHARS_MIN = 3  # shorter texts are a part of almost every name


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names that are similar to `name`, the nearest first; case does not matter.

    A name may also be similar to the beginning of a known one, or be a part of it, or contain it.
    """
    from difflib import SequenceMatcher  # 10 ms, and needed after an error only

    wanted = name.casefold()
    matcher = SequenceMatcher(b=wanted, autojunk=False)

    def ratio(text: str) -> float:
        matcher.set_seq1(text)
        return matcher.ratio() if matcher.real_quick_ratio() > _SIMILAR < matcher.quick_ratio() else 0.0

    def similarity(candidate: str) -> float:
        other = candidate.casefold()
        found = ratio(other)
        if min(len(wanted), len(other)) >= _PART_CHARS_MIN:
            if wanted in other or other in wanted:
                found = max(found, _PART)
            if len(other) > len(wanted):
                found = max(found, ratio(other[: len(wanted)]))
        return found

    scored = [(-similarity(candidate), len(candidate), candidate) for candidate in list(known)[:KNOWN_MAX]]
    scored.sort(key=lambda item: item[:2])
    worst = max(_SIMILAR, -scored[0][0] - _WORSE_MAX) if scored else 0.0
    return [candidate for score, _, candidate in scored[:SUGGESTED_MAX] if -score >= worst]


def unknown_name(what: str, name: str, known: Iterable[str], remedy: str) -> str:
    """Return one line about an unknown name: the nearest known ones, or the remedy if none is similar.

    Args:
        what: What it names: `run`, `key of run 'gpt-1'`.
        name: The unknown name.
        known: All known names, the most likely first: KNOWN_MAX of them are compared.
        remedy: How to find the known names, such as `chiplog runs lists all`.
    """
    kind, _, owner = what.partition(" ")
    near = nearest(name, known)  # safeguard: nearest-name-suggested
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else remedy
    return f"{kind} {name!r}{f' {owner}' if owner else ''} is unknown; {hint}"
