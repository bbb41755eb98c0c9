"""`chiplog rm`: delete runs."""

import sys
from typing import Any

import click

from chiplog_cli.completion import complete_runs
from chiplog_cli.options import chosen_run, echo_asked, open_client, require_exact_run, run_text, source_options
from chiplog_client.client import Client

_ABOUT = """
SELECT n_labels,
       (SELECT n_values FROM reads.run_sizes n WHERE n.run_id = $run) AS n_values,
       (SELECT count(*) FROM files f WHERE f.run_id = r.run_id) AS n_files,
       (SELECT count(*) FROM media m WHERE m.run_id = r.run_id) AS n_media,
       (SELECT count(*) FROM artifacts a WHERE a.made_by = [r.run_id]) AS n_versions
FROM runs r WHERE r.run_id = $run
"""


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--force", is_flag=True, help="Delete also runs with labels that are not over.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@source_options
def rm(runs: tuple[str, ...], force: bool, yes: bool, dir_: str | None, url: str | None) -> None:
    """Delete runs with all that they recorded. This cannot be undone, except from a backup or an export.

    RUN is an ID. If you are asked, it may also be the beginning of one, a name, or `latest`. What still arrives of the
    run's processes is ignored; a new run may have the same ID. The space is freed in the background.
    """
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("there is no terminal to confirm this on; delete without a question by --yes")
    find = require_exact_run if yes else chosen_run  # safeguard: unasked-deletion-needs-exact-id
    with open_client(dir_, url) as client:
        found = list(dict.fromkeys(find(client, run) for run in runs))
        named = _names_of(client, found, force=force)
        if not yes:
            for run in found:
                click.echo(_line_about(client, run, named.get(run)), err=True)
            click.confirm("Delete this? It cannot be undone", abort=True, err=True)
        deleted = client.delete_runs(found, force=force, why="chiplog rm")
    for run in found:
        click.echo(f"deleted {run_text(run, named.get(run))}")
    echo_deleted(len(found), deleted)


def echo_deleted(n_runs: int, done: dict[str, Any]) -> None:
    """Print what was deleted. done: the answer; without the number of labels if the collector restarted."""
    asked, n_labels = done.get("asked"), done.get("labels")
    # Labels of other collectors are not counted.
    labels = "" if asked or n_labels is None else f" with {n_labels:,} label{'s' if n_labels != 1 else ''}"
    click.echo(f"deleted {n_runs:,} run{'s' if n_runs != 1 else ''}{labels}")
    echo_asked(asked)


def _names_of(client: Client, runs: list[str], *, force: bool) -> dict[str, str | None]:
    """Return the names of runs. Raises UsageError for a run that has not ended, unless `force`."""
    query = "SELECT run_id, name, state, n_running FROM runs WHERE list_contains($runs::VARCHAR[], run_id)"
    rows = client.sql(query, {"runs": runs}).rows()
    running = [str(row["run_id"]) for row in rows if row["state"] == "running" or row["n_running"]]
    if running and not force:
        raise click.UsageError(f"run {running[0]!r} is running; end it first, or add --force")
    return {str(row["run_id"]): row["name"] for row in rows}


def _line_about(client: Client, run: str, name: str | None) -> str:
    whats = ("labels", "values", "files", "media", "versions")
    [row] = client.sql(_ABOUT, {"run": run}).rows() or [{f"n_{what}": 0 for what in whats}]
    counts = ", ".join(f"{row[f'n_{what}']:,} {what}" for what in whats[:4])
    only_here = f", {row['n_versions']:,} versions of artifacts" if row["n_versions"] else ""  # that no other run made
    return f"{run_text(run, name)}: {counts}{only_here}"
