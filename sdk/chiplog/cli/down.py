"""`chiplog down`: stop the background agent and then the collector, so that no data is in flight."""

import os

import click

from chiplog.ops import daemons
from chiplog_schemas.paths import own_dir, paths_for_root


@click.command()
@click.option("--dir", "directory", metavar="DIR", help="In place of CHIPLOG_DIR (default ~/.chiplog).")
def down(directory: str | None) -> None:
    """Stop agent and collector, and return when they have exited. Logged data stays and is delivered later."""
    where = paths_for_root(own_dir(directory, os.environ))
    stopped = 0
    for module in (daemons.AGENT, daemons.COLLECTOR):
        try:
            pid = daemons.stop(where, module)
        except OSError as error:
            raise click.ClickException(str(error)) from error
        if pid:
            click.echo(f"{module.removeprefix('chiplog_')} stopped (process {pid})")
            stopped += 1
    if not stopped:
        click.echo(f"nothing runs for {where.root}")
