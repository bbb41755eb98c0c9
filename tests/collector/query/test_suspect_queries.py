"""The running queries: which one ended the process, and which only ran at the same time."""

import math
from random import Random

from chiplog_collector.query.suspect_queries import (
    ENDS_MAX,
    FORGIVEN_AFTER_S,
    PAGE_BYTES,
    RUNNING_MAX,
    SUSPECTS_MAX,
    RunningQueries,
    digest_of,
)
from tests.support.safeguard import proves

BAD, GOOD, OTHER = (digest_of(sql, None) for sql in ("bad", "good", "other"))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_digest_tells_queries_and_parameters_apart() -> None:
    digests = {digest_of("SELECT ?", [1]), digest_of("SELECT ?", [2]), digest_of("SELECT ?", None), digest_of("", None)}
    assert len(digests) == 4
    assert digest_of("SELECT ?", [1]) == digest_of("SELECT ?", [1])


def test_a_query_that_only_ran_beside_the_one_that_ends_the_process_is_never_refused() -> None:
    """Whatever the order and however many: each bad query ends ENDS_MAX processes at most, and no other is refused."""
    for seed in range(200):
        random = Random(seed)
        page, clock = bytearray(PAGE_BYTES), Clock()
        queries = RunningQueries(page, clock)
        bad: list[bytes] = []
        n_ends = 0
        for n in range(60):
            if n % 8 == 0:
                bad.append(digest_of(f"bad {n}", None))
            asked = [digest for digest in (GOOD, GOOD, OTHER, *bad) if not queries.is_refused(digest)]
            assert {GOOD, OTHER} < {*asked, b""}, f"seed {seed}"
            random.shuffle(asked)
            begun = [(digest, place) for digest in asked if (place := queries.begin(digest)) is not None]
            assert begun, f"seed {seed}"
            if any(digest in bad for digest, _ in begun):
                n_ends += 1
                queries = RunningQueries(page, clock)  # the process ended
                continue
            for _, place in begun:
                queries.end(place)
        assert n_ends <= ENDS_MAX * len(bad)
        clock.now += FORGIVEN_AFTER_S + 1
        assert not any(queries.is_refused(digest) for digest in bad), "what ended it long ago is tried again"


def test_a_query_that_runs_several_times_at_once_is_blamed_once_for_one_end() -> None:
    page = bytearray(PAGE_BYTES)
    queries = RunningQueries(page)
    assert [queries.begin(GOOD) for _ in range(3)] == [0, 1, 2]
    after = RunningQueries(page)
    assert after.n_found == 1
    assert not after.is_refused(GOOD)


@proves("suspect-runs-alone", "a suspect runs alone", new="if self._alone is not None:")
@proves("cleared-suspect-forgotten", "a suspect that ends normally is none any more")
@proves("suspect-gets-its-turn", "a suspect gets its turn in a stream of other queries", condition=False)
def test_a_suspect_gets_its_turn_and_one_that_gives_up_holds_nobody() -> None:
    page, clock = bytearray(PAGE_BYTES), Clock()
    RunningQueries(page, clock).begin(BAD)
    queries = RunningQueries(page, clock)
    first = queries.begin(GOOD)
    assert first is not None
    assert queries.begin(BAD) is None, "another query runs"
    assert queries.begin(OTHER) is None, "a suspect waits for those that run to end"
    clock.now += 1.1  # its client has gone
    other = queries.begin(OTHER)
    assert other is not None
    assert queries.begin(BAD) is None
    queries.end(first)
    queries.end(other)
    assert queries.begin(GOOD) is None
    bad = queries.begin(BAD)
    assert bad is not None
    assert queries.begin(GOOD) is None, "it runs alone"
    queries.end(bad)
    assert queries.begin(BAD) == 0
    assert queries.begin(GOOD) == 1, "it has ended well"


def test_the_oldest_running_query_is_known() -> None:
    clock = Clock()
    queries = RunningQueries(clock=clock)
    assert queries.oldest_since() == math.inf
    first = queries.begin(GOOD)
    clock.now += 5
    queries.begin(OTHER)
    assert first is not None
    assert queries.oldest_since() == 1000.0
    queries.end(first)
    assert queries.oldest_since() == 1005.0


def test_what_is_frozen_stays_as_it_was() -> None:
    page = bytearray(PAGE_BYTES)
    queries = RunningQueries(page)
    place = queries.begin(BAD)
    assert place is not None
    queries.freeze()
    queries.end(place)
    assert RunningQueries(page).n_found == 1


def test_the_page_is_bounded_and_the_oldest_suspect_goes_first() -> None:
    page, clock = bytearray(PAGE_BYTES), Clock()
    for number in range(SUSPECTS_MAX + 10):
        queries = RunningQueries(page, clock)
        for n in range(RUNNING_MAX + 5 if number == 0 else 1):
            assert queries.begin(digest_of(f"{number} {n}", None)) is not None
        clock.now += 1
    queries = RunningQueries(page, clock)
    assert len(page) == PAGE_BYTES
    assert len(queries._suspects) == SUSPECTS_MAX
    assert digest_of(f"{SUSPECTS_MAX + 9} 0", None) in queries._suspects
