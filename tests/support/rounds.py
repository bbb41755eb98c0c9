"""How many rounds a random test has: a few in `make test`, as many as fit into its share of the time in `make soak`.

    @pytest.mark.soak(3)                         # weight: its share of the minutes among all tests with this mark
    def test_something(rounds: Rounds) -> None:
        for seed in rounds(60):                  # the first one is CHIPLOG_FAULT_SEED; else in a soak the time
            ...
            rounds.count("kills", 3)             # to be reported besides the number of rounds

`make test` uses the same seeds each time, so that a failure comes from a change and not from chance. A soak uses
different seeds each time, and a failure that it finds gets a separate test. A section before pytest's summary reports
the counts.
"""

import os
import time
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

SOAK_MINUTES = float(os.environ.get("CHIPLOG_SOAK_MINUTES", "0"))
TIMES = int(os.environ.get("CHIPLOG_ROUNDS_TIMES", "1"))  # as many rounds, without a soak
SLACK_S = 600.0  # for the end of the last round, and the comparison after it
_PROPERTY = "rounds"
_SHARE_S = pytest.StashKey[float]()

# Hypothesis likewise; and a machine that is busy with other things makes no example wrong.
settings.register_profile(
    "chiplog",
    derandomize=not SOAK_MINUTES,
    deadline=None,  # timings are no assertions
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("chiplog")


class Rounds:
    """Yields seeds, and remembers what was done with them."""

    def __init__(self, name: str, share_s: float) -> None:
        first = time.time_ns() % 1_000_000_000 if share_s else zlib.crc32(name.encode())
        self.seed = int(os.environ.get("CHIPLOG_FAULT_SEED", str(first)))
        self.counts: Counter[str] = Counter()
        self.n_rounds = 0
        self.last_seed = self.seed
        self._name = name
        self._share_s = share_s
        self._begun = time.monotonic()

    def __call__(self, few: int) -> Iterator[int]:
        """Yield `few` seeds, or in a soak as many as the time allows, at least one."""
        print(f"seed {self.seed}")
        begun, few = time.monotonic(), few * TIMES
        while (time.monotonic() - begun < self._share_s or not self.n_rounds) if self._share_s else few > 0:
            few -= 1
            self.last_seed = self.seed + self.n_rounds
            self.n_rounds += 1
            yield self.last_seed

    def count(self, what: str, n: int = 1) -> None:
        """Add to what is reported."""
        self.counts[what] += n

    def report(self) -> str:
        """Return one line: what was reached, by which seeds, in which time."""
        words = [f"{self.n_rounds:,} rounds", *(f"{n:,} {what}" for what, n in sorted(self.counts.items()))]
        seconds = time.monotonic() - self._begun
        return f"{self._name}: {', '.join(words)} in {seconds:.0f} s; seeds {self.seed}..{self.last_seed}"


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Iterator[Rounds]:
    """Rounds of the test that asks."""
    counted = Rounds(request.node.name, request.node.stash.get(_SHARE_S, 0.0))
    yield counted
    print(f"ended at seed {counted.last_seed}")  # shown when the test failed
    request.node.user_properties.append(
        (_PROPERTY, counted.report())
    )  # travels with the result, also between processes


def share_the_minutes(items: list[pytest.Item]) -> None:
    """Give each test with the mark its part of the soak, and the time that it needs."""
    marked = [item for item in items if item.get_closest_marker("soak")]
    weights = {item: float((item.get_closest_marker("soak").args or (1.0,))[0]) for item in marked}  # type: ignore[union-attr]
    if not SOAK_MINUTES:
        return
    for item, weight in weights.items():
        share_s = SOAK_MINUTES * 60 * weight / sum(weights.values())
        item.stash[_SHARE_S] = share_s
        item.add_marker(pytest.mark.timeout(share_s + SLACK_S), append=False)


def write_report(reporter: pytest.TerminalReporter) -> None:
    """Write what all of them reached."""
    reports = [
        report for found in reporter.stats.values() for report in found if getattr(report, "when", "") == "teardown"
    ]
    lines = [line for report in reports for name, line in report.user_properties if name == _PROPERTY]
    if lines:
        reporter.section("rounds")
        for line in lines:
            reporter.write_line(line)
