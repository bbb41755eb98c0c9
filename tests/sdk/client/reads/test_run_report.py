"""Everything about one run: see also test_show.py, which prints it."""

from pathlib import Path

from chiplog_client.client import connect
from chiplog_client.reads.run_report import EVENTS_MAX, LOGS_MAX, read_outline, read_run
from tests.support.hand_written import hand_written, kept_open
from tests.support.live_runs import fill_live_runs
from tests.support.run_builder import NOW, RunBuilder, Sql
from tests.support.tabled_runs import fill_tabled_runs


def test_a_run_that_does_not_exist_is_none_and_another_has_everything(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        assert read_run(client, "none") is None
        [run_id, *_] = [row["run_id"] for row in client.sql("SELECT run_id FROM runs ORDER BY run_id").rows()]
        found = read_run(client, run_id)
    assert found is not None
    assert found["run_id"] == run_id
    assert not any(key["is_hidden"] for key in found["keys"])
    assert {"labels", "keys", "phases", "config", "events", "first_failure", "completeness"} <= found.keys()


def test_records_of_logging_leave_room_for_other_events(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
        kind, level = "CASE WHEN step < 100 THEN 'phase_open' ELSE 'log' END", "if(step >= 200, 'info', 'error')"
        event = {"level": Sql(level), "steps": 300, "seq": "step", "where": "run_id = 'even' AND rank = 0"}
        RunBuilder(database, NOW).event(Sql(kind), Sql("'event ' || step"), **event)
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        found = read_run(client, "even")
    assert found is not None
    kept = [*range(100 - EVENTS_MAX, 100), *range(200 - LOGS_MAX, 200)]
    assert [row["message"] for row in found["events"]] == [f"event {n}" for n in kept]


def test_an_outline_is_the_row_of_the_run_with_its_metrics(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_tabled_runs(database)
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        found, bare = read_outline(client, "gpt-old"), read_outline(client, "vit")
        assert read_outline(client, "gone") is None
    assert found is not None and bare is not None and bare["keys"] == []
    assert (found["project"], found["n_labels"], found["label_names"]) == ("gpt", 2, {})
    assert found["keys"] == [{"key": key, "is_hidden": False} for key in ('a "quoted" key', "loss", "step")]
    assert not {"hidden", "known_labels"} & found.keys()
