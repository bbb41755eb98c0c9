"""The prompt of `chiplog sql`, on a terminal: lines, completion, history, cut results, and Ctrl-C."""

import shutil
import signal
import stat
import time

import pytest

from chiplog_cli.prompt.sql_prompt import HISTORY_BYTES_MAX, HISTORY_NAME, _ends_input, _Loop
from tests.support.command_line import ON_ONE_WORKER
from tests.support.safeguard import proves
from tests.support.terminal import Terminal

pytestmark = ON_ONE_WORKER
READY = "chiplog>"
AGAIN = r"[^$]*1 row, [^$]*chiplog>"  # a key is for the prompt from then on


@pytest.fixture
def root(recorded, tmp_path, monkeypatch):
    """Return a copy of the recorded directory: each prompt has its own history."""
    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")  # nothing answers where the cursor is
    monkeypatch.setenv("PAGER", "cat")
    return shutil.copytree(recorded, tmp_path / "own")


def test_a_query_has_several_lines_and_ends_with_a_semicolon_or_an_empty_line(root):
    with Terminal(root, "sql") as terminal:
        terminal.wait_for(READY)
        terminal.type("SELECT 40 +\r2 AS answer,\r';' AS x;\r")
        terminal.wait_for(r"42 +;\s[^$]*1 row, ")
        terminal.type("SELECT 'more' AS x\r\r")
        terminal.wait_for(r"more\s[^$]*1 row, ")
        terminal.type("selec;\r")
        terminal.wait_for('syntax error at or near "selec"')
        terminal.type(r"\d metrcs" + "\r")
        terminal.wait_for(r"view 'metrcs' is unknown; did you mean 'metrics'[^$]*chiplog>")
        terminal.type("\x03exit\r")
        assert terminal.end() == 0
        assert terminal.modes_are_restored()


@proves("help-is-no-query", "the word help in the prompt is no query", condition=False)
@pytest.mark.parametrize("typed", ["help", "HELP;", "?", r"\?"])
def test_help_is_a_word_and_a_command(typed, capsys):
    def ask(query):
        raise AssertionError(f"sent as a query: {query}")

    assert _ends_input(typed)
    _Loop(None, ask, None).answer(typed)
    assert "list the views, with the number of their columns" in capsys.readouterr().err


def test_tab_completes_views_columns_runs_and_keys(root):
    with Terminal(root, "sql") as terminal:
        terminal.wait_for(READY)
        for typed, added in (
            ("SELECT count(*) AS n_of_it FROM metrics WHERE run_i\t", "d"),
            (" = 'gpt-20260102\t", "7f3a91'"),
            (" AND key = 'tr\t", "loss'"),
        ):
            terminal.type(typed)
            terminal.wait_for(added)
            time.sleep(1)  # on a busy machine the menu shows it before it is inserted, and a key would cancel that
        terminal.type(";\r")
        terminal.wait_for(rf"n_of_it\s+─+\s+400\s{AGAIN}")
        terminal.type("\x04")
        assert terminal.end() == 0


@proves("cut-rows-counted", "rows that the prompt does not show are counted", condition=False)
@pytest.mark.full
def test_a_result_is_cut_at_a_limit_that_is_named_and_can_be_changed(root):
    with Terminal(root, "sql") as terminal:
        terminal.wait_for(READY)
        terminal.type("SELECT range AS n FROM range(1500);\r")
        terminal.wait_for(r"\s999\s+1,000 of 1,500 rows, [\d,]+ ms; \\limit 0 shows all")
        terminal.type("\\limit 2\rSELECT range AS n FROM range(3);\r")
        terminal.wait_for(r"\s1\s+2 of 3 rows, ")
        terminal.type("\\limit 0\rSELECT range AS n FROM range(10002);\r")
        terminal.wait_for(r"\s10001\s+10,002 rows, ")
        terminal.type("\\limit many\r")
        terminal.wait_for("'many' is not a number")


@proves("interrupt-ends-query-only", "Ctrl-C ends the query and not the prompt", new="raise")
def test_an_interrupt_ends_the_query_that_runs_and_not_the_prompt(root):
    with Terminal(root, "sql") as terminal:
        terminal.wait_for(READY)
        terminal.type("SELECT sum(a.range * b.range) FROM range(3000000) a, range(3000000) b;\r")
        terminal.wait_for("3000000. b;")
        time.sleep(1)  # the query runs, or begins to run
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("cancelled")
        terminal.type("SELECT 40 + 2 AS answer;\r")
        terminal.wait_for(r"answer\s+─+\s+42\s")
        terminal.type("SELECT half\x03")
        terminal.type("SELECT 'after' || 'wards' AS x;\r")
        terminal.wait_for("afterwards")


def test_the_history_is_private_kept_and_bounded(root):
    path = root / HISTORY_NAME
    with Terminal(root, "sql") as terminal:
        terminal.wait_for(READY)
        terminal.type("SELECT 'se' || 'cret' AS x;\r")
        terminal.wait_for(f"secret{AGAIN}")
        terminal.type("\x04")
        assert terminal.end() == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"\n# 2026-01-02 00:00:00\n+SELECT 'old';\n" * (HISTORY_BYTES_MAX // 30) + path.read_bytes())
    with Terminal(root, "sql") as terminal:
        terminal.wait_for(READY)
        terminal.type("\x1b[A\r")
        terminal.wait_for(f"secret{AGAIN}")
        terminal.type("\x04")
        assert terminal.end() == 0
    assert path.read_bytes().startswith(b"# 2026") and path.stat().st_size <= HISTORY_BYTES_MAX


def test_the_prompt_needs_a_terminal_for_its_output(root):
    with Terminal(root, "sql", "-o", "out.csv") as terminal:
        terminal.wait_for("query is missing: the prompt needs a terminal for its output; write a query")
        assert terminal.end() == 2
