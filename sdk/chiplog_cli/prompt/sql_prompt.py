"""The prompt of `chiplog sql`: several lines, history, completion, a pager, and Ctrl-C for the query that runs."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.shortcuts import CompleteStyle
from pygments.lexers.sql import SqlLexer

from chiplog_cli.prompt.pager import show_text
from chiplog_cli.prompt.sql_words import Catalog, is_complete, suggestions
from chiplog_client.client import Client, NoDataError, QueryError, Result
from chiplog_client.nearest_names import nearest

PROMPT, PROMPT_MORE = "chiplog> ", "      …> "
ROWS_SHOWN = 1_000  # of a result, unless \limit sets another number: some screens in a pager
HISTORY_NAME = "sql_history"
HISTORY_BYTES_MAX = 1 << 20  # the file is halved at the start beyond this
NAMES_MAX = 2_000  # runs, and keys, that completion knows: the newest runs; more are found by what SQL returns
NAMES_TIMEOUT_S = 2.0  # for each query of completion
NAMES_FRESH_S = 30.0  # a training logs new keys, and new runs begin
_EXIT = ("exit", "quit", r"\q")
_HELP = ("help", "?")  # as typed; \?, \h and \help are commands
HELP = r"""One SELECT, ended by ; or an empty line. Tab completes, Ctrl-R searches the history, Ctrl-C cancels a query.
\d         list the views, with the number of their columns
\d VIEW    list the columns of a view
\limit N   show at most N rows of a result; 0: all
\?         this help; also help
\q         leave; also exit, quit and Ctrl-D"""


Answer = tuple[Result, list[str]]  # with the columns of JSON
Ask = Callable[[str], Answer]
Show = Callable[[Answer, int | None], str]


def run_prompt(client: Client, ask: Ask, show: Show, directory: Path) -> None:
    """Read and answer queries until the end of input.

    Args:
        client: For the names that completion offers.
        ask: Runs a query.
        show: Returns a result as text, with at most so many rows; None: all.
        directory: Where the history is kept.
    """
    names = _Names(client)
    session: PromptSession[str] = PromptSession(
        history=_history(directory),
        completer=ThreadedCompleter(_NameCompleter(names)),
        complete_style=CompleteStyle.MULTI_COLUMN,
        complete_while_typing=False,
        lexer=PygmentsLexer(SqlLexer),
        multiline=True,
        prompt_continuation=PROMPT_MORE,
        key_bindings=_bindings(),
    )
    click.echo(r"One SELECT, ended by ; or an empty line. help shows more, Ctrl-D exits.", err=True)
    loop = _Loop(names, ask, show)
    while True:
        try:
            text = session.prompt(PROMPT).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            continue
        if text.rstrip("; ").lower() in _EXIT:
            return
        if text:
            loop.answer(text)


class _Loop:
    """Answers one input after another."""

    def __init__(self, names: "_Names", ask: Ask, show: Show) -> None:
        self._names = names
        self._ask = ask
        self._show = show
        self._rows_shown: int | None = ROWS_SHOWN

    def answer(self, text: str) -> None:
        """Run a query or a command of the prompt. Errors are one line; Ctrl-C cancels."""
        try:
            if text.rstrip("; ").lower() in _HELP:  # safeguard: help-is-no-query
                click.echo(HELP, err=True)
            elif text.startswith("\\"):
                self._command(*text.rstrip("; ").split(maxsplit=1))
            else:
                self._query(text)
        except QueryError as error:
            click.secho(error.message, fg="red", err=True)
        except click.ClickException as error:
            click.secho(error.format_message(), fg="red", err=True)
        except NoDataError as error:
            click.secho(str(error), fg="red", err=True)
        except KeyboardInterrupt:
            click.echo("cancelled", err=True)  # safeguard: interrupt-ends-query-only

    def _query(self, query: str) -> None:
        begun = time.monotonic()
        answer = self._ask(query)
        took_ms = 1e3 * (time.monotonic() - begun)
        height = shutil.get_terminal_size().lines
        show_text(self._show(answer, self._rows_shown), height=height)
        n_rows, shown = len(answer[0]), self._rows_shown
        if shown is not None and n_rows > shown:  # safeguard: cut-rows-counted
            text = f"{shown:,} of {n_rows:,} rows, {took_ms:,.0f} ms; \\limit 0 shows all"
        else:
            text = f"{n_rows:,} row{'s' * (n_rows != 1)}, {took_ms:,.0f} ms"
        click.secho(text, dim=True, err=True)

    def _command(self, name: str, argument: str = "") -> None:
        if name in (r"\?", r"\h", r"\help"):
            click.echo(HELP, err=True)
        elif name == r"\d":
            self._describe(argument)
        elif name == r"\limit":
            if not argument.isdecimal():
                raise click.ClickException(
                    rf"\limit {argument!r} is not a number; write \limit 1000, or \limit 0 for all rows"
                )
            self._rows_shown = int(argument) or None
        else:
            raise click.ClickException(rf"command {name!r} is unknown; \? lists all")

    def _describe(self, view: str) -> None:
        views = self._names.catalog().views
        if not view:
            for name, columns in views.items():
                click.echo(f"{name:20} {len(columns):3} columns")
        elif view in views:
            self._query(f'DESCRIBE "{view}"')
        else:
            near = nearest(view, views)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else r"\d lists all"
            raise click.ClickException(f"view {view!r} is unknown; {hint}")


# -- completion -------------------------------------------------------------------------------------------------------
class _Names:
    """The names that completion offers. They are queried at the first use, and again when they are old."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._catalog = Catalog()
        self._fresh_until = 0.0

    def catalog(self) -> Catalog:
        """Return the known names; those of a query that fails or takes too long are missing."""
        if time.monotonic() >= self._fresh_until:
            self._catalog = Catalog(
                self._ask(
                    "SELECT table_name, list(column_name ORDER BY column_index) FROM duckdb_columns() "
                    "WHERE database_name = current_database() AND schema_name = 'main' GROUP BY 1 ORDER BY 1"
                ),
                self._ask(
                    "SELECT function_name, any_value(parameters) FROM duckdb_functions() WHERE schema_name = 'main' "
                    "AND database_name = current_database() AND function_type LIKE '%macro' GROUP BY 1 ORDER BY 1"
                ),
                list(self._ask(f"SELECT run_id, 0 FROM runs ORDER BY created_at DESC NULLS LAST LIMIT {NAMES_MAX}")),
                list(
                    self._ask(
                        "SELECT key, 0 FROM (SELECT key FROM keys UNION SELECT key FROM media) "
                        f"ORDER BY key LIMIT {NAMES_MAX}"
                    )
                ),
            )
            self._fresh_until = time.monotonic() + NAMES_FRESH_S
        return self._catalog

    def _ask(self, query: str) -> dict[str, Sequence[str]]:
        try:
            return dict(self._client.sql(query, timeout_s=NAMES_TIMEOUT_S).tuples())
        except (QueryError, NoDataError):
            return {}


class _NameCompleter(Completer):
    def __init__(self, names: _Names) -> None:
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("\\"):
            for name, replaced, what in suggestions(text, self._names.catalog()):
                yield Completion(name, -replaced, display_meta=what)


# -- keys and history -------------------------------------------------------------------------------------------------
def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.apply_completion(buffer.complete_state.current_completion)
            return
        if _ends_input(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings


def _ends_input(text: str) -> bool:
    """Return True if Enter after this text runs it: a complete query, a command, or an empty line after a query."""
    bare = text.strip()
    is_command = bare.startswith("\\") or bare.lower() in (*_EXIT, *_HELP)
    return not bare or is_command or is_complete(text) or text.rpartition("\n")[2].strip() == ""


class _FileHistory(FileHistory):
    """A history whose file may become unwritable."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):  # a full disk costs an entry, not the prompt
            super().store_string(string)


def _history(directory: Path) -> History:
    path = directory / HISTORY_NAME
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600))  # queries may hold what is private
        if path.stat().st_size > HISTORY_BYTES_MAX:
            kept = path.read_bytes()[-HISTORY_BYTES_MAX // 2 :]
            path.write_bytes(kept[kept.find(b"\n# ") + 1 :])  # an entry begins with a line that has its time
    except OSError as error:
        click.echo(f"the history of this prompt is not kept: {path}: {error.strerror}", err=True)
        return InMemoryHistory()
    return _FileHistory(str(path))
