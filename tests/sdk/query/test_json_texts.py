"""Columns that hold JSON."""

from chiplog.query.json_texts import decoded


def test_json_texts_are_decoded_and_everything_else_stays() -> None:
    assert decoded('{"lr": 0.1}') == {"lr": 0.1}
    assert decoded(["1", "x", None]) == [1, "x", None]
    assert decoded("no JSON") == "no JSON"
    assert decoded(2.5) == 2.5
