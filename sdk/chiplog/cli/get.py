"""`chiplog get`: saved files back from the collector, one or a whole directory."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click

from chiplog.cli.completion import complete_runs
from chiplog.cli.options import exact_run, open_client, resolve_run, source_options
from chiplog.cli.progress import progress_bar
from chiplog.query.client import Client, QueryError
from chiplog.query.nearest_names import KNOWN_MAX, unknown_name
from chiplog.transfer.export_format import directory_name
from chiplog_schemas.storage.content_files import invalid_path_reason

_FILES = """SELECT path, bytes, sha256 FROM files
WHERE run_id = $run AND ($path = '' OR path = $path OR starts_with(path, $path || '/')) ORDER BY path"""


class _SavedFile(NamedTuple):
    """A saved file, and where to write it."""

    path: str
    n_bytes: int
    sha256: str
    target: Path


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("path", default="", required=False)
@click.option(
    "-o",
    "--output",
    "destination",
    metavar="DEST",
    help="Write to this file or directory; a directory if it ends with /.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@source_options
def get(run: str, path: str, destination: str | None, force: bool, dir_: str | None, url: str | None) -> None:
    """Copy saved files of a run back: the file PATH, all files below the directory PATH, or all of the run.

    RUN is an ID, the beginning of one, a name, or `latest`; an ID if files are replaced. By default a file or directory
    is written to the current directory under its last name, and all files of a run to a directory that is named as by
    `chiplog export`.
    """
    path = path.strip("/")
    output = None if destination is None else Path(destination)
    is_directory = output is not None and (str(destination).endswith("/") or output.is_dir())
    with open_client(dir_, url) as client:
        given, run = run, resolve_run(client, run)
        files = _find(client, run, path, output, is_directory=is_directory)
        taken = [file.target for file in files if os.path.lexists(file.target)]
        if taken and not force:
            more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
            raise click.UsageError(f"{taken[0]}{more} exists; name another place with -o, or replace it with --force")
        if taken and exact_run(client, given) is None:  # safeguard: unasked-replacement-needs-exact-id
            raise click.UsageError(f"{given!r} means run {run!r} now; to replace {taken[0]} give that ID")
        if blocked := next((target for target in taken if target.is_dir()), None):
            raise click.UsageError(f"{blocked} is a directory, not a file; name another place with -o")
        try:
            _copy_all(client, files)
        except OSError as error:
            raise click.ClickException(f"{error.filename or 'a file'} cannot be written: {error.strerror}") from error
    n_bytes = sum(file.n_bytes for file in files)
    what = f"{len(files)} file{'s' if len(files) != 1 else ''}, {n_bytes:,} bytes"
    click.echo(f"{what}, written to {files[0].target if len(files) == 1 else _common(files)}", err=True)


def _find(client: Client, run: str, path: str, output: Path | None, *, is_directory: bool) -> list[_SavedFile]:
    """Return the files of a run that a path names, with their targets. Raises UsageError for an unknown path.

    is_directory: `output` is one, or becomes one.
    """
    rows = client.sql(_FILES, {"run": run, "path": path}).rows()
    if not rows:
        known = client.sql(f"SELECT path FROM files WHERE run_id = $run LIMIT {KNOWN_MAX}", {"run": run}).rows()
        if not known:
            raise click.UsageError(f"run {run!r} has no saved files; save some with run.save(path)")
        paths = [str(row["path"]) for row in known]
        remedy = f"chiplog sql \"SELECT path FROM files WHERE run_id = '{run}'\" lists all"
        raise click.UsageError(unknown_name(f"file of run {run!r}", path, paths, remedy))
    found = []
    is_one = path != "" and len(rows) == 1 and rows[0]["path"] == path
    for row in rows:
        name = str(row["path"])
        if (reason := invalid_path_reason(name)) is not None:  # safeguard: got-file-stays-below-target
            raise click.ClickException(f"file {name!r:.200} cannot be written: {reason}")
        last = name.rsplit("/", 1)[-1]
        if is_one:
            target = Path(last) if output is None else output / last if is_directory else output
        else:
            # safeguard: run-id-stays-one-name
            directory = output if output is not None else Path(path.rsplit("/", 1)[-1] or directory_name(run))
            target = directory / name.removeprefix(f"{path}/")
        found.append(_SavedFile(name, int(row["bytes"]), str(row["sha256"]), target))
    return found


def _copy_all(client: Client, files: list[_SavedFile]) -> None:
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with progress_bar(DownloadColumn(), TransferSpeedColumn()) as progress:
        task = progress.add_task("copying", total=sum(file.n_bytes for file in files))
        for file in files:
            progress.update(task, description=file.path)
            _copy(client, file, lambda n_bytes: progress.advance(task, n_bytes))


def _copy(client: Client, file: _SavedFile, on_bytes: Callable[[int], None]) -> None:
    """Write one file under a temporary name, verify its digest, and rename it."""
    file.target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    descriptor, name = tempfile.mkstemp(prefix=f".{file.target.name[:64]}.", dir=file.target.parent)
    try:
        with os.fdopen(descriptor, "wb") as part:
            for data in client.read_file(file.sha256):
                digest.update(data)
                part.write(data)
                on_bytes(len(data))
        if digest.hexdigest() != file.sha256:  # safeguard: got-file-verified
            message = f"file {file.path!r} is damaged at the collector: its digest is not {file.sha256}"
            raise QueryError("internal", message)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, file.target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _common(files: list[_SavedFile]) -> str:
    return os.path.commonpath([file.target.parent for file in files]) or "."
