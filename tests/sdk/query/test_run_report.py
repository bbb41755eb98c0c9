"""Everything about one run: see also test_show.py, which prints it."""

from pathlib import Path

from chiplog.query.client import connect
from chiplog.query.run_report import read_run
from tests.support.hand_written import hand_written
from tests.support.live_runs import fill_live_runs


def test_a_run_that_does_not_exist_is_none_and_another_has_everything(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
    with connect(dir=tmp_path, start=False) as client:
        assert read_run(client, "none") is None
        [run_id, *_] = [row["run_id"] for row in client.sql("SELECT run_id FROM runs ORDER BY run_id").rows()]
        found = read_run(client, run_id)
    assert found is not None
    assert found["run_id"] == run_id
    assert {"labels", "keys", "phases", "config", "events", "first_failure", "completeness"} <= found.keys()
