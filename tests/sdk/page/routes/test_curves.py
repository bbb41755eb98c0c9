"""Requests for curves: what they may ask for. test_curves.py has the numbers."""

import pytest

from tests.support.page_client import PageClient


def test_several_keys_in_one_request(reader: PageClient) -> None:
    lines, none = reader.get("runs/healthy/curves?key=loss&key=none&points=10")
    assert (lines["kind"], lines["n_labels"], len(lines["lines"]), lines["width"]) == ("lines", 8, 8, 1)
    assert [line["label"] for line in lines["lines"]] == [f"rank{n}" for n in range(8)]
    assert (none["key"], none["kind"]) == ("none", "none")
    [band] = reader.get("runs/healthy/curves?key=loss&lines=4")
    assert band["kind"] == "band" and band["n_labels"] == 8 and set(band["n_present"]) == {8}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "0 values of key; give 1 to 50"),
        ("key=loss&points=5", "points=5 is not within 10 and 2000"),
        ("key=loss&first=x", "first='x' is not an integer"),
        (
            "points=1000&lines=64&" + "&".join(f"key={n}" for n in range(50)),
            "50 keys with 64 lines of 1000 points are 3200000 buckets, more than 400000; "
            "give fewer keys, lines or points",
        ),
    ],
)
def test_a_bad_request_is_one_line(reader: PageClient, query: str, message: str) -> None:
    answer = reader.ask(f"/api/runs/healthy/curves?{query}")
    assert (answer.status, answer.json["error"]["message"]) == (400, message)
