"""Statistics of a host and a rank beside other readings of the same second; for a minute: make bench ARGS=accuracy."""

from pathlib import Path

from tests.support.independent_readings import ROUNDING
from tests.support.observed_rank import observe

ERROR_MAX = 0.05  # of few samples while the rank still begins; in a minute it is 0.01
ROUNDINGS_MAX = 3  # of the few samples here
SAMPLES_MIN = 3  # for a median: a process that starts or ends just then is no error


def test_statistics_agree_with_what_others_read_in_the_same_second(tmp_path: Path) -> None:
    found = observe(4.0, tmp_path)
    assert [name for name, of in found.items() if not of.n] == [], "not sampled"
    assert {name: of for name, of in found.items() if of.n_outside} == {}, "not between the readings around"
    wrong = {
        name: of
        for name, of in found.items()
        if of.n >= SAMPLES_MIN
        and not of.is_counter
        and of.share > ERROR_MAX
        and of.error > ROUNDINGS_MAX * ROUNDING.get(name, 0.0)
    }
    assert wrong == {}
