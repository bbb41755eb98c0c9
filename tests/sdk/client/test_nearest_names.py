"""Suggestions for an unknown name: by similarity to a whole name, its beginning or a part of it; else the remedy."""

import pytest

from chiplog_client.nearest_names import nearest, unknown_name
from tests.support.safeguard import proves


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("rnak1", ["rank0", "rank1", "eval"], ["rank1"]),
        ("Rank1", ["rank0", "rank1"], ["rank1"]),
        ("loss", ["lr", "train/loss", "val/loss", "lossless"], ["lossless"]),
        ("loss", ["lr", "train/loss", "val/loss"], ["val/loss", "train/loss"]),
        ("train/loss/total", ["train/loss", "lr"], ["train/loss"]),
        ("state", ["State", "status"], ["State"]),
        ("gtp-20260102", ["vit-20260104-0042", "gpt-20260102-7f3a91"], ["gpt-20260102-7f3a91"]),
        ("r", ["rank0", "rank1"], []),
        ("zzz", ["rank0"], []),
        ("", ["rank0"], []),
        ("rank9", [], []),
        ("rank", [f"rank{n}" for n in range(100)], ["rank0", "rank1", "rank2"]),
    ],
)
def test_the_most_similar_names_are_suggested_and_only_those(name, known, near):
    assert nearest(name, known) == near


@proves("nearest-name-suggested", "an unknown name is answered with the nearest known ones", value="[]")
def test_an_unknown_name_is_one_line_with_the_nearest_or_the_remedy():
    known = ["gpt-a1", "gpt-a2", "bert"]
    assert unknown_name("run", "gtp-a1", known, "see all") == "run 'gtp-a1' is unknown; did you mean 'gpt-a1'?"
    assert unknown_name("key of run 'a'", "x", known, "see all") == "key 'x' of run 'a' is unknown; see all"
