"""Options of the commands that query: the data source, and how errors of a query end a command."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from chiplog.settings import clean_name
from chiplog_cli.suggestions import require_known
from chiplog_cli.tables.format_values import printable
from chiplog_client import daemons
from chiplog_client.client import Client, NoDataError, QueryError, connect
from chiplog_client.nearest_names import KNOWN_MAX, unknown_name
from chiplog_schemas.limits import NAME_CHARS_MAX
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.process.recording_dir import recording_dir
from chiplog_schemas.query.duckdb_errors import remedy_of_query

_NO_START = "chiplog.no_start"  # in click's meta of one command
_LABELS_SHOWN = 8  # in a message, if none is similar
LATEST = "latest"
_EXACT = "SELECT run_id FROM runs WHERE run_id = $run"
_MERGED = "SELECT DISTINCT run_id FROM events WHERE kind = 'run_merged' AND body->>'from' = $run LIMIT 2"
# What else a word may mean.
_BEGINNINGS = "SELECT run_id FROM runs WHERE starts_with(run_id, $run)"
_NAMED = "SELECT run_id FROM runs WHERE name = $run"
_LATEST = "SELECT * FROM (SELECT run_id FROM runs ORDER BY created_at DESC NULLS LAST, run_id DESC LIMIT 1)"
F = TypeVar("F", bound=Callable[..., Any])


class BadQuery(click.ClickException):
    """The query is wrong: bad input, like a bad option."""

    exit_code = 2


def source_options(command: F) -> F:
    """Add --dir, --url and --no-start."""
    command = click.option(
        "--no-start",
        is_flag=True,
        expose_value=False,
        callback=_note_start,
        help="Start no daemons for waiting journals.",
    )(command)
    command = click.option(
        "--url",
        "--store",
        "url",
        metavar="URL",
        help="Collector: tcp://HOST:PORT, as agents use it; or a store: s3://…, file:///….",
    )(command)
    return click.option("--dir", "dir_", metavar="DIR", help="Directory to read instead of CHIPLOG_DIR.")(command)


def _note_start(context: click.Context, _: click.Parameter, no_start: bool) -> None:
    context.meta[_NO_START] = no_start


def may_start() -> bool:
    """Return True unless the command was called with --no-start."""
    context = click.get_current_context(silent=True)
    return context is None or not context.meta.get(_NO_START)


def local_option(command: F) -> F:
    """Add --local."""
    return click.option("--local", "is_local", is_flag=True, help="Times in this machine's zone instead of UTC.")(
        command
    )


def checked_run_id(_context: click.Context, _parameter: click.Parameter, run_id: str | None) -> str | None:
    """Return the run ID of an option. Raises BadParameter for an ID that `init` would change."""
    if run_id is not None:
        cleaned, faults = clean_name(run_id, NAME_CHARS_MAX)
        if faults:  # safeguard: bad-run-id-refused
            remedy = f"give {cleaned!r}" if cleaned else "give another one"
            raise click.BadParameter(f"run ID {run_id!r:.80} has {faults}; {remedy}")
    return run_id


@contextlib.contextmanager
def open_client(dir_: str | None, url: str | None) -> Iterator[Client]:
    """Connect for one command. Bad input and bad SQL end it with exit code 2, everything else with 1."""
    if dir_ and url:
        raise click.UsageError(f"--dir {dir_} and --url {url} exclude each other; give one of them")
    try:
        with connect(url, dir=dir_, start=may_start()) as client:
            _report_elsewhere(dir_, url)
            yield client
    except QueryError as error:
        blamed = BadQuery if error.kind in ("refused", "forbidden", "sql") else click.ClickException
        remedy = remedy_of_query(error.message) if error.kind == "sql" else ""
        raise blamed(error.message + remedy) from error
    except NoDataError as error:
        raise click.ClickException(str(error)) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _report_elsewhere(dir_: str | None, url: str | None) -> None:
    """Print one line on stderr if a directory is read whose agents deliver to another collector."""
    if url is not None or (dir_ is None and os.environ.get("CHIPLOG_COLLECTOR")):
        return  # that collector is read
    if elsewhere := daemons.goes_elsewhere(paths_for_root(recording_dir(dir_))):  # safeguard: reader-reports-elsewhere
        click.echo(f"chiplog: {elsewhere}", err=True)


def require_label(client: Client, run: str, label: str) -> None:
    """Raise UsageError with the nearest labels if a run has no such label."""
    rows = client.sql("SELECT DISTINCT label FROM labels WHERE run_id = $run ORDER BY label", {"run": run}).rows()
    known = [str(row["label"]) for row in rows]
    has = ", ".join(known[:_LABELS_SHOWN]) + (", …" if len(known) > _LABELS_SHOWN else "")
    require_known(f"label of run {run!r}", label, known, f"it has {has}")


def require_key(client: Client, run: str, key: str) -> None:
    """Raise UsageError with the nearest keys if a run has no metric of that name."""
    rows = client.sql(
        f"SELECT DISTINCT key FROM keys WHERE run_id = $run ORDER BY key LIMIT {KNOWN_MAX}", {"run": run}
    ).rows()
    require_known(f"key of run {run!r}", key, [str(row["key"]) for row in rows], f"chiplog show {run} lists all")


def require_project(client: Client, project: str) -> None:
    """Raise UsageError with the nearest projects if no run has this one."""
    _require_text_of_runs(client, "project", "project", project)


def require_group(client: Client, group: str) -> None:
    """Raise UsageError with the nearest groups if no run has this one."""
    _require_text_of_runs(client, "group", "run_group", group)


def _require_text_of_runs(client: Client, what: str, column: str, text: str) -> None:
    query = f"SELECT DISTINCT {column} AS known FROM runs WHERE {column} IS NOT NULL ORDER BY known LIMIT {KNOWN_MAX}"
    known = [str(row["known"]) for row in client.sql(query).rows()]
    require_known(what, text, known, f"chiplog runs shows the {what} of each run")


def _unknown_run(client: Client, run: str) -> str:
    """Return one line that suggests runs by their IDs and names."""
    rows = client.sql(f"SELECT run_id, name FROM runs ORDER BY created_at DESC NULLS LAST LIMIT {KNOWN_MAX}").rows()
    named = {str(row["name"]): str(row["run_id"]) for row in reversed(rows) if row["name"]}
    if run in named:
        return f"run {run!r} is unknown; did you mean {named[run]!r}, whose name that is?"
    return unknown_name("run", run, [str(row["run_id"]) for row in rows], "chiplog runs lists all")


def resolve_run(client: Client, run: str) -> str:
    """Return the run ID for an ID, a unique beginning of one, a name, or `latest`: to read. Raises UsageError.

    An ID may be the provisional one that the run had until its ranks agreed on another.
    """
    return _run_meant(client, run, _LATEST if run == LATEST else f"{_BEGINNINGS} UNION {_NAMED}")


def chosen_run(client: Client, run: str) -> str:
    """Return the run ID as `resolve_run`, but not if a run is named `latest`: to ask the user. Raises UsageError."""
    return _run_meant(client, run, f"{_LATEST if run == LATEST else _BEGINNINGS} UNION {_NAMED}")


def _run_meant(client: Client, run: str, guesses: str) -> str:
    """Return the run ID of the exact ID, else of the only guess. Raises UsageError."""
    query = f"{_EXACT} UNION {guesses} ORDER BY run_id = $run DESC, run_id LIMIT 6"
    found = [str(row["run_id"]) for row in client.sql(query, {"run": run}).rows()]
    if found[:1] == [run]:
        return run
    if run != LATEST and (merged := _merged_run(client, run)) is not None:
        return merged
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
        raise click.UsageError(f"run {run!r} is ambiguous: {shown}; give more of the ID")
    if run == LATEST:
        raise click.UsageError("run 'latest' is unknown: no run has been recorded yet; start one first")
    raise click.UsageError(_unknown_run(client, run))


def exact_run(client: Client, run: str) -> str | None:
    """Return the run ID for an ID, also a provisional one that was merged into another; None if no run has it."""
    return run if client.sql(_EXACT, {"run": run}).rows() else _merged_run(client, run)


def _merged_run(client: Client, run: str) -> str | None:
    """Return the run that has the data of a provisional ID; None if there is none, or several."""
    found = client.sql(_MERGED, {"run": run}).rows()
    return str(found[0]["run_id"]) if len(found) == 1 else None


def require_exact_run(client: Client, run: str) -> str:
    """Return the run ID for an ID: to change the run without a question. Raises UsageError with what may be meant.

    A beginning, a name and `latest` may mean another run than the one that the user has in mind.
    """
    if (exact := exact_run(client, run)) is not None:
        return exact
    if run == LATEST:
        newest = resolve_run(client, run)
        raise click.UsageError(f"'latest' is not the ID of a run, which a change needs; the newest run is {newest!r}")
    unknown = _unknown_run(client, run)  # with a question if some run is similar
    raise click.UsageError(f"{unknown} A change needs the exact ID" if unknown.endswith("?") else unknown)


def echo_asked(hosts: list[str] | None) -> None:
    """Print on which hosts collectors were asked to carry a change out."""
    if not hosts:
        return
    named = " and ".join(map(printable, hosts))
    asked = f"s on {named} were asked, and carry" if hosts[1:] else f" on {named} was asked, and carries"
    click.echo(f"the collector{asked} it out within a minute", err=True)


def run_text(run: str, name: str | None) -> str:
    """Return the ID of a run, and its name in parentheses."""
    return printable(run) + (f" ({printable(name)})" if name else "")
