"""The commands `chiplog collector`, `rebuild`, `compact`, `backup` and `restore`."""

import logging
import os
import sys
from pathlib import Path

import click

from chiplog_collector.store.commands import check_url
from chiplog_schemas.addresses import AddressError, check_bind, parse_host_port, port_after, store_of
from chiplog_schemas.limit_settings import LimitError, drop_bad_limits, keeps_files, read_limits
from chiplog_schemas.limits import INDEX_LOCK_WAIT_S
from chiplog_schemas.paths import Paths, paths_for_root, resolve_root
from chiplog_schemas.process.daemon import keep_files_private, raise_fd_limit, reset_affinity
from chiplog_schemas.process.file_lock import Lock, LockHeldError, take_lock
from chiplog_schemas.process.log_owner import LogOwnership, read_owner
from chiplog_schemas.query.duckdb_errors import foreign_path_reason
from chiplog_schemas.security.key_files import Keys, KeysError, host_key_name, keys_dir
from chiplog_schemas.security.permissions import Role

_DIRECTORY = click.option("--dir", "directory", metavar="DIR", help="In place of CHIPLOG_DIR (default ~/.chiplog).")


@click.command()
@click.option("--bind", multiple=True, metavar="ADDRESS", help="Receive events here, tcp://HOST:PORT; may be repeated.")
@click.option("--query", multiple=True, metavar="ADDRESS", help="Answer SQL here; default: the port after --bind's.")
@_DIRECTORY
@click.option("--keys", "keys_directory", metavar="DIR", help="In place of CHIPLOG_KEYS (default CHIPLOG_DIR/keys).")
@click.option("--ui", "page", metavar="[HOST:]PORT", help="Serve the page here too: `chiplog ui` and its variables.")
@click.option(
    "--store",
    envvar="CHIPLOG_STORE",
    metavar="URL",
    help="Publish to Delta tables at file:///…, s3://…, gs://… or abfss://…; default: CHIPLOG_STORE, else none.",
)
@click.option("--read-store", metavar="URL", hidden=True, help="Answer with the rows of a store alone.")
@click.option(
    "--metrics-bind",
    metavar="ADDRESS",
    help="Serve /metrics, /healthz and /readyz here, such as 127.0.0.1:9465.",
)
@click.option("--embedded", is_flag=True, help="Exit after a while without agents.")
@click.option("--take-over", metavar="HOST", help="Own the data of a host that is gone, if hosts share DIR.")
def collector(
    bind: tuple[str, ...],
    query: tuple[str, ...],
    directory: str | None,
    keys_directory: str | None,
    page: str | None,
    store: str | None,
    read_store: str | None,
    metrics_bind: str | None,
    embedded: bool,
    take_over: str | None,
) -> None:
    """Run the daemon that receives all streams, stores them in a log, indexes them in DuckDB and answers SQL."""
    from chiplog_collector.receiver.daemon import (  # `--help` needs no zmq
        IDLE_EXIT_S,
        READER_IDLE_EXIT_S,
        ReceiverDaemon,
        ReceiverSettings,
    )

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    keep_files_private()
    place = paths_for_root(resolve_root(directory, os.environ))
    if not embedded:  # one that a training starts keeps the events
        _check_index_path(place)
    try:
        keys = Keys(keys_dir(keys_directory, os.environ, place.root))
        if embedded:  # one that a training starts must run, and so must its index
            limits = drop_bad_limits(os.environ, logging.warning)  # safeguard: bad-limit-of-training-dropped
        else:
            limits = read_limits(os.environ)
            keeps_files(os.environ)  # the publisher reads it
        keyed = keys.pair(Role.COLLECTOR) is not None
        binds = [check_bind(address, keyed=keyed) for address in bind]
        queries = [check_bind(address, keyed=keyed) for address in query] or [
            check_bind(port_after(address), keyed=keyed) for address in binds if address.startswith("tcp://")
        ]
        is_service = bool(bind or query or page)  # safeguard: killed-collector-started-again
        settings = ReceiverSettings(
            place,
            [place.collector_address, *binds],
            [place.query_address, *queries],
            embedded=embedded,
            idle_exit_s=READER_IDLE_EXIT_S if read_store else IDLE_EXIT_S,
            credit_bytes=limits.credit_bytes,
            files_bytes_max=limits.files_bytes_max,
            keys=keys,
            page=None if page is None else parse_host_port("--ui", page, "8642"),
            store=check_url(read_store or store or "") if (read_store if embedded else store) else "",
            is_service=is_service,
            metrics=None if metrics_bind is None else parse_host_port("--metrics-bind", metrics_bind, "127.0.0.1:9465"),
            node=os.environ.get("CHIPLOG_NODE", "").strip() or host_key_name(),
            take_over=take_over or "",
        )
        os.environ["CHIPLOG_DIR"] = str(place.root)  # the index inherits it, so `ps e` shows which directory it serves
        if os.environ.get("CHIPLOG_COLLECTOR") and not bind:
            click.echo(
                "CHIPLOG_COLLECTOR names the collector for other processes; to listen beyond this host use --bind",
                err=True,
            )
        raise_fd_limit()
        if embedded:
            reset_affinity()
        ReceiverDaemon(settings).run()
    except (AddressError, LimitError, KeysError) as error:
        raise click.UsageError(str(error)) from error
    except LockHeldError as error:
        raise _held(place, error) from error
    except OSError as error:
        raise click.ClickException(f"collector cannot start: {error}") from error


def _check_index_path(place: Paths) -> None:
    if reason := foreign_path_reason(place.index):
        raise click.UsageError(f"{reason}; name another directory with --dir or CHIPLOG_DIR")


def _check_variables() -> None:
    try:
        read_limits(os.environ)
        store_of(os.environ)
    except (AddressError, LimitError) as error:
        raise click.UsageError(str(error)) from error


@click.command()
@_DIRECTORY
def rebuild(directory: str | None) -> None:
    """Rebuild the DuckDB file from the collector's log. The collector must be stopped."""
    from chiplog_collector import maintenance  # `--help` needs no duckdb

    _check_variables()
    place = paths_for_root(resolve_root(directory, os.environ))
    with _exclusive(place):
        click.echo(maintenance.rebuild(place))


@click.command()
@_DIRECTORY
def compact(directory: str | None) -> None:
    """Rewrite the DuckDB file, sorted and without free space. The collector must be stopped."""
    from chiplog_collector import maintenance

    _check_variables()
    place = paths_for_root(resolve_root(directory, os.environ))
    with _exclusive(place):
        click.echo(maintenance.compact(place))


@click.command()
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--from", "directory", metavar="DIR", help="In place of CHIPLOG_DIR (default ~/.chiplog).")
def backup(target: Path, directory: str | None) -> None:
    """Back up the collector's log and saved files to DIR, also while it runs. Repeat it to add what is new."""
    from rich.console import Console
    from rich.progress import Progress

    from chiplog_collector.backup import back_up

    place = paths_for_root(resolve_root(directory, os.environ))
    console = Console(stderr=True)
    with Progress(transient=True, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("backing up", total=None)
        line = back_up(place, target, lambda done, total: progress.update(task, completed=done, total=total))
    click.echo(line)


@click.command()
@click.argument("source", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--damaged", is_flag=True, help="Restore what is left of a backup whose contents have changed.")
@_DIRECTORY
def restore(source: Path, damaged: bool, directory: str | None) -> None:
    """Restore a backup into an empty CHIPLOG_DIR, and rebuild the database.

    Segments of the log and saved files are compared with the checksums of the backup.
    """
    from chiplog_collector import backup, maintenance

    _check_variables()
    place = paths_for_root(resolve_root(directory, os.environ))
    _check_index_path(place)
    click.echo(backup.restore(source, place, damaged=damaged))
    if line := backup.note_store(source, place):
        click.echo(line)
    with _exclusive(place):
        click.echo(maintenance.rebuild(place))


class _exclusive:  # noqa: N801
    """Hold the locks of the collector and of its index while the database is replaced."""

    def __init__(self, place: Paths) -> None:
        self._place = place
        self._locks: list[Lock] = []
        self._ownership: LogOwnership | None = None
        self._umask = 0

    def __enter__(self) -> None:
        _check_index_path(self._place)
        if not self._place.collector.is_dir():
            raise click.ClickException(f"nothing is recorded under {self._place.root}; log a run there first")
        try:
            self._locks.append(Lock(self._place.collector / "lock"))
        except LockHeldError as error:
            raise _held(self._place, error) from error
        try:
            self._ownership = LogOwnership(self._place, is_service=_is_service(self._place))
            self._ownership.renew_in_background()
        except OSError as error:
            self._release()
            raise click.ClickException(str(error)) from error
        try:
            # safeguard: index-ends-before-replacement
            self._locks.append(take_lock(self._place.index_lock, patient_s=INDEX_LOCK_WAIT_S))
        except LockHeldError as error:
            self._release()
            raise click.ClickException(
                f"{self._place.index} is held by index process {error.pid}, which applies the log; "
                "try again when it has ended"
            ) from error
        self._umask = keep_files_private()

    def __exit__(self, *error: object) -> None:
        os.umask(self._umask)
        self._release()

    def _release(self) -> None:
        if self._ownership is not None:
            self._ownership.release()
        for lock in reversed(self._locks):
            lock.release()


def _is_service(place: Paths) -> bool:
    """Return whether the collector of a directory is a service, which a command that replaces files does not change."""
    owner = read_owner(place.collector)
    return owner is None or owner.is_service


def _held(place: Paths, error: LockHeldError) -> click.ClickException:
    return click.ClickException(  # safeguard: named-command-complete
        f"{place.collector} is held by collector process {error.pid}; stop it first (chiplog down, or kill {error.pid})"
    )
