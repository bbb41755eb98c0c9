"""`chiplog sql`: one query, or a prompt."""

import itertools
import json
import re
import sys
from typing import Any

import click

from chiplog_cli.completion import complete_runs
from chiplog_cli.options import local_option, open_client, resolve_run, source_options
from chiplog_cli.output import FORMATS, Output, output_options
from chiplog_cli.suggestions import require_known
from chiplog_cli.tables.format_values import common_timezone
from chiplog_cli.tables.local_time import localized, zone_name
from chiplog_cli.tables.writers import Rows, StreamedRows, TerminalText, write_result
from chiplog_client.client import Client, QueryError, Result
from chiplog_client.nearest_names import nearest
from chiplog_client.reads.runs.saved_views import SQL, read_saved_views
from chiplog_client.results.result import unique_names
from chiplog_client.saved_queries import NAMES, about, query_of
from chiplog_schemas.process.recording_dir import recording_dir

_FOR_PEOPLE = ("table", "md")  # laid out as a whole
_IS_OPTION = re.compile(r"--[a-z]\S*")

EXAMPLES = """\b
Examples:
  chiplog sql 'SELECT key, max(value) FROM metrics GROUP BY key'
  chiplog sql 'FROM console WHERE run_id = $run' --param run=gpt-1
  chiplog sql 'FROM metrics' -o metrics.parquet
  chiplog sql "FROM events WHERE ts > '2026-01-02 15:00'" --local
  chiplog sql --saved failed --run gpt-1
"""


class _QueryCommand(click.Command):
    """A command whose argument is a query. A query that begins with a comment looks like an option, and is none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises NoSuchOption for one word that begins with two dashes and is no option."""
        known = [name for option in self.get_params(ctx) for name in option.opts]
        for word in itertools.takewhile(lambda word: word != "--", args):
            name = word.partition("=")[0]
            if _IS_OPTION.fullmatch(name) and name not in known:  # safeguard: misspelt-option-is-no-query
                raise click.NoSuchOption(name, possibilities=nearest(name, known), ctx=ctx)
        return super().parse_args(ctx, args)


@click.command(cls=_QueryCommand, epilog=EXAMPLES, context_settings={"ignore_unknown_options": True})
@click.argument("query", required=False)
@output_options(*FORMATS)
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Value for $NAME; JSON, else text.")
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="Cancel after S seconds, at most 30.")
@click.option(
    "--saved", metavar="NAME", help="A query that chiplog includes, for --run or the latest run; or of the page."
)
@click.option(
    "--run",
    "run",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Value for $run: a run ID, a beginning of one, a name, or latest.",
)
@click.option(
    "--list-saved", is_flag=True, help="List the queries that chiplog includes, and exit; chiplog views the page's."
)
@local_option
@source_options
def sql(
    query: str | None,
    output: Output,
    params: tuple[str, ...],
    timeout_s: float | None,
    saved: str | None,
    run: str | None,
    list_saved: bool,
    is_local: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """Query the database, live and read-only, with one SELECT.

    Without QUERY it is read from standard input. On a terminal that is a prompt with a history, and with completion of
    views, columns, macros, runs and keys.

    Views: runs, labels, metrics, texts, histograms, system, console, config, summary, events, completeness, phases …;
    SHOW TABLES lists them, DESCRIBE VIEW their columns.

    Times are UTC, in results and in the query; with --local both are in this machine's zone.

    csv has a header line, nothing for NULL, and "" for an empty text. json is a list of objects, jsonl has an object
    per line; for NaN and infinity both have null, where csv has nan and inf. arrow is the IPC file format, Feather
    version 2. md is a table of Markdown. On a terminal a row that is too wide becomes a block, and a list of many
    numbers one line; all other formats have every value.
    """
    if list_saved:
        for name in NAMES:
            click.echo(f"{name:8} {about(name)}")
        return
    if saved is not None:
        if query is not None:
            raise click.UsageError(f"--saved {saved} and a query exclude each other; leave one out")
        if saved in NAMES:
            query, run = query_of(saved), run or "latest"
        else:
            with open_client(dir_, url) as client:
                query = _query_of_page(client, saved)
    values = dict(_param(text) for text in params)
    if query is None and sys.stdin.isatty():
        if output.path is not None or not sys.stdout.isatty():
            raise click.UsageError("query is missing: the prompt needs a terminal for its output; write a query")
        with open_client(dir_, url) as client:
            if run is not None:
                values["run"] = resolve_run(client, run)
            _prompt(client, _Asker(client, output, values, timeout_s, is_local, is_prompt=True))
        return
    if query is None or query == "-":
        query = _read_query()
    if not query.strip():
        raise click.UsageError('query is empty; write one, as in chiplog sql "FROM runs"')
    with open_client(dir_, url) as client:
        if run is not None:
            values["run"] = resolve_run(client, run)
        _Asker(client, output, values, timeout_s, is_local).ask(query)


def _query_of_page(client: Client, name: str) -> str:
    """Return a query that was saved on the page. Raises UsageError."""
    name = name.removeprefix(f"{SQL}/")
    found = {row["name"].removeprefix(f"{SQL}/"): row["view"] for row in read_saved_views(client, f"{SQL}/")}
    require_known("query", name, [*NAMES, *found], f"use {', '.join(NAMES)}, or one of chiplog views")
    return str(found[name].get("query", "")) if isinstance(found[name], dict) else ""


def _read_query() -> str:
    """Return the query on standard input, which is UTF-8 in every locale. Raises UsageError."""
    data = sys.stdin.buffer.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"byte {error.start} of the query on standard input is not UTF-8; convert it") from error


class _Asker:
    """Runs queries with the options of one command, and writes their results."""

    def __init__(
        self,
        client: Client,
        output: Output,
        values: dict[str, Any],
        timeout_s: float | None,
        is_local: bool,
        is_prompt: bool = False,
    ) -> None:
        self._client = client
        self._output = output
        self._values = values
        self._is_prompt = is_prompt
        self._timeout_s = timeout_s
        self._zone = common_timezone(is_local)
        self._zone_name = zone_name() if is_local else "UTC"

    def ask(self, query: str) -> None:
        """Run a query and write its result, of any size unless it is laid out for people."""
        if self._output.form in _FOR_PEOPLE:
            result, encoded = self.result_of(query)
            write_result(result, self._output, self._zone, encoded)
            return
        query, encoded = self._prepared(query)
        with self._client.stream(query, self._values_of(query), self._timeout_s, self._zone_name) as stream:
            try:
                write_result(StreamedRows(stream), self._output, self._zone, encoded)
            except Exception:
                if stream._failure is not None:  # of which DuckDB made an error of its own
                    raise stream._failure from None
                raise

    def result_of(self, query: str) -> tuple[Result, list[str]]:
        """Run a query; return its result, and the columns of JSON if the format needs to know."""
        query, encoded = self._prepared(query)
        return self._client.sql(query, self._values_of(query), self._timeout_s, self._zone_name), encoded

    def _prepared(self, query: str) -> tuple[str, list[str]]:
        """Return a query in the zone of the command, and the columns of JSON if the format needs to know."""
        if self._zone.is_local:
            query = localized(self._client, query, self._zone_name)
        is_json = self._output.form in ("json", "jsonl")
        encoded = self._json_columns(query) if is_json else []  # safeguard: json-columns-are-json
        return query, encoded

    def _values_of(self, query: str) -> dict[str, Any] | None:
        """Return the values of a query's parameters. A query of a prompt need not have them all."""
        values = self._values
        if self._is_prompt:
            values = {name: value for name, value in values.items() if re.search(rf"\${re.escape(name)}\b", query)}
        return values or None

    def text_of(self, answer: tuple[Result, list[str]], rows_max: int | None) -> str:
        """Return a result as the prompt shows it: the first rows, in the format of the command."""
        result, encoded = answer
        shown = Rows(result.columns, result.tuples()[:rows_max], wall_times=result.wall_times)
        target = TerminalText()
        write_result(shown, self._output, self._zone, encoded, target=target, table_rows_max=None)
        return target.getvalue()

    def _json_columns(self, query: str) -> list[str]:
        """Return the columns of a query that are JSON, or lists of it: in Arrow they are text."""
        try:
            described = self._client.sql(f"DESCRIBE {query}", self._values_of(query), self._timeout_s)
        except QueryError:
            return []  # DESCRIBE does not support it, as EXPLAIN; or it is wrong, which running it reports
        # The names are those of Result: a repeated one has a number.
        kinds = [str(row["column_type"]) for row in described.rows()]
        names = unique_names([str(row["column_name"]) for row in described.rows()])
        return [name for name, kind in zip(names, kinds, strict=True) if kind.rstrip("[]") == "JSON"]


def _param(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    name = name.removeprefix("$")
    if not equals or not name.isidentifier():
        raise click.UsageError(f"--param {text!r} is not NAME=VALUE; write --param run=gpt-1")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _prompt(client: Client, asker: _Asker) -> None:
    from chiplog_cli.prompt.sql_prompt import run_prompt  # prompt_toolkit takes 150 ms: only the prompt needs it

    run_prompt(client, asker.result_of, asker.text_of, recording_dir(None))
