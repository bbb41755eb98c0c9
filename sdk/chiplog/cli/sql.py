"""`chiplog sql`: one query, or a prompt."""

import json
import os
import sys
from typing import Any

import click

from chiplog.cli.local_time import localized, zone_name
from chiplog.cli.options import local_option, open_client, resolve_run, source_options
from chiplog.cli.output import FORMATS, SUFFIXES, common_timezone, write_result
from chiplog.query.client import Client, QueryError
from chiplog.query.result import unique_names
from chiplog.query.saved_queries import NAMES, about, query_of

PROMPT, PROMPT_MORE = "chiplog> ", "      …> "


EXAMPLES = """\b
Examples:
  chiplog sql 'SELECT key, max(value) FROM metrics GROUP BY key'
  chiplog sql 'FROM console WHERE run_id = $run' --param run=gpt-1
  chiplog sql 'FROM metrics' -o metrics.parquet
  chiplog sql "FROM events WHERE ts > '2026-01-02 15:00'" --local
  chiplog sql --saved failed --run gpt-1
"""


# A query may begin with a comment, which looks like an option: an unknown option is the query.
@click.command(epilog=EXAMPLES, context_settings={"ignore_unknown_options": True})
@click.argument("query", required=False)
@click.option(
    "--format", "output_format", type=click.Choice(FORMATS), help="Default: by the suffix of FILE, else table."
)
@click.option("-o", "--output", metavar="FILE", help="Write there, complete or not at all.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Value for $NAME; JSON, else text.")
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="Cancel after S seconds, at most 30.")
@click.option("--saved", type=click.Choice(NAMES), help="A query that chiplog includes, for --run or the latest run.")
@click.option("--run", "run", metavar="RUN", help="Value for $run: a run ID, a beginning of one, or latest.")
@click.option("--list-saved", is_flag=True, help="List the queries that chiplog includes, and exit.")
@local_option
@source_options
def sql(
    query: str | None,
    output_format: str | None,
    output: str | None,
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

    Without QUERY it is read from standard input; on a terminal that is a prompt. Views: runs, labels, metrics, texts,
    histograms, system, console, config, summary, events, completeness, phases …; SHOW TABLES lists them, DESCRIBE VIEW
    their columns.

    Times are UTC, in results and in the query; with --local both are in this machine's zone. csv has a header line.
    json is a list of objects; for NaN and infinity it has null, where csv has nan and inf. arrow is the
    IPC file format, Feather version 2. On a terminal a row that is too wide becomes a block, and a list of many numbers
    one line; csv and json have every value.
    """
    if list_saved:
        for name in NAMES:
            click.echo(f"{name:8} {about(name)}")
        return
    if saved is not None:
        if query is not None:
            raise click.UsageError(f"--saved {saved} and a query exclude each other; leave one out")
        query, run = query_of(saved), run or "latest"
    output_format = _form(output_format, output)
    values = dict(_param(text) for text in params)
    if query is None and sys.stdin.isatty():
        if output is not None:
            raise click.UsageError("-o needs a query; the prompt only shows")
        with open_client(dir_, url) as client:
            _prompt(_Asker(client, output_format, None, values, timeout_s, is_local))
        return
    if query is None or query == "-":
        query = sys.stdin.read()
    if not query.strip():
        raise click.UsageError('query is empty; write one, as in chiplog sql "FROM runs"')
    with open_client(dir_, url) as client:
        if run is not None:
            values["run"] = resolve_run(client, run)
        _Asker(client, output_format, output, values, timeout_s, is_local).ask(query)


class _Asker:
    """Runs queries with the options of one command, and writes their results."""

    def __init__(
        self,
        client: Client,
        form: str,
        output: str | None,
        values: dict[str, Any],
        timeout_s: float | None,
        is_local: bool,
    ) -> None:
        self._client = client
        self._form = form
        self._output = output
        self._values = values or None
        self._timeout_s = timeout_s
        self._zone = common_timezone(is_local)
        self._zone_name = zone_name() if is_local else "UTC"

    def ask(self, query: str) -> None:
        """Run a query and write its result."""
        if self._zone.is_local:
            query = localized(self._client, query, self._zone_name)
        encoded = self._json_columns(query) if self._form == "json" else []  # safeguard: json-columns-are-json
        result = self._client.sql(query, self._values, self._timeout_s, self._zone_name)
        write_result(result, self._form, self._output, self._zone, encoded)

    def _json_columns(self, query: str) -> list[str]:
        """Return the columns of a query that are JSON, or lists of it: in Arrow they are text."""
        try:
            described = self._client.sql(f"DESCRIBE {query}", self._values, self._timeout_s)
        except QueryError:
            return []  # DESCRIBE does not support it, as EXPLAIN; or it is wrong, which running it reports
        # The names are those of Result: a repeated one has a number.
        kinds = [str(row["column_type"]) for row in described.rows()]
        names = unique_names([str(row["column_name"]) for row in described.rows()])
        return [name for name, kind in zip(names, kinds, strict=True) if kind.rstrip("[]") == "JSON"]


def _form(form: str | None, output: str | None) -> str:
    if form is None:
        suffix = os.path.splitext(output or "")[1].removeprefix(".").lower()
        if suffix and suffix not in SUFFIXES:  # safeguard: unknown-suffix-refused
            known = ", ".join(f".{name}" for name in SUFFIXES)
            raise click.UsageError(f"file {output!r}: .{suffix} is not a known format; use one of {known}, or --format")
        form = SUFFIXES.get(suffix, "table")
    if form in ("parquet", "arrow") and output is None:
        raise click.UsageError(f"format {form} needs a file; add -o FILE.{form}")
    return form


def _param(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    name = name.removeprefix("$")
    if not equals or not name.isidentifier():
        raise click.UsageError(f"--param {text!r} is not NAME=VALUE; write --param run=gpt-1")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _prompt(asker: _Asker) -> None:
    """Read queries until the end of input. A query ends with `;` or an empty line."""
    import readline  # noqa: F401 - its import gives input() history and editing

    click.echo("One SELECT, ended by ; or an empty line. Ctrl-D exits.", err=True)
    lines: list[str] = []
    while True:
        try:
            line = input(PROMPT_MORE if lines else PROMPT)
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo()
            lines.clear()
            continue
        if not lines and line.strip().lower() in ("exit", "quit", ".exit", ".quit", "\\q"):
            return
        if line.strip():
            lines.append(line)
        if lines and (not line.strip() or line.rstrip().endswith(";")):
            query = "\n".join(lines)
            lines.clear()
            try:
                asker.ask(query)
            except QueryError as error:
                click.echo(error.message, err=True)
            except KeyboardInterrupt:
                click.echo("interrupted; the collector cancels the query at its time limit", err=True)
