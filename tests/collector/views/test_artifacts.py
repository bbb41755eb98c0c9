"""Versions of artifacts: numbers in the order of the log, the same after deletions, cleaning and rebuilds; aliases."""

from pathlib import Path

from chiplog_collector.index.cleaning.block_pruning import prune_block
from chiplog_schemas.model.events import EventKind
from tests.support.changes import deletion
from tests.support.collector_log import Rank, apply, quarantined, whole
from tests.support.index import Index
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves

VERSIONS = "SELECT version, digest[:2], aliases, made_by, used_by FROM artifacts ORDER BY project, name, version"


def maker(number: int, *digests: int, name: str = "model", project: str = "p") -> Rank:
    """Return a rank of its own run that logs versions. digests: their first bytes."""
    rank = Rank(number, run_id=f"run-{number}", primary=True)
    for digest in digests:
        log(rank, digest, name=name, project=project)
    return rank


def log(rank: Rank, digest: int, *, name: str = "model", project: str = "p") -> None:
    rank.say(EventKind.ARTIFACT_FILE, bytes([digest]) * 32, f"{digest}.pt", digest, bytes([digest]) * 32, "")
    rank.say(EventKind.ARTIFACT, project, name, "model", bytes([digest]) * 32, 1, digest, "{}", "")


def mark(rank: Rank, digest: int, alias: str, *, is_set: bool = True) -> None:
    rank.say(EventKind.ARTIFACT_ALIAS, "p", "model", bytes([digest]) * 32, alias, int(is_set))


def test_the_same_digest_is_the_same_version_and_others_are_numbered_in_the_order_of_the_log(index: Index) -> None:
    index.take(whole(maker(1, 0xAA, 0xBB)), whole(maker(2, 0xCC, 0xAA)))
    index.take(whole(maker(3, 0xAA, name="data")), whole(maker(4, 0xDD, project="q")))
    assert index.sql(VERSIONS) == [
        (0, "aa", ["latest"], ["run-3"], []),
        (0, "aa", ["latest"], ["run-1", "run-2"], []),
        (1, "bb", [], ["run-1"], []),
        (2, "cc", [], ["run-2"], []),
        (0, "dd", ["latest"], ["run-4"], []),
    ]
    files = "SELECT version, path, bytes, sha256[:2], reference, is_stored FROM artifact_files WHERE name = 'data'"
    assert index.sql(files) == [(0, "170.pt", 170, "aa", None, False)]


def test_an_entry_has_the_reason_why_all_labels_omit_its_bytes_until_they_are_there(index: Index) -> None:
    ranks = [Rank(number, run_id=f"run-{number}", primary=True) for number in (1, 2)]
    for rank, reasons in zip(ranks, (("too large", "full", ""), ("too large", "", "full")), strict=True):
        for path, reason in zip("abc", reasons, strict=True):
            # An older writer has no such field.
            last = [reason] if reason else []
            rank.say(EventKind.ARTIFACT_FILE, b"\xaa" * 32, path, 1, path.encode() * 32, "", *last)
        rank.say(EventKind.ARTIFACT, "p", "model", "model", b"\xaa" * 32, 3, 3, "{}", "")
    index.take(whole(ranks[0]), whole(ranks[1]))
    files = "SELECT path, is_stored, omitted FROM artifact_files ORDER BY path"
    assert index.sql(files) == [("a", False, "too large"), ("b", False, None), ("c", False, None)]
    RunBuilder(index.database.connection).store((b"a" * 32).hex(), 1)
    assert index.sql(files)[0] == ("a", True, None)


def test_an_alias_moves_and_can_be_removed_and_a_use_names_its_run(index: Index) -> None:
    first, second = maker(1, 0xAA, 0xBB), Rank(2, run_id="user", primary=True)
    mark(first, 0xAA, "best")
    mark(first, 0xAA, "old")
    mark(second, 0xBB, "best")
    mark(second, 0xAA, "old", is_set=False)
    mark(second, 0xAA, "latest")  # moves only with a version that is logged
    second.say(EventKind.ARTIFACT_USE, "p", "model", b"\xaa" * 32)
    index.take(whole(first), whole(second))
    assert index.sql(VERSIONS) == [(0, "aa", [], ["run-1"], ["user"]), (1, "bb", ["best", "latest"], ["run-1"], [])]


def test_a_version_goes_with_its_only_maker_and_latest_is_the_newest_that_is_left(index: Index) -> None:
    first, second = maker(1, 0xAA, 0xBB), maker(2, 0xBB, 0xCC)
    index.take(whole(first), whole(second), deletion(second, run="run-2"))
    expected = [(0, "aa", [], ["run-1"], []), (1, "bb", ["latest"], ["run-1"], [])]
    assert index.sql(VERSIONS) == expected
    assert index.sql("SELECT DISTINCT sha256[:2] FROM base.orphans ORDER BY ALL") == [("bb",), ("cc",)]
    assert "cc" * 32 not in {digest for (digest,) in index.sql("SELECT sha256 FROM base.named_contents")}
    index.reopen()
    index.take(whole(maker(3, 0xDD)))
    assert index.sql(VERSIONS) == [expected[0], (1, "bb", [], ["run-1"], []), (3, "dd", ["latest"], ["run-3"], [])]


@proves("version-numbers-stay", "a rebuild from a cleaned log gives no version another number", condition=False)
def test_numbers_stay_when_a_maker_is_deleted_and_the_index_is_built_again_from_a_cleaned_log(
    index: Index, tmp_path: Path
) -> None:
    gone, kept, later = maker(1, 0xAA, 0xBB), maker(2, 0xCC, 0xAA), maker(3, 0xBB, 0xDD)
    index.take(whole(gone), whole(kept), deletion(gone, run="run-1"), whole(later))
    expected = [
        (0, "aa", [], ["run-2"], []),
        (1, "bb", [], ["run-3"], []),
        (2, "cc", [], ["run-2"], []),
        (3, "dd", ["latest"], ["run-3"], []),
    ]
    assert index.sql(VERSIONS) == expected
    cleaned = prune_block(whole(gone), frozenset({gone.uuid}))
    assert cleaned is not None
    (tmp_path / "again").mkdir()
    again = Index(tmp_path / "again")
    again.take(cleaned, whole(kept), deletion(gone, run="run-1"), whole(later))
    assert again.sql(VERSIONS) == expected
    assert again.views() == index.views()
    again.close()


def test_a_name_beyond_its_limit_costs_its_event() -> None:
    rank = maker(1, 0xAA)
    log(rank, 0xBB, name="x" * 129)
    applier = apply(whole(rank))
    assert applier.state.artifacts == {("p", "model"): {"aa" * 32: 0}}
    assert quarantined(applier) == [
        "event of kind 20 cannot be applied: ValueError an artifact's name has more than 128 characters"
    ]
