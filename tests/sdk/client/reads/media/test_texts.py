"""Texts of a run: those of a step, and those that contain some words."""

import duckdb

from chiplog_client.client import Client
from chiplog_client.reads.media.texts import CHARS_MAX, read_texts
from tests.support.media_run import MARKUP, fill_media_run
from tests.support.run_builder import RunBuilder


def fill(database: duckdb.DuckDBPyConnection) -> None:
    fill_media_run(database)
    text = "a" * 20000 + "Needle" + "b" * 9000
    RunBuilder(database).texts({"sample": text}, steps=[5], seq=1, where="run_id = 'plain' AND rank = 0")


def test_the_last_step_up_to_the_chosen_one_is_shown(client: Client) -> None:
    found = read_texts(client, "media", "sample", 250)
    assert [found[name] for name in ("n_steps", "first_step", "last_step", "step", "before", "after")] == [
        *(5, 0, 400, 200, 100, 300)
    ]
    assert [row["label"] for row in found["rows"]] == ["rank0", "rank1"]
    assert found["rows"][1]["value"] == f"{MARKUP} at 200"
    assert read_texts(client, "media", "sample", -5)["step"] == 0
    assert [row["label"] for row in read_texts(client, "media", "sample", 0, ["rank1"])["rows"]] == ["rank1"]


def test_without_a_step_the_newest_texts_of_all_steps_come_first(client: Client) -> None:
    found = read_texts(client, "media", "sample", None, limit=3)
    assert [(row["step"], row["label"]) for row in found["rows"]] == [(400, "rank0"), (400, "rank1"), (300, "rank0")]
    assert found["is_cut"]


def test_a_search_finds_texts_of_all_steps_in_any_case(client: Client) -> None:
    found = read_texts(client, "media", "sample", 0, search="TO BE: 3")
    assert [(row["step"], row["label"]) for row in found["rows"]] == [(300, "rank0")]
    assert read_texts(client, "media", "sample", 0, search="nothing")["rows"] == []


def test_a_long_text_is_cut_around_what_was_found_and_whole_for_its_label(client: Client) -> None:
    [row] = read_texts(client, "plain", "sample", 5)["rows"]
    assert (len(row["value"]), row["n_chars"], row["n_before"]) == (CHARS_MAX, 29_006, 0)
    [row] = read_texts(client, "plain", "sample", 5, search="needle")["rows"]
    assert "Needle" in row["value"] and row["n_before"] == 20_001 - CHARS_MAX // 4
    [row] = read_texts(client, "plain", "sample", 5, ["rank0"])["rows"]
    assert len(row["value"]) == 29_006
