"""`chiplog rm`: delete runs."""

import sys

import click

from chiplog.cli.completion import complete_runs
from chiplog.cli.options import open_client, resolve_run, source_options
from chiplog.query.client import Client

_ABOUT = """
SELECT n_labels,
       (SELECT coalesce(sum(s.n), 0)::BIGINT FROM base.metric_series s JOIN base.identified i USING (producer)
        WHERE i.run_id = r.run_id) AS n_values,
       (SELECT count(*) FROM files f WHERE f.run_id = r.run_id) AS n_files
FROM runs r WHERE r.run_id = $run
"""


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--force", is_flag=True, help="Delete also runs with labels that are not over.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@source_options
def rm(runs: tuple[str, ...], force: bool, yes: bool, dir_: str | None, url: str | None) -> None:
    """Delete runs with all that they recorded. This cannot be undone, except from a backup or an export.

    RUN is an ID, the beginning of one, or `latest`. What still arrives of the run's processes is ignored; a new run may
    have the same ID. The space is freed in the background.
    """
    with open_client(dir_, url) as client:
        found = list(dict.fromkeys(resolve_run(client, run) for run in runs))
        if not yes:
            _confirm([_line_about(client, run) for run in found])
        deleted = client.delete_runs(found, force=force, why="chiplog rm")
    click.echo(deletion_text(len(found), deleted.get("labels")))


def _confirm(lines: list[str]) -> None:
    """Show what would go and ask. Raises Abort, or UsageError without a terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError(
            "standard input is not a terminal, so you cannot confirm; delete without a question by --yes"
        )
    for line in lines:
        click.echo(line)
    click.confirm("Delete this? It cannot be undone", abort=True)


def deletion_text(n_runs: int, n_labels: int | None) -> str:
    """Return what was deleted. n_labels: None if the collector no longer knows it, because it restarted."""
    labels = "" if n_labels is None else f" with {n_labels:,} label{'s' if n_labels != 1 else ''}"
    return f"deleted {n_runs:,} run{'s' if n_runs != 1 else ''}{labels}"


def _line_about(client: Client, run: str) -> str:
    [row] = client.sql(_ABOUT, {"run": run}).rows() or [{"n_labels": 0, "n_values": 0, "n_files": 0}]
    return f"{run}: {row['n_labels']:,} labels, {row['n_values']:,} values, {row['n_files']:,} files"
