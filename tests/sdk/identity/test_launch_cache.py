"""The run ID of a launch, which its ranks find again on their node after a restart."""

import os
from dataclasses import replace
from pathlib import Path

from chiplog.identity.identity import resolve_identity
from chiplog.identity.launch_cache import LAUNCHES_MAX, load, store, with_cached_run_id
from chiplog_schemas.paths import paths_for_root
from tests.support.launcher_environ import FACTS, LATER, OTHER_NODE, elastic, slurm


def test_a_launch_goes_on_under_the_run_that_it_had_before_a_restart(tmp_path: Path) -> None:
    place = paths_for_root(tmp_path)
    first = with_cached_run_id(place, resolve_identity(elastic(0, 0, 2, 1, "100"), FACTS))
    assert (first.run_id_is_final, first.needs_agreement) == (False, True)
    store(place, first.launch_cache_key, "agreed")
    for again in (elastic(1, 0, 2, 1, "100", restart=1), elastic(0, 0, 1, 1, "100")):
        found = with_cached_run_id(place, resolve_identity(again, replace(FACTS, pid=300)))
        assert (found.run_id, found.run_id_is_final) == ("agreed", True)
    for other in (replace(FACTS, parent="99:99999:boot"), OTHER_NODE):
        assert with_cached_run_id(place, resolve_identity(elastic(0, 0, 2, 1, "100"), other)).run_id != "agreed"


def test_a_requeued_job_goes_on_in_its_run_and_a_new_job_of_its_number_does_not(tmp_path: Path) -> None:
    place = paths_for_root(tmp_path)
    first = with_cached_run_id(place, resolve_identity(slurm(0, 0), FACTS))
    requeued = slurm(0, 0) | {"SLURM_RESTART_COUNT": "1", "SLURM_JOB_START_TIME": "1795229999"}
    again = with_cached_run_id(place, resolve_identity(requeued, LATER))
    assert (again.run_id, again.restart, again.needs_agreement) == (first.run_id, 1, False)
    moved = resolve_identity(requeued | {"SLURM_NNODES": "2"}, LATER)
    assert moved.needs_agreement and not moved.proposed_run_id, "nodes that did not have it ask those that had"
    new = with_cached_run_id(place, resolve_identity(slurm(0, 0) | {"SLURM_JOB_START_TIME": "1800000000"}, LATER))
    assert new.run_id != first.run_id
    assert with_cached_run_id(place, resolve_identity(slurm(0, 0, "1"), FACTS)).run_id not in (first.run_id, new.run_id)


def test_a_node_that_another_one_joins_keeps_its_run(tmp_path: Path) -> None:
    place = paths_for_root(tmp_path)
    alone = with_cached_run_id(place, resolve_identity(elastic(0, 0, 1, 1, "100"), FACTS))
    assert not alone.needs_agreement
    later = with_cached_run_id(place, resolve_identity(elastic(1, 0, 2, 1, "100"), FACTS))
    assert (later.run_id, later.run_id_is_final, later.needs_agreement) == (alone.run_id, True, True)


def test_a_node_remembers_a_bounded_number_of_launches(tmp_path: Path) -> None:
    place = paths_for_root(tmp_path)
    for number in range(LAUNCHES_MAX + 3):
        store(place, f"launch{number} run", f"run {number}")
        os.utime(max((place.launches).iterdir(), key=lambda path: path.stat().st_mtime), (number, number))
    assert len(list((place.launches).iterdir())) <= LAUNCHES_MAX + 1
    assert load(place, "launch0 run") is None
    assert load(place, f"launch{LAUNCHES_MAX + 2} run") == f"run {LAUNCHES_MAX + 2}"


def test_the_second_init_of_ranks_that_were_started_again_is_another_run_than_the_first(tmp_path: Path) -> None:
    place, environ = paths_for_root(tmp_path), elastic(0, 0, 2, 1, "100")
    first = resolve_identity(environ, FACTS)
    store(place, first.launch_cache_key, "agreed")
    second = with_cached_run_id(
        place, resolve_identity(environ, replace(FACTS, used_run_ids=frozenset({first.run_id})))
    )
    assert second.run_id == f"{first.run_id}-2" and not second.run_id_is_final
