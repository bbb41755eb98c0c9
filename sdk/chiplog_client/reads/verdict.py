"""Pure: one sentence on who failed first, which rank was slow, in which phase, and who waited for it."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SLOW_SHARE = 0.02  # of the time of the steps; differences of 1 % between equal GPUs are usual
RUN_SHARE, RUN_S = 0.005, 1.0  # of the time of the run, or seconds: less is noise of one step of a short run
WAIT_SHARE = 0.5  # of the culprit's excess, as in straggler_windows
MERGED_SHARE = 0.25  # of the largest excess per step: a slower step by chance does not make a slow time longer
GAP_SHARE = 0.1  # of the longer of two slow times: a smaller gap between them does not make them two
OTHERS_MAX = 5
_NAMES_SHOWN = 5
_APART_MIN_S = 1e-3  # below it the order of two ends says nothing about their cause
STALL_STEPS_MAX = 10  # of several labels that were slow at once
OTHERS_SHARE = 0.1  # of the most expensive spell: cheaper ones would only distract from it
_GPU_EVENTS = {"gpu.xid": "an error", "gpu.lost": "its loss", "gpu.ecc_uncorrected": "a memory error"}
OUTSIDE = "outside"  # the phase of straggler_windows with the time in no phase that labels share
ALONE_SHARE = 0.5  # of the excess outside: then the sentence names the phase that most labels do not have


@dataclass(frozen=True)
class Spell:
    """The time in which one label was slow in one phase.

    Attributes:
        first_step: Its first step.
        last_step: Its last step.
        excess_s: Seconds beyond the median of the labels, of the windows in which it was slow.
        base_s: Seconds that the median of the labels spent on the same steps, in all phases.
        run_s: The same, of all steps of the run.
    """

    label: str
    phase: str
    first_step: int
    last_step: int
    excess_s: float
    base_s: float
    run_s: float = 0.0

    @property
    def is_noise(self) -> bool:
        """Return True if the excess is nothing beside the run."""
        return self.excess_s < min(RUN_SHARE * self.run_s, RUN_S)

    @property
    def is_slow(self) -> bool:
        """Return True if the excess is large beside the steps."""
        return self.excess_s >= SLOW_SHARE * self.base_s and not self.is_noise


@dataclass(frozen=True)
class Failure:
    """The first failure of a run that has failed.

    Attributes:
        label: None for the only label of a run.
        text: What follows the label: how it ended, how long before the others, and why.
    """

    label: str | None
    text: str

    @property
    def sentence(self) -> str:
        """Return the sentence on this failure."""
        return f"{self.label or 'The run'}{self.text}."


@dataclass(frozen=True)
class Outside:
    """More about a spell outside of phases.

    Attributes:
        previous: The step of the label before the first one: the spell may have begun at its end.
        alone: Seconds of the label in phases that most labels do not have, the longest first.
    """

    previous: int
    alone: tuple[tuple[str, float], ...] = ()


def failure_of(found: Mapping[str, Any] | None, run: Mapping[str, Any], step: int | None = None) -> Failure | None:
    """Return the first failure of a run; None if there is none, or if Ctrl-C ended the run.

    Args:
        found: Its row of first_failure, with `is_interrupted`.
        run: The row of the run: `n_labels` and `n_attempts`.
        step: The last step that the label finished, without phases the last one that it logged; None if unknown.
    """
    if found is None or found.get("is_interrupted"):
        return None
    others = found["others"]
    text = " failed" if found["is_cause"] else " was ended from outside"
    text += " first" if run["n_labels"] > 1 else ""
    text += f" in attempt {found['attempt']}" if run["n_attempts"] > 1 else ""
    text += f", after step {step:,}" if step is not None else ""
    later = next((other for other in others if other["after_s"] >= 0), None)
    if later is not None:
        when = f"{_apart_text(later['after_s'])} before" if later["after_s"] > 0 else "at the same time as"
        text += f", {when} {later['label']}"
    if not found["is_certain"]:
        by = f" by {_apart_text(found['uncertainty_s'])}" if found["uncertainty_s"] else ""
        text += f" (uncertain{by})"
    text += f": {(found['reason'] or found['state']).rstrip('.')}{_gpu_text(found)}"
    label = found["label"] if run["n_labels"] > 1 else None
    if not found["is_cause"]:
        return Failure(label, f"{text}; no label is the cause")
    ranks = [other for other in others if other["rank"] is not None and not other["is_echo"]]
    if found["rank"] is None and ranks:  # it may not have ended any rank: for example an evaluation
        text += f"; of the ranks first {ranks[0]['label']}: {(ranks[0]['reason'] or 'no reason known').rstrip('.')}"
    echoes = [other["label"] for other in others if other["is_echo"]]
    if echoes:
        sooner_s = -others[0]["after_s"]  # only an echo can be seen before its cause
        up_to = "up to " if sooner_s >= _APART_MIN_S else ""
        seen = f", seen {up_to}{_apart_text(sooner_s)} sooner" if sooner_s > 0 else ""
        text += f"; {names_text(echoes)} {'is an echo' if len(echoes) == 1 else 'are echoes'}{seen}"
    return Failure(label, text)


def _gpu_text(found: Mapping[str, Any]) -> str:
    """Return what a GPU of the label reported around its failure; "" for nothing."""
    event = found.get("gpu_event")
    if event is None:
        return ""
    seconds = (found["ts"] - event["ts"]).total_seconds()
    when = f"{_apart_text(abs(seconds))} {'before' if seconds > 0 else 'after'}" if seconds else "at the same time"
    what = f"XID {event['xid']}" if event["xid"] is not None else _GPU_EVENTS[event["kind"]]
    return f"; {event['device']} reported {what} {when}"


def names_text(labels: Sequence[str]) -> str:
    """Return the first labels, and how many more there are."""
    more = len(labels) - _NAMES_SHOWN
    return ", ".join(labels[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _apart_text(seconds: float) -> str:
    """Return how far two moments are apart."""
    return "less than 1 ms" if seconds < _APART_MIN_S else duration(seconds)


def slow_spells(windows: Iterable[dict[str, Any]]) -> list[Spell]:
    """Return the times in which culprits were slow, the most expensive first.

    Args:
        windows: Rows of straggler_windows of one run, without the window `last`: the tenths have its steps. The phase
            `step` counts only where there is no other phase, because all ranks wait in it.
    """
    windows = list(windows)
    phases = {row["phase"] for row in windows} - {OUTSIDE}
    typical = _typical_seconds(windows, "step" if "step" in phases else None)
    run: dict[str, float] = defaultdict(float)
    for (_, label), seconds in typical.items():
        run[label] += seconds
    found: dict[tuple[str, str], list[Spell]] = defaultdict(list)
    for row in windows:
        is_whole = row["phase"] == "step" and len(phases) > 1
        if row["role"] != "culprit" or row["since_step"] is None or is_whole:
            continue
        spell = Spell(
            row["label"],
            row["phase"],
            row["since_step"],
            row["until_step"],
            row["excess_s"],
            typical[row["span"], row["label"]],
            run[row["label"]],
        )
        found[spell.label, spell.phase].append(spell)
    spells = [spell for one in found.values() for spell in _merged(one)]
    return sorted(spells, key=lambda spell: -spell.excess_s)


def _typical_seconds(rows: Iterable[dict[str, Any]], whole: str | None) -> dict[tuple[str, str], float]:
    """Return the median's seconds per window and label: of the phase `whole`, else of all phases."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for row in rows:
        if whole is None or row["phase"] == whole:
            found[row["span"], row["label"]] += row["typical_s"] * row["n_steps"]
    return found


def _merged(spells: list[Spell]) -> list[Spell]:
    """Merge the spells of one label and phase that touch, or that only a small gap separates.

    A single slow step long before a slow period is not part of it. Spells with a much smaller excess per step stay
    apart.
    """
    spells = _streaks(spells)
    least = MERGED_SHARE * max(spell.excess_s / _length(spell) for spell in spells)
    strong = [spell for spell in spells if spell.excess_s / _length(spell) >= least]
    merged: list[Spell] = []
    for spell in sorted(strong, key=lambda spell: spell.first_step):
        last = merged[-1] if merged else None
        if last is None or spell.first_step - last.last_step > _gap_most(spell, last):
            merged.append(spell)
        else:
            merged[-1] = _sum(last, spell)
    return merged + [spell for spell in spells if spell not in strong]


def _gap_most(one: Spell, other: Spell) -> float:
    """Return the largest gap that two spells may have and still be one."""
    lengths = _length(one), _length(other)
    return max(min(lengths), GAP_SHARE * max(lengths))


def _streaks(spells: list[Spell]) -> list[Spell]:
    """Add up the windows of each streak: each window has the steps of the streak, and only its part of the excess."""
    streaks: dict[tuple[int, int], Spell] = {}
    for spell in spells:
        steps = spell.first_step, spell.last_step
        streaks[steps] = _sum(streaks[steps], spell) if steps in streaks else spell
    return list(streaks.values())


def _sum(first: Spell, second: Spell) -> Spell:
    return Spell(
        first.label,
        first.phase,
        first.first_step,
        max(first.last_step, second.last_step),
        first.excess_s + second.excess_s,
        first.base_s + second.base_s,
        first.run_s,
    )


def _length(spell: Spell) -> int:
    return spell.last_step - spell.first_step + 1


def build_sentence(
    spells: Sequence[Spell] | None,
    sums: Iterable[dict[str, Any]],
    victims: Iterable[dict[str, Any]],
    outside: Outside | None = None,
    failure: Failure | None = None,
    throttled: str = "",
) -> dict[str, Any]:
    """Build the sentence on the first failure and the most expensive spell.

    Args:
        spells: See `slow_spells`; None if there is nothing to compare.
        sums: Of the steps of the first slow spell, for each phase and label: `phase`, `label`, `may_wait`, `n_steps`,
            `seconds`, and `typical_s`, the seconds of the median; `waited_s`, of a spell outside of phases its seconds
            until the end of the next step.
        victims: Rows of straggler_windows with the role `victim`.
        outside: Of a spell outside of phases.
        failure: Of a run that has failed.
        throttled: How the GPU of the label was throttled in the steps of the spell; empty if it was not.

    Returns:
        `text`; `is_slow`; `has_failed`; `parts`, the text in pieces, each with `text` and with `link` if it has a
        proof: parameters of the view of ranks, among them the `panel` that shows it: `step`, `heat` or `timeline`; the
        panel `failures` is the view of events. With `is_slow` also `culprit` and `others`, shorter sentences on further
        spells.
    """
    found: dict[str, Any] = {"is_slow": False, "others": [], "has_failed": failure is not None}
    parts: list[dict[str, Any]] = [] if spells is None else _without_culprit(spells)
    if spells is not None and any(spell.is_slow for spell in spells):
        slow = _on_slow(spells, sums, victims, outside, throttled)
        found, parts = found | slow, slow["parts"]
    if failure is not None:
        if parts:
            parts[0] = parts[0] | {"text": parts[0]["text"].replace("No rank", "no rank", 1)}
            parts = [_part(" Until then "), *parts]
        parts = [_part(failure.label or "The run", "failures"), _part(f"{failure.text}."), *parts]
    return found | {"parts": parts, "text": "".join(part["text"] for part in parts)}


def _on_slow(
    spells: Sequence[Spell],
    sums: Iterable[dict[str, Any]],
    victims: Iterable[dict[str, Any]],
    outside: Outside | None,
    throttled: str,
) -> dict[str, Any]:
    slow = [spell for spell in spells if spell.is_slow]
    spell, rows = slow[0], list(sums)
    own = [row for row in rows if row["label"] == spell.label and row["phase"] == spell.phase]
    seconds, typical = sum(row["seconds"] for row in own), sum(row["typical_s"] for row in own)
    other = _only_other(spell, rows)
    if other is not None:  # of two labels the median lies halfway
        typical = other["seconds"]
    usual = "the median" if other is None else f"in {other['label']}"
    excess = seconds - typical if own else spell.excess_s
    span = {"first": spell.first_step, "last": spell.last_step}
    here = {"phase": spell.phase, **span}
    parts = [
        _part(spell.label, "step", label=spell.label, **here),
        _part(" cost "),
        _part(duration(excess), "heat", **here),
    ]
    if spell.phase == OUTSIDE:
        outside = outside or Outside(spell.first_step)
        parts += [*_steps(span, outside.previous), _part(": it spent ")]
        parts += _spent_outside(seconds or spell.excess_s, excess, here, outside.alone)
    else:
        parts += [*_steps(span), _part(": its "), _part(f"{spell.phase} phase", "timeline", **here)]
        parts.append(_part(f" took {times(seconds, typical, usual)}"))
    waiting = _waiting(spell.label, excess, rows, victims)
    if waiting:
        phase, labels = waiting
        n = f"{len(labels):,} other label{'' if len(labels) == 1 else 's'} waited {_place(phase)}"
        # Where most labels wait, the median waits, too: no label is above it on the heat map, which stays as it is.
        is_few = 2 * len(labels) < len({row["label"] for row in rows})
        panel, shown = ("heat", phase) if is_few else ("step", spell.phase)
        parts += [_part("; "), _part(n, panel, phase=shown, label=spell.label, **span)]
    parts.append(_part(f"; its GPU was throttled {throttled}." if throttled else "."))
    culprit = {"label": spell.label, "phase": spell.phase, "excess_s": excess, "typical_s": typical, **span}
    return {"is_slow": True, "parts": parts, "culprit": culprit, "others": _others(slow)}


def _only_other(spell: Spell, sums: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of the same phase of the other label, if there are two labels."""
    others = [row for row in sums if row["phase"] == spell.phase and row["label"] != spell.label]
    return others[0] if len(others) == 1 and len({row["label"] for row in sums}) == 2 else None


def _without_culprit(spells: Sequence[Spell]) -> list[dict[str, Any]]:
    if not spells:
        return [_part("No rank was slow.")]
    spell = spells[0]
    is_small = spell.excess_s < SLOW_SHARE * spell.base_s
    share, of = (f"{SLOW_SHARE * 100:.0f}", "its steps") if is_small else (f"{RUN_SHARE * 100:.1f}", "the run")
    return [
        _part("No rank was slow: the largest difference is "),
        _part(duration(spell.excess_s), "heat", phase=spell.phase, first=spell.first_step, last=spell.last_step),
        _part(f" of {spell.label} {_place(spell.phase)}, less than {share} % of the time of {of}."),
    ]


def _steps(span: dict[str, int], previous: int | None = None) -> list[dict[str, Any]]:
    """Return the steps of a spell. previous: the step at whose end it may have begun."""
    first = span["first"] if previous is None else previous
    if first == span["last"]:
        return [_part(" in "), _part(f"step {first:,}", "heat", **span)]
    return [_part(" between "), _part(f"steps {first:,} and {span['last']:,}", "heat", **span)]


def _spent_outside(
    seconds: float, excess: float, here: dict[str, Any], alone: Sequence[tuple[str, float]]
) -> list[dict[str, Any]]:
    if alone and alone[0][1] >= ALONE_SHARE * excess:
        phase, spent = alone[0]
        return [_part(duration(spent), "timeline", **here), _part(f" in {phase}, a phase that most labels do not have")]
    return [_part(duration(seconds), "timeline", **here), _part(" outside of all phases")]


def _place(phase: str) -> str:
    return "outside of phases" if phase == OUTSIDE else f"in {phase}"


def _others(slow: Sequence[Spell]) -> list[list[dict[str, Any]]]:
    # A weaker spell within the steps of a stronger one of the same label and phase says nothing new.
    new = [spell for at, spell in enumerate(slow) if not any(_contains(stronger, spell) for stronger in slow[:at])]
    stalls: list[list[Spell]] = []
    for spell in new[1:]:
        if spell.excess_s >= OTHERS_SHARE * slow[0].excess_s:
            same = next((stall for stall in stalls if _is_one_stall(stall[0], spell)), None)
            stalls.append([spell]) if same is None else same.append(spell)
    return [_other(stall[0], len({spell.label for spell in stall}) - 1) for stall in stalls[:OTHERS_MAX]]


def _is_one_stall(one: Spell, other: Spell) -> bool:
    """Return True if labels were slow at once for a few steps: the run lost that time once, so one line reports it."""
    is_short = max(_length(one), _length(other)) <= STALL_STEPS_MAX
    is_at_once = one.first_step <= other.last_step and other.first_step <= one.last_step
    return one.phase == other.phase and is_short and is_at_once


def _other(spell: Spell, n_more: int) -> list[dict[str, Any]]:
    span = {"first": spell.first_step, "last": spell.last_step}
    more = f" and {n_more:,} other label{'' if n_more == 1 else 's'}" if n_more else ""
    return [
        _part(spell.label, "step", label=spell.label, phase=spell.phase, **span),
        _part(f"{more} cost about {duration(spell.excess_s)} {_place(spell.phase)}"),
        *_steps(span),
    ]


def _contains(spell: Spell, other: Spell) -> bool:
    is_within = spell.first_step <= other.first_step and other.last_step <= spell.last_step
    return is_within and (spell.label, spell.phase) == (other.label, other.phase)


def _waiting(
    culprit: str, excess: float, sums: Iterable[dict[str, Any]], victims: Iterable[dict[str, Any]]
) -> tuple[str, set[str]] | None:
    """Return the phase in which most labels waited for the culprit, and these labels.

    Where most ranks wait, the median waits too, so that none of them has an excess. They waited if they spent more time
    in a phase than the culprit did, by half of its excess or more: the culprit came last, and waited least. Who is
    outside of phases after the last collective of a step makes the others wait in the next step, so that one counts.
    """
    found: dict[str, set[str]] = defaultdict(set)
    of_phase: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sums:
        if row["may_wait"]:
            of_phase[row["phase"]].append(row)
    for phase, rows in of_phase.items():
        waited = {row["label"]: row["waited_s"] for row in rows}
        own = waited.pop(culprit, 0.0)
        found[phase] |= {label for label, seconds in waited.items() if seconds - own >= WAIT_SHARE * excess}
    for row in victims:
        if row["waits_for"] == culprit:
            found[row["phase"]].add(row["label"])
    found = {phase: labels for phase, labels in found.items() if labels}
    if len(found) > 1:
        found.pop("step", None)  # it contains the others
    return max(found.items(), key=lambda item: len(item[1])) if found else None


def duration(seconds: float) -> str:
    """Return a duration for people: 0.12 s, 93 s, 25 min, 3.1 h."""
    if seconds < 300:
        digits = max(0, 1 - math.floor(math.log10(seconds))) if seconds > 0 else 0
        return f"{seconds:.{min(digits, 6)}f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def times(seconds: float, typical: float, usual: str = "the median") -> str:
    """Return how long something took beside the usual time: 4 times as long, 30 % longer. usual: what took that."""
    if typical <= 0:
        return "much longer than in the other labels"
    ratio = seconds / typical
    if ratio < 1.8:
        return f"{(ratio - 1) * 100:.0f} % longer than {usual}"
    text = f"{ratio:.1f}".removesuffix(".0") if ratio < 10 else f"{ratio:.0f}"
    return f"{text} times as long as {usual}"


def _part(text: str, panel: str = "", **link: Any) -> dict[str, Any]:
    return {"text": text, "link": {"panel": panel, **link}} if panel else {"text": text}
