"""`chiplog up`: agent and collector in the background, until `chiplog down`."""

import os

import click

from chiplog.ops import daemons
from chiplog_schemas.paths import own_dir, paths_for_root


@click.command()
@click.option("--dir", "directory", metavar="DIR", help="In place of CHIPLOG_DIR (default ~/.chiplog).")
def up(directory: str | None) -> None:
    """Start a collector and an agent in the background. They run until `chiplog down`.

    This is never required: a training starts them itself, and those exit when they are idle.
    """
    where = paths_for_root(own_dir(directory, os.environ))
    wanted = [daemons.AGENT]
    if not os.environ.get("CHIPLOG_COLLECTOR"):
        wanted.insert(0, daemons.COLLECTOR)
    for module in wanted:
        try:
            if daemons.daemon_pid(where, module) and daemons.is_embedded(where, module):
                daemons.stop(where, module)  # it would exit when idle; the new one stays
            before = daemons.daemon_pid(where, module)
            pid = daemons.start(where, module, [])
        except OSError as error:
            raise click.ClickException(str(error)) from error
        word = "runs already" if pid == before else "started"
        click.echo(f"{module.removeprefix('chiplog_')} {word} (process {pid}) for {where.root}")
