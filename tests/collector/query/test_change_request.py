"""A request keeps what its answer needs, and is equal to itself only: the same one may come twice."""

import pytest

from chiplog_collector.query.change_request import ChangeRequest
from chiplog_schemas.query import query_messages
from chiplog_schemas.security.zap import LOCAL

pytestmark = pytest.mark.pure


def test_two_requests_with_one_id_are_two() -> None:
    question = query_messages.parse(query_messages.wait_for(b"8 bytes!", 1, 1.0))
    first, second = (ChangeRequest(b"peer", LOCAL, question, 0.0, lambda *_: None) for _ in range(2))
    assert first.id == second.id == b"8 bytes!"
    assert first != second
    waiting = [first, second]
    waiting.remove(second)
    assert waiting[0] is first
