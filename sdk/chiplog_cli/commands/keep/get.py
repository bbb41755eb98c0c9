"""`chiplog get`: saved files back from the collector, one or a whole directory, or those of an artifact."""

import os
from pathlib import Path
from typing import NamedTuple

import click

from chiplog.artifacts.artifact import parse_name
from chiplog.artifacts.reads import Version, condition_of, copy_content, omission_text, version_of, write_file
from chiplog.values.artifact_value import ArtifactError
from chiplog_cli.completion import complete_runs
from chiplog_cli.options import exact_run, open_client, resolve_run, source_options
from chiplog_cli.progress import progress_bar
from chiplog_client.client import Client
from chiplog_client.nearest_names import KNOWN_MAX, unknown_name
from chiplog_client.transfer.export_format import directory_name
from chiplog_schemas.storage.content_files import invalid_path_reason

_FILES = """SELECT path, bytes, sha256 FROM files
WHERE run_id = $run AND ($path = '' OR path = $path OR starts_with(path, $path || '/')) ORDER BY path"""


class SavedFile(NamedTuple):
    """A stored content, and where to write it."""

    path: str
    n_bytes: int
    sha256: str
    target: Path


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.argument("path", default="", required=False)
@click.option(
    "-o",
    "--output",
    "destination",
    metavar="DEST",
    help="Write to this file or directory; a directory if it ends with /.",
)
@click.option("--artifact", metavar="NAME:ALIAS", help="Copy the files of a version: [PROJECT/]NAME[:ALIAS or :vN].")
@click.option("--force", is_flag=True, help="Replace files that exist.")
@source_options
def get(
    run: str | None,
    path: str,
    destination: str | None,
    artifact: str | None,
    force: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """Copy saved files of a run back: the file PATH, all files below the directory PATH, or all of the run.

    RUN is an ID, the beginning of one, a name, or `latest`; an ID if files are replaced. By default a file or directory
    is written to the current directory under its last name, and all files of a run to a directory that is named as by
    `chiplog export`. The files of an artifact go to the directory NAME:vN; a referenced file of this machine is copied,
    any other reference is left out.
    """
    if artifact is not None:
        if run is not None:
            raise click.UsageError(f"--artifact {artifact} and the run {run} exclude each other; leave one out")
        with open_client(dir_, url) as client:
            _get_artifact(client, artifact, destination, force=force)
        return
    if run is None:
        raise click.UsageError("name a run, or `latest` for the newest, or an artifact with --artifact NAME:ALIAS")
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
        copy_files(client, files)


def _find(client: Client, run: str, path: str, output: Path | None, *, is_directory: bool) -> list[SavedFile]:
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
        found.append(SavedFile(name, int(row["bytes"]), str(row["sha256"]), target))
    return found


def copy_files(client: Client, files: list[SavedFile]) -> None:
    """Write files, and report how many on standard error. Raises ClickException."""
    try:
        _copy_all(client, files)
    except OSError as error:
        raise click.ClickException(f"{error.filename or 'a file'} cannot be written: {error.strerror}") from error
    n_bytes = sum(file.n_bytes for file in files)
    what = f"{len(files)} file{'s' if len(files) != 1 else ''}, {n_bytes:,} bytes"
    click.echo(f"{what}, written to {files[0].target if len(files) == 1 else _common(files)}", err=True)


def _copy_all(client: Client, files: list[SavedFile]) -> None:
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with progress_bar(DownloadColumn(), TransferSpeedColumn()) as progress:
        task = progress.add_task("copying", total=sum(file.n_bytes for file in files))
        for file in files:
            progress.update(task, description=file.path)
            copy_content(client, file.path, file.sha256, file.target, lambda n_bytes: progress.advance(task, n_bytes))


def _get_artifact(client: Client, text: str, destination: str | None, *, force: bool) -> None:
    """Write the files of a version. Raises ClickException."""
    try:
        version = _version_of(client, text)
        here = [file for file in version.files if not file.reference or file.reference.startswith("file:")]
        files = [file for file in here if not file.omitted]
        if len(files) < len(here):
            click.echo(omission_text(version, [file for file in here if file.omitted]), err=True)
        root = Path(f"{version.name}:v{version.version}" if destination is None else destination)
        taken = [root / file.path for file in files if os.path.lexists(root / file.path)]
        if taken and not force:
            raise click.UsageError(f"{taken[0]} exists; name another place with -o, or replace it with --force")
        for file in files:
            write_file(client, version, file, root / file.path)
    except ArtifactError as error:
        raise click.ClickException(str(error)) from error
    n_bytes = sum(file.size for file in files)
    what = f"{len(files)} file{'s' if len(files) != 1 else ''}, {n_bytes:,} bytes"
    left = f"; {n_left} references left out" if (n_left := len(version.files) - len(here)) else ""
    click.echo(f"{version}: {what}, written to {root}{left}", err=True)


def _version_of(client: Client, text: str) -> Version:
    """Return the version that a text names; without a project, that of the only one. Raises ClickException."""
    project, name, wanted = parse_name(text, "")
    rows = client.sql("SELECT DISTINCT project FROM artifacts WHERE name = $name ORDER BY project", {"name": name})
    projects = [str(row["project"]) for row in rows.rows()]
    if "/" not in text:
        if len(projects) > 1:
            known = ", ".join(f"{project}/{name}" for project in projects[:5])
            raise click.UsageError(f"artifact {name!r} is of several projects: {known}; name one")
        project = projects[0] if projects else ""
    version = version_of(client, project, name, *condition_of(wanted))
    if version is None:
        what = f"has no version {wanted!r:.80}" if project in projects else "is unknown"
        raise click.UsageError(f"artifact {text.partition(':')[0]!r:.200} {what}; chiplog artifacts lists all")
    return version


def _common(files: list[SavedFile]) -> str:
    return os.path.commonpath([file.target.parent for file in files]) or "."
