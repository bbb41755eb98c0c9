"""`chiplog sql`: one query, or a prompt."""

import json
import os
import sys
from typing import Any

import click

from chiplog.cli.output import write_result
from chiplog.cli.source import opened, resolve_run, source_options
from chiplog.client import Client, QueryError
from chiplog.saved import NAMES, about, query_of

FORMATS = ("table", "csv", "json", "parquet")
PROMPT, PROMPT_MORE = "chiplog> ", "      …> "


EXAMPLES = """\b
Examples:
  chiplog sql 'SELECT key, max(value) FROM metrics GROUP BY key'
  chiplog sql 'FROM console WHERE run_id = $run' --param run=gpt-1
  chiplog sql 'FROM metrics' -o metrics.parquet
  chiplog sql --saved failed --run gpt-1
"""


# A query may begin with a comment, which looks like an option: what is no option of ours is the query.
@click.command(epilog=EXAMPLES, context_settings={"ignore_unknown_options": True})
@click.argument("query", required=False)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by the suffix of FILE, else table.")
@click.option("-o", "--output", metavar="FILE", help="Write there, complete or not at all.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Value for $NAME; JSON, else text.")
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="Cancel after so many seconds, 30 at most.")
@click.option("--saved", type=click.Choice(NAMES), help="A query that comes along, of --run or the latest run.")
@click.option("--run", "run", metavar="RUN", help="Value for $run: a run ID, a beginning of one, or latest.")
@click.option("--list-saved", is_flag=True, help="List the queries that come with chiplog, and leave.")
@source_options
def sql(
    query: str | None,
    form: str | None,
    output: str | None,
    params: tuple[str, ...],
    timeout_s: float | None,
    saved: str | None,
    run: str | None,
    list_saved: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """Ask the database, live and read-only, with one SELECT.

    Without QUERY it is read from standard input; on a terminal that is a prompt. Views: runs, labels, metrics, texts,
    histograms, system, console, config, summary, events, completeness, phases …; SHOW TABLES lists them, DESCRIBE VIEW
    their columns.

    csv has a header line, json is a list of objects, both with times in UTC; tables show local time. JSON has no NaN
    and no infinity: json says null there, csv says nan and inf.
    """
    if list_saved:
        for name in NAMES:
            click.echo(f"{name:8} {about(name)}")
        return
    if saved is not None:
        if query is not None:
            raise click.UsageError(f"--saved {saved} and a query exclude each other; leave one out")
        query, run = query_of(saved), run or "latest"
    form = _form(form, output)
    values = dict(_param(text) for text in params)
    if query is None and sys.stdin.isatty():
        if output is not None or form == "parquet":
            raise click.UsageError("-o and parquet need a query; the prompt only shows")
        with opened(dir_, url) as client:
            _prompt(client, form, values, timeout_s)
        return
    if query is None or query == "-":
        query = sys.stdin.read()
    if not query.strip():
        raise click.UsageError('query is empty; write one, as in chiplog sql "FROM runs"')
    with opened(dir_, url) as client:
        if run is not None:
            values["run"] = resolve_run(client, run)
        write_result(client.sql(query, values or None, timeout_s), form, output)


def _form(form: str | None, output: str | None) -> str:
    if form is None:
        suffix = os.path.splitext(output or "")[1].removeprefix(".").lower()
        form = suffix if suffix in FORMATS else "table"
    if form == "parquet" and output is None:
        raise click.UsageError("format parquet needs a file; add -o FILE.parquet")
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


def _prompt(client: Client, form: str, values: dict[str, Any], timeout_s: float | None) -> None:
    """Read queries until the end of input. A query ends with `;` or an empty line."""
    import readline  # noqa: F401 - its import gives input() history and editing

    click.echo("One SELECT, ended by ; or an empty line. Ctrl-D leaves.", err=True)
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
                write_result(client.sql(query, values or None, timeout_s), form, None)
            except QueryError as error:
                click.echo(error.message, err=True)
            except KeyboardInterrupt:
                click.echo("given up; the collector cancels it at its time limit", err=True)
