"""`chiplog run`: start a training, and record its console, command line and exit status."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from chiplog.integrations.adapter import as_wandb
from chiplog.recording.api.command_run import LaunchedRun
from chiplog_cli.commands.run.command_process import CommandError, SignalForwarder, find_program
from chiplog_cli.options import checked_run_id

_MODES = ("online", "offline", "disabled")
_EPILOG = """\b
Examples:
chiplog run -- torchrun --nproc-per-node 8 train.py
chiplog run --name baseline --tag a100 -- python train.py --lr 3e-4
chiplog run --as wandb -- torchrun --nproc-per-node 8 train.py
"""


@click.command(epilog=_EPILOG, context_settings={"allow_interspersed_args": False})
@click.option("--as", "as_", type=click.Choice(["wandb"]), help="`import wandb` in the command is chiplog's drop-in.")
@click.option("--run-id", metavar="ID", callback=checked_run_id, help="Default: CHIPLOG_RUN_ID, else a new one.")
@click.option("--project", metavar="NAME", help="Project of the run.")
@click.option("--name", metavar="TEXT", help="Display name of the run.")
@click.option("--group", metavar="NAME", help="Group of the run.")
@click.option("--job-type", metavar="NAME", help="Kind of the job, such as train or eval.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A word to find the run by; repeat it for several.")
@click.option("--notes", metavar="TEXT", help="Free text.")
@click.option("--mode", type=click.Choice(_MODES), help="Default: CHIPLOG_MODE, else online.")
@click.option("--no-console", is_flag=True, help="Record nothing of what the command itself prints.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print the run ID at the start.")
@click.option("--dir", "dir_", metavar="DIR", help="Directory to record to instead of CHIPLOG_DIR.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="[--] COMMAND [ARGUMENT]...")
def run(command: Sequence[str], as_: str | None, no_console: bool, quiet: bool, **given: Any) -> int:
    """Run a training command as a run: its run ID, console, command line and exit status are recorded.

    The command needs no change. If its processes call chiplog.init(), they join this run, and their primary decides
    about its config and state. Otherwise the state is that of the command. What it prints reaches the terminal
    unchanged.

    With --as wandb the command opens the runs itself, as its calls of wandb.init() say. Only --run-id makes one run of
    it, in which all its processes are labels.

    The exit code is that of the command, 128 + n if signal n ended it, 127 if there is no such program, 126 if it
    cannot be executed.
    """
    environ = _variables(given)
    if as_ is not None:
        environ.update(as_wandb.variables(environ))
    try:
        program = find_program(command[0], environ.get("PATH"))
    except CommandError as error:
        click.echo(f"chiplog run: {error}", err=True)
        return error.exit_code
    signals = SignalForwarder()
    is_run = as_ is None or given["run_id"]
    launched = _open(command, environ, {**given, "capture_console": not no_console}, quiet) if is_run else None
    exit_code, why = 0, ""
    try:
        exit_code = signals.run(program, command, launched.environ if launched is not None else environ)
    except CommandError as error:
        click.echo(f"chiplog run: {error}", err=True)
        exit_code, why = error.exit_code, str(error)
    finally:
        if launched is not None:
            launched.finish(exit_code, why)
    return exit_code if exit_code >= 0 else 128 - exit_code


def _variables(given: dict[str, Any]) -> dict[str, str]:
    """Return the variables of the command: those of this process, and the options that have one."""
    named = {"CHIPLOG_RUN_ID": given["run_id"], "CHIPLOG_PROJECT": given["project"], "CHIPLOG_MODE": given["mode"]}
    given["dir"] = given.pop("dir_")
    if given["dir"]:
        named["CHIPLOG_DIR"] = os.path.abspath(given["dir"])
    return {**os.environ, **{name: value for name, value in named.items() if value}}


def _open(
    command: Sequence[str], environ: Mapping[str, str], given: Mapping[str, Any], quiet: bool
) -> LaunchedRun | None:
    """Open the run; None if that fails, because the training must run."""
    try:
        launched = LaunchedRun(command, environ, given)
        if launched.is_recorded and not quiet:
            click.echo(f"chiplog run: {launched.id}", err=True)  # before the console is captured
        launched.open()
    except Exception as error:  # safeguard: training-runs-unrecorded
        what = " ".join(str(error).split())
        click.echo(f"chiplog run: the run is not recorded: {type(error).__name__}: {what}", err=True)
        return None
    return launched
