"""The command `chiplog agent`."""

import logging
import os
import sys
from pathlib import Path

import click

from chiplog_agent.gpu_cli import gpu
from chiplog_agent.pipeline.destination import choose_destination
from chiplog_schemas.addresses import AddressError, check_bind, parse_host_port
from chiplog_schemas.limit_settings import LimitError, read_limits
from chiplog_schemas.limits import SAMPLE_INTERVAL_MAX_S, SAMPLE_INTERVAL_MIN_S, SAMPLE_INTERVAL_S
from chiplog_schemas.paths import check_root, ensure_private_dir, paths_for_root, resolve_root
from chiplog_schemas.process.daemon import keep_files_private, raise_fd_limit, reset_affinity
from chiplog_schemas.process.file_lock import LockHeldError, take_daemon_lock
from chiplog_schemas.security.curve import client_curve
from chiplog_schemas.security.key_files import Keys, KeysError
from chiplog_schemas.security.permissions import Role

_REPLACE_WAIT_S = 10.0  # an embedded agent ends in order within a second; its disk may be slow


def _check_interval(context: click.Context, option: click.Parameter, seconds: float) -> float:
    """Return the interval if the sampler accepts it. NaN compares false, so it is refused too."""
    if not SAMPLE_INTERVAL_MIN_S <= seconds <= SAMPLE_INTERVAL_MAX_S:  # safeguard: sample-interval-refused-early
        limits = f"{SAMPLE_INTERVAL_MIN_S:g} to {SAMPLE_INTERVAL_MAX_S:g} s"
        raise click.BadParameter(f"{seconds:g} s is outside of the limits; choose {limits}, or --no-stats")
    return seconds


@click.group(invoke_without_command=True)
@click.option(
    "--collector",
    "collector_address",
    metavar="ADDRESS",
    help="The collector, tcp://HOST:PORT, also of agents that follow; local: that of this directory.",
)
@click.option("--dir", "directory", metavar="DIR", help="In place of CHIPLOG_DIR (default ~/.chiplog).")
@click.option("--bind", multiple=True, metavar="ADDRESS", help="Listen here too, in addition to the node's own socket.")
@click.option("--keys", "keys_directory", metavar="DIR", help="In place of CHIPLOG_KEYS (default CHIPLOG_DIR/keys).")
@click.option("--node", metavar="NAME", help="This node's name in the tables (default: CHIPLOG_NODE, else the host's).")
@click.option("--spool-bytes-max", type=click.IntRange(min=1 << 20), help="Default: 8 GiB.")
@click.option(
    "--sample-interval-s",
    type=float,
    default=SAMPLE_INTERVAL_S,
    show_default=True,
    callback=_check_interval,
    help=f"Seconds between samples, {SAMPLE_INTERVAL_MIN_S:g} to {SAMPLE_INTERVAL_MAX_S:g}.",
)
@click.option("--no-stats", is_flag=True, help="No system statistics.")
@click.option(
    "--metrics-bind",
    metavar="ADDRESS",
    help="Serve /metrics, /healthz and /readyz here, such as 127.0.0.1:9464.",
)
@click.option("--embedded", is_flag=True, help="Start a collector when none answers; exit when idle.")
@click.pass_context
def agent(
    context: click.Context,
    collector_address: str | None,
    directory: str | None,
    bind: tuple[str, ...],
    keys_directory: str | None,
    node: str | None,
    spool_bytes_max: int | None,
    sample_interval_s: float,
    no_stats: bool,
    metrics_bind: str | None,
    embedded: bool,
) -> None:
    """Run the sidecar of one node: it receives events of ranks, adds statistics, and forwards both to the collector."""
    if context.invoked_subcommand is not None:
        context.obj = directory
        return
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    keep_files_private()
    place = paths_for_root(resolve_root(directory, os.environ))
    os.environ["CHIPLOG_DIR"] = str(place.root)  # child processes must use the same
    try:
        # An agent that a training starts must run.
        limits = read_limits(os.environ, logging.warning if embedded else None)
        check_root(place)
        ensure_private_dir(place.agent)
        lock = take_daemon_lock(place.agent / "lock", embedded=embedded, replace_wait_s=_REPLACE_WAIT_S)
        raise_fd_limit()
        if embedded:
            reset_affinity()
        destination = choose_destination(place, collector_address, keys_directory, node, os.environ, embedded=embedded)
        keys, collector = Keys(Path(destination.keys)), destination.address
        curve = client_curve(keys, collector, Role.AGENT, Role.COLLECTOR) if collector else None
        destination.keep(place)  # early: whatever ends this agent, the next one must know
        # After the lock is taken: of many agents that race, all but one exit before they load the daemon.
        from chiplog_agent.daemon import AgentDaemon, AgentSettings

        keyed = bool(bind) and keys.pair(Role.AGENT) is not None
        settings = AgentSettings(
            places=place,
            node=destination.node,
            collector_address=collector,
            bind=[check_bind(address, keyed=keyed, role=Role.AGENT) for address in bind],
            embedded=embedded,
            stats=not no_stats,
            spool_bytes_max=spool_bytes_max or limits.spool_bytes_max,
            credit_bytes=limits.credit_bytes,
            sample_interval_s=sample_interval_s,
            keys=keys,
            curve=curve,
            metrics=None if metrics_bind is None else parse_host_port("--metrics-bind", metrics_bind, "127.0.0.1:9464"),
            forgets_collector=not destination.is_configured,
        )
        daemon = AgentDaemon(settings, lock)
    except (AddressError, LimitError, KeysError) as error:
        raise click.UsageError(str(error)) from error
    except LockHeldError as error:
        raise click.ClickException(f"{place.agent} is already served by process {error.pid}") from error
    except OSError as error:
        raise click.ClickException(f"agent cannot start: {error}") from error
    daemon.run()  # a failure from here on is not a failure to start


agent.add_command(gpu)
