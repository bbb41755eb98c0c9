"""The commands `chiplog store …`: look at a store, and look after it."""

import functools
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chiplog_collector.store.published_tables import ENGINES, ORDERS, PUBLISHED
from chiplog_schemas.addresses import STORE, AddressError, check_store, check_store_exists, store_of

if TYPE_CHECKING:
    from chiplog_collector.store.delta_store import DeltaStore

_MAKE_STORES = ("check", "init")  # the commands that make the directory
_NO_LOG = "00" * 16  # these commands publish nothing
Command = TypeVar("Command", bound=Callable[..., Any])


def check_url(url: str, *, is_read: bool = False) -> str:
    """Return the address of a store without a final slash. Raises click.UsageError, also if the extra is missing.

    is_read: whether nothing is made there, so a directory must exist.
    """
    try:
        address = store_of(os.environ) if url == os.environ.get(STORE) else check_store(url)
    except AddressError as error:
        raise click.UsageError(str(error)) from None
    lacking = [name for name in ("deltalake", "obstore") if importlib.util.find_spec(name) is None]
    if lacking:
        raise click.UsageError(f"a store needs {' and '.join(lacking)}; install them with pip install 'chiplog[lake]'")
    if is_read:
        try:
            check_store_exists(address)
        except AddressError as error:
            raise click.UsageError(str(error)) from None
    return address


def _of_store(command: Command) -> Command:
    """Give a command the store that its argument names, and make a store that is away one line."""

    @click.argument("url", envvar="CHIPLOG_STORE", metavar="[URL]", default="")
    @functools.wraps(command)
    def run(url: str, **options: Any) -> None:
        if not url:
            raise click.UsageError("which store? give its URL, such as s3://BUCKET/FOLDER, or set CHIPLOG_STORE")
        address = check_url(url, is_read=command.__name__ not in _MAKE_STORES)
        os.environ.setdefault("RUST_LOG", "error")  # else credentials that are not there are pages of warnings
        import duckdb  # `--help` needs neither it nor deltalake

        from chiplog_collector.store.delta_store import DeltaStore, StoreError

        try:
            command(DeltaStore(address, _NO_LOG), **options)
        except BrokenPipeError:
            raise  # `… | head`: click ends the command
        except (StoreError, OSError) as error:
            raise click.ClickException(f"the store {address} cannot be used: {error}") from error
        except duckdb.Error as error:  # a damaged file
            reason = str(error).partition("\n")[0]
            raise click.ClickException(f"a file of the store {address} cannot be read: {reason}") from error

    return run  # type: ignore[return-value]


@click.group(no_args_is_help=True)
def store() -> None:
    """Look at a store of Delta tables, check and compact it. URL: file:///…, s3://…; default: CHIPLOG_STORE."""


@store.command()
@_of_store
def check(store: "DeltaStore") -> None:
    """Check that a store can be written.

    It must also refuse to create an object that exists.
    """
    store.check()
    click.echo(f"{store.url} can be written, and refuses to create what exists")


@store.command()
@_of_store
def init(store: "DeltaStore") -> None:
    """Make a directory or a folder of a bucket ready for collectors.

    As `check`; it also refuses tables of other programs or of a newer chiplog.
    """
    store.check()
    tables = [name for name in ORDERS if store.version(name) >= 0]
    click.echo(f"{store.url} is ready; tables that it has: {len(tables)}. Collectors publish to it with")
    click.echo(f"  chiplog collector --store {store.url}")


@store.command()
@_of_store
def status(store: "DeltaStore") -> None:
    """Show each table and each collector, and what a day costs.

    A table: rows, files, pieces that are not merged, bytes. A collector: when it was heard of or that it is retired,
    its last published record, lag, what waits there, requests.
    """
    from rich.console import Console

    from chiplog_collector.store.store_status import look, shown

    console = Console(highlight=False)
    for part in shown(look(store)):
        console.print(part)


@store.command()
@_of_store
def verify(store: "DeltaStore") -> None:
    """Read all files, and report what is missing, damaged or doubled.

    Also events of no published range. The exit status is 1 if there is a fault.
    """
    from chiplog_collector.store.verification import verify as verify_tables

    n_faults = 0
    with tempfile.TemporaryDirectory() as directory:
        for found in verify_tables(store, PUBLISHED, Path(directory) / "copies"):
            if found.n_files:
                click.echo(f"{found.table}: {found.n_rows:,} rows, files: {found.n_files:,}")
            if found.n_deleted:
                click.echo(f"  deleted, and not removed from the files yet: {found.n_deleted:,}")
            for fault in found.faults:
                click.echo(f"  {fault}")
            n_faults += len(found.faults)
    if n_faults:
        raise click.ClickException(f"{store.url} has faults: {n_faults}")
    click.echo("every file is whole, and no row is there twice")


@store.command()
@_of_store
def compact(store: "DeltaStore") -> None:
    """Remove deleted rows, and merge the pieces of all days now.

    Running collectors do so at 200 pieces a table. Of the newest day a few pieces may wait, whose rows are few beside
    those of the file that they would be merged with.
    """
    from chiplog_collector.store.compaction import compact as compact_table
    from chiplog_collector.store.compaction import delete_rows, read_deletions
    from chiplog_collector.store.maintainer import delete_for_gone

    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory) / "scratch"
        deletions = read_deletions(store, scratch)
        if n_logs := delete_for_gone(store, deletions, scratch, set()):
            click.echo(f"deleted in logs that are gone: {n_logs:,}")
            deletions = read_deletions(store, scratch)
        for table, order in ORDERS.items():
            checked: set[str] = set()
            while (n_files := delete_rows(store, table, order, deletions, scratch, checked)) is not None:
                if n_files:
                    click.echo(f"{table}: deleted rows removed, files rewritten: {n_files:,}")
            while done := compact_table(store, table, order, scratch, pieces_min=0):
                merged = f"{done.n_pieces:,} pieces merged, files: {done.n_files:,}"
                click.echo(f"{table} of {done.day}: {merged}, {done.n_rows:,} rows")
    click.echo("no deleted row is left in the files, and no piece is left worth a merge")


@store.command()
@click.argument("log")
@_of_store
def retire(store: "DeltaStore", log: str) -> None:
    """Note that a log is gone for good.

    Others then carry out what is deleted of its runs.

    LOG: its ID as `chiplog store status` shows it, or the beginning. If its collector returns, it continues under a new
    log ID. A log that is silent for 7 days is retired by the maintenance of another collector.
    """
    from chiplog_collector.store.heartbeat import SILENT_S

    found = [beat for beat in store.heartbeats() if beat.log.startswith(log.lower())]
    if len(found) != 1 or not log:
        which = f"{len(found)} logs begin with {log!r}" if found else f"no log begins with {log!r}"
        raise click.ClickException(f"{which}; give an ID that chiplog store status {store.url} shows")
    [beat] = found
    host, silent_s = beat.content.get("host", "an unknown host"), (store.now() - beat.written_at).total_seconds()
    if silent_s <= SILENT_S:  # safeguard: living-log-not-retired
        raise click.ClickException(
            f"log {beat.log} is in use: its collector on {host} wrote {max(0.0, silent_s):.0f} s ago; stop it, and "
            f"try again after {SILENT_S:.0f} s"
        )
    before = "" if store.retire(beat.log) else " already"
    click.echo(f"log {beat.log} of {host} is{before} retired; if its collector returns, it gets a new log ID")


@store.command()
@click.option("--for", "engine", type=click.Choice(ENGINES), required=True, help="Whose SQL to write.")
@_of_store
def views(store: "DeltaStore", engine: str) -> None:
    """Print SQL that defines chiplog's views in another engine.

    It defines the tables of a store, and over them views with the names and columns of a collector's.

    DuckDB reads the files of this moment: run it again for newer rows. Spark needs Delta's jar, or
    chiplog.register_store().
    """
    from chiplog_collector.store.engine_views import RAN, statements

    if engine not in RAN:
        click.echo(f"-- parsed, and not run in {engine}")
    for statement in statements(engine, store.url, _files(store)):
        click.echo(f"{statement};")


@store.command(hidden=True)
@_of_store
def spark_tables(store: "DeltaStore") -> None:
    """Print what chiplog.register_store() registers, as JSON: files and columns of each table, and the views' SQL."""
    from chiplog_collector.store.engine_views import DECIDING, spark_columns
    from chiplog_collector.store.engine_views import views as views_of

    found = _files(store)
    tables = {name: {"columns": spark_columns(name), "files": files} for name, files in found.items()}
    click.echo(json.dumps({"tables": tables, "views": views_of("spark", found), "deciding": DECIDING}))


def _files(store: "DeltaStore") -> dict[str, list[str]]:
    """Return the addresses of the files of each table that has some."""
    tables = {name: [store.address_of(name, file) for file in store.snapshot(name)] for name in ORDERS}
    return {name: files for name, files in tables.items() if files}


@store.command()
@_of_store
def vacuum(store: "DeltaStore") -> None:
    """Remove files that no snapshot of the last 7 days names.

    Also contents that no row of those snapshots names.
    """
    from chiplog_collector.store.maintainer import remove_contents

    for table in ORDERS:
        if n_files := store.vacuum(table):
            click.echo(f"{table}: {n_files:,} files removed")
    with tempfile.TemporaryDirectory() as directory:
        if n_contents := remove_contents(store, Path(directory) / "scratch"):
            click.echo(f"contents: {n_contents:,} removed")
    click.echo("no file is left that no snapshot of the last 7 days names")


if __name__ == "__main__":  # python -m chiplog_collector.store.commands spark-tables URL
    store()
