"""One query in progress: the answer to one that has no result."""

import time

import pytest

from chiplog_collector.query.query_job import STOPPING, QueryJob
from chiplog_schemas.query import query_messages
from chiplog_schemas.security.zap import AuthenticatedClient


def a_job(**state: bool) -> QueryJob:
    client = AuthenticatedClient(is_local=True)
    job = QueryJob(b"peer", client, None, bytes(8), "SELECT 1", None, 2.5, time.monotonic())
    for name, value in state.items():
        setattr(job, name, value)
    return job


@pytest.mark.parametrize(
    ("state", "kind", "message"),
    [
        ({"is_cancelled": True, "is_cut_off": True}, "cancelled", "by its client"),
        ({"is_cut_off": True}, "stopping", STOPPING),
        ({}, "timeout", "2.5 s"),
    ],
)
def test_a_query_without_a_result_is_answered_with_the_reason(state, kind, message):
    answer = query_messages.parse(a_job(**state).timeout())
    assert (answer.id, answer.error_kind) == (bytes(8), kind)
    assert message in answer.message


def test_a_query_of_a_client_without_a_known_connection_is_not_abandoned():
    assert not a_job().is_abandoned
