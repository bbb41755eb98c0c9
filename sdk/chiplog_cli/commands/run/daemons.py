"""`chiplog up` and `chiplog down`: agent and collector in the background."""

import os

import click

from chiplog_client import daemons
from chiplog_schemas.addresses import AddressError, store_of
from chiplog_schemas.limit_settings import LimitError, keeps_files, read_limits
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.recording_dir import recording_dir
from chiplog_schemas.transport.collector_memory import LOCAL

_STARTS_MAX = 5  # of one daemon: a rank starts one at most every second, and few meet the moment
_DIR = click.option("--dir", "directory", metavar="DIR", help="In place of CHIPLOG_DIR (default ~/.chiplog).")


@click.command()
@_DIR
@click.option("--take-over", metavar="HOST", help="Own the data of a host that is gone, if hosts share DIR.")
@click.option(
    "--collector",
    type=click.Choice([LOCAL]),
    help="Deliver to the collector of DIR again, with all that waits for another one.",
)
def up(directory: str | None, take_over: str | None, collector: str | None) -> None:
    """Start a collector and an agent in the background. They run until `chiplog down`.

    This is never required: a training starts them itself, and those exit when they are idle.
    """
    try:  # else the daemon that refuses one is waited for
        read_limits(os.environ)
        keeps_files(os.environ)
        store_of(os.environ)
    except (AddressError, LimitError) as error:
        raise click.UsageError(str(error)) from error
    where = paths_for_root(recording_dir(directory))
    wanted = [daemons.AGENT]
    elsewhere = daemons.goes_elsewhere(where)
    arguments = ["--collector", collector] if collector else []
    if collector:
        os.environ.pop("CHIPLOG_COLLECTOR", None)
        wanted.insert(0, daemons.COLLECTOR)
    elif elsewhere:  # safeguard: up-keeps-configured-collector
        click.echo(f"chiplog: {elsewhere}", err=True)
        os.environ.pop("CHIPLOG_COLLECTOR", None)
    elif not os.environ.get("CHIPLOG_COLLECTOR"):
        wanted.insert(0, daemons.COLLECTOR)
    try:
        if take_over:
            daemons.take_over(where, take_over)
        before = {module: daemons.daemon_pid(where, module) for module in wanted}
        if collector and elsewhere:  # safeguard: up-ends-delivery-elsewhere
            daemons.stop(where, daemons.AGENT)
        for module in reversed(wanted):  # the agent first: it would start another collector
            _stop_embedded(where, module)
        pids = {
            module: _start_to_stay(where, module, arguments if module == daemons.AGENT else []) for module in wanted
        }
    except OSError as error:
        raise click.ClickException(str(error)) from error
    for module, pid in pids.items():
        word = "runs already" if pid == before[module] else "started"
        click.echo(f"{module.removeprefix('chiplog_')} {word} (process {pid}) for {where.root}")


def _start_to_stay(where: Paths, module: str, arguments: list[str]) -> int:
    """Start a daemon that stays; return its PID. One that a training started is replaced: it would exit."""
    for _ in range(_STARTS_MAX):
        pid = daemons.start(where, module, arguments)
        # safeguard: up-names-lasting-daemon
        if not daemons.is_embedded(where, module) and daemons.daemon_pid(where, module) == pid:
            return pid
        _stop_embedded(where, module)
    raise OSError(f"{module} is started by a training again and again in {where.root}; try again")


def _stop_embedded(where: Paths, module: str) -> None:
    if daemons.daemon_pid(where, module) and daemons.is_embedded(where, module):
        daemons.stop(where, module)


@click.command()
@_DIR
def down(directory: str | None) -> None:
    """Stop agent and collector, and return when they have exited. Logged data stays and is delivered later."""
    where = paths_for_root(recording_dir(directory))
    stopped = 0
    for module in (daemons.AGENT, daemons.COLLECTOR):  # in this order no data is in flight at the end
        try:
            pid = daemons.stop(where, module)
        except OSError as error:
            raise click.ClickException(str(error)) from error
        if pid:
            click.echo(f"{module.removeprefix('chiplog_')} stopped (process {pid})")
            stopped += 1
    if not stopped:
        click.echo(f"nothing runs for {where.root}")
