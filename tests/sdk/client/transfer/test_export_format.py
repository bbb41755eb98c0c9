"""The layout of an export: names of files and columns."""

import pytest

from chiplog_client.transfer.export_format import PARQUET_FILES, TABLES, directory_name


def test_each_table_names_its_run_its_label_and_its_producer() -> None:
    for name, table in TABLES.items():
        assert list(table.columns)[:3] == ["run_id", "label", "attempt"], name
        assert list(table.columns)[-1] == "producer", name
        assert {"seq", "ts"} <= set(table.columns), name
        assert "run_id" not in table.source_columns
    assert set(TABLES) < set(PARQUET_FILES)
    keyed = ["metrics", "phases", "texts", "histograms", "media"]
    assert [name for name, table in TABLES.items() if table.is_keyed] == keyed


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("gpt-20260102-7f3a91", "gpt-20260102-7f3a91"),
        ("größe 1", "größe 1"),
        ("../up", "%2E.%2Fup"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("100%", "100%25"),
        ("a\nb\0", "a%0Ab%00"),
    ],
)
def test_a_run_becomes_one_directory_whatever_its_id_is(run_id: str, name: str) -> None:
    assert directory_name(run_id) == name
    assert "/" not in name
    assert name not in (".", "..")
