"""The file that outlives samplers: UUIDs by place, and which GPUs are lost."""

from pathlib import Path

import pytest

from chiplog_agent.stats.gpu.known_gpus import KnownGpus


def test_what_one_sampler_knew_the_next_one_knows(tmp_path: Path) -> None:
    known = KnownGpus(tmp_path / "known")
    known.uuids["GPU 0000:3b:00.0"] = "GPU-1"
    known.save(frozenset({"GPU-1", "MIG-2"}))
    following = KnownGpus(tmp_path / "known")
    assert following.uuids == {"GPU 0000:3b:00.0": "GPU-1"} and following.lost == {"GPU-1", "MIG-2"}


def test_a_gpu_that_was_moved_is_known_at_its_new_place_only() -> None:
    known = KnownGpus()
    known.note({"GPU 0000:17:00.0": "GPU-1", "GPU 0000:65:00.0": "GPU-2"})
    assert known.note({"GPU 0000:b1:00.0": "GPU-1"}) == {}
    assert known.uuids == {"GPU 0000:65:00.0": "GPU-2", "GPU 0000:b1:00.0": "GPU-1"}


def test_a_gpu_is_replaced_by_the_one_that_has_its_pci_address_and_none_by_one_with_its_index() -> None:
    known = KnownGpus()
    assert known.note({"GPU 0000:17:00.0": "GPU-1", "GPU 0000:65:00.0": "GPU-2", "GPU 0 of 1": "GPU-3"}) == {}
    exchanged = {"GPU 0000:17:00.0": "GPU-2", "GPU 0000:65:00.0": "GPU-1"}
    assert known.note(exchanged) == {}, "both are here"
    assert known.note({"GPU 0000:17:00.0": "GPU-4", "GPU 0 of 1": "GPU-5"}) == {"GPU-2": "GPU-4"}
    assert known.note({"GPU 0000:17:00.0": "GPU-4"}) == {}


def test_an_index_takes_the_address_of_no_gpu_that_is_still_there() -> None:
    """NVML counts fewer GPUs than the kernel: which one has which address is not certain then."""
    known = KnownGpus()
    known.note({"GPU 0000:17:00.0": "GPU-1", "GPU 0000:65:00.0": "GPU-2", "GPU 0000:b1:00.0": "GPU-3"})
    for places in ({"GPU 0 of 2": "GPU-1", "GPU 1 of 2": "GPU-3"}, {"GPU 0 of 2": "GPU-3", "GPU 1 of 2": "GPU-1"}):
        assert known.note(places) == {}
        addressed = {place: uuid for place, uuid in known.uuids.items() if "of" not in place}
        assert addressed == {"GPU 0000:17:00.0": "GPU-1", "GPU 0000:65:00.0": "GPU-2", "GPU 0000:b1:00.0": "GPU-3"}
    replaced = known.note({"GPU 0000:17:00.0": "GPU-1", "GPU 0000:65:00.0": "GPU-2", "GPU 0000:b1:00.0": "GPU-4"})
    assert replaced == {"GPU-3": "GPU-4"}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"uuids": 3, "lost": []}', b'{"uuids": {}, "lost": 3}', b"\xff"]
)
def test_a_damaged_file_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "known").write_bytes(content)
    known = KnownGpus(tmp_path / "known")
    assert (known.uuids, known.lost) == ({}, frozenset())


def test_only_news_is_written_and_a_failure_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    known = KnownGpus(folder / "known")
    known.save(frozenset())
    known.save(frozenset({"GPU-1"}))
    folder.mkdir()
    known.save(frozenset({"GPU-1"}))
    assert KnownGpus(folder / "known").lost == {"GPU-1"}
    (folder / "known").unlink()
    known.save(frozenset({"GPU-1"}))
    assert not list(folder.iterdir())


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    KnownGpus().save(frozenset({"GPU-1"}))
    assert not list(tmp_path.iterdir())
