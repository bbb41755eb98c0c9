"""Who failed first and who was slow, from a database: a step that some labels did not finish blames no label."""

from collections.abc import Iterator

import duckdb
import pytest

from chiplog_client.client import Client
from chiplog_client.reads.run_report import read_run
from chiplog_client.reads.run_verdict import read_verdict
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


def fill_unfinished_steps(database: duckdb.DuckDBPyConnection) -> None:
    """Write runs of two ranks. A step takes 50 ms; `compute` of rank0 waits while `data` of rank1 takes 30 ms more.

    rank1 fails in step 80, after 4 s. rank0 waits for it for 3 s, and then fails as well. Both record the phases of
    step 80 under step 79, the last one that they logged.

    - `only`: there is only `compute`, in which rank1 fails. Until then it takes equally long.
    - `apart`: rank1 is on another node, whose clock is an hour ahead.
    - `lost`: rank1 is killed, and its end noticed after that of rank0; it may have been 4 s sooner.
    """
    database.execute("INSERT INTO base.names VALUES (4, 'compute')")
    for run, name in enumerate(("unfinished", "only", "apart", "lost"), 101):
        ahead_s = 3600 if name == "apart" else 0
        late_s = 4 if name == "lost" else 0
        database.execute(f"INSERT INTO base.runs (run, run_id, primary_label) VALUES ({run}, '{name}', 'rank0')")
        database.execute(
            "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, clock_us, "
            "started_at, state, exit_code, reason, cause, late_us, ended_at) "
            f"SELECT {run} * 10 + rank, 'rank', {run}, 'rank' || rank, 0, rank = 0, rank, "
            f"CASE WHEN {ahead_s} > 0 THEN 'node' || rank ELSE 'node' END, rank * {-1_000_000 * ahead_s}::BIGINT, "
            f"{BEGUN} + to_seconds(rank * {ahead_s}), 'failed', 1, reason, cause, rank * {late_s * 1_000_000}, "
            f"{BEGUN} + to_seconds(ended_s + rank * {ahead_s + late_s}) "
            "FROM (VALUES (0, 'peer lost', 'peer_lost', 7.05), (1, 'ValueError', 'raised', 4.04)) "
            "t(rank, reason, cause, ended_s)"
        )
        database.execute(
            f"""
            INSERT INTO base.phases
            SELECT producer, key, least(s, 79), s,
                   {BEGUN} + to_seconds(CASE WHEN s < 80 THEN (s + 1) * 0.05 WHEN rank = 1 THEN 4.05 ELSE 7.06 END
                                        + rank * {ahead_s}),
                   CASE WHEN key = 1 THEN 0.001 + 0.03 * rank WHEN s = 80 THEN 3 - 2.9 * rank
                        WHEN '{name}' = 'only' THEN 0.033 ELSE 0.004 + 0.029 * (1 - rank) END
            FROM base.producers, range(81) t(s), (VALUES (1), (4)) u(key)
            WHERE run = {run} AND (key = 4 OR '{name}' <> 'only')
              AND (s < 80 OR rank = 0 OR key = 1 OR '{name}' = 'only')
            """
        )


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    def fill_all(database: duckdb.DuckDBPyConnection) -> None:
        fill(database)
        fill_unfinished_steps(database)

    with filled(tmp_path_factory.mktemp("verdict"), fill_all) as client:
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


@pytest.mark.parametrize("name", ["unfinished", "apart", "lost"])
def test_phases_that_a_label_recorded_after_the_first_failure_blame_no_survivor(client: Client, name: str) -> None:
    found = read_verdict(client, name)
    assert found["text"].startswith("rank1 failed first, after step 79"), found["text"]
    assert found["text"].endswith(
        " Until then rank1 cost 2.4 s between steps 0 and 78: its data phase took 31 times as long as in rank0; "
        "1 other label waited in compute."
    )


def test_a_crash_in_the_only_phase_of_a_step_blames_no_survivor(client: Client) -> None:
    found = read_verdict(client, "only")
    assert found["text"].startswith("rank1 failed first, after step 79, "), found["text"]
    assert not found["is_slow"]
