"""The body of a request that changes something."""

import pytest

from tests.support.page_client import PageClient

DEEP = "the request nests arrays and objects deeper than 64 levels"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the request is not JSON"),
        (b"{", "the request is not JSON"),
        (b"[1]", "the request is not a JSON object"),
        (b'{"a":' + b"[" * 300 + b"]" * 300 + b"}", DEEP),
        (b'{"a":' * 65 + b"1" + b"}" * 65, DEEP),
        (b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "the request is not JSON"),
        (b" " * 70_000, "the request has more than 65536 bytes"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(reader: PageClient, body: bytes, message: str) -> None:
    answer = reader.ask("/api/sql", "POST", body)
    assert answer.status == 400
    assert answer.json["error"]["message"].startswith(message)


def test_a_body_of_usual_depth_is_read(reader: PageClient) -> None:
    deep = b'{"query": "SELECT 1", "x":' + b"[" * 63 + b"]" * 63 + b"}"
    assert reader.ask("/api/sql", "POST", deep).status == 200
