"""Options of commands that query: which run a word means, and with what exit code a wrong query ends a command."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from chiplog_cli.options import (
    open_client,
    require_group,
    require_key,
    require_label,
    require_project,
    resolve_run,
    source_options,
)
from chiplog_client.client import Client, connect
from tests.support.hand_written import hand_written, kept_open
from tests.support.run_builder import RunBuilder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("recorded")
    with hand_written(root) as database:
        build = RunBuilder(database, "TIMESTAMP '2026-01-02'")
        names = {"bert-7": "first try", "gpt": "twice", "gpt-a1": "twice"}
        for number, run_id in enumerate(("gpt", "gpt-a1", "gpt-a2", "bert-7")):
            build.run(run_id, name=names.get(run_id), project="llm", run_group="sweep")
            build.ranks(run_id, started_s=number)
        build.metrics({"train/loss": 0.5}, where="run_id = 'gpt'")
    with kept_open(root):
        yield root


@pytest.fixture
def client(root: Path) -> Iterator[Client]:
    with connect(dir=root) as client:
        yield client


@click.command()
@source_options
@click.argument("query")
def ask(dir_: str | None, url: str | None, query: str) -> None:
    """Ask."""
    with open_client(dir_, url) as client:
        click.echo(client.sql(query).tuples())


@pytest.mark.parametrize(
    ("word", "run_id"), [("gpt", "gpt"), ("gpt-a1", "gpt-a1"), ("b", "bert-7"), ("first try", "bert-7")]
)
def test_an_id_the_beginning_of_one_or_a_name_is_that_run(client: Client, word: str, run_id: str) -> None:
    assert resolve_run(client, word) == run_id


def test_a_label_or_a_key_of_a_run_is_known_or_the_nearest_is_named(client: Client) -> None:
    require_label(client, "gpt", "rank0")
    require_key(client, "gpt", "train/loss")
    with pytest.raises(click.UsageError, match=r"label 'rank1' of run 'gpt' is unknown; did you mean 'rank0'"):
        require_label(client, "gpt", "rank1")
    with pytest.raises(click.UsageError, match=r"key 'loss' of run 'gpt' is unknown; did you mean 'train/loss'"):
        require_key(client, "gpt", "loss")
    with pytest.raises(click.UsageError, match=r"key 'loss' of run 'bert-7' is unknown; chiplog show bert-7 lists"):
        require_key(client, "bert-7", "loss")


def test_a_project_or_a_group_is_known_or_the_nearest_is_named(client: Client) -> None:
    require_project(client, "llm")
    require_group(client, "sweep")
    with pytest.raises(click.UsageError, match=r"project 'lm' is unknown; did you mean 'llm'"):
        require_project(client, "lm")
    with pytest.raises(click.UsageError, match=r"group 'llm' is unknown; chiplog runs shows the group of each run"):
        require_group(client, "llm")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("gpt-a", r"run 'gpt-a' is ambiguous: gpt-a1, gpt-a2; give more of the ID"),
        ("twice", r"run 'twice' is ambiguous: gpt, gpt-a1; give more of the ID"),
        ("gtp-a1", r"run 'gtp-a1' is unknown; did you mean 'gpt-a1'"),
        ("llama", r"run 'llama' is unknown; chiplog runs lists all"),
        ("%", r"run '%' is unknown"),
    ],
)
def test_a_word_for_no_run_or_several_is_bad_input(client: Client, word: str, message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        resolve_run(client, word)


def test_a_source_without_data_ends_a_command_with_1_and_a_url_that_is_none_with_2(tmp_path: Path) -> None:
    done = CliRunner().invoke(ask, ["--no-start", "--dir", str(tmp_path), "SELECT 1"])
    assert (done.exit_code, "nothing has been recorded" in done.output) == (1, True), done.output
    assert CliRunner().invoke(ask, ["--url", "http://host:80", "SELECT 1"]).exit_code == 2
