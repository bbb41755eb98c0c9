"""What other collectors of a store deleted: each request once, and none from before this collector looked."""

from pathlib import Path

import pytest

from chiplog_collector.store.deletion_requests import DeletionRequest, DeletionRequests
from tests.support.safeguard import proves

OWN, OTHER, THIRD = "aa" * 16, "bb" * 16, "cc" * 16


@pytest.fixture
def requests(tmp_path: Path) -> DeletionRequests:
    return DeletionRequests(tmp_path / "store", OWN)


@proves("each-request-seen-once", "a request that is answered does not concern a run of that name that comes later")
def test_each_request_waits_once_from_the_first_look_on(requests: DeletionRequests) -> None:
    old, own, new = DeletionRequest(OTHER, 5, "r"), DeletionRequest(OWN, 6, "s"), DeletionRequest(OTHER, 9, "t")
    of_new_log = DeletionRequest(THIRD, 1, "u")
    assert requests.answered_until(-1) is None
    requests.take([old])
    assert requests.waiting() == []
    assert requests.answered_until(3) == {OTHER: 5}
    requests.take([old, own, new, new, of_new_log])
    assert requests.waiting() == [new, of_new_log]
    requests.note_answer(new, 3)
    assert requests.waiting() == [of_new_log]
    assert requests.answered_until(3) == {OTHER: 9, THIRD: 0}
    for _ in range(2):
        requests.take([old, own, new, of_new_log])
        assert requests.waiting() == [of_new_log]
    requests.note_answer(of_new_log, 3)
    assert requests.waiting() == []


@proves(
    "unpublished-answer-is-none",
    "a run that another log deleted goes from the store too if this host is lost before it has published that",
    part="each not in answers or answers[each] > self._published",
    new="each not in answers",
)
def test_an_answer_counts_once_it_is_published(requests: DeletionRequests) -> None:
    first, second = DeletionRequest(OTHER, 5, "r"), DeletionRequest(OTHER, 7, "s")
    requests.take([])
    requests.take([first])
    requests.note_answer(first, 20)
    for published, until in ((19, 4), (20, 5)):
        requests.take([first])
        assert requests.waiting() == []
        assert requests.answered_until(published) == {OTHER: until}
    requests.take([first, second])
    requests.note_answer(second, 21)
    assert requests.answered_until(20) == {OTHER: 6}
    assert requests.answered_until(21) == {OTHER: 7}


def test_files_that_are_damaged_are_one_line(requests: DeletionRequests, tmp_path: Path) -> None:
    requests.take([])
    (tmp_path / "store" / "requests.json").write_text("{")
    with pytest.raises(OSError, match="damaged; remove it"):
        requests.waiting()
