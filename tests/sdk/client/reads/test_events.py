"""The events of a run: filters, their order, and the number of each kind."""

from pathlib import Path

from chiplog_client.reads.events import EventsRequest, read_events
from tests.support.hand_written import filled
from tests.support.page_run import fill_page_run
from tests.support.sampled_run import fill_sampled_run


def test_the_newest_events_come_first_and_filters_leave_the_counts_of_kinds(tmp_path: Path) -> None:
    with filled(tmp_path, fill_page_run) as client:
        found = read_events(client, EventsRequest("slow"))
        times = [row["ts"] for row in found["rows"]]
        assert times and times == sorted(times, reverse=True)
        assert sum(row["n"] for row in found["kinds"]) == len(times)
        assert all(row["title"] for row in found["kinds"])
        kind = found["kinds"][0]
        chosen = read_events(client, EventsRequest("slow", kind["kind"], kind["level"]))
        assert len(chosen["rows"]) == kind["n"] and chosen["kinds"] == found["kinds"]
        [last] = read_events(client, EventsRequest("slow", limit=1))["rows"]
        assert last == found["rows"][0]
        label = next(row["label"] for row in found["rows"] if row["label"])
        of_label = read_events(client, EventsRequest("slow", labels=(label,)))["rows"]
        assert of_label == [row for row in found["rows"] if row["label"] == label]
        assert read_events(client, EventsRequest("gone")) == {"rows": [], "kinds": []}


def test_what_a_runs_gpus_reported_is_among_its_events_and_that_of_other_gpus_is_not(tmp_path: Path) -> None:
    with filled(tmp_path, fill_sampled_run) as client:
        found = read_events(client, EventsRequest("sampled", level="error", labels=("rank1",)))
        assert [(row["kind"], row["label"], row["message"]) for row in found["rows"]] == [
            ("gpu.lost", "rank1", "GPU-1-1 is lost: fell off the bus")
        ]
        assert found["rows"][0]["body"] == {"device": "GPU-1-1", "code": 79}
        assert found["kinds"] == [{"kind": "gpu.lost", "level": "error", "n": 1, "title": "GPU lost"}]
        assert read_events(client, EventsRequest("many"))["rows"] == []
