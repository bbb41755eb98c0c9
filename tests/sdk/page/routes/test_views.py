"""Saved views over HTTP."""

from pathlib import Path

from tests.support.collector_log import whole
from tests.support.kept_log import finished, kept_log
from tests.support.page_client import serving


def test_a_view_is_kept_listed_replaced_and_removed(tmp_path: Path) -> None:
    with kept_log(tmp_path, [whole(finished(1, "run-1"))]) as place, serving(place.root) as client:
        client.sign_in()
        for body in ({"keys": ["a"]}, {"keys": ["b"]}):
            assert client.ask("/api/views/over%20view", "PUT", body).status == 200
        [view] = client.get("views")
        assert (view["name"], view["view"]) == ("over view", {"keys": ["b"]})
        assert client.get("views?prefix=sql/") == [] and client.get("views?prefix=over%20") == [view]
        assert client.ask("/api/views/over%20view", "DELETE").status == 200
        assert client.get("views") == []
        large = client.ask("/api/views/x", "PUT", {"text": "x" * 40_000})
        assert (large.status, large.json["error"]["kind"]) == (400, "refused")
