"""Both hops' delivery machines under hypothesis, which chooses the faults and shrinks failing examples.

Invariant: what an end was allowed to forget is on the other end's disk; no more is in flight than the credit allows; an
end has one session for each sender. When all faults are repaired, everything has arrived and no gap was declared.
"""

import os
import random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.support.rounds import SOAK_MINUTES, TIMES
from tests.support.safeguard import proves
from tests.support.simulation.machines import CREDIT, Hops

SHRINKS = os.environ.get("CHIPLOG_SHRINK") != "0"  # takes minutes; not needed to see the failure only
_TEST = "test_both_hops_under_hypothesis"
_ENDS, _ANY = st.integers(0, 2), st.integers(0, 7)


class BothHops(RuleBasedStateMachine):
    """Two ranks, a relay, a sink. The assertions stand where things happen, in machines.py."""

    hops: Hops

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.hops = Hops(random.Random(seed))

    @rule(which=st.integers(0, 1), count=st.integers(1, 8))
    def log(self, which: int, count: int) -> None:
        self.hops.log(which, count)

    @rule(which=st.integers(0, 1), count=st.integers(1, 4))
    def skip_numbers(self, which: int, count: int) -> None:
        self.hops.skip_numbers(which, count)

    @rule(dt=st.sampled_from([0.0, 0.02, 0.1, 0.5, 2.5]), sync=st.booleans(), count=st.integers(1, 3))
    def turn(self, dt: float, sync: bool, count: int) -> None:
        for _ in range(count):
            self.hops.turn(dt, sync=sync)

    @rule(which=st.integers(0, 1), dt=st.sampled_from([0.02, 0.1]), sync=st.booleans())
    def log_and_turn(self, which: int, dt: float, sync: bool) -> None:
        self.hops.log(which, 2)
        self.hops.turn(dt, sync=sync)

    @rule()
    def silence(self) -> None:
        self.hops.silence()

    @rule(which=st.integers(0, 1))
    def crash_rank(self, which: int) -> None:
        self.hops.kill_rank(which)

    @rule()
    def crash_relay(self) -> None:
        self.hops.kill_relay()

    @rule()
    def crash_sink(self) -> None:
        self.hops.kill_sink()

    @rule(which=_ENDS)
    def fail_to_send(self, which: int) -> None:
        self.hops.fail_to_send(which)

    @rule(credit=st.sampled_from([0, 1, 3, CREDIT]))
    def change_credit(self, credit: int) -> None:
        self.hops.set_credit(credit)

    @rule(which=st.integers(0, 1), refuses=st.booleans())
    def disk(self, which: int, refuses: bool) -> None:
        self.hops.refuse(which, refuses=refuses)

    @rule(which=_ANY)
    def lose_messages(self, which: int) -> None:
        self.hops.lose_messages(which)

    @rule(which=st.integers(0, 1))
    def lose_one_between(self, which: int) -> None:
        self.hops.lose_one_between(which)

    @rule(which=_ANY)
    def lose_acknowledgements(self, which: int) -> None:
        self.hops.lose_acknowledgements(which)

    @rule(which=_ENDS, way=st.sampled_from(["forth", "back"]))
    def cut(self, which: int, way: str) -> None:
        self.hops.cut(which, way)

    @rule()
    def mend(self) -> None:
        self.hops.mend()

    @rule(delay_s=st.sampled_from([0.0, 0.05, 0.5]))
    def slow(self, delay_s: float) -> None:
        self.hops.slow(delay_s)

    @rule(count=st.integers(1, 4))
    def repeat_old_messages(self, count: int) -> None:
        for _ in range(count):
            self.hops.repeat()

    def teardown(self) -> None:
        if hasattr(self, "hops"):
            self.hops.heal()
            self.hops.check()


@proves(
    "acknowledge-only-synced",
    "acknowledged means synced (both hops, any order of faults)",
    part="._synced",
    new=".next_numbers",
    environment={"CHIPLOG_SHRINK": "0"},
)
@proves(
    "data-jump-is-loss",
    "a jump in DATA is a lost message (both hops, any order of faults)",
    condition=False,
    environment={"CHIPLOG_SHRINK": "0"},
)
@proves(
    "sent-within-credit",
    "no slice is sent beyond the credit (both hops, any order of faults)",
    value="self.credit if self.state is SenderState.OPEN else 0",
    environment={"CHIPLOG_SHRINK": "0"},
)
@pytest.mark.timeout(600 + 60 * SOAK_MINUTES)
def test_both_hops_under_hypothesis() -> None:
    run_state_machine_as_test(
        BothHops,
        settings=settings(
            max_examples=int(SOAK_MINUTES * 700) or 250 * TIMES,
            stateful_step_count=30,
            deadline=None,
            print_blob=True,
            phases=[phase for phase in Phase if SHRINKS or phase not in (Phase.shrink, Phase.explain)],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
