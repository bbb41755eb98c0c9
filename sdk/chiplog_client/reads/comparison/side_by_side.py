"""Runs beside each other for the page: an entry for each key, with one value per run in their order."""

from collections.abc import Sequence
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.comparison.key_values import read_key_values
from chiplog_client.reads.comparison.machine_means import read_machine_means
from chiplog_client.reads.comparison.phase_means import read_phase_means
from chiplog_client.reads.comparison.same_step import is_same_number
from chiplog_client.reads.system.sample_names import sample_name
from chiplog_client.results.json_texts import decoded, json_number

KEYS_MAX = 2_000  # of each kind
_OF_RUNS = "WHERE list_contains($runs::VARCHAR[], run_id)"
_RUNS = f"SELECT run_id, name, state, created_at, ended_at, n_labels, n_failed FROM runs {_OF_RUNS}"
_CONFIG = f"SELECT run_id, key, value FROM config {_OF_RUNS} ORDER BY key"
# Keys of chiplog itself come last.
_SUMMARY = f"SELECT run_id, key, value FROM run_summary {_OF_RUNS} ORDER BY starts_with(key, 'chiplog/'), key"

Entry = dict[str, Any]


def read_described(client: Client, runs: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of these runs, in their order; one that does not exist is missing. Raises QueryError."""
    found = {row["run_id"]: row for row in client.sql(_RUNS, {"runs": list(runs)}).rows()}
    return [found[run] for run in runs if run in found]


def read_settings(client: Client, runs: Sequence[str]) -> dict[str, list[Entry]]:
    """Return `config` and `summary`: for each key its `values`, and `is_same` if all runs have this value.

    Raises:
        QueryError: A query has no result.
    """
    found = {}
    for name, query in (("config", _CONFIG), ("summary", _SUMMARY)):
        rows = client.sql(query, {"runs": list(runs)}).rows()
        rows = [{**row, "value": decoded(row["value"])} for row in rows]
        found[name] = beside(rows, runs, "value", is_exact=True)
    return found


def read_phases(client: Client, runs: Sequence[str]) -> dict[str, list[Entry]]:
    """Return `phases` and `phase_medians`, seconds per step of the mean and of the median label, and `phase_shares`.

    Raises:
        QueryError: The query has no result.
    """
    rows = [{**row, "key": row["phase"]} for row in read_phase_means(client, runs)]
    return {
        "phases": beside(rows, runs, "mean_s"),
        "phase_medians": beside(rows, runs, "median_s"),
        "phase_shares": beside([row for row in rows if row["share"] is not None], runs, "share"),
    }


def read_whole(client: Client, runs: Sequence[str]) -> dict[str, list[Entry]]:
    """Return values of the whole of each run: `final` and `best` of each metric, and `machines`.

    Returns:
        `final`: means of the last values of the labels. `best`: the lowest value of any label, or the highest where
        `is_highest`. `machines`: means of samples, with the `quantity` of a `SampleName`.

    Raises:
        QueryError: A query has no result.
    """
    rows = read_key_values(client, runs)
    best = beside([{**row, "value": row[row["best"]]} for row in rows], runs, "value")
    kinds = {row["key"]: row["best"] for row in rows}
    machines = [{**row, "key": row["name"]} for row in read_machine_means(client, runs)]
    return {
        "final": beside(rows, runs, "final"),
        "best": [{**entry, "is_highest": kinds[entry["key"]] == "max"} for entry in best],
        "machines": [_named(entry) for entry in beside(machines, runs, "mean")],
    }


def _named(entry: Entry) -> Entry:
    name = sample_name(entry["key"])
    return {**entry, "key": name.title, "quantity": name.quantity}


def beside(rows: list[dict[str, Any]], runs: Sequence[str], name: str, *, is_exact: bool = False) -> list[Entry]:
    """Return one entry per key, with the values of all runs: None for a run without it, a text for NaN and infinity.

    Args:
        rows: With `run_id` and `key`.
        runs: IDs of runs.
        name: The column with the values.
        is_exact: Numbers that differ by less than the rounding of a mean differ.
    """
    values: dict[str, dict[str, Any]] = {}
    for row in rows:
        values.setdefault(row["key"], {})[row["run_id"]] = row[name]
    return [
        {
            "key": key,
            "values": [json_number(of_runs.get(run)) for run in runs],
            "is_same": len(of_runs) == len(runs)
            and all(_is_same(of_runs[run], of_runs[runs[0]], is_exact) for run in runs),
        }
        for key, of_runs in list(values.items())[:KEYS_MAX]
    ]


def _is_same(one: Any, other: Any, is_exact: bool) -> bool:
    if not is_exact and isinstance(one, float) and isinstance(other, float):
        return is_same_number(one, other)
    return one == other and isinstance(one, bool) == isinstance(other, bool)  # in Python True is 1
