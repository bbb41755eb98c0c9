"""No encoding of standard output ends a command: signs have likenesses, letters escapes, and JSON stays exact."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_cli.root import main
from chiplog_cli.tables.limited_encoding import is_unicode, likeness
from tests.support.command_line import ON_ONE_WORKER
from tests.support.hand_written import hand_written, kept_open
from tests.support.marks import everyday
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves

pytestmark = ON_ONE_WORKER
NAME = "größer → 模型 🚢 ─"
COMMANDS = [
    ["runs"],
    ["runs", "--format", "csv"],
    ["runs", "--columns", "name,state,config.model"],
    ["runs", "--sparkline", "loss"],
    ["runs", "--format", "md"],
    ["show", "r"],
    ["show", "r", "--format", "json"],
    ["plot", "r", "loss"],
    ["top", "r", "--once"],
    ["logs", "r"],
    ["compare", "r", "q"],
    ["sql", "FROM runs"],
    ["sql", "FROM console", "--format", "jsonl"],
    ["sql", "SELECT name FROM nothing -- ─"],
    ["doctor"],
    ["status", "--no-canary"],
    ["prune", "--keep-last", "0"],
    ["keys", "list"],
    ["--help"],
    ["show", "--help"],
    ["show", "größe"],
]
EVERYDAY = [command for command in COMMANDS if command[0] in ("runs", "plot", "logs", "sql", "--help")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("root")
    with hand_written(root) as database:
        build = RunBuilder(database, "TIMESTAMP '2026-01-02'")
        for run_id in ("r", "q"):
            build.run(run_id, name=NAME, project="é")
            build.label(run_id, "größe", is_primary=True, state="finished", ended_s=0)
        build.metrics({"loss": "step % 7"}, steps=99, at=0)
        build.config({"model": NAME}, seq=1)
        build.console(NAME)
    with kept_open(root):
        yield root


def output_of(monkeypatch: pytest.MonkeyPatch, root: Path, command: list[str], encoding: str) -> tuple[int, str]:
    """Run a command with a standard output of an encoding; return its code and what it wrote."""
    with monkeypatch.context() as patched:
        patched.setenv("CHIPLOG_DIR", str(root))
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="") for _ in range(2)]
        patched.setattr(sys, "stdout", streams[0])
        patched.setattr(sys, "stderr", streams[1])
        code = main(command)
        for stream in streams:
            stream.flush()
        return code, streams[0].buffer.getvalue().decode(encoding, "replace")  # type: ignore[attr-defined]


@proves("missing-character-replaced", "no encoding of standard output ends a command")
@pytest.mark.parametrize(
    ("encoding", "commands"),
    everyday(2, [("ascii", EVERYDAY), ("latin-1", COMMANDS[:1]), ("ascii", COMMANDS)]),
    ids=["ascii", "latin-1", "ascii, all commands"],
)
def test_no_command_fails_on_a_stream_without_its_characters(
    monkeypatch: pytest.MonkeyPatch, root: Path, encoding: str, commands: list[list[str]]
) -> None:
    for command in commands:
        code, _ = output_of(monkeypatch, root, command, encoding)
        assert code in (0, 1, 2), command
    _, text = output_of(monkeypatch, root, ["show", "r"], encoding)
    assert "-----" in text and "\\u6a21" in text
    assert ("größe" in text) is (encoding == "latin-1")


@proves("json-stays-exact", "JSON on a stream without a character has its escape", value="_ENCODERS[True]")
@pytest.mark.parametrize("encoding", everyday(1, ["ascii", "latin-1", "utf-8"]))
def test_json_means_the_same_in_every_encoding(monkeypatch: pytest.MonkeyPatch, root: Path, encoding: str) -> None:
    for command in (["show", "r", "--format", "json"], ["sql", "SELECT name FROM runs", "--format", "jsonl"]):
        _, text = output_of(monkeypatch, root, command, encoding)
        assert json.loads(text.splitlines()[0] if command[0] == "sql" else text)["name"] == NAME


def test_a_character_is_replaced_by_its_likeness_or_its_escape() -> None:
    assert likeness("─→…▁▂█·⠀⣿µ") == "-->..._,#. *u"
    assert likeness("é\udc80") == "\\u00e9\\udc80"
    assert json.loads(f'"{likeness("🚢")}"') == "🚢"
    assert is_unicode(io.StringIO())
    assert not is_unicode(io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
