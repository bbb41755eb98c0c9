"""The commands `chiplog agent gpu`: close a node's GPUs for an upgrade of the driver, and open them again."""

import os
import time

import click

from chiplog_agent.stats.release_mark import ReleaseMark
from chiplog_schemas.paths import Paths, check_root, ensure_private_dir, paths_for_root, resolve_root
from chiplog_schemas.process.file_lock import lock_holder_pid

_WAIT_S = 15.0  # the sampler ends within 4 s; one that hangs is killed after 10 s
_POLL_S = 0.1
_directory = click.option("--dir", "directory", metavar="DIR", help="In place of CHIPLOG_DIR (default ~/.chiplog).")


@click.group()
def gpu() -> None:
    """Close the GPUs for upgrades of the driver, resets and changes of MIG, which open handles block; open them again.

    This is about the agent of one directory. Agents of other users have the GPUs open, too.
    """


@gpu.command()
@_directory
@click.pass_context
def release(context: click.Context, directory: str | None) -> None:
    """Let the agent close the GPUs, also after its restart, until `resume`. Other statistics continue."""
    place, mark = _find_mark(context, directory)
    try:
        ensure_private_dir(place.agent)
        mark.set()
    except OSError as error:
        raise click.ClickException(f"the request cannot be written: {error}") from error
    deadline = time.monotonic() + _WAIT_S
    while pid := lock_holder_pid(place.agent / "lock"):
        if mark.is_confirmed:
            click.echo(f"The agent of {place.root} has closed the GPUs. Open them again with: chiplog agent gpu resume")
            return
        if time.monotonic() >= deadline:
            raise click.ClickException(
                f"agent {pid} has not closed the GPUs within {_WAIT_S:g} s: a call into the driver may hang; "
                "it closes them when that ends"
            )
        time.sleep(_POLL_S)
    click.echo(f"No agent of {place.root} runs. The next one leaves the GPUs closed until: chiplog agent gpu resume")


@gpu.command()
@_directory
@click.pass_context
def resume(context: click.Context, directory: str | None) -> None:
    """Let the agent open the GPUs again."""
    place, mark = _find_mark(context, directory)
    if not mark.is_set:
        click.echo(f"The GPUs were not released by the agent of {place.root}.")
        return
    try:
        mark.clear()
    except OSError as error:
        raise click.ClickException(f"the request cannot be removed: {error}") from error
    if lock_holder_pid(place.agent / "lock"):
        click.echo(f"The agent of {place.root} samples the GPUs again.")
    else:
        click.echo(f"No agent of {place.root} runs. The next one samples the GPUs.")


def _find_mark(context: click.Context, directory: str | None) -> tuple[Paths, ReleaseMark]:
    """Return the directory that this command names, or the command before it, and the mark there."""
    place = paths_for_root(resolve_root(directory or context.obj, os.environ))
    try:
        is_there = place.root.is_dir()
        check_root(place)
    except OSError as error:
        raise click.ClickException(str(error)) from error
    if not is_there:
        raise click.ClickException(f"the directory {place.root} does not exist; name that of the agent with --dir")
    return place, ReleaseMark(place.agent)
