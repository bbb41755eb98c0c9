"""Who failed first and who was slow, from a database: a step that some labels did not finish blames no label."""

from collections.abc import Iterator

import duckdb
import pytest

from chiplog.query.client import Client
from chiplog.query.run_report import read_run
from chiplog.query.run_verdict import read_verdict
from tests.support.hand_written import filled

BEGUN = "TIMESTAMP '2026-01-02 03:00:00'"
# Per run: the name, and of its four ranks state, exit code and seconds from the begin of the run to their end.
RUNS = {
    "failed": [("crashed", 1, 103), ("crashed", 1, 104), ("crashed", 1, 106), ("failed", 1, 44)],
    "hangs": [(None, None, None)] * 4,
    "early": [("crashed", 1, 62), ("crashed", 1, 63), ("crashed", 1, 64), ("failed", 1, 2)],
    "finished": [("finished", 0, 50)] * 4,
    "survived": [*[("finished", 0, 106)] * 3, ("failed", 1, 44)],
}
N_FINISHED = {
    "failed": 42,
    "hangs": 42,
    "early": 0,
    "finished": 43,
    "survived": 42,
}  # steps of rank3; the others have one more


def fill(database: duckdb.DuckDBPyConnection) -> None:
    """Write runs of four ranks with `data`, `forward` and `backward`; a step takes 1 s.

    rank3 ends or hangs within a step, and the others wait for it in `backward`: rank1 for 59 s and the others for 1 s,
    as after an error in one of them. In steps 10 to 19 `data` of rank2 takes 0.6 s more.
    """
    database.execute("INSERT INTO base.names VALUES (1, 'data'), (2, 'forward'), (3, 'backward')")
    for run, (name, ranks) in enumerate(RUNS.items(), 1):
        database.execute(
            "INSERT INTO base.runs (run, run_id, project, primary_label) VALUES (?, ?, 'gpt', 'rank0')", [run, name]
        )
        for rank, (state, code, ended_s) in enumerate(ranks):
            database.execute(
                "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, started_at, "
                f"produced, state, exit_code, reason, ended_at) VALUES (?, 'rank', ?, ?, 0, ?, ?, 'node0', {BEGUN}, "
                f"1000, ?, ?, ?, {BEGUN} + to_seconds(?))",
                [
                    *(run * 10 + rank, run, f"rank{rank}", rank == 0, rank, state, code),
                    *("ValueError: loss is NaN" if state == "failed" else "exit code 1" if code else None, ended_s),
                ],
            )
        n_steps = N_FINISHED[name]
        database.execute(
            f"""
            INSERT INTO base.phases
            SELECT producer, key, s, s, {BEGUN} + to_seconds(s + 1), CASE key
                WHEN 1 THEN 0.1 + CASE WHEN rank = 2 AND s BETWEEN 10 AND 19 THEN 0.6 ELSE 0 END
                WHEN 2 THEN 0.4
                ELSE 0.5 + CASE WHEN s = {n_steps} AND rank <> 3 AND run <> 4 THEN CASE rank WHEN 1 THEN 59 ELSE 1 END
                                WHEN rank <> 2 AND s BETWEEN 10 AND 19 THEN 0.6 ELSE 0 END END
            FROM base.producers, range({n_steps + 1}) t(s), range(1, 4) u(key)
            WHERE run = {run} AND (rank <> 3 OR s < {n_steps} OR key = 1 AND {n_steps} > 0 OR run = 4)
            """
        )


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with filled(tmp_path_factory.mktemp("verdict"), fill) as client:
        yield client


FAILED = "rank3 failed first, after step 41"
SLOW = (
    "rank2 cost 6.0 s between steps 10 and 19: its data phase took 7 times as long as the median; "
    "3 other labels waited in backward."
)


def test_a_failed_run_names_the_first_failure_and_blames_no_survivor(client: Client) -> None:
    found = read_verdict(client, "failed")
    assert found["text"] == f"{FAILED}, 59 s before rank0: ValueError: loss is NaN. Until then {SLOW}"
    assert found["text"] == "".join(part["text"] for part in found["parts"])
    assert (found["has_failed"], found["is_slow"], found["culprit"]["label"]) == (True, True, "rank2")


def test_a_run_whose_primary_ended_well_names_the_label_that_failed(client: Client) -> None:
    found = read_verdict(client, "survived")
    assert found["text"] == f"{FAILED}: ValueError: loss is NaN. Until then {SLOW}"
    report = read_run(client, "survived")
    assert report is not None and report["state"] == "finished"
    assert read_verdict(client, "survived", report=report) == found


def test_a_step_that_a_living_label_has_not_finished_is_left_out(client: Client) -> None:
    assert read_verdict(client, "hangs")["text"] == SLOW


def test_a_label_that_failed_before_its_first_step_leaves_nothing_to_compare(client: Client) -> None:
    found = read_verdict(client, "early")
    assert found["text"] == "rank3 failed first, 60 s before rank0: ValueError: loss is NaN."
    assert not found["is_slow"]


def test_a_run_that_ended_well_is_judged_by_all_its_steps(client: Client) -> None:
    found = read_verdict(client, "finished")
    assert (found["text"], found["has_failed"]) == (SLOW, False)
    assert read_verdict(client, "unknown")["text"] == ""
