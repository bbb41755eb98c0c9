"""Lanes of letters: which letter a phase has, and which phase a column."""

from chiplog_cli.charts.phase_lanes import build_lanes, phase_letters


def test_each_phase_has_a_letter_of_its_own_name_while_one_is_free() -> None:
    assert phase_letters(["data", "forward", "backward", "daemon", "dad"]) == ["d", "f", "b", "a", "c"]
    assert phase_letters(["1", "2"]) == ["a", "b"]
    many = phase_letters([f"phase {number}" for number in range(60)])
    assert len(set(many[:52])) == 52 and set(many[52:]) == {"?"}


def test_a_column_has_the_phase_with_the_most_time_in_it() -> None:
    found = {
        "phases": ["data", "forward"],
        "labels": ["rank0", "rank1", "rank2"],
        "span_s": 10.0,
        "bars": [[0, 0, 0.0, 4.0], [0, 1, 6.0, 4.0], [1, 0, 0.0, 10.0]],
        "pieces": [[0, 1.4, 1, 2.6], [-1, 2.0, 1, 2.0], [1, 10.0]],
    }
    assert list(build_lanes(found, 10)) == ["dfff  ··ff", "ffffffffff", ""]
    assert list(build_lanes(found, 5)) == ["df ·f", "fffff", ""]


def test_a_span_of_no_time_has_lanes() -> None:
    found = {"phases": ["step"], "labels": ["a"], "span_s": 0.0, "bars": [[0, 0, 0.0, 0.0]], "pieces": [[]]}
    assert list(build_lanes(found, 5)) == [""]
