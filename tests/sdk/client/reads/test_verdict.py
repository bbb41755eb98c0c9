"""The sentence on who was slow: culprits, those who waited, and runs without a difference."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from chiplog_client.reads.verdict import Outside, Spell, build_sentence, duration, failure_of, slow_spells, times


def window(span: int, label: str, phase: str, typical_s: float, excess_s: float, **given: Any) -> dict[str, Any]:
    """A row of straggler_windows, of 100 steps."""
    is_slow = excess_s >= 0.05 * typical_s * 100
    row = {
        "span": f"{span}/10",
        "label": label,
        "phase": phase,
        "role": "culprit" if is_slow else None,
        "waits_for": None,
        "n_steps": 100,
        "typical_s": typical_s,
        "excess_s": excess_s,
        "since_step": (span - 1) * 100 if is_slow else None,
        "until_step": span * 100 - 1 if is_slow else None,
    }
    return row | given


def text_of(found: dict[str, Any]) -> str:
    return "".join(part["text"] for part in found["parts"])


def others_of(spells: list[Spell]) -> list[str]:
    return ["".join(part["text"] for part in other) for other in build_sentence(spells, [], [])["others"]]


def total(label: str, phase: str, seconds: float, typical: float, *, may_wait: bool = False) -> dict[str, Any]:
    named = {"label": label, "phase": phase, "may_wait": may_wait}
    return {**named, "seconds": seconds, "typical_s": typical, "waited_s": seconds}


def test_the_sentence_names_the_culprit_its_phase_and_those_who_waited() -> None:
    windows = [
        window(5, "rank1", "data", 0.1, 30.0),
        window(5, "rank1", "backward", 0.4, 0.0),
        window(5, "rank0", "data", 0.1, 0.0),
    ]
    sums = [
        total("rank1", "data", 40.0, 10.0),
        total("rank0", "data", 10.0, 10.0),
        total("rank1", "backward", 40.0, 70.0, may_wait=True),
        total("rank0", "backward", 70.0, 70.0, may_wait=True),
        total("rank2", "backward", 70.0, 70.0, may_wait=True),
    ]
    found = build_sentence(slow_spells(windows), sums, [])
    assert text_of(found) == (
        "rank1 cost 30 s between steps 400 and 499: its data phase took 4 times as long as the median; "
        "2 other labels waited in backward."
    )
    assert found["culprit"]["phase"] == "data"
    links = [part["link"] for part in found["parts"] if "link" in part]
    assert links[0] == {"panel": "step", "label": "rank1", "phase": "data", "first": 400, "last": 499}
    assert [link["panel"] for link in links] == ["step", "heat", "heat", "timeline", "step"]
    assert links[-1]["phase"] == "data", "no label is above a median that waits, so the heat map stays as it is"
    others = [total(f"rank{n}", "backward", 45.0, 45.0, may_wait=True) for n in (3, 4, 5)]
    few = build_sentence(slow_spells(windows), [*sums[:3], *sums[-1:], *others], [])["parts"][-2]
    assert few["text"] == "1 other label waited in backward"
    assert (few["link"]["panel"], few["link"]["phase"]) == ("heat", "backward")


def test_a_weaker_spell_within_a_stronger_one_of_the_same_label_and_phase_is_not_told() -> None:
    spells = [
        Spell("rank1", "data", 100, 199, 9.0, 10.0),
        Spell("rank1", "data", 100, 199, 8.0, 10.0),
        Spell("rank1", "data", 150, 160, 7.0, 10.0),
        Spell("rank1", "forward", 100, 199, 6.0, 10.0),
        Spell("rank2", "data", 100, 199, 5.0, 10.0),
    ]
    assert others_of(spells) == [
        "rank1 cost about 6.0 s in forward between steps 100 and 199",
        "rank2 cost about 5.0 s in data between steps 100 and 199",
    ]


def test_of_two_labels_one_is_compared_with_the_other() -> None:
    sums = [total("rank1", "data", 35.0, 18.0), total("rank0", "data", 1.0, 18.0)]
    found = build_sentence([Spell("rank1", "data", 0, 799, 17.0, 60.0)], sums, [])
    assert text_of(found) == (
        "rank1 cost 34 s between steps 0 and 799: its data phase took 35 times as long as in rank0."
    )


def test_a_victim_of_the_view_waited_and_is_no_culprit() -> None:
    windows = [
        window(5, "rank1", "data", 0.1, 30.0),
        window(5, "rank0", "recv", 0.1, 60.0, role="victim", waits_for="rank1"),
    ]
    spells = slow_spells(windows)
    assert [spell.label for spell in spells] == ["rank1"]
    assert "; 1 other label waited in recv." in text_of(build_sentence(spells, [], windows[1:]))


def test_windows_of_one_spell_are_added() -> None:
    windows = [
        window(4, "rank1", "data", 0.1, 10.0),
        window(5, "rank1", "data", 0.1, 12.0),
        window(10, "rank1", "data", 0.1, 5.0),
    ]
    spells = slow_spells(windows)
    assert [(spell.first_step, spell.last_step, spell.excess_s) for spell in spells] == [
        (300, 499, 22.0),
        (900, 999, 5.0),
    ]
    others = build_sentence(spells, [], [])["others"]
    assert "".join(part["text"] for part in others[0]) == "rank1 cost about 5.0 s in data between steps 900 and 999"


def test_a_step_that_was_slower_by_chance_does_not_make_a_spell_longer() -> None:
    windows = [
        window(1, "rank1", "data", 0.1, 0.1, since_step=1, until_step=1) | {"role": "culprit"},
        window(2, "rank1", "data", 0.1, 60.0),
        window(3, "rank1", "data", 0.1, 50.0),
    ]
    assert [(spell.first_step, spell.last_step) for spell in slow_spells(windows)] == [(100, 299), (1, 1)]


def test_windows_of_one_streak_are_added_before_a_slower_step_by_chance_is_compared_with_it() -> None:
    streak = {"since_step": 90, "until_step": 310, "n_steps": 100}
    windows = [
        window(1, "rank1", "data", 0.1, 6.0, **streak),
        window(2, "rank1", "data", 0.1, 60.0, **streak),
        window(3, "rank1", "data", 0.1, 60.0, **streak),
        window(5, "rank1", "data", 0.1, 0.1, since_step=450, until_step=450) | {"role": "culprit"},
    ]
    found = [(spell.first_step, spell.last_step, spell.excess_s) for spell in slow_spells(windows)]
    assert found == [(90, 310, 126.0), (450, 450, 0.1)]


def test_whole_steps_count_only_without_other_phases() -> None:
    step = window(5, "rank1", "step", 1.0, 50.0)
    assert slow_spells([step])[0].phase == "step"
    assert slow_spells([step, window(5, "rank1", "data", 0.1, 0.0)]) == []


def test_time_outside_is_told_with_the_step_before_and_with_those_who_waited_in_the_next_one() -> None:
    spells = [Spell("rank0", "outside", 101, 101, 10.0, 30.0), Spell("rank2", "outside", 301, 301, 5.0, 30.0)]
    sums = [
        total("rank0", "outside", 10.1, 0.1),
        total("rank1", "outside", 0.1, 0.1),
        total("rank0", "backward", 0.5, 0.5, may_wait=True) | {"waited_s": 1.0},
        total("rank1", "backward", 0.5, 0.5, may_wait=True) | {"waited_s": 11.0},
        total("rank2", "backward", 0.5, 0.5, may_wait=True) | {"waited_s": 11.0},
        total("rank1", "step", 1.0, 1.0, may_wait=True) | {"waited_s": 12.0},
    ]
    found = build_sentence(spells, sums, [], Outside(100, (("log", 0.2),)))
    assert text_of(found) == (
        "rank0 cost 10 s between steps 100 and 101: it spent 10 s outside of all phases; "
        "2 other labels waited in backward."
    )
    assert found["parts"][0]["link"] == {
        "panel": "step",
        "label": "rank0",
        "phase": "outside",
        "first": 101,
        "last": 101,
    }
    assert (
        "".join(part["text"] for part in found["others"][0]) == "rank2 cost about 5.0 s outside of phases in step 301"
    )
    marked = build_sentence(spells, sums, [], Outside(100, (("checkpoint", 9.5), ("log", 0.2))))
    assert ": it spent 9.5 s in checkpoint, a phase that most labels do not have;" in text_of(marked)


def test_time_outside_is_no_phase_that_hides_the_steps_of_a_run_without_phases() -> None:
    windows = [window(5, "rank1", "step", 1.0, 50.0), window(5, "rank1", "outside", 0.1, 0.0)]
    assert [spell.phase for spell in slow_spells(windows)] == ["step"]
    assert [spell.phase for spell in slow_spells([window(5, "rank0", "outside", 0.1, 60.0)])] == ["outside"]


def test_a_small_difference_is_named_and_no_rank_is_blamed() -> None:
    windows = [window(5, "rank1", "data", 0.01, 0.1), window(5, "rank1", "forward", 1.0, 0.0)]
    found = build_sentence(slow_spells(windows), [], [])
    assert not found["is_slow"]
    assert text_of(found) == (
        "No rank was slow: the largest difference is 0.10 s of rank1 in data, less than 2 % of the time of its steps."
    )
    assert text_of(build_sentence([], [], [])) == "No rank was slow."


def test_durations_and_ratios_are_for_people() -> None:
    assert [duration(value) for value in (0.0, 0.0123, 3.07, 93.2, 1500, 9000)] == [
        *("0 s", "0.012 s", "3.1 s", "93 s", "25 min", "2.5 h")
    ]
    assert times(1.3, 1.0) == "30 % longer than the median"
    assert times(2.5, 1.0) == "2.5 times as long as the median"
    assert times(1.0, 0.0) == "much longer than in the other labels"


def test_a_slow_step_of_a_short_run_is_noise() -> None:
    windows = [window(tenth, "rank1", "forward", 0.001, 0.0) for tenth in range(1, 11)]
    windows.append(window(5, "rank1", "data", 0.0001, 0.003))
    found = build_sentence(slow_spells(windows), [], [])
    assert text_of(found).endswith("of rank1 in data, less than 0.5 % of the time of the run.")


def test_a_single_slow_step_long_before_a_slow_time_is_not_its_begin() -> None:
    windows = [
        window(1, "rank1", "data", 0.1, 10.0, since_step=35, until_step=35),
        window(2, "rank1", "data", 0.1, 600.0, since_step=100, until_step=199),
        window(3, "rank1", "data", 0.1, 600.0, since_step=205, until_step=299),
    ]
    spells = slow_spells(windows)
    assert [(spell.first_step, spell.last_step) for spell in spells] == [(100, 299), (35, 35)]


def test_labels_that_were_slow_at_once_for_a_few_steps_are_told_together() -> None:
    spells = [
        Spell("rank1", "data", 0, 900, 20.0, 10.0),
        Spell("rank2", "data", 184, 185, 9.0, 10.0),
        Spell("rank3", "data", 185, 191, 8.0, 10.0),
        Spell("rank4", "data", 185, 185, 7.0, 10.0),
        Spell("rank4", "forward", 185, 185, 6.0, 10.0),
        Spell("rank5", "data", 100, 300, 5.0, 10.0),
    ]
    assert others_of(spells) == [
        "rank2 and 2 other labels cost about 9.0 s in data between steps 184 and 185",
        "rank4 cost about 6.0 s in forward in step 185",
        "rank5 cost about 5.0 s in data between steps 100 and 300",
    ]


RUN = {"n_labels": 2, "n_attempts": 1}
FAILED = {"label": "rank0", "rank": 0, "attempt": 1, "state": "failed", "is_cause": True, "is_certain": True}


@pytest.mark.parametrize(
    ("changes", "others", "text"),
    [
        ({}, [("rank1", 0.5, True)], "rank0 failed first, 0.50 s before rank1: boom; rank1 is an echo."),
        ({}, [("rank1", -0.0107, True)], "rank0 failed first: boom; rank1 is an echo, seen up to 0.011 s sooner."),
        (
            {},
            [("rank1", -0.2, True), ("rank2", 0.5, True)],
            "rank0 failed first, 0.50 s before rank2: boom; rank1, rank2 are echoes, seen up to 0.20 s sooner.",
        ),
        (
            {"is_cause": False, "is_certain": False},
            [("rank1", 0.0, True)],
            "rank0 was ended from outside first, at the same time as rank1 (uncertain): boom; no label is the cause.",
        ),
        ({}, [("rank1", 4e-06, True)], "rank0 failed first, less than 1 ms before rank1: boom; rank1 is an echo."),
        ({}, [("rank1", -4e-06, True)], "rank0 failed first: boom; rank1 is an echo, seen less than 1 ms sooner."),
        ({}, [("rank1", 7500.0, True)], "rank0 failed first, 2.1 h before rank1: boom; rank1 is an echo."),
        ({"rank": None}, [("rank1", 1.0, False)],
         "rank0 failed first, 1.0 s before rank1: boom; of the ranks first rank1: x."),
    ],
    ids=["later", "sooner", "both", "together", "at once", "hardly sooner", "much later", "no rank"],
)  # fmt: skip
def test_no_label_fails_first_after_another(
    changes: dict[str, Any], others: list[tuple[str, float, bool]], text: str
) -> None:
    named = [dict(zip(("label", "after_s", "is_echo"), other, strict=True)) | {"rank": 1} for other in others]
    for row in named:
        row["reason"] = "x."
    failure = failure_of({**FAILED, "reason": "boom.", "uncertainty_s": 0.0, "others": named, **changes}, RUN)
    assert failure is not None and failure.sentence == text
    assert build_sentence(None, (), (), failure=failure)["text"] == text


def test_the_only_label_of_a_run_is_called_the_run_and_an_attempt_is_named_if_there_are_several() -> None:
    found = FAILED | {"reason": None, "state": "crashed", "others": []}
    failure = failure_of(found, {"n_labels": 1, "n_attempts": 1}, 1_000)
    assert failure is not None and failure.sentence == "The run failed, after step 1,000: crashed."
    failure = failure_of(found, {"n_labels": 2, "n_attempts": 2}, 7)
    assert failure is not None and failure.sentence == "rank0 failed first in attempt 1, after step 7: crashed."
    assert failure_of(found | {"is_interrupted": True}, RUN) is failure_of(None, RUN) is None


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"kind": "gpu.xid", "xid": 79, "after_s": -4.5}, "GPU-0 reported XID 79 4.5 s before"),
        ({"kind": "gpu.lost", "xid": None, "after_s": 2}, "GPU-0 reported its loss 2.0 s after"),
        ({"kind": "gpu.ecc_uncorrected", "xid": None, "after_s": 0}, "GPU-0 reported a memory error at the same time"),
    ],
    ids=["XID", "lost", "memory"],
)
def test_a_failure_names_what_its_gpu_reported(event: dict[str, Any], text: str) -> None:
    at = datetime(2026, 1, 2)
    reported = {**event, "device": "GPU-0", "ts": at + timedelta(seconds=event["after_s"])}
    found = FAILED | {"ts": at, "reason": "boom", "others": [], "gpu_event": reported}
    failure = failure_of(found, {"n_labels": 1, "n_attempts": 1})
    assert failure is not None and failure.sentence == f"The run failed: boom; {text}."
