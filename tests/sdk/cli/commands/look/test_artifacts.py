"""`chiplog artifacts`: versions as a table, the newest first, by project, name and type."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chiplog_cli.commands.look.artifacts import artifacts
from tests.support.stored_artifacts import fill


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    fill(root)
    return root


def versions(root: Path, *arguments: str) -> list[tuple[str, str]]:
    done = CliRunner().invoke(artifacts, [*arguments, "--format", "json", "--dir", str(root)])
    assert done.exit_code == 0, done.output
    return [(row["name"], row["version"]) for row in json.loads(done.stdout)]


def test_all_versions_are_listed_and_the_filters_choose_among_them(root: Path) -> None:
    all_versions = [("data", "v0"), ("evil", "v0"), ("gone", "v0"), ("model", "v1"), ("model", "v0"), ("partial", "v0")]
    assert (
        versions(root) == versions(root, "--type", "model") == versions(root, "--project", "team/gpt") == all_versions
    )
    assert versions(root, "model") == [("model", "v1"), ("model", "v0")]


def test_a_table_has_aliases_and_runs_as_words(root: Path) -> None:
    done = CliRunner().invoke(artifacts, ["model", "--dir", str(root)])
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [row[:4] for row in rows] == [["team/gpt", "model", "v1", "latest"], ["team/gpt", "model", "v0", "best"]]
    assert {row[-1] for row in rows} == {"r1"}
    as_json = CliRunner().invoke(artifacts, ["model", "--format", "json", "--dir", str(root)])
    assert [row["aliases"] for row in json.loads(as_json.stdout)] == [["latest"], ["best"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["modl"], "name 'modl' of an artifact is unknown; did you mean 'model'?"),
        (["--project", "team"], "project 'team' of an artifact is unknown"),
        (["--type", "x"], "type 'x' of an artifact is unknown"),
    ],
)
def test_an_unknown_name_is_one_line(root: Path, arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(artifacts, [*arguments, "--dir", str(root)])
    assert done.exit_code == 2 and message in done.stderr
