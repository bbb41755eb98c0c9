"""What to write instead, for mistakes in a command line: words of other tools, and missing or needless arguments."""

import click

from chiplog_client.nearest_names import nearest

# Options that people try: a parameter or the command that the remedy needs, and the remedy. The first that fits counts.
_TAIL = ("tail", "-n 20 prints the last 20 lines"), ("limit", "--limit 20 lists 20 runs")
_FILE = ("form", "-o FILE writes a file"), ("dir_", "redirect standard output: > FILE")
_RUN = (("run", "the run is an argument: chiplog COMMAND RUN"),)
_LABEL = ("labels", "--label rank3 is the label of rank 3"), ("label", "--label rank3 is the label of rank 3")
_ADDRESS = ("bind", "--bind tcp://HOST:PORT"), ("up", "give it to chiplog collector --bind tcp://HOST:PORT")
_SINCE = (("logs", "print times by --times, or ask chiplog sql \"FROM console WHERE ts > '2026-01-02'\""),)
_OTHER_OPTIONS = {
    "--rank": (*_LABEL, ("top", "--filter rank3"), ("show", "--all shows each label")),
    "--label": (("top", "--filter rank3"), ("show", "--all shows each label")),
    "--json": (("form", "--format json"),),
    "--csv": (("form", "--format csv"),),
    "--format": (("export", 'runs are Parquet and JSON; chiplog sql "FROM metrics" -o FILE.csv writes other formats'),),
    "-n": _TAIL,
    "--lines": _TAIL,
    "--last": _TAIL,
    "--limit": _TAIL,
    "--tail": _TAIL,
    "--key": (("keys", "keys follow the run: chiplog plot RUN KEY"),),
    "--metric": (("keys", "keys follow the run: chiplog plot RUN KEY"),),
    "--output": _FILE,
    "-o": _FILE,
    "--host": (*_ADDRESS, ("url", "--url tcp://HOST:PORT")),
    "--port": (*_ADDRESS, ("url", "--url tcp://HOST:PORT")),
    "--collector": (("url", "--url tcp://HOST:PORT"),),
    "--run-id": _RUN,
    "--run": _RUN,
    "--id": _RUN,
    "--status": (("state", "--state finished"),),
    "--search": (("text", "words follow: chiplog runs WORDS"),),
    "--grep": (("logs", "pipe it: chiplog logs RUN | grep WORD"),),
    "--stderr": (("logs", "--stream stderr"),),
    "--stdout": (("logs", "--stream stdout"),),
    "--since": _SINCE,
    "--password": (("ui", "set CHIPLOG_UI_PASSWORD"),),
    "--public": (("ui", "--host 0.0.0.0, see chiplog ui --help"),),
    "--all": (("rm", "chiplog prune deletes many runs"),),
    "--fix": (("doctor", "each finding names what to do"),),
    "--force": (("down", "chiplog down waits until both have stopped"),),
    "--tag": (("edit", "--add-tag NAME adds one, --tags replaces all"),),
    "--state": (("edit", "a state follows from how the processes ended, and cannot be edited"),),
}
_SHORT_OPTIONS = {"-l": "--lines", "-k": "--key"}
# Commands of other tools; their names are not similar to those of chiplog.
OTHER_COMMANDS = {
    **dict.fromkeys(("ls", "list", "ps"), "runs"),
    **dict.fromkeys(("info", "describe", "summary"), "show"),
    **dict.fromkeys(("watch", "monitor"), "top"),
    **dict.fromkeys(("tail", "cat", "console"), "logs"),
    **dict.fromkeys(("delete", "remove"), "rm"),
    **dict.fromkeys(("server", "serve", "dashboard", "web"), "ui"),
    **dict.fromkeys(("download", "pull"), "get"),
    **dict.fromkeys(("rename", "tag"), "edit"),
    **dict.fromkeys(("histograms", "histogram", "texts", "text", "images", "tables", "logged"), "media"),
    "start": "up",
    "stop": "down",
    "query": "sql",
    "check": "doctor",
    "diff": "compare",
    "gc": "prune",
    "version": "--version",
    "help": "--help",
}


def remedy_of(error: click.UsageError) -> str:
    """Return `; ` and what to write instead; empty if the message has a remedy, or if none is known."""
    command = error.ctx.command if error.ctx is not None else None
    if error.ctx is None or command is None or ";" in error.format_message():
        return ""
    if isinstance(error, click.NoSuchOption):
        return _option_text(command, error.option_name)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        if known := _missing_text(command, error.param):
            return known
    elif not error.message.startswith("Got unexpected extra argument"):
        return ""
    words = " ".join(piece for piece in command.collect_usage_pieces(error.ctx) if piece != "[OPTIONS]")
    return f"; write {error.ctx.command_path} {words}".rstrip()


def _option_text(command: click.Command, option: str) -> str:
    wanted = _SHORT_OPTIONS.get(option, option)
    names = {parameter.name for parameter in command.params} | {command.name}
    if remedy := next((text for needed, text in _OTHER_OPTIONS.get(wanted, ()) if needed in names), ""):
        return f"; {remedy}"
    options = [name[2:] for parameter in command.params for name in parameter.opts if name.startswith("--")]
    near = nearest(option.lstrip("-"), options) if option.startswith("--") else []
    return f"; did you mean {' or '.join(f'--{name}' for name in near)}?" if near else ""


def _missing_text(command: click.Command, parameter: click.Parameter) -> str:
    if command.name in ("rm", "edit") and parameter.name in ("run", "runs"):
        return "; chiplog runs lists the IDs"
    if parameter.name in ("run", "runs"):
        return "; name a run, or `latest` for the newest"
    if parameter.name == "keys":
        return "; name a metric: chiplog show RUN lists them"
    return ""
