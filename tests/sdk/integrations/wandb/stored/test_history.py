"""Values of a stored run by step: one label for each key, the last value of a step, at most so many steps."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from chiplog.integrations.wandb.errors import CommError
from chiplog.integrations.wandb.stored import history
from tests.support.hand_written import hand_written, kept_open
from tests.support.run_builder import RunBuilder

BEGAN = datetime(2026, 1, 1)
RUN = {"primary_label": "rank0", "created_at": BEGAN}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of two ranks: rank 0 has two attempts, and rank 1 alone has the key `eval`."""
    root = tmp_path_factory.mktemp("history")
    with hand_written(root) as database:
        build = RunBuilder(database, f"TIMESTAMP '{BEGAN}'")
        build.run("r", project="p")
        for label, attempt in (("rank0", 0), ("rank0", 1), ("rank1", 0)):
            build.label("r", label, attempt=attempt, is_primary=label == "rank0", rank=int(label[-1]))
        begun = RunBuilder(database, "TIMESTAMP '2026-01-01'")
        for rank, key, steps, value in ((0, "loss", 6, 1.0), (1, "loss", 6, 9.0), (1, "eval", 3, 4.0)):
            begun.metrics({key: value}, steps=steps, at=2, where=f"rank = {rank} AND attempt = 0")
        begun.metrics({"loss": 2.0}, steps=[5], seq=0, at=9, where="attempt = 1")
    with kept_open(root):
        yield root


@pytest.fixture(autouse=True)
def directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPLOG_DIR", str(root))


def scanned(keys: list[str] | None = None, first: int | None = None, end: int | None = None) -> list[dict[str, Any]]:
    return list(history.scanned("r", RUN, keys, 1_000, first, end))


def test_a_key_is_of_the_primary_else_of_the_rank_that_has_it_and_the_newest_attempt_counts() -> None:
    rows = scanned()
    assert [row["loss"] for row in rows] == [1.0] * 5 + [2.0]
    assert [row.get("eval") for row in rows] == [4.0] * 3 + [None] * 3
    assert (rows[0]["_step"], rows[0]["_runtime"], rows[5]["_runtime"]) == (0, 2.0, 9.0)


def test_keys_and_steps_choose_rows() -> None:
    assert scanned(["eval"]) == [{"eval": 4.0}] * 3
    assert scanned(["eval", "loss", "_step"], first=2) == [{"eval": 4.0, "loss": 1.0, "_step": 2}]
    assert scanned(["_step"], first=1, end=3) == [{"_step": 1}, {"_step": 2}]
    assert scanned(["other"]) == scanned(first=6) == []


def test_samples_are_at_even_distances_and_begin_with_the_first_step() -> None:
    assert [row["_step"] for row in history.sampled("r", RUN, None, 3)] == [0, 2, 4]
    assert [row["_step"] for row in history.sampled("r", RUN, None, 4)] == [0, 2, 3, 5]
    assert len(history.sampled("r", RUN, None, 500)) == 6
    assert history.sampled("r", RUN, ["_step", "eval"], 1) == [{"_step": 0, "eval": 4.0}]


def test_pages_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_PAGE_STEPS_MIN", 2)
    rows = list(history.scanned("r", RUN, ["loss"], 2, None, None))
    assert [row["loss"] for row in rows] == [1.0] * 5 + [2.0]


def test_without_data_comm_error_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPLOG_DIR", str(tmp_path / "nothing"))
    with pytest.raises(CommError, match="cannot be read"):
        scanned()
