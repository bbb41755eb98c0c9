"""`chiplog export`: runs as directories of Parquet, JSON and files, for other tools and other collectors."""

import os
from pathlib import Path

import click

from chiplog.cli.completion import complete_runs
from chiplog.cli.options import open_client, require_project, resolve_run, source_options
from chiplog.cli.progress import progress_bar
from chiplog.query.client import Client
from chiplog.transfer.export_format import directory_name
from chiplog.transfer.exporter import Exported, export_run


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
@source_options
def export(
    runs: tuple[str, ...], project: str | None, is_all: bool, output: Path, dir_: str | None, url: str | None
) -> None:
    """Copy runs to directories that other tools read: Parquet files, the saved files, and run.json.

    Each run becomes the directory DIR/RUN_ID, complete or not at all. RUN is an ID, the beginning of one, a name, or
    `latest`.
    """
    if (bool(runs), project is not None, is_all).count(True) != 1:
        raise click.UsageError("name runs, or use one of --project NAME and --all")
    if output.exists() and not output.is_dir():
        raise click.UsageError(f"{output} is a file; name a directory with -o, in which each run becomes one")
    with open_client(dir_, url) as client:
        targets = {run: output / directory_name(run) for run in _chosen(client, runs, project)}
        for target in targets.values():
            if os.path.lexists(target):  # safeguard: existing-export-kept
                raise click.UsageError(f"{target} exists; name another place with -o, or remove it")
        for run, target in targets.items():
            try:
                done = _export(client, run, target)
            except OSError as error:
                raise click.ClickException(
                    f"{error.filename or target} cannot be written: {error.strerror or error}"
                ) from error
            _report(done)


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


def _export(client: Client, run: str, target: Path) -> Exported:
    from rich.progress import TaskProgressColumn, TimeRemainingColumn

    with progress_bar(TaskProgressColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task(f"reading {run}", total=None)

        def show(name: str, done: int, total: int) -> None:
            progress.update(task, description=f"{run}: {name}", completed=done, total=total)

        return export_run(client, run, target, show)


def _report(done: Exported) -> None:
    files = f"{done.n_files} file{'s' if done.n_files != 1 else ''}"
    click.echo(f"{done.n_points:,} points, {files}, {done.n_bytes:,} bytes, written to {done.path}", err=True)
    if done.n_absent:  # safeguard: absent-file-reported
        what = "1 file is" if done.n_absent == 1 else f"{done.n_absent} files are"
        click.echo(f"{what} not in the export; run.json has the reason in absent_contents", err=True)
    if done.is_running:
        click.echo(f"run {done.run_id!r} has not ended: the export has what was stored until now", err=True)
