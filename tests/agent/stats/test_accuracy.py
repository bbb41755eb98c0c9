"""Statistics of a host and a rank beside other readings of the same seconds; how exact: make bench ARGS=accuracy."""

from pathlib import Path

from tests.support.observed_rank import observe

SAMPLES_MIN = 3  # of a gauge, most of which must agree: a process that starts or ends just then is no error


def test_statistics_agree_with_what_others_read_in_the_same_seconds(tmp_path: Path) -> None:
    found = observe(4.0, tmp_path)
    assert [name for name, of in found.items() if not of.n] == [], "not sampled"
    outside = {name: of for name, of in found.items() if of.n_outside}
    assert {name: of for name, of in outside.items() if of.is_counter} == {}, "not between the readings around"
    assert {name: of for name, of in outside.items() if of.n >= SAMPLES_MIN and 2 * of.n_outside > of.n} == {}
