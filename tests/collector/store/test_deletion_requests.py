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
    assert requests.answered_until() is None
    requests.take([old])
    assert requests.waiting() == []
    assert requests.answered_until() == {OTHER: 5}
    requests.take([old, own, new, new, of_new_log])
    assert requests.waiting() == [new, of_new_log]
    requests.note_answer(new)
    assert requests.waiting() == [of_new_log]
    assert requests.answered_until() == {OTHER: 9, THIRD: 0}
    for _ in range(2):
        requests.take([old, own, new, of_new_log])
        assert requests.waiting() == [of_new_log]
    requests.note_answer(of_new_log)
    assert requests.waiting() == []


def test_files_that_are_damaged_are_one_line(requests: DeletionRequests, tmp_path: Path) -> None:
    requests.take([])
    (tmp_path / "store" / "requests.json").write_text("{")
    with pytest.raises(OSError, match="damaged; remove it"):
        requests.waiting()
