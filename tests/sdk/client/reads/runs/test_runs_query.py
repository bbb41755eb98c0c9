"""The table of runs: only what is asked for, values as parameters, filters, orders and values of keys."""

import math
from datetime import datetime

from chiplog_client.client import Client
from chiplog_client.reads.runs.runs_query import (
    DURATION,
    VIEW_COLUMNS,
    RunsRequest,
    keyed,
    read_runs,
    runs_sql,
)
from tests.support.tabled_runs import fill_tabled_runs

NOW = datetime(2026, 1, 9)
fill = fill_tabled_runs


def ids(client: Client, **chosen: object) -> list[str]:
    return [row["run_id"] for row in read_runs(client, RunsRequest(["run_id"], **chosen))]  # type: ignore[arg-type]


def test_a_query_counts_only_what_is_asked_for() -> None:
    query, params = runs_sql(RunsRequest(["run_id", "state"]))
    assert params == {"limit": 50}
    assert "completeness" not in query and "config" not in query and "n_all" not in query
    query = runs_sql(RunsRequest(["pending"]))[0]
    assert "completeness" in query and "labels" not in query
    query, params = runs_sql(RunsRequest(["config.lr", "summary.loss"]))
    assert [name for name in params.values() if isinstance(name, str)] == ["lr", "loss"]


def test_values_are_parameters_and_a_key_with_quotes_is_a_name() -> None:
    evil = """x' OR "1" = '1"""
    request = RunsRequest([f"config.{evil}"], evil, evil, evil, [evil], [evil], NOW, sort=f"summary.{evil}")
    query, params = runs_sql(request)
    assert query.replace('AS "config.x\' OR ""1"" = \'1"', "").count("OR") == query.count("ORDER") + query.count(" FOR")
    assert list(params.values()).count(evil) == 7


def test_only_config_and_summary_have_keys() -> None:
    assert keyed("config.a.b") == ("config", "a.b") and keyed("summary.x") == ("summary", "x")
    assert not any(map(keyed, (*VIEW_COLUMNS, "config", "other.x")))


def test_the_columns_are_those_of_the_view(client: Client) -> None:
    assert tuple(client.sql("FROM runs LIMIT 0").columns) == VIEW_COLUMNS


def test_runs_are_chosen_sorted_and_counted(client: Client) -> None:
    assert ids(client) == ["vit", "gpt-new", "gpt-old"]
    assert ids(client, descending=False) == ["gpt-old", "gpt-new", "vit"]
    assert ids(client, ids=["vit", "gpt-old", "gone"]) == ["vit", "gpt-old"] and ids(client, ids=[]) == []
    assert ids(client, texts=["GPT"], tags=["b"]) == ["gpt-new"]
    assert ids(client, since=datetime(2026, 1, 2)) == ["vit", "gpt-new"]
    assert ids(client, sort="config.lr", descending=False) == ["gpt-old", "gpt-new", "vit"]
    assert ids(client, sort=DURATION, now=NOW) == ["gpt-old", "gpt-new", "vit"]
    [row] = read_runs(client, RunsRequest(["run_id"], limit=1, has_total=True))
    assert row == {"run_id": "vit", "n_all": 3}


def test_a_run_has_the_values_of_its_keys(client: Client) -> None:
    columns = ["run_id", "config.sizes", "config.none", "summary.loss", "summary.note", "pending", "lost", "is_over"]
    vit, new, old = read_runs(client, RunsRequest(columns))
    assert (old["config.sizes"], old["summary.loss"], old["is_over"]) == ([1, 2], 1.0, True)
    assert math.isnan(new["summary.loss"]) and new["summary.note"] == "nan", "a text that was set stays a text"
    assert (new["is_over"], new["lost"], vit["config.none"], vit["summary.loss"]) == (False, 0, None, None)
