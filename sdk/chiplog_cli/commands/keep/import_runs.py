"""`chiplog import`: bring exports, and runs of other libraries, into a collector, here or over TCP."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import click

from chiplog.identity.process_info import node_name
from chiplog_cli.options import checked_run_id
from chiplog_cli.progress import progress_bar
from chiplog_cli.tables.format_values import printable
from chiplog_client import daemons
from chiplog_client.client import Client, NoDataError, QueryError, connect
from chiplog_client.transfer.export_format import RUN_FILE
from chiplog_client.transfer.export_reader import ExportError, ExportReader
from chiplog_client.transfer.import_blocks import ImportBlocks
from chiplog_client.transfer.import_delivery import (
    DeliveryError,
    Destination,
    check_connection,
    deliver_blocks,
    deliver_files,
    open_content,
)
from chiplog_client.transfer.importers.csv_file import ROLES
from chiplog_client.transfer.importers.export_writer import DIGEST_TAG, WrittenRun, write_exports
from chiplog_client.transfer.importers.formats import FORMATS, Options, guess_format, importer_of
from chiplog_client.transfer.importers.imported_run import ImporterError, spelled
from chiplog_client.transfer.importers.written_blocks import WrittenBlocks
from chiplog_schemas.addresses import check_connect
from chiplog_schemas.model.intervals import Intervals
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.process.recording_dir import recording_dir
from chiplog_schemas.security.curve import client_curve
from chiplog_schemas.security.key_files import Keys, keys_dir
from chiplog_schemas.security.permissions import Role

_MAPPED = frozenset({"csv", "lightning"})  # formats with columns
EXPORT = "chiplog"  # as a format: what `chiplog export` wrote
_ARRIVED = """
SELECT p.id AS uuid, r.first_seq, r.last_seq FROM reads.received_ranges r JOIN reads.producers p USING (producer)
WHERE list_contains($producers::VARCHAR[], p.id) AND p.role IS NOT NULL
"""
_APPLIED_WAIT_S = 60.0  # a collector with other work applies what it has in its order
_STALLED_S = 5.0  # an index applies several times a second; a large transaction takes seconds on a busy machine
_POLL_INTERVAL_S = 0.1
_KNOWN = """
SELECT DISTINCT p.run_id, p.id AS uuid, t.key, t.value
FROM reads.producers p LEFT JOIN reads.logged_run_tags t ON t.producer = p.producer AND starts_with(t.key, $tag)
WHERE list_contains($runs::VARCHAR[], p.run_id) AND p.shown_label IS NOT NULL AND p.role = 'rank'
AND NOT EXISTS (SELECT 1 FROM reads.deleted_producers d WHERE d.id = p.id)
"""
_DELETED = "SELECT id AS uuid FROM reads.deleted_producers WHERE list_contains($producers::VARCHAR[], id)"
_REJECTED = """
SELECT p.id AS uuid, e.seq, e.message FROM reads.rejected_events e JOIN reads.producers p USING (producer)
WHERE list_contains($producers::VARCHAR[], p.id) ORDER BY e.seq
"""


@click.command("import")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--from",
    "format_name",
    metavar="FORMAT",
    type=click.Choice([EXPORT, *FORMATS]),
    help=f"What PATH is: {', '.join([EXPORT, *FORMATS])}. Default: what it looks like.",
)
@click.option(
    "--map",
    "maps",
    metavar="ROLE=COLUMN",
    multiple=True,
    help=f"The column of a CSV file with this role: {', '.join(ROLES)}. May be given again.",
)
@click.option(
    "--as",
    "run_id",
    metavar="RUN_ID",
    callback=checked_run_id,
    help="Import one run as a new run with this ID.",
)
@click.option("--project", metavar="NAME", help="The project of runs from another library.")
@click.option("--dir", "directory", metavar="DIR", help="Import into this CHIPLOG_DIR (default ~/.chiplog).")
@click.option("--url", metavar="URL", help="Collector: tcp://HOST:PORT, as agents use it.")
def import_(
    paths: tuple[Path, ...],
    format_name: str | None,
    maps: tuple[str, ...],
    run_id: str | None,
    project: str | None,
    directory: str | None,
    url: str | None,
) -> None:
    """Bring runs into a collector that `chiplog export` wrote, or another library.

    PATH is the directory of an export, or what the other library wrote. Importing a run again changes nothing. All
    paths are read and checked before anything is sent.
    """
    if run_id is not None and len(paths) > 1:
        raise click.UsageError(f"--as names one run, and {len(paths)} directories are given; import each by itself")
    options = Options(_column_map(maps))
    with contextlib.ExitStack() as stack:
        try:
            formats = [format_name or _format_of(path) for path in paths]
            if maps and _MAPPED.isdisjoint(formats):
                raise click.UsageError(
                    f"--map names columns of CSV files, and {paths[0]} is {formats[0]}; leave it out"
                )
            exports = [
                stack.enter_context(_opened(path, run_id))
                for path, format_ in zip(paths, formats, strict=True)
                if format_ == EXPORT
            ]
            written = [
                run
                for path, format_ in zip(paths, formats, strict=True)
                if format_ != EXPORT
                for run in _read_source(stack, format_, path, options, run_id, project)
            ]
            destination = _destination(directory, url)
        except (ExportError, ImporterError, ValueError) as error:
            raise click.UsageError(str(error)) from error
        try:
            check_connection(destination)
        except DeliveryError as error:
            raise click.ClickException(str(error)) from error
        for reader, blocks in exports:
            _send(directory, url, destination, reader, blocks)
        if written:
            _send_written(directory, url, destination, written)


def _column_map(maps: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in maps:
        role, is_given, column = text.partition("=")
        if not is_given or role not in ROLES:
            raise click.UsageError(f"--map {text!r:.80} is not ROLE=COLUMN; roles are {', '.join(ROLES)}")
        if role in found:
            raise click.UsageError(
                f"--map names two columns for {role}: {found[role]!r:.80} and {column!r:.80}; give one"
            )
        found[role] = column
    return found


def _format_of(path: Path) -> str:
    """Return the format of a path. Raises UsageError for an unknown one."""
    if (path / RUN_FILE).exists():
        return EXPORT
    _require_one_export(path)
    if (found := guess_format(path)) is not None:
        others = [name for name in FORMATS if name != found and path.is_dir() and importer_of(name).is_one(path)]
        if others:
            formats = ", ".join(others)
            click.echo(f"{path}: read as {found}; it looks like {formats}, too: --from reads it as that", err=True)
        return found
    if not path.exists():
        raise click.UsageError(
            f"{spelled(path)} does not exist; name an export of chiplog, or what another library wrote"
        )
    raise click.UsageError(
        f"{path} is no export of chiplog, and looks like none of {', '.join(FORMATS)}; name what it is with --from, or "
        f"a directory with {RUN_FILE}"
    )


def _read_source(
    stack: contextlib.ExitStack, format_name: str, path: Path, options: Options, run_id: str | None, project: str | None
) -> list[WrittenRun]:
    """Read all runs of another library, and write them as exports, which last as long as `stack`."""
    from rich.progress import MofNCompleteColumn

    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chiplog-import-")))
    parts = importer_of(format_name).read(path, options)
    try:
        with progress_bar(MofNCompleteColumn()) as progress:
            task = progress.add_task(f"reading {spelled(path)}", total=None)
            written = write_exports(
                format_name,
                parts,
                scratch,
                run_id=run_id,
                project=project,
                source=path,
                on_progress=lambda n: progress.advance(task, n),
            )
    except OSError as error:
        raise ImporterError(
            f"{error.filename or path}: {error.strerror or error}; check the path, its disk, and TMPDIR"
        ) from error
    if not written:
        raise ImporterError(f"{path}: there is no run in it; name another path, or its format with --from")
    return written


def _report_unmapped(run: WrittenRun) -> None:
    for what, (count, example) in run.unmapped.items():
        first = f", the first: {printable(example)}" if example else ""
        click.echo(f"run {run.run.run_id}: not imported: {count:,} {what}{first}", err=True)


def _send(
    directory: str | None, url: str | None, destination: Destination, reader: ExportReader, blocks: ImportBlocks
) -> None:
    """Deliver an export."""
    try:
        [before] = _prepare(directory, url, [blocks])
        _deliver(destination, blocks, reader.contents, reader.open_saved)
        _check_rejected(directory, url, blocks)
    except (DeliveryError, ExportError) as error:
        raise click.ClickException(str(error)) from error
    _report_delivered(destination, blocks.run_id, reader.n_points, len(reader.contents), before.has_all)


def _send_written(directory: str | None, url: str | None, destination: Destination, written: list[WrittenRun]) -> None:
    """Deliver what other libraries wrote: all runs at once, after the collector was asked about each."""
    before = dict(zip(map(id, written), _prepare(directory, url, written), strict=True))
    if refusals := [before[id(run)].refusal for run in written if before[id(run)].refusal]:
        click.echo("\n".join(f"Error: {refusal}" for refusal in refusals), err=True)
    runs = [run for run in written if not before[id(run)].refusal]
    if runs:
        blocks = WrittenBlocks(runs)
        try:
            _deliver(destination, blocks, blocks.contents)
            _check_rejected(directory, url, blocks)
        except (DeliveryError, ExportError) as error:
            raise click.ClickException(str(error)) from error
    for run in runs:
        _report_delivered(destination, run.run_id, run.n_points, len(run.contents), before[id(run)].has_all)
        _report_unmapped(run)
    if refusals:
        raise click.exceptions.Exit(1)


def _report_delivered(destination: Destination, run_id: str, n_points: int, n_files: int, has_all: bool) -> None:
    files = f"{n_files} file{'s' if n_files != 1 else ''}"
    points = f"{n_points:,} point{'s' if n_points != 1 else ''}"
    line = f"run {run_id}: {points}, {files}, delivered to {destination.address}"
    click.echo(f"{line}; it had all of its events before" if has_all else line, err=True)


def _require_one_export(path: Path) -> None:
    """Raise UsageError for a directory of exports, as `chiplog export -o` was given it."""
    if not path.is_dir():
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


@dataclass(frozen=True, slots=True)
class _Before:
    """What the collector had of a run. refusal: why the run must not be sent, or ''."""

    has_all: bool = False
    refusal: str = ""


def _prepare(directory: str | None, url: str | None, runs: Sequence[ImportBlocks | WrittenRun]) -> list[_Before]:
    """Let runs that were deleted be recorded again. Return for each what the collector is known to have of it.

    Raises ClickException if this host may not restore. Over TCP all this needs a reader's key. Without one the runs are
    delivered all the same; those that were deleted stay so.
    """
    try:
        with connect(url, dir=directory, start=False) as client:
            producers = [producer.hex().upper() for run in runs for producer in run.producers]
            deleted = {bytes.fromhex(row["uuid"]) for row in client.sql(_DELETED, {"producers": producers}).rows()}
            have = _arrived(client, producers)
            have_all = [deleted.isdisjoint(run.producers) and _has_all_events(have, run) for run in runs]
            refusals = _refusals(client, [run for run in runs if isinstance(run, WrittenRun)])
            found = []
            for run, has_all in zip(runs, have_all, strict=True):
                refusal = refusals.get(id(run), "")
                found.append(_Before(has_all, refusal))
                if not refusal and not deleted.isdisjoint(run.producers):
                    _restore(client, run)
            return found
    except QueryError as error:
        if error.kind != "unreachable":
            raise click.ClickException(f"{runs[0].run_id}: the collector cannot be asked: {error.message}") from error
    except (NoDataError, ValueError):
        pass  # nothing was recorded yet, or this host has no reader's key
    return [_Before()] * len(runs)


def _refusals(client: Client, runs: Sequence[WrittenRun]) -> dict[int, str]:
    """Return by the id() of each run why it must not be sent, or ''.

    What depends on the earlier end of a changed source would stay, and a run from elsewhere would get each value twice.
    """
    run_ids = sorted({run.run_id for run in runs})
    known: dict[str, list[dict[str, Any]]] = {}
    for row in client.sql(_KNOWN, {"runs": run_ids, "tag": DIGEST_TAG}).rows() if runs else ():
        known.setdefault(row["run_id"], []).append(row)
    found: dict[int, str] = {}
    for run in runs:
        found[id(run)] = _refusal(run, known.setdefault(run.run_id, []))
        tag = {"key": f"{DIGEST_TAG}{run.origin}", "value": run.digest}
        known[run.run_id] += [{"uuid": producer.hex(), **tag} for producer in run.producers]  # for those that follow
    return found


def _refusal(run: WrittenRun, known: list[dict[str, Any]]) -> str:
    """Return why a run must not be sent. known: the producers of the run with their tags of imports."""
    tag = f"{DIGEST_TAG}{run.origin}"
    for row in known:
        if bytes.fromhex(row["uuid"]) in run.n_seqs:
            if row["key"] == tag and row["value"] != run.digest:  # safeguard: changed-source-refused
                return _changed(run)
        elif not (run.run.piece and row["key"] == tag):  # safeguard: run-from-elsewhere-refused
            another = "give this one another ID with --as ID" if run.is_only else "import it into another --dir"
            return (
                f"{run.run.source}: run {run.run_id} is in the collector already, and not from this source; {another}"
            )
    return ""


def _changed(run: WrittenRun) -> str:
    another = ", or give this one another ID with --as ID" if run.is_only else ""
    return (
        f"{run.run.source}: run {run.run_id} was imported before, and the source has changed since, or --map or "
        f"--project; chiplog rm {run.run_id}, then import it again{another}"
    )


def _restore(client: Client, run: ImportBlocks | WrittenRun) -> None:
    try:
        client.restore_producers(run.producers)  # safeguard: deleted-run-imported-again
    except QueryError as error:
        if error.kind == "unreachable":
            raise
        raise click.ClickException(f"run {run.run_id} was deleted here: {error.message}") from error


def _arrived(client: Client, producers: list[str]) -> dict[bytes, Intervals]:
    """Return the seqs that the collector has of known producers. producers: their hex digits."""
    have: dict[bytes, Intervals] = {}
    try:
        rows = client.sql(_ARRIVED, {"producers": producers}).rows()
    except QueryError:
        return have  # unknown; the import does without
    for row in rows:
        have.setdefault(bytes.fromhex(row["uuid"]), Intervals()).add(row["first_seq"], row["last_seq"])
    return have


def _has_all_events(have: dict[bytes, Intervals], runs: ImportBlocks | WrittenRun | WrittenBlocks) -> bool:
    """Return True if the collector has each event of what is imported."""
    return all(
        uuid in have and not any(have[uuid].missing(first, last) for first, last in ranges)
        for uuid, ranges in runs.stored()
    )


def _check_rejected(directory: str | None, url: str | None, blocks: ImportBlocks | WrittenBlocks) -> None:
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
        run_id = blocks.run_of(bytes.fromhex(new[0]["uuid"]))
        raise click.ClickException(
            f"run {run_id} is incomplete: the collector rejected {len(new):,} of its events, the first because "
            f"{new[0]['message']}; chiplog rm {run_id}, then export the run again and import that"
        )
    if not is_whole:
        click.echo(f"run {blocks.run_id}: not all of it is in the database yet; see the view completeness", err=True)


def _wait_until_applied(client: Client, producers: list[str], blocks: ImportBlocks | WrittenBlocks) -> bool:
    """Wait until the database has what was delivered. Return False if it stalls, or applies other data for long.

    It has rejected events, too, except for those that a rejected event was about.
    """
    now = time.monotonic()
    deadline, stalled_at, position = now + _APPLIED_WAIT_S, now + _STALLED_S, -1
    while not (
        _has_all_events(_arrived(client, producers), blocks) or client.sql(_REJECTED, {"producers": producers}).rows()
    ):
        [row] = client.sql("SELECT position FROM reads.state").rows()
        now = time.monotonic()
        if row["position"] != position:
            position, stalled_at = row["position"], now + _STALLED_S
        if now > min(deadline, stalled_at):
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True


def _deliver(
    destination: Destination,
    blocks: ImportBlocks | WrittenBlocks,
    contents: dict[str, Path],
    opened: Callable[[Path], BufferedReader] = open_content,
) -> None:
    from rich.progress import TaskProgressColumn, TimeRemainingColumn

    with progress_bar(TaskProgressColumn(), TimeRemainingColumn()) as progress:
        if contents:
            total = sum(path.lstat().st_size for path in contents.values())
            files = progress.add_task(f"{blocks.run_id}: files", total=total, visible=total > 0)
            deliver_files(destination, contents, lambda n_bytes: progress.advance(files, n_bytes), opened)
        rows = progress.add_task(f"{blocks.run_id}: rows", total=blocks.n_rows)
        deliver_blocks(destination, blocks.blocks(), lambda: progress.update(rows, completed=blocks.n_done))
