"""The command line as a whole: help, bad input, plugins, and a reader that stops reading."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog_cli.root import COMMANDS
from tests.support.command_line import CLI, ON_ONE_WORKER, environment, one_line
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

pytestmark = ON_ONE_WORKER


def test_help_lists_the_commands_in_sections_and_without_arguments_too(chiplog):
    code, text, errors = chiplog("--help")
    assert (code, errors) == (0, "")
    assert chiplog() == (code, text, errors)
    section = text.split("Look at runs:")[1].split("\n\n")[0]
    assert [line.split()[0] for line in section.strip().splitlines()] == [
        "runs",
        "show",
        "top",
        "ui",
        "plot",
        "compare",
        "ranks",
        "failures",
        "events",
        "system",
        "media",
        "logs",
        "artifacts",
        "sql",
    ]


def test_help_imports_no_command_and_nothing_heavy(recorded):
    code = (
        "import sys; from chiplog_cli import main; assert main(['--help']) == 0; "
        "print([m for m in ('duckdb', 'numpy', 'arro3', 'rich', 'chiplog_client.client') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(recorded), check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def in_the_command(root: Path, code: str) -> str:
    """Run code in a process that is the command `chiplog`, as its script begins."""
    begin = f"import sys; sys.argv = ['/usr/bin/chiplog', '--help']; {code}"
    done = subprocess.run([sys.executable, "-c", begin], capture_output=True, text=True, env=environment(root))
    assert done.returncode == 0, done.stderr
    return done.stdout


@proves("command-loads-no-sdk", "the command line loads nothing that only a training needs", value="False")
def test_the_command_does_not_load_what_records(recorded):
    code = (
        "from chiplog_cli import main; assert main() == 0; "
        "print([m for m in ('zmq', 'msgpack', 'difflib', 'chiplog.recording.api.functions') if m in sys.modules])"
    )
    assert in_the_command(recorded, code).splitlines()[-1] == "[]"


def test_the_names_of_the_package_are_the_same_in_the_command(recorded):
    names = (
        "import chiplog; print({name: type(getattr(chiplog, name)) for name in chiplog.__all__}, type(chiplog), "
        "hasattr(chiplog, 'no_such_name'), chiplog.run)"
    )
    in_a_script = subprocess.run(
        [sys.executable, "-c", names], capture_output=True, text=True, env=environment(recorded), check=True
    )
    assert in_the_command(recorded, names) == in_a_script.stdout != ""


def test_every_short_help_in_the_list_fits_eighty_columns_and_names_are_unique():
    assert all(len(command.help) <= 62 and command.help.endswith(".") for command in COMMANDS)
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)


@pytest.mark.parametrize("command", ["runs", "show", "logs", "sql"])
def test_every_command_has_help(chiplog, command):
    code, text, errors = chiplog(command, "--help")
    assert (code, errors) == (0, "")
    assert text.startswith(f"Usage: chiplog {command}")


def test_version_is_printed(chiplog):
    code, text, _ = chiplog("--version", PYTHONUNBUFFERED="1")  # in a separate interpreter
    assert (code, text.split()[0]) == (0, "chiplog")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["rnus"], "command 'rnus' is unknown; did you mean 'runs' or 'ranks'?"),
        (["zzz"], "command 'zzz' is unknown; chiplog --help lists all"),
        (["--nope"], "--nope"),
        (["runs", "--nope"], "--nope"),
        (["show", "gpt"], "run 'gpt' is ambiguous: gpt-20260102-7f3a91, gpt-20260103-11aa22; give more of the ID"),
        (["show", "nope"], "run 'nope' is unknown; chiplog runs lists all"),
        (["logs", "vit", "--label", "x"], "label 'x' of run 'vit-20260104-0042' is unknown; it has rank0, rank1"),
        (["logs", "vit", "--label", "rnak1"], "of run 'vit-20260104-0042' is unknown; did you mean 'rank1'"),
        (["logs", "gtp-20260102"], "run 'gtp-20260102' is unknown; did you mean 'gpt-20260102-7f3a91'"),
        (["logs", "vit", "--stream", "x"], "'x'"),
        (["top", "vit-20260104-0043"], "run 'vit-20260104-0043' is unknown; did you mean 'vit-20260104-0042'?"),
        (["top", "--interval", "0"], "0"),
        (["sql", "selec 1"], 'Parser Error: syntax error at or near "selec" (LINE 1: selec 1)'),
        (["sql", "SELECT nope FROM runs"], 'Binder Error: Referenced column "nope"'),
        (["sql", "DELETE FROM base.runs"], "DELETE statement is refused"),
        (["sql", "SELECT 1; SELECT 2"], "2 statements"),
        (["sql", ""], "query is empty"),
        (["sql", "SELECT 1", "--format", "xml"], "'xml'"),
        (["sql", "SELECT 1", "--format", "parquet"], "needs a file; add -o FILE.parquet"),
        (["sql", "SELECT 1", "--param", "x"], "'x' is not NAME=VALUE"),
        (["sql", "SELECT 1", "-o", "/nope/x.csv"], "'/nope/x.csv' cannot be written"),
        (["sql", "SELECT 1", "--timeout", "99"], "99"),
        (["sql", "SELECT 1", "--saved", "failed"], "--saved failed and a query exclude each other"),
    ],
)
def test_bad_input_is_one_line_that_names_it_and_exit_code_two(chiplog, arguments, part):
    code, text, errors = chiplog(*arguments)
    assert (code, text) == (2, "")
    assert part in one_line(errors)


def test_nothing_recorded_is_a_failure_that_says_what_to_do(chiplog, tmp_path):
    for arguments in (["runs"], ["show"], ["logs", "x"], ["sql", "SELECT 1"]):
        code, text, errors = chiplog(*arguments, root=tmp_path / "empty")
        assert (code, text) == (1, "")
        assert f"nothing has been recorded under {tmp_path}/empty yet; run a training" in one_line(errors)


def test_a_reader_that_stops_reading_is_no_failure(recorded):
    process = subprocess.Popen(
        [*CLI, "sql", "SELECT range FROM range(500000)", "--format", "csv"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(recorded),
    )
    assert process.stdout and process.stderr
    assert process.stdout.readline() == b"range\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(WAIT_S) == 0


def test_a_plugin_is_found_and_a_broken_one_costs_one_line(chiplog, tmp_path):
    package = tmp_path / "site"
    (package / "extra-1.0.dist-info").mkdir(parents=True)
    (package / "extra-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    (package / "extra-1.0.dist-info" / "entry_points.txt").write_text(
        "[chiplog.commands]\nhello = extra:hello\nbroken = extra_broken:command\nstrange = extra:strange\n"
    )
    (package / "extra.py").write_text(
        "import click\n@click.command()\ndef hello():\n    'Say hello.'\n    print('hello')\nstrange = 5\n"
    )
    (package / "extra_broken.py").write_text("raise RuntimeError('two\\nlines')\n")
    path = f"{package}:{os.environ.get('PYTHONPATH', '')}"
    code, text, errors = chiplog("--help", PYTHONPATH=path)
    assert (code, errors) == (0, "")
    assert "Say hello." in text and "broken" in text and "cannot be loaded" in text
    assert chiplog("hello", PYTHONPATH=path) == (0, "hello\n", "")
    code, _, errors = chiplog("broken", PYTHONPATH=path)
    assert (code, one_line(errors)) == (
        1,
        "chiplog: command 'broken' of extra cannot be loaded: RuntimeError: two lines; reinstall that package",
    )
    assert chiplog("strange", PYTHONPATH=path)[0] == 1
    assert chiplog("runs", "--format", "json", PYTHONPATH=path)[0] == 0


def test_commands_have_no_colours_in_a_pipe(chiplog):
    for arguments in (["runs"], ["show", "vit"], ["logs", "gpt-20260102"]):
        assert "\x1b" not in chiplog(*arguments)[1]
