"""`chiplog import`: bring exports of runs into a collector, here or over TCP."""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from chiplog.cli.options import checked_run_id
from chiplog.cli.progress import progress_bar
from chiplog.identity.process_info import node_name
from chiplog.identity.recording_dir import recording_dir
from chiplog.ops import daemons
from chiplog.query.client import Client, NoDataError, QueryError, connect
from chiplog.transfer.export_format import RUN_FILE
from chiplog.transfer.export_reader import ExportError, ExportReader
from chiplog.transfer.import_blocks import ImportBlocks
from chiplog.transfer.import_delivery import DeliveryError, Destination, check_connection, deliver_blocks, deliver_files
from chiplog_schemas.addresses import check_connect
from chiplog_schemas.model.intervals import Intervals
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.security.curve import client_curve
from chiplog_schemas.security.key_files import Keys, keys_dir
from chiplog_schemas.security.permissions import Role

_ARRIVED = """
SELECT hex(p.uuid) AS uuid, i.first_seq, i.last_seq FROM base.intervals i JOIN base.producers p USING (producer)
WHERE list_contains($producers::VARCHAR[], hex(p.uuid)) AND p.role IS NOT NULL
"""
_APPLIED_WAIT_S = 60.0  # a collector with other work applies what it has in its order
_STALLED_S = 5.0  # an index applies several times a second; a large transaction takes seconds on a busy machine
_LOOK_AGAIN_S = 0.1
_REJECTED = """
SELECT hex(p.uuid) AS uuid, e.seq, e.message FROM base.events e JOIN base.producers p USING (producer)
WHERE e.kind = 'quarantined' AND list_contains($producers::VARCHAR[], hex(p.uuid)) ORDER BY e.seq
"""


@click.command("import")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--as",
    "run_id",
    metavar="RUN_ID",
    callback=checked_run_id,
    help="Import one export as a new run with this ID.",
)
@click.option("--dir", "directory", metavar="DIR", help="Import into this CHIPLOG_DIR (default ~/.chiplog).")
@click.option("--url", metavar="URL", help="Collector: tcp://HOST:PORT, as agents use it.")
def import_(directories: tuple[Path, ...], run_id: str | None, directory: str | None, url: str | None) -> None:
    """Bring runs that `chiplog export` wrote into a collector. DIR is the directory of one run.

    Importing a run again changes nothing. All directories are checked before anything is sent.
    """
    if run_id is not None and len(directories) > 1:
        raise click.UsageError(
            f"--as names one run, and {len(directories)} directories are given; import each by itself"
        )
    with contextlib.ExitStack() as stack:
        try:
            for path in directories:
                _require_one_export(path)
            exports = [stack.enter_context(_opened(path, run_id)) for path in directories]
            destination = _destination(directory, url)
        except (ExportError, ValueError) as error:
            raise click.UsageError(str(error)) from error
        for reader, blocks in exports:
            try:
                check_connection(destination)
                has_all = _prepare(directory, url, blocks)
                _deliver(destination, reader, blocks)
                _check_rejected(directory, url, blocks)
            except (DeliveryError, ExportError) as error:
                raise click.ClickException(str(error)) from error
            n_files = len(reader.contents)
            files = f"{n_files} file{'s' if n_files != 1 else ''}"
            line = f"run {blocks.run_id}: {reader.n_points:,} points, {files}, delivered to {destination.address}"
            click.echo(f"{line}; it had all of its events before" if has_all else line, err=True)


def _require_one_export(path: Path) -> None:
    """Raise UsageError for a directory of exports, as `chiplog export -o` was given it."""
    if (path / RUN_FILE).exists() or not path.is_dir():
        return
    inside = sorted(child.name for child in path.iterdir() if (child / RUN_FILE).is_file())
    if inside:  # safeguard: exports-within-are-named
        more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
        every = path / "*" if len(inside) > 1 else path / inside[0]
        raise click.UsageError(f"{path} is not an export; it has {inside[0]}{more}: chiplog import {every}")


@contextlib.contextmanager
def _opened(path: Path, run_id: str | None) -> Iterator[tuple[ExportReader, ImportBlocks]]:
    """Check an export, and prepare its rows in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="chiplog-import-") as scratch, ExportReader(path, Path(scratch)) as reader:
        blocks = ImportBlocks(reader, run_id)
        blocks.check()
        yield reader, blocks


def _destination(directory: str | None, url: str | None) -> Destination:
    """Return the collector to deliver to; start the embedded daemons for a directory. Raises ValueError."""
    if directory and url:
        raise click.UsageError(f"--dir {directory} and --url {url} exclude each other; give one of them")
    if url is None and directory is None:
        url = os.environ.get("CHIPLOG_COLLECTOR") or None
    if url is not None:
        keys = Keys(keys_dir(None, os.environ, recording_dir(None)))
        address = check_connect(url)
        return Destination(address, node_name(), client_curve(keys, address, Role.AGENT, Role.COLLECTOR))
    where = paths_for_root(recording_dir(directory))
    if not daemons.daemon_pid(where, daemons.COLLECTOR):
        if elsewhere := daemons.goes_elsewhere(where):  # safeguard: import-keeps-configured-collector
            raise click.ClickException(f"no collector runs for {where.root}; {elsewhere}")
        try:
            daemons.start(where, daemons.AGENT, ["--embedded"])  # it starts the collector of its host
        except OSError as error:
            raise click.ClickException(f"no collector can be started for {where.root}: {error}") from error
    return Destination(where.collector_address, node_name())


def _prepare(directory: str | None, url: str | None, blocks: ImportBlocks) -> bool:
    """Let a run that was deleted be recorded again. Return True if the collector is known to have all events.

    Raises ClickException if this host may not restore. Over TCP both need a reader's key. Without one the run is
    delivered all the same; if it was deleted, it stays so.
    """
    try:
        with connect(url, dir=directory, start=False) as client:
            producers = [producer.hex().upper() for producer in blocks.producers]
            query = "SELECT count(*) AS n FROM base.deleted WHERE list_contains($producers::VARCHAR[], hex(uuid))"
            if client.sql(query, {"producers": producers}).rows()[0]["n"]:
                client.restore_producers(blocks.producers)  # safeguard: deleted-run-imported-again
                return False
            return _has_all_events(client, producers, blocks)
    except QueryError as error:
        if error.kind != "unreachable":
            raise click.ClickException(f"run {blocks.run_id} was deleted here: {error.message}") from error
    except (NoDataError, ValueError):
        pass  # nothing was recorded yet, or this host has no reader's key
    return False


def _has_all_events(client: Client, producers: list[str], blocks: ImportBlocks) -> bool:
    """Return True if the collector has each event of the export. producers: their hex digits."""
    have: dict[bytes, Intervals] = {}
    try:
        rows = client.sql(_ARRIVED, {"producers": producers}).rows()
    except QueryError:
        return False  # unknown; the import goes on without
    for row in rows:
        have.setdefault(bytes.fromhex(row["uuid"]), Intervals()).add(row["first_seq"], row["last_seq"])
    return all(
        uuid in have and not any(have[uuid].missing(first, last) for first, last in ranges)
        for uuid, ranges in blocks.stored()
    )


def _check_rejected(directory: str | None, url: str | None, blocks: ImportBlocks) -> None:
    """Raise ClickException if the database rejected events that it had not rejected where the run was recorded.

    Over TCP this needs a reader's key. Without one a line reports that it is unknown.
    """
    try:
        with connect(url, dir=directory, start=False) as client:
            producers = [producer.hex().upper() for producer in blocks.senders]
            is_whole = _wait_until_applied(client, producers, blocks)
            found = client.sql(_REJECTED, {"producers": producers}).rows()
    except (NoDataError, QueryError, ValueError) as error:
        # safeguard: unknown-rejections-reported
        click.echo(
            f"run {blocks.run_id}: whether the collector rejected some of its events is unknown: {error}", err=True
        )
        return
    known = blocks.rejected() if found else set()
    new = [row for row in found if (bytes.fromhex(row["uuid"]), row["seq"], row["message"]) not in known]
    if new:  # safeguard: rejected-import-reported
        raise click.ClickException(
            f"run {blocks.run_id} is incomplete: the collector rejected {len(new):,} of its events, the first because "
            f"{new[0]['message']}; chiplog rm {blocks.run_id}, then export the run again and import that"
        )
    if not is_whole:
        click.echo(f"run {blocks.run_id}: not all of it is in the database yet; see the view completeness", err=True)


def _wait_until_applied(client: Client, producers: list[str], blocks: ImportBlocks) -> bool:
    """Wait until the database has what was delivered. Return False if it stalls, or applies other data for long.

    It has rejected events, too, except for those that a rejected event was about.
    """
    now = time.monotonic()
    deadline, stalled_at, position = now + _APPLIED_WAIT_S, now + _STALLED_S, -1
    while not (_has_all_events(client, producers, blocks) or client.sql(_REJECTED, {"producers": producers}).rows()):
        [row] = client.sql("SELECT next_number FROM base.position").rows()
        now = time.monotonic()
        if row["next_number"] != position:
            position, stalled_at = row["next_number"], now + _STALLED_S
        if now > min(deadline, stalled_at):
            return False
        time.sleep(_LOOK_AGAIN_S)
    return True


def _deliver(destination: Destination, reader: ExportReader, blocks: ImportBlocks) -> None:
    from rich.progress import TaskProgressColumn, TimeRemainingColumn

    with progress_bar(TaskProgressColumn(), TimeRemainingColumn()) as progress:
        total = sum(path.lstat().st_size for path in reader.contents.values())
        files = progress.add_task(f"{blocks.run_id}: files", total=total, visible=total > 0)
        deliver_files(destination, reader.contents, lambda n_bytes: progress.advance(files, n_bytes), reader.open_saved)
        rows = progress.add_task(f"{blocks.run_id}: rows", total=blocks.n_rows)
        deliver_blocks(destination, blocks.blocks(), lambda: progress.update(rows, completed=blocks.n_done))
