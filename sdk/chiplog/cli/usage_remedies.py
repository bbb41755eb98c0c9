"""What to write instead, for mistakes that click finds in a command line: options of other tools, and a missing run."""

import click

# Options that people try. Only for commands that lack them.
_OTHER_OPTIONS = {
    "--rank": ("label", "--label rank3 is the label of rank 3"),
    "--json": ("form", "--format json"),
    "--csv": ("form", "--format csv"),
    "--lines": ("tail", "-n 20 prints the last 20 lines"),
    "--last": ("tail", "-n 20 prints the last 20 lines"),
    "--limit": ("tail", "-n 20 prints the last 20 lines"),
    "--key": ("keys", "keys follow the run: chiplog plot RUN KEY"),
    "--output": ("dir_", "redirect standard output: > FILE"),
    "--host": ("url", "--url tcp://HOST:PORT"),
    "--collector": ("url", "--url tcp://HOST:PORT"),
    "--run-id": ("run", "the run is an argument: chiplog COMMAND RUN"),
}
_SHORT_OPTIONS = {"-l": "--lines", "-k": "--key"}


def remedy_of(error: click.UsageError) -> str:
    """Return `; ` and what to write instead; empty if the message has a remedy, or if none is known."""
    command = error.ctx.command if error.ctx is not None else None
    if command is None or ";" in error.format_message():
        return ""
    names = {parameter.name for parameter in command.params}
    names |= {"label"} & {"label" for name in names if name == "labels"}
    if isinstance(error, click.NoSuchOption):
        name = _SHORT_OPTIONS.get(error.option_name, error.option_name)
        needed, remedy = _OTHER_OPTIONS.get(name, ("", ""))
        return f"; {remedy}" if needed in names else ""
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return _missing_text(command, error.param)
    return ""


def _missing_text(command: click.Command, parameter: click.Parameter) -> str:
    if command.name in ("rm", "edit") and parameter.name in ("run", "runs"):
        return "; chiplog runs lists the IDs"
    if parameter.name in ("run", "a", "b"):
        return "; name a run, or `latest` for the newest"
    if parameter.name == "keys":
        return "; name a metric: chiplog show RUN lists them"
    return ""
