"""`chiplog export`: runs as directories of Parquet, JSON and files, for other tools and other collectors."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import click

from chiplog_cli.completion import complete_runs
from chiplog_cli.options import open_client, require_project, resolve_run, source_options
from chiplog_cli.progress import progress_bar
from chiplog_client.client import Client
from chiplog_client.transfer.export_format import directory_name
from chiplog_client.transfer.exporter import Exported, Progress, export_run
from chiplog_client.transfer.exporters.conversion import FORMATS, ConvertedRun, convert_run, require
from chiplog_client.transfer.exporters.event_files import MissingLibraryError


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=complete_runs)
@click.option("--project", metavar="NAME", help="All runs of a project.")
@click.option("--all", "is_all", is_flag=True, help="All runs.")
@click.option(
    "-o",
    "--output",
    "output",
    metavar="DIR",
    default=".",
    type=click.Path(path_type=Path),
    help="Create the directories below this one (default: the current one).",
)
@click.option("--to", "format_name", type=click.Choice(FORMATS), help="Write files of another library.")
@source_options
def export(
    runs: tuple[str, ...],
    project: str | None,
    is_all: bool,
    output: Path,
    format_name: str | None,
    dir_: str | None,
    url: str | None,
) -> None:
    """Copy runs to directories that other tools read: Parquet files, the saved files, and run.json.

    Each run becomes the directory DIR/RUN_ID, complete or not at all. RUN is an ID, the beginning of one, a name, or
    `latest`.

    --to tensorboard writes event files, a directory for each label; --to csv one file of the metrics, metrics.csv.
    """
    if (bool(runs), project is not None, is_all).count(True) != 1:
        raise click.UsageError("name runs, or use one of --project NAME and --all")
    if output.exists() and not output.is_dir():
        raise click.UsageError(f"{output} is a file; name a directory with -o, in which each run becomes one")
    if format_name is not None:
        try:
            require(format_name)
        except MissingLibraryError as error:
            raise click.ClickException(str(error)) from error
    with open_client(dir_, url) as client:
        targets = {run: output / directory_name(run) for run in _chosen(client, runs, project)}
        for target in targets.values():
            if os.path.lexists(target):  # safeguard: existing-export-kept
                raise click.UsageError(f"{target} exists; name another place with -o, or remove it")
        for run, target in targets.items():
            try:
                with _progress_of(run) as show:
                    if format_name is not None:
                        _report_converted(convert_run(client, run, target, format_name, show))
                    else:
                        _report(export_run(client, run, target, show))
            except OSError as error:
                raise click.ClickException(
                    f"{error.filename or target} cannot be written: {error.strerror or error}"
                ) from error


def _chosen(client: Client, runs: tuple[str, ...], project: str | None) -> list[str]:
    """Return the IDs of the runs that the arguments name. Raises UsageError for an unknown name."""
    if runs:
        return list(dict.fromkeys(resolve_run(client, run) for run in runs))
    query = "SELECT run_id FROM runs WHERE $project IS NULL OR project = $project ORDER BY created_at, run_id"
    found = [str(row["run_id"]) for row in client.sql(query, {"project": project}).rows()]
    if not found and project is not None:
        require_project(client, project)
    if not found:
        raise click.UsageError("no run has been recorded yet; start one first")
    return found


@contextlib.contextmanager
def _progress_of(run: str) -> Iterator[Progress]:
    """Show a bar until the end of the block; yield what moves it."""
    from rich.progress import TaskProgressColumn, TimeRemainingColumn

    with progress_bar(TaskProgressColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task(f"reading {run}", total=None)

        def show(name: str, done: int, total: int) -> None:
            progress.update(task, description=f"{run}: {name}", completed=done, total=total)

        yield show


def _report(done: Exported) -> None:
    files = f"{done.n_files} file{'s' if done.n_files != 1 else ''}"
    click.echo(f"{done.n_points:,} points, {files}, {done.n_bytes:,} bytes, written to {done.path}", err=True)
    if done.n_absent:  # safeguard: absent-file-reported
        what = "1 file is" if done.n_absent == 1 else f"{done.n_absent} files are"
        click.echo(f"{what} not in the export; run.json has the reason in absent_contents", err=True)
    _report_running(done.run_id, done.is_running)


def _report_converted(done: ConvertedRun) -> None:
    counts = [f"{n:,} {noun.removesuffix('s') if n == 1 else noun}" for noun, n in done.written.items() if n]
    click.echo(f"{', '.join(counts) or 'no values'}, written to {done.path}", err=True)
    if done.left_out:
        lacks = ", ".join(f"{n:,} {noun}" for noun, n in sorted(done.left_out.items()))
        click.echo(f"not written: {lacks}", err=True)
    _report_running(done.run_id, done.is_running)


def _report_running(run: str, is_running: bool) -> None:
    if is_running:
        click.echo(f"run {run!r} has not ended: the export has what was stored until now", err=True)
