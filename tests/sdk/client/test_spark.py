"""Registering a store in Spark: what is said of stores that cannot be. For the views see test_engine_views.py."""

from pathlib import Path

import pytest

import chiplog


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("/data/lake", "/data/lake is no address of a store; give file:///DIRECTORY or another of"),
        ("http://lake", "http://lake is no address of a store"),
        ("file://{path}", "has no table of chiplog; a collector with this --store makes them about 10 s after"),
        ("file://{path}/none", "/none is no directory, so no collector publishes to file:"),
    ],
)
def test_a_store_that_cannot_be_registered_is_one_line(tmp_path: Path, address: str, message: str) -> None:
    with pytest.raises(chiplog.QueryError) as error:
        chiplog.register_store(None, address.format(path=tmp_path))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert error.value.kind == "unreachable"
