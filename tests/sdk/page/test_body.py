"""The body of a request that changes something."""

import pytest

from tests.support.page_client import PageClient


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the request is not JSON"),
        (b"{", "the request is not JSON"),
        (b"[1]", "the request is not a JSON object"),
        (b" " * 70_000, "the request has more than 65536 bytes"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(reader: PageClient, body: bytes, message: str) -> None:
    answer = reader.ask("/api/sql", "POST", body)
    assert answer.status == 400
    assert answer.json["error"]["message"].startswith(message)
