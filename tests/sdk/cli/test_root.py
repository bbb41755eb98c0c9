"""The command line, as a real process: on pipes, and on a terminal of a given width.

Most commands are forked from one process that has done the imports. A command that depends on its start, on its
environment or on typed input is started as users start it.
"""

import csv
import fcntl
import io
import json
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import duckdb
import pytest
from arro3.io import read_ipc
from rich.cells import cell_len
from rich.console import Console

from chiplog.cli import output
from chiplog.cli.root import COMMANDS
from chiplog.cli.runs import complete_text, table_of
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.sql import tables_sql, views_sql
from chiplog_schemas.storage.journal_dir import list_journals
from tests.support.safeguard import Safeguard
from tests.support.waiting import wait_until

SAFEGUARDS = [
    Safeguard(
        "a number on a terminal is never cut",
        "number-never-cut",
        value="1, most",
        test="test_on_a_terminal_no_number_and_no_word_is_cut",
    ),
    Safeguard(
        "a literal without a zone is local where --local prints local time",
        "literal-is-local",
        condition=True,
        test="test_a_time_that_is_on_the_screen_finds_its_row",
    ),
    Safeguard(
        "columns of JSON are JSON in JSON",
        "json-columns-are-json",
        value="[]",
        test="test_columns_of_json_are_json_in_json",
    ),
    Safeguard(
        "a file name with an unknown ending is refused",
        "unknown-suffix-refused",
        condition=False,
        test="test_a_file_of_an_unknown_kind_is_refused",
    ),
    Safeguard(
        "runs that are left out are counted",
        "left-out-runs-counted",
        condition=False,
        test="test_runs_say_how_many_they_leave_out_and_how_to_see_them",
    ),
    Safeguard(
        "a run with a lost label is not complete",
        "lost-label-is-incomplete",
        value="[]",
        test="test_a_run_is_complete_only_when_no_label_runs_or_was_lost",
    ),
]
pytestmark = pytest.mark.xdist_group("cli")  # one worker: the fixture is expensive

CLI = [sys.executable, "-m", "chiplog.cli"]
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def fill(database: duckdb.DuckDBPyConnection) -> None:
    """Three runs: one finished, one crashed and incomplete, one still running."""
    database.execute(tables_sql())
    database.execute(views_sql())
    database.execute(
        "INSERT INTO base.runs (run, run_id, project, tags, primary_label, name, run_group) VALUES "
        "(1, 'gpt-20260102-7f3a91', 'gpt', ['a', 'b'], 'rank0', 'first try', 'ablation'), "
        "(2, 'gpt-20260103-11aa22', 'gpt', [], 'rank0', NULL, NULL), "
        "(3, 'vit-20260104-0042', 'vision', [], NULL, NULL, NULL)"
    )
    for run, state, code, number in ((1, "finished", 0, None), (2, "crashed", None, 9), (3, None, None, None)):
        for rank in range(4):
            producer = run * 10 + rank
            ended = None if state is None else f"2026-01-0{run + 1} 05:10:45"
            database.execute(
                "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, state, "
                "exit_code, exit_signal, reason, started_at, ended_at, produced) "
                "VALUES (?, 'rank', ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1000)",
                [
                    *(producer, run, f"rank{rank}", rank == 0, rank, f"node{rank // 2}.cluster.local", state, code),
                    *(number, "out of memory" if number else None, f"2026-01-0{run + 1} 03:04:05", ended),
                ],
            )
            database.execute(
                "INSERT INTO base.intervals VALUES (?, 0, ?, '2026-01-02 03:04:05')",
                [producer, 989 if run == 2 else 999],
            )
            if run == 2:
                database.execute("INSERT INTO base.losses VALUES (?, 990, 992, 'disk full')", [producer])
    database.execute("INSERT INTO base.names VALUES (1, 'train/loss'), (2, 'lr')")
    database.execute(
        "INSERT INTO base.metrics SELECT p.producer, n.id, s, s, TIMESTAMP '2026-01-02 03:04:05' + to_seconds(s), "
        "n.id + s / 100 FROM base.producers p, base.names n, range(100) t(s) WHERE n.id = 1 OR p.is_primary"
    )
    database.execute(
        "INSERT INTO base.config VALUES (10, 0, '2026-01-02 03:04:05', 'lr', '3e-4'), "
        "(10, 0, '2026-01-02 03:04:05', 'model', '\"gpt2\"')"
    )
    database.execute(
        "INSERT INTO base.events (producer, seq, ts, kind, level, message, body) "
        "VALUES (20, 991, '2026-01-03 05:10:45', 'exit', 'error', 'killed by SIGKILL', "
        "'{\"signal\": 9}'), (10, 1, '2026-01-02 03:04:05', 'environment', 'info', 'told', "
        '\'{"commit": "0123456789abcdef", "branch": "main", "command": ["train.py", "a b"]}\')'
    )
    database.execute(
        "INSERT INTO base.config_hashes VALUES (10, 2, '2026-01-02 03:04:05', true, '{\"lr\": \"aa\"}'), "
        "(12, 2, '2026-01-02 03:04:05', true, '{\"lr\": \"bb\"}')"
    )
    for path, size, digest in (("ckpt/last.pt", 1_234_567, "a" * 64), ("notes.txt", 12, "b" * 64)):
        row = [path, size, digest]
        database.execute("INSERT INTO base.files VALUES (10, 900, '2026-01-02 03:04:05', ?, ?, ?)", row)
    database.execute("INSERT INTO base.stored VALUES (?, 1234567, '2026-01-02 03:04:06')", ["a" * 64])
    database.execute(
        "INSERT INTO base.console SELECT 10 + r, CASE WHEN s % 3 = 0 THEN 'stderr' ELSE 'stdout' END, s, s, "
        "TIMESTAMP '2026-01-02 03:04:05' + to_milliseconds(s * 10 + r), "
        "'step ' || s || chr(27) || '[32m ok' || chr(27) || '[0m' || chr(27) || '[2J' || chr(7) FROM range(20) t(s), "
        "range(4) u(r)"
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("recorded")
    where = paths_for_root(root)
    ensure_private_dir(where.collector)
    with duckdb.connect(str(where.index)) as database:
        fill(database)
    return root


def environment(root: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CHIPLOG_")}
    return {**kept, "CHIPLOG_DIR": str(root), "TZ": "Europe/Berlin", "PYTHONWARNINGS": "error", **more}


# Imports, then forks for each request: `python -m chiplog.cli` from there on, with the streams that came along.
FORKING = """
import json, os, runpy, socket, sys
import arro3.core, arro3.io, click, duckdb, rich.console, rich.table, zmq
import chiplog.cli.logs, chiplog.cli.runs, chiplog.cli.show, chiplog.cli.sql
requests = socket.socket(fileno=int(sys.argv[1]))
assert len(os.listdir("/proc/self/task")) == 1
while True:
    data, streams, _, _ = socket.recv_fds(requests, 65536, 3)
    if not data:
        break
    child = os.fork()
    if not child:
        requests.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)
        request = json.loads(data)
        os.environ.update(request["environment"])
        sys.argv = ["chiplog", *request["arguments"]]
        runpy.run_module("chiplog.cli", run_name="__main__")
    for stream in streams:
        os.close(stream)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    requests.send(str(code).encode())
"""


@pytest.fixture(scope="module")
def forking(recorded) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(60)
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", FORKING, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment(recorded),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        yield ours
    assert process.wait(180) == 0


def fork(forking: socket.socket, arguments: tuple[str, ...], streams: list[int], **environment: str) -> None:
    """Start a command on streams, which are closed here; its exit code is what `forking` receives next."""
    request = json.dumps({"arguments": arguments, "environment": environment}).encode()
    socket.send_fds(forking, [request], streams)
    for stream in set(streams):
        os.close(stream)


def on_pipes(forking: socket.socket, root: Path, arguments: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
    (in_read, in_write), (out_read, out_write), (error_read, error_write) = os.pipe(), os.pipe(), os.pipe()
    fork(forking, arguments, [in_read, out_write, error_write], CHIPLOG_DIR=str(root))
    with ThreadPoolExecutor(2) as pool, open(out_read, encoding="utf-8") as out, open(error_read) as error:
        read = [pool.submit(stream.read) for stream in (out, error)]
        with open(in_write, "w", encoding="utf-8") as target:
            target.write(stdin)
        text, errors = [done.result() for done in read]
    return int(forking.recv(100)), text, errors


@pytest.fixture
def chiplog(recorded, forking) -> Callable[..., tuple[int, str, str]]:
    """Run a command on pipes; return code, stdout, stderr. With its own variables it gets its own interpreter."""

    def run(*arguments: str, stdin: str = "", root: Path = recorded, **more: str) -> tuple[int, str, str]:
        if more:
            env = environment(root, **more)
            done = subprocess.run([*CLI, *arguments], input=stdin, capture_output=True, text=True, env=env, timeout=180)
            code, text, errors = done.returncode, done.stdout, done.stderr
        else:
            code, text, errors = on_pipes(forking, root, arguments, stdin)
        assert "Traceback" not in errors
        return code, text, errors

    return run


@pytest.fixture
def on_terminal(recorded, forking) -> Callable[..., str]:
    """Run a command on a terminal and return its output with colours. With typed input it gets its own interpreter."""

    def run(width: int, *arguments: str, typed: str = "") -> str:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        process = None
        if typed:
            env = environment(recorded, TERM="xterm-256color")
            process = subprocess.Popen([*CLI, *arguments], stdin=slave, stdout=slave, stderr=slave, env=env)
            os.close(slave)
            os.write(master, typed.encode())
        else:
            fork(forking, arguments, [slave] * 3, CHIPLOG_DIR=str(recorded), TERM="xterm-256color")
        shown = b""
        while True:
            try:
                part = os.read(master, 65_536)
            except OSError:  # EIO: the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(master)
        assert (process.wait(180) if process else int(forking.recv(100))) == 0
        return shown.decode().replace("\r\n", "\n")

    return run


def one_line(stderr: str) -> str:
    assert stderr.endswith("\n") and stderr.count("\n") == 1, stderr
    return stderr[:-1]


# -- the group --------------------------------------------------------------------------------------------------------
def test_help_lists_the_commands_in_sections_and_without_arguments_too(chiplog):
    code, text, errors = chiplog("--help")
    assert (code, errors) == (0, "")
    assert chiplog() == (code, text, errors)
    section = text.split("Look at runs:")[1].split("\n\n")[0]
    assert [line.split()[0] for line in section.strip().splitlines()] == ["runs", "show", "logs", "sql"]


def test_help_imports_no_command_and_nothing_heavy(recorded):
    code = (
        "import sys; from chiplog.cli import main; assert main(['--help']) == 0; "
        "print([m for m in ('duckdb', 'numpy', 'arro3', 'rich', 'chiplog.query.client') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(recorded), check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


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
        (["rnus"], "command 'rnus' is unknown; did you mean 'runs'?"),
        (["zzz"], "command 'zzz' is unknown; chiplog --help lists all"),
        (["--nope"], "--nope"),
        (["runs", "--nope"], "--nope"),
        (["runs", "--limit", "x"], "'x'"),
        (["runs", "--limit", "0"], "0"),
        (["runs", "--state", "asleep"], "'asleep'"),
        (["show"], "RUN"),
        (["show", "gpt"], "run 'gpt' is ambiguous: gpt-20260102-7f3a91, gpt-20260103-11aa22; give more characters"),
        (["show", "nope"], "run 'nope' is unknown; chiplog runs lists all"),
        (["logs", "nope"], "run 'nope' is unknown"),
        (["logs", "vit", "--label", "x"], "'x' is not a label of run 'vit-20260104-0042'; it has rank0, rank1"),
        (["logs", "vit", "--stream", "x"], "'x'"),
        (["sql", "selec 1"], 'Parser Error: syntax error at or near "selec" (LINE 1: selec 1)'),
        (["sql", "SELECT nope FROM runs"], 'Binder Error: Referenced column "nope"'),
        (["sql", "DELETE FROM base.runs"], "DELETE statement is refused"),
        (["sql", "SELECT 1; SELECT 2"], "2 statements"),
        (["sql", ""], "query is empty"),
        (["sql", "SELECT 1", "--format", "xml"], "'xml'"),
        (["sql", "SELECT 1", "--format", "parquet"], "needs a file; add -o FILE.parquet"),
        (["sql", "SELECT 1", "--param", "x"], "'x' is not NAME=VALUE"),
        (["sql", "SELECT 1", "-o", "/nope/x.csv"], "'/nope/x.csv' cannot be written"),
        (["sql", "SELECT 1", "--url", "nope"], "'nope' is unknown; write tcp://HOST:PORT"),
        (["sql", "SELECT 1", "--url", "ipc:///x", "--dir", "/y"], "give one of them"),
        (["sql", "SELECT 1", "--timeout", "99"], "99"),
    ],
)
def test_bad_input_is_one_line_that_names_it_and_exit_code_two(chiplog, arguments, part):
    code, text, errors = chiplog(*arguments)
    assert (code, text) == (2, "")
    assert part in one_line(errors)


def test_nothing_recorded_is_a_failure_that_says_what_to_do(chiplog, tmp_path):
    for arguments in (["runs"], ["show", "latest"], ["logs", "x"], ["sql", "SELECT 1"]):
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
    assert process.wait(180) == 0


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


# -- sql --------------------------------------------------------------------------------------------------------------
VALUES = (
    "SELECT 1 AS a, 'ü,\"' AS b, TIMESTAMP '2026-01-02 03:04:05' AS c, 'nan'::DOUBLE AS d, '-inf'::DOUBLE AS e, "
    "NULL AS f, [TIMESTAMP '2026-01-02 03:04:05'] AS g, {'x': 'inf'::DOUBLE} AS h, true AS i, 1.5::DECIMAL(3, 1) AS j, "
    "'\\xAB'::BLOB AS k, TIMESTAMPTZ '2026-01-02 03:04:05+01' AS l"
)


def test_json_is_a_list_of_objects_with_utc_and_without_nan(chiplog):
    code, text, _ = chiplog("sql", VALUES, "--format", "json")
    assert code == 0
    (row,) = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert row == {
        "a": 1,
        "b": 'ü,"',
        "c": "2026-01-02T03:04:05Z",
        "d": None,
        "e": None,
        "f": None,
        "g": ["2026-01-02T03:04:05Z"],
        "h": {"x": None},
        "i": True,
        "j": 1.5,
        "k": "ab",
        "l": "2026-01-02T02:04:05Z",
    }
    assert json.loads(chiplog("sql", "FROM runs WHERE false", "--format", "json")[1]) == []


def test_csv_has_a_header_line_and_utc(chiplog):
    code, text, _ = chiplog("sql", VALUES, "--format", "csv")
    assert code == 0
    header, row = csv.reader(io.StringIO(text))
    assert header == list("abcdefghijkl")
    assert row[:6] == ["1", 'ü,"', "2026-01-02T03:04:05Z", "nan", "-inf", ""]
    assert row[6:] == ['["2026-01-02T03:04:05Z"]', '{"x": null}', "true", "1.5", "ab", "2026-01-02T02:04:05Z"]


def test_a_table_says_in_which_zone_its_times_are(chiplog):
    for options, zone, shown in (((), "UTC", "03:04:05"), (("--local",), "CET", "04:04:05")):
        code, text, _ = chiplog("sql", "SELECT created_at, n_labels FROM runs ORDER BY 1 LIMIT 1", *options)
        assert code == 0
        assert re.split(r"\s{2,}", text.splitlines()[0]) == [f"created_at ({zone})", "n_labels"]
        assert text.splitlines()[2].split() == ["2026-01-02", shown, "4"]


def test_times_of_summer_and_winter_each_name_their_zone(chiplog):
    query = "VALUES (TIMESTAMPTZ '2026-01-01 12:00:00+00'), (TIMESTAMPTZ '2026-07-01 12:00:00+00')"
    _, text, _ = chiplog("sql", query, "--local")
    assert [line.strip() for line in text.splitlines()[2:]] == ["2026-01-01 13:00:00 CET", "2026-07-01 14:00:00 CEST"]


# Each query has a literal as on the screen: with --local, the local time.
OF_ONE_SECOND = (
    "SELECT ts FROM metrics WHERE {of_one} AND ts = '{shown}'",
    "FROM metrics WHERE {of_one} AND ts BETWEEN '{shown}' AND TIMESTAMP '{shown}'; -- of one step\n",
    "WITH chosen AS (FROM metrics WHERE ts = '{shown}') SELECT * FROM chosen WHERE {of_one} ORDER BY ts",
    "SELECT ts FROM metrics WHERE {of_one} AND ts = $at",
    "SELECT ts FROM metrics WHERE {of_one} AND strftime(ts, '%Y-%m-%d %H:%M:%S') = '{shown}'",
    "SELECT DISTINCT ts FROM metrics WHERE {of_one} AND ts::TIMESTAMP = '{shown}'",
    "SELECT ts FROM metrics WHERE {of_one} AND ts = '2026-01-02 03:04:05Z'",
)


@pytest.mark.parametrize("query", OF_ONE_SECOND)
@pytest.mark.parametrize("options", [(), ("--local",)])
def test_a_time_that_is_on_the_screen_finds_its_row(chiplog, options, query):
    shown = "2026-01-02 04:04:05" if options else "2026-01-02 03:04:05"
    query = query.format(shown=shown, of_one="key = 'lr' AND run_id = 'gpt-20260102-7f3a91'")
    arguments = [query, *options, *(["--param", f"at={shown}"] if "$at" in query else [])]
    _, text, errors = chiplog("sql", *arguments)
    lines = text.splitlines()
    assert len(lines) == 3, errors
    assert shown in lines[2] and ("ts (CET)" if options else "ts (UTC)") in lines[0]


def test_the_local_zone_is_used_by_all_that_a_query_makes_of_times(chiplog):
    query = (
        "SELECT date_trunc('day', max(created_at)) AS day, max(created_at)::DATE AS date, max(created_at)::TIMESTAMP "
        "AS wall, count(*) FILTER (created_at > now() - INTERVAL 100 YEAR) AS n FROM runs"
    )
    (row,) = json.loads(chiplog("sql", query, "--local", "--format", "json")[1])
    assert row == {
        "day": "2026-01-04T00:00:00+01:00",
        "date": "2026-01-04",
        "wall": "2026-01-04T04:04:05",
        "n": 3,
    }
    header, first = csv.reader(io.StringIO(chiplog("sql", query, "--local", "--format", "csv")[1]))
    assert (header[0], first[0], first[2]) == ("day", "2026-01-04T00:00:00+01:00", "2026-01-04T04:04:05")
    (row,) = json.loads(chiplog("sql", query, "--format", "json")[1])
    assert (row["day"], row["wall"]) == ("2026-01-04T00:00:00Z", "2026-01-04T03:04:05Z")


@pytest.mark.parametrize(
    "query", ["DESCRIBE metrics", "SHOW TABLES", "EXPLAIN FROM runs", "SELECT 1 AS runs", "VALUES (1)"]
)
def test_what_has_no_times_is_the_same_in_every_zone(chiplog, query):
    assert chiplog("sql", query, "--local") == chiplog("sql", query)


def test_every_command_with_times_has_local(chiplog):
    assert "04:04 " in chiplog("runs", "--local")[1] and "started CET" in chiplog("runs", "--local")[1]
    assert json.loads(chiplog("runs", "--local", "--format", "json")[1])[0]["created_at"] == "2026-01-04T04:04:05+01:00"
    assert "04:04:05 CET" in chiplog("show", "gpt-20260102", "--local")[1]
    assert json.loads(chiplog("show", "gpt-20260102", "--local", "--format", "json")[1])["created_at"].endswith(
        "+01:00"
    )
    timed = chiplog("logs", "gpt-20260102", "--tail", "1", "--times", "--label", "rank3", "--local")[1]
    assert timed == "2026-01-02 04:04:05.193+01:00 step 19 ok\n"


def test_a_zone_that_the_database_does_not_know_is_named(chiplog):
    code, text, errors = chiplog("sql", "SELECT 1", "--local", TZ="XYZ-3:17")
    assert (code, text) == (2, "")
    assert "set TZ to an IANA name" in one_line(errors)


def test_a_table_in_a_pipe_is_not_wrapped(chiplog):
    code, text, _ = chiplog("sql", "SELECT repeat('word ', 200) AS a, repeat('x', 3000) AS b")
    assert code == 0
    assert len(text.splitlines()) == 3
    assert "x" * 3000 in text


def test_a_table_on_a_terminal_fits_its_width_and_loses_nothing(on_terminal):
    for width in (80, 120):
        shown = on_terminal(width, "sql", "SELECT 'a' AS a, repeat('x', 300) AS b, 12345.25 AS n")
        lines = COLOURS.sub("", shown).splitlines()
        assert max(map(len, lines)) <= width
        assert "".join(lines).count("x") == 300
        assert "12345.25" in COLOURS.sub("", shown)


def test_the_query_may_come_through_a_pipe(chiplog):
    expected = (0, "a\n1\n", "")
    assert chiplog("sql", "--format", "csv", stdin="SELECT 1 AS a\n") == expected
    assert chiplog("sql", "-", "--format", "csv", stdin="SELECT 1 AS a;\n-- done") == expected


def test_params_are_json_or_text(chiplog):
    query = "SELECT $a + 1 AS a, $b AS b, len($c) AS c"
    code, text, _ = chiplog(
        "sql", query, "--param", "a=41", "--param", "b=gpt-1=x", "--param", "$c=[1,2]", "--format", "json"
    )
    assert (code, json.loads(text)) == (0, [{"a": 42, "b": "gpt-1=x", "c": 2}])


NUMBERS = {
    "big": "123456789",
    "pid": "28376",
    "huge": "9.143876219677727e+300",
    "tiny": "-1.2345678901234567e-308",
    "sum": "170141183460469231731687303715884105727",
    "day": "2026-01-02 03:04:05.123456",
}
WIDE = (
    "SELECT 123456789 AS big, 28376 AS pid, 9.143876219677727e+300::DOUBLE AS huge, "
    "-1.2345678901234567e-308::DOUBLE AS tiny, 170141183460469231731687303715884105727::HUGEINT AS sum, "
    "TIMESTAMP '2026-01-02 03:04:05.123456' AS day, NULL AS nothing, 'grüße 你好 ' AS hello, "
    "'a-long-run-id-' || repeat('abcdef-', {n}) AS run_id, "
    "'{{\"text\": \"' || repeat('many words ', {n}) || '\"}}' AS body, [1.5, NULL, -2] AS few FROM range({rows})"
)


@pytest.mark.parametrize("width", [80, 100, 160, 300])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("n", [0, 10])
def test_on_a_terminal_no_number_and_no_word_is_cut(on_terminal, width, rows, n):
    text = COLOURS.sub("", on_terminal(width, "sql", WIDE.format(n=n, rows=rows)))
    assert max(map(cell_len, text.splitlines())) <= width
    for name, number in NUMBERS.items():
        assert len(re.findall(rf"(?<!\S){re.escape(number)}(?!\S)", text)) == rows, (name, text)
    assert text.count("words") == text.count("many") == n * rows
    assert len(re.findall(r"abcdef-(?!\w{1,5}\b)", text)) == n * rows
    assert text.count("[1.5, null, -2") == rows


@pytest.mark.parametrize("width", [80, 100, 160])
def test_all_columns_of_labels_are_on_a_terminal_of_any_width(on_terminal, width):
    text = COLOURS.sub("", on_terminal(width, "sql", "SELECT * FROM labels WHERE run_id = 'gpt-20260103-11aa22'"))
    assert max(map(len, text.splitlines())) <= width
    for part in ("rank3", "crashed", "node1.cluster.local", "2026-01-03 03:04:05", "out of memory"):
        assert part in text


def test_a_histogram_is_one_line_on_a_terminal_and_whole_in_a_pipe(on_terminal, chiplog):
    query = (
        "SELECT 7 AS step, list(b / 8 ORDER BY b) AS edges, list((b * (64 - b))::DOUBLE ORDER BY b) AS counts "
        "FROM range(65) t(b)"
    )
    for width in (80, 100, 160):
        lines = COLOURS.sub("", on_terminal(width, "sql", query)).splitlines()
        (shown,) = [line for line in lines if "8.0" in line]
        assert re.search(r"0\.0 … 8\.0 \(65 numbers\)", shown)
        (shown,) = [line for line in lines if "█" in line]
        assert re.search(r"[▁▂▃▄▅▆▇█]{22} 65 counts, sum 43680", shown)
    for options in ((), ("--format", "csv")):
        assert "[0.0, 0.125, 0.25," in chiplog("sql", query, *options)[1]


def test_columns_of_json_are_json_in_json(chiplog):
    def ask(query: str, *more: str) -> list[dict]:
        return json.loads(chiplog("sql", query, "--format", "json", *more)[1])

    assert ask("SELECT key, value FROM config ORDER BY key") == [
        {"key": "lr", "value": 3e-4},
        {"key": "model", "value": "gpt2"},
    ]
    assert ask("SELECT body FROM events WHERE kind = 'exit'") == [{"body": {"signal": 9}}]
    assert ask("SELECT body, body FROM events WHERE kind = $k", "--param", "k=exit") == [
        {"body": {"signal": 9}, "body_1": {"signal": 9}}
    ]
    assert ask("SELECT body->>'signal' AS text, list(body) AS bodies FROM events WHERE kind = 'exit' GROUP BY 1") == [
        {"text": "9", "bodies": [{"signal": 9}]}
    ]
    assert ask("SELECT tags FROM runs WHERE run_id = 'gpt-20260102-7f3a91'") == [{"tags": ["a", "b"]}]
    assert ask("SELECT '{\"no\": 1}' AS text") == [{"text": '{"no": 1}'}]
    assert ask("SELECT 'not json'::VARCHAR AS a, NULL::JSON AS b") == [{"a": "not json", "b": None}]
    assert ask("EXPLAIN SELECT 1")
    assert ask("SELECT body FROM events WHERE kind = 'exit'", "--local") == [{"body": {"signal": 9}}]


@pytest.mark.parametrize("suffix", ["feather", "arrow"])
def test_a_feather_file_is_arrow(chiplog, tmp_path, suffix):
    target = tmp_path / f"out.{suffix}"
    assert chiplog("sql", "SELECT key, step, ts, value FROM metrics ORDER BY ALL", "-o", str(target)) == (0, "", "")
    assert target.read_bytes().startswith(b"ARROW1") and target.read_bytes().endswith(b"ARROW1")
    table = read_ipc(str(target)).read_all()
    assert (table.num_rows, table.column_names) == (1500, ["key", "step", "ts", "value"])


def test_a_file_of_an_unknown_kind_is_refused(chiplog, tmp_path):
    target = tmp_path / "out.xlsx"
    code, text, errors = chiplog("sql", "FROM runs", "-o", str(target))
    assert (code, text, target.exists()) == (2, "", False)
    assert ".xlsx is not a known format; use one of .csv, .json, .parquet, .arrow, .txt, .feather" in one_line(errors)
    assert chiplog("sql", "FROM runs", "-o", str(target), "--format", "csv")[0] == 0


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet", "txt"])
def test_a_file_gets_the_form_of_its_suffix_and_appears_complete(chiplog, tmp_path, suffix):
    target = tmp_path / f"out.{suffix}"
    query = "FROM metrics ORDER BY label, key, step" + (" LIMIT 20" if suffix == "txt" else "")
    assert chiplog("sql", query, "-o", str(target)) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    if suffix == "txt":
        assert target.read_text().startswith("run_id")
        return
    with duckdb.connect() as reader:
        reader.execute("SET TimeZone = 'UTC'")
        count, first = reader.execute(f"SELECT count(*), min(ts)::TIMESTAMP FROM '{target}'").fetchone()
    assert (count, first) == (1500, datetime(2026, 1, 2, 3, 4, 5))


def test_a_query_that_fails_leaves_the_old_file(chiplog, tmp_path):
    target = tmp_path / "out.csv"
    target.write_text("old")
    assert chiplog("sql", "SELECT nope", "-o", str(target))[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    assert target.read_text() == "old"


def test_the_prompt_answers_line_by_line_and_survives_errors(on_terminal):
    shown = on_terminal(80, "sql", typed="SELECT 40 +\n2 AS answer;\nselec;\nSELECT 'more' AS x\n\nexit\n")
    assert "42" in shown and "more" in shown
    assert 'Parser Error: syntax error at or near "selec"' in shown


# -- status -----------------------------------------------------------------------------------------------------------
RANK = """
import chiplog, sys
run = chiplog.init(run_id="r", agent="ipc:///nonexistent/agent.sock", capture_console=True)
print("begun", flush=True)
sys.stdin.readline()
"""


def test_status_counts_ranks_and_not_the_helpers_of_their_consoles(chiplog, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", RANK], env=environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    journals = paths_for_root(tmp_path).journals
    wait_until(lambda: len(list_journals(journals)) == 2, "a journal of the rank and one of its console's helper")
    facts = json.loads(chiplog("status", "--no-canary", "--format", "json", root=tmp_path)[1])
    assert (facts["ranks_logging"], facts["journals_waiting"]) == (1, 0)
    process.kill()
    process.communicate(timeout=180)


# -- runs -------------------------------------------------------------------------------------------------------------
def test_runs_lists_the_newest_first_with_what_is_missing(chiplog):
    code, text, _ = chiplog("runs", "--format", "json")
    assert code == 0
    rows = json.loads(text)
    assert [row["run_id"] for row in rows] == ["vit-20260104-0042", "gpt-20260103-11aa22", "gpt-20260102-7f3a91"]
    crashed = rows[1]
    assert {name: crashed[name] for name in ("state", "labels", "attempts", "complete", "pending", "lost")} == {
        "state": "crashed",
        "labels": 4,
        "attempts": 1,
        "complete": False,
        "pending": 28,
        "lost": 12,
    }
    assert (crashed["created_at"], crashed["duration_s"]) == ("2026-01-03T03:04:05Z", 7600.0)
    assert rows[0]["state"] == "running" and rows[0]["ended_at"] is None and rows[0]["duration_s"] > 0
    assert [row["complete"] for row in rows] == [False, False, True]


def test_a_run_is_complete_only_when_every_label_has_ended(chiplog):
    """What a running or stopped rank has logged and not sent is unknown."""
    lines = {line.split()[0]: line.rstrip() for line in chiplog("runs")[1].splitlines() if line}
    assert lines["vit-20260104-0042"].endswith("so far")
    assert lines["gpt-20260102-7f3a91"].endswith("yes")
    assert "so far" in chiplog("show", "vit-20260104-0042")[1]
    assert "so far" not in chiplog("show", "gpt-20260102-7f3a91")[1]


def test_runs_can_be_narrowed(chiplog):
    def ids(*arguments: str) -> list[str]:
        return [row["run_id"] for row in json.loads(chiplog("runs", "--format", "json", *arguments)[1])]

    assert ids("--project", "vision") == ["vit-20260104-0042"]
    assert ids("--state", "crashed") == ["gpt-20260103-11aa22"]
    assert chiplog("runs", "--project", "none") == (0, "", "no runs match\n")


def test_runs_say_how_many_they_leave_out_and_how_to_see_them(chiplog):
    code, text, errors = chiplog("runs", "--limit", "1")
    assert (code, errors) == (0, "1 of 3 runs; --all or --limit N shows more\n")
    assert "vit-20260104-0042" in text and "gpt" not in text
    assert chiplog("runs", "--limit", "1", "--format", "json")[2] == errors
    assert chiplog("runs", "--limit", "1", "--project", "gpt")[2] == "1 of 2 runs; --all or --limit N shows more\n"
    for options in (["--all"], ["--limit", "3"], []):
        assert chiplog("runs", *options)[2] == ""
    assert "exclude each other" in chiplog("runs", "--all", "--limit", "3")[2]


def test_runs_show_name_group_and_tags(chiplog):
    lines = [re.split(r"\s{2,}", line.rstrip()) for line in chiplog("runs")[1].splitlines()]
    assert lines[0][:6] == ["run", "project", "name", "group", "tags", "state"]
    assert lines[4][:6] == ["gpt-20260102-7f3a91", "gpt", "first try", "ablation", "a, b", "finished"]
    row = json.loads(chiplog("runs", "--format", "json")[1])[2]
    assert (row["name"], row["run_group"], row["tags"]) == ("first try", "ablation", ["a", "b"])


@pytest.mark.parametrize("width", [80, 120])
def test_runs_fit_a_terminal_with_whole_run_ids(on_terminal, width):
    text = COLOURS.sub("", on_terminal(width, "runs"))
    assert max(map(len, text.splitlines())) <= width
    for part in ("gpt-20260103-11aa22", "crashed", "03:04", "UTC", "pending", "12 lost"):
        assert part in text


@pytest.mark.parametrize(
    ("pending", "lost", "is_over", "text"),
    [
        (0, 0, True, "yes"),
        (0, 0, False, "so far"),
        (None, 0, True, "unknown"),
        (None, 3, False, "unknown, 3 lost"),
        (2, 3, True, "2 pending, 3 lost"),
    ],
)
def test_a_run_is_complete_only_when_no_label_runs_or_was_lost(pending, lost, is_over, text):
    assert complete_text(pending, lost, is_over) == text


@pytest.mark.parametrize("width", [80, 100])
def test_one_long_run_id_leaves_the_state_of_all_runs_in_sight(width):
    moment = datetime(2026, 1, 3, 3, 4, 5)
    named = {"project": "gpt", "state": "crashed", "labels": 1024, "attempts": 2, "created_at": moment}
    rest = {"duration_s": 7600.0, "pending": 0, "lost": 0, "is_over": True, "name": None, "run_group": None, "tags": []}
    ids = ["gpt-20260103-11aa22", ("a-long-name-of-a-sweep-" * 6)[:128]]
    rows = [{"run_id": run_id, **named, **rest} for run_id in ids]
    target = io.StringIO()
    Console(file=target, width=width, color_system=None).print(table_of(rows))
    lines = [line.rstrip() for line in target.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert sum("crashed" in line and "01-03 03:04" in line for line in lines) == 2
    assert ids[0] in target.getvalue()
    first = next(number for number, line in enumerate(lines) if line.startswith("a-long"))
    assert "".join(line.split()[0] for line in lines[first:] if line and line[0] != "+") == ids[1]
    target = io.StringIO()
    Console(file=target, width=1_000, color_system=None).print(table_of(rows))
    assert ids[1] in target.getvalue()


def test_runs_have_no_colours_in_a_pipe(chiplog):
    for arguments in (["runs"], ["show", "vit"], ["logs", "gpt-20260102"]):
        assert "\x1b" not in chiplog(*arguments)[1]


# -- show -------------------------------------------------------------------------------------------------------------
def test_show_has_everything_about_a_run(chiplog):
    code, text, _ = chiplog("show", "gpt-20260102", "--format", "json")
    assert code == 0
    found = json.loads(text)
    assert found["run_id"] == "gpt-20260102-7f3a91"
    assert found["completeness"] == {"produced": 4000, "stored": 4000, "lost": 0, "pending": 0}
    assert found["config"] == {"lr": 3e-4, "model": "gpt2"}
    assert [label["label"] for label in found["labels"]] == ["rank0", "rank1", "rank2", "rank3"]
    assert found["keys"] == [
        {
            "key": "lr",
            "points": 100,
            "labels": 1,
            "last_step": 99,
            "lowest": 2.99,
            "highest": 2.99,
            "last_values": {"rank0": 2.99},
            "summary": 2.99,
        },
        {
            "key": "train/loss",
            "points": 400,
            "labels": 4,
            "last_step": 99,
            "lowest": 1.99,
            "highest": 1.99,
            "last_values": {f"rank{rank}": 1.99 for rank in range(4)},
            "summary": 1.99,
        },
    ]


def test_show_says_how_labels_ended(chiplog):
    code, text, _ = chiplog("show", "gpt-20260103-11aa22")
    assert code == 0
    for part in ("rank0 *", "SIGKILL out of memory", "7 pending, 3 lost", "killed by SIGKILL", "03:04:05 UTC"):
        assert part in text
    assert "4000 produced = 3960 stored + 12 lost + 28 pending" in text


def test_show_lists_files_and_whether_they_have_arrived(chiplog):
    files = json.loads(chiplog("show", "gpt-20260102", "--format", "json")[1])["files"]
    assert [(file["path"], file["bytes"], file["stored"]) for file in files] == [
        ("ckpt/last.pt", 1_234_567, True),
        ("notes.txt", 12, False),
    ]
    text = chiplog("show", "gpt-20260102")[1]
    assert re.search(r"ckpt/last.pt +1,234,567 +aaaaaaaaaaaaaaaa +yes", text)
    assert re.search(r"notes.txt +12 +bbbbbbbbbbbbbbbb +not yet", text)


def test_show_says_where_a_run_ran_and_whose_config_differs(chiplog):
    shown = " ".join(chiplog("show", "gpt-20260102")[1].split())
    assert "commit 0123456789abcdef on main" in shown
    assert "command train.py 'a b'" in shown
    assert "config drift rank2: lr" in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((123456789.0, "123456789"), (1.0, "1"), (-3, "-3"), (1 / 3, "0.333333")),
        *((9.143876219677727e300, "9.14388e+300"), (1.5e-308, "1.5e-308")),
        *((float("nan"), "nan"), (float("-inf"), "-inf")),
    ],
)
def test_whole_numbers_are_shown_in_full(value, text):
    assert output.number_text(value) == text


def test_show_takes_the_latest_run(chiplog):
    assert json.loads(chiplog("show", "latest", "--format", "json")[1])["run_id"] == "vit-20260104-0042"


@pytest.mark.parametrize("width", [80, 120])
def test_show_fits_a_terminal(on_terminal, width):
    text = COLOURS.sub("", on_terminal(width, "show", "gpt-20260103"))
    assert max(map(len, text.splitlines())) <= width
    assert "train/loss" in text


# -- logs -------------------------------------------------------------------------------------------------------------
def test_logs_are_in_the_order_of_time_with_labels_and_without_control_characters(chiplog):
    code, text, _ = chiplog("logs", "gpt-20260102")
    assert code == 0
    assert text.splitlines() == [f"rank{rank} | step {step} ok" for step in range(20) for rank in range(4)]


def test_logs_can_be_narrowed(chiplog):
    assert chiplog("logs", "gpt-20260102", "--label", "rank1", "--tail", "2")[1] == "step 18 ok\nstep 19 ok\n"
    lines = chiplog("logs", "gpt-20260102", "--stream", "stderr", "--label", "rank0")[1].splitlines()
    assert lines == [f"step {step} ok" for step in range(0, 20, 3)]
    assert chiplog("logs", "gpt-20260102", "--tail", "0") == (0, "", "")
    timed = chiplog("logs", "gpt-20260102", "--tail", "1", "--times", "--label", "rank3")[1]
    assert timed == "2026-01-02 03:04:05.193Z step 19 ok\n"


def test_logs_on_a_terminal_keep_colours_and_nothing_else(on_terminal):
    shown = on_terminal(80, "logs", "gpt-20260102", "--tail", "1")
    assert "\x1b[32m ok" in shown
    assert "\x1b[2J" not in shown and "\x07" not in shown


def test_following_a_run_that_has_ended_ends(chiplog):
    code, text, _ = chiplog("logs", "gpt-20260102", "--follow", "--tail", "1")
    assert (code, text) == (0, "rank3 | step 19 ok\n")


COLLECTOR = """
import sys, duckdb
from pathlib import Path
from chiplog_collector.query.service import QueryService, lock_down
from chiplog_schemas.process.file_lock import Lock
from chiplog_schemas.storage.journal_dir import list_journals
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
where = paths_for_root(Path(sys.argv[1]))
ensure_private_dir(where.run)
lock = Lock(where.collector / "lock")
connection = duckdb.connect(str(where.index))
lock_down(connection)
service = QueryService(connection, where.query_address)
service.start()
print("ready", flush=True)
for line in sys.stdin:
    connection.execute(line)
    print("done", flush=True)
service.close()
"""


def test_following_prints_what_comes_whatever_its_clock_says_until_the_run_ends(tmp_path):
    where = paths_for_root(tmp_path)
    ensure_private_dir(where.collector)
    with duckdb.connect(str(where.index)) as database:
        fill(database)
    collector = subprocess.Popen(
        [sys.executable, "-c", COLLECTOR, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert collector.stdin and collector.stdout
    assert collector.stdout.readline() == "ready\n"

    def write(statement: str) -> None:
        collector.stdin.write(statement + "\n")
        collector.stdin.flush()
        assert collector.stdout.readline() == "done\n"

    write("INSERT INTO base.console VALUES (30, 'stdout', 0, 0, TIMESTAMP '2026-01-04 04:00:00', 'first')")
    follower = subprocess.Popen(
        [*CLI, "logs", "vit", "--follow"], stdout=subprocess.PIPE, text=True, env=environment(tmp_path)
    )
    assert follower.stdout
    assert follower.stdout.readline() == "rank0 | first\n"
    write("INSERT INTO base.console VALUES (31, 'stdout', 0, 5, TIMESTAMP '1970-01-01 00:00:00', 'clock is wrong')")
    assert follower.stdout.readline() == "rank1 | clock is wrong\n"
    write("INSERT INTO base.console VALUES (30, 'stdout', 1, 1, TIMESTAMP '2026-01-04 04:00:01', 'second')")
    assert follower.stdout.readline() == "rank0 | second\n"
    write("UPDATE base.producers SET state = 'finished', ended_at = TIMESTAMP '2026-01-04 05:00:00' WHERE run = 3")
    assert follower.stdout.read() == ""
    assert follower.wait(180) == 0
    follower.stdout.close()
    collector.stdin.close()
    assert collector.wait(180) == 0
    collector.stdout.close()


# -- values -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seconds", "text"), [(4.24, "4.2s"), (185, "3m05s"), (7620, "2h07m"), (273_600, "3d04h"), (0, "0.0s")]
)
def test_durations_are_short(seconds, text):
    assert output.duration_text(seconds) == text


def test_text_of_others_cannot_steer_the_terminal():
    assert output.printable("a\x1b[2Jb\nc\td") == "a\\x1b[2Jb⏎c  d"
    assert output.console_text("a\x1b]0;title\x07b\x1b[31mc\x1b[Hd\x08", True) == "ab\x1b[31mcd\x1b[0m"
    assert output.console_text("a\x1b[31mc\x1b[H", False) == "ac"


def test_at_eighty_columns_runs_lose_their_tags_before_their_project():
    moment = datetime(2026, 1, 3, 3, 4, 5)
    row = {"run_id": "gpt-20260103-11aa22", "project": "transformers", "name": "first try", "run_group": "ablation"}
    row |= {
        "state": "finished",
        "labels": 8,
        "attempts": 1,
        "created_at": moment,
        "duration_s": 7600.0,
        "tags": ["a", "b"],
    }
    target = io.StringIO()
    Console(file=target, width=80, color_system=None).print(
        table_of([row | {"pending": 0, "lost": 0, "is_over": True}])
    )
    text = target.getvalue()
    assert text.split()[:2] == ["run", "project"]
    assert "transformers" in text
    assert "tags" in text.splitlines()[-1], "among those that a wider terminal shows"
