"""The filter of the table of runs: what the page's one finds, this one does."""

import duckdb
import pytest

from chiplog_client.client import Client
from chiplog_client.reads.parameters import BadRequestError
from chiplog_client.reads.runs.run_filter import parse_filter, read_filtered
from chiplog_client.reads.runs.runs_query import RunsRequest
from tests.support.run_builder import RunBuilder


def fill(database: duckdb.DuckDBPyConnection) -> None:
    build = RunBuilder(database)
    for number, (run_id, name, tags) in enumerate(
        (("base", "two words", ["old"]), ("tuned", None, ["new", "best"]), ("crash", None, []))
    ):
        build.run(run_id, project="gpt", name=name, tags=tags, notes=f"note {number}")
        ended = {"state": "crashed", "exit_signal": 9} if run_id == "crash" else {"state": "finished", "exit_code": 0}
        begun_s = number * 86400
        build.ranks(run_id, 2, produced=10, started_s=begun_s, ended_s=begun_s + 60 * (number + 1), **ended)
        where = f"run_id = '{run_id}' AND is_primary"
        build.config({"lr": 10.0**-number, "model": "GPT-2", "amp": number == 1, "state": "of the config"}, where=where)
        build.summary({"loss": 3 - number}, seq=1, where=where)
    build.received(0, 9, where="run_id <> 'crash'")


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("", "crash tuned base"),
        ("TUNED", "tuned"),
        ('"two words"', "base"),
        ("two words", "base"),
        ("-base -crash", "tuned"),
        ("gpt note", "crash tuned base"),
        ("2026-01-03", "tuned"),
        ("rank0", ""),
        ("state:crash", "crash"),
        ("state:config", ""),
        ("config.state:config", "crash tuned base"),
        ("tag:old", "base"),
        ("-tag:old", "crash tuned"),
        ("tag=bes", ""),
        ("tag=best", "tuned"),
        ("name=tuned", "tuned"),
        ("lr<0.5", "crash tuned"),
        ("lr>=0.1 lr<=1", "tuned base"),
        ("lr=1", "base"),
        ("lr=1.0", "base"),
        ("model=gpt-2 amp=true", "tuned"),
        ("amp>0", ""),
        ("model>1", ""),
        ("summary.loss<2", "crash"),
        ("loss>1 failures>0", ""),
        ("failures>0", "crash"),
        ("duration>100", "crash tuned"),
        ("started>2026-01-03", "crash tuned"),
        ("started>2026-01-03T04:00", "crash"),
        ("started<2026-02", "crash tuned base"),
        ("complete:yes", "tuned base"),
        ("complete:pending", "crash"),
    ],
)
def test_a_filter_finds_runs(client: Client, text: str, runs: str) -> None:
    assert " ".join(row["run_id"] for row in read_filtered(client, RunsRequest(["run_id"]), text)) == runs


def test_the_order_and_the_limit_are_those_of_the_request(client: Client) -> None:
    request = RunsRequest(["run_id", "config.lr"], sort="config.lr", descending=False, limit=1)
    [row] = read_filtered(client, request, "-base")
    assert (row["run_id"], row["config.lr"], row["n_all"]) == ("crash", 0.01, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope<1", """no run has a column 'nope'; put words with < in quotes: "nope<1\""""),
        ("config.loss<1", "no run has a column 'config.loss'"),
        ("lr<", "lr< lacks a value; write lr<VALUE"),
        ("lr<small", "lr<small: 'small' is neither a number nor a date; write lr:small for a text"),
    ],
)
def test_a_wrong_filter_is_one_line(client: Client, text: str, message: str) -> None:
    with pytest.raises(BadRequestError) as raised:
        read_filtered(client, RunsRequest(["run_id"]), text)
    assert str(raised.value).startswith(message)


def test_texts_of_named_keys_are_searched_too() -> None:
    chosen = parse_filter("gpt config.model:2", lambda name: name)
    row = dict.fromkeys(chosen.columns) | {"config.model": "GPT-2"}
    assert chosen.matches(row) and not chosen.matches(row | {"config.model": "2"})
