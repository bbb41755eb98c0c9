"""Tags of runs: the last value of all labels counts, a removed tag has no row, values that are wrong cost one event."""

from chiplog_schemas.model.events import EventKind
from tests.support.changes import deletion
from tests.support.collector_log import START_US, Rank, whole
from tests.support.index import Index
from tests.support.safeguard import proves

TAGS = f"SELECT run_id, key, value, label, epoch_us(ts) - {START_US} FROM run_tags ORDER BY ALL"


def tag(rank: Rank, key: object, value: object, at_us: int) -> None:
    rank.say(EventKind.TAG, key, value, ts=START_US + at_us)


@proves(
    "last-tag-counts", "of several values of a tag the last one counts", part="t.ts DESC, t.seq DESC", new="t.ts, t.seq"
)
def test_the_last_value_of_all_labels_counts_by_time_and_then_by_seq(index: Index) -> None:
    first, second, other = Rank(0, primary=True), Rank(1), Rank(2, run_id="other")
    tag(first, "stage", "draft", 1)
    tag(second, "stage", "reviewed", 3)
    tag(first, "stage", "late, but of an earlier time", 2)
    tag(first, "same time", "earlier", 5)
    tag(first, "same time", "later", 5)
    tag(other, "stage", "of another run", 9)
    index.take(whole(second), whole(first), whole(other))
    assert index.sql(TAGS) == [
        ("other", "stage", "of another run", "rank2", 9),
        ("r", "same time", "later", "rank0", 5),
        ("r", "stage", "reviewed", "rank1", 3),
    ]


def test_a_removed_tag_has_no_row_until_it_is_set_again_and_an_empty_one_has(index: Index) -> None:
    first, second = Rank(0, primary=True), Rank(1)
    tag(first, "gone", "x", 1)
    tag(second, "gone", None, 2)
    tag(first, "back", None, 1)
    tag(first, "back", "again", 2)
    tag(first, "empty", "", 3)
    index.take(whole(first), whole(second))
    assert index.sql(TAGS) == [("r", "back", "again", "rank0", 2), ("r", "empty", "", "rank0", 3)]


def test_tags_go_with_the_label_that_set_them_and_the_value_before_counts_again(index: Index) -> None:
    first, second = Rank(0, run_id="kept", primary=True), Rank(1, run_id="gone", primary=True)
    tag(first, "stage", "draft", 1)
    tag(second, "stage", "reviewed", 2)
    index.take(whole(first), whole(second), deletion(second, run="gone"))
    assert index.sql(TAGS) == [("kept", "stage", "draft", "rank0", 1)]
    assert index.sql("SELECT count(*) FROM base.run_tags") == [(1,)]


def test_a_tag_of_wrong_types_costs_itself(index: Index) -> None:
    rank = Rank(0, primary=True)
    tag(rank, "good", "x", 1)
    tag(rank, 7, "x", 2)
    tag(rank, "number", 7, 3)
    tag(rank, None, None, 4)
    index.take(whole(rank))
    assert index.sql(TAGS) == [("r", "good", "x", "rank0", 1)]
    assert index.sql("SELECT DISTINCT kind, code FROM base.quarantine") == [(int(EventKind.TAG), "event_rejected")]
    assert index.sql("SELECT count(*) FROM base.quarantine") == [(3,)]


@proves(
    "first-param-counts",
    "of several values of a param the first one counts",
    part="ORDER BY t.ts, t.seq, i.label, i.attempt",
    new="ORDER BY t.ts DESC, t.seq, i.label, i.attempt",
)
def test_params_are_config_of_any_label_and_the_first_value_counts(index: Index) -> None:
    first, second = Rank(0, primary=True), Rank(1)
    first.say(EventKind.CONFIG, {"own": "1"}, ts=START_US)
    tag(first, "chiplog:param/own", "2", 1)
    tag(second, "chiplog:param/lr", "0.1", 1)
    tag(first, "chiplog:param/lr", "0.2", 2)
    index.take(whole(second), whole(first))
    config = index.sql("SELECT key, value->>'$', label FROM config WHERE run_id = 'r' ORDER BY key")
    assert config == [("lr", "0.1", "rank1"), ("own", "1", "rank0")]
    assert index.sql(TAGS) == []
