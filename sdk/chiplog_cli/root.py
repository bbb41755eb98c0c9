"""The command `chiplog`: a group that lists its commands by name and imports one only when it is called."""

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from chiplog_cli.tables.limited_encoding import tolerate_encodings
from chiplog_cli.usage_remedies import OTHER_COMMANDS, remedy_of


class CommandSpec(NamedTuple):
    """The location of a command, and its line in `chiplog --help`, which does not import it."""

    name: str
    target: str  # module:attribute below chiplog_cli; empty: from the entry-point group, if its package is installed
    section: str
    help: str


ENTRY_POINTS = "chiplog.commands"
LOOK, RUN, KEEP, CARE = "Look at runs", "Record runs", "Move and keep data", "Take care"

# The one list of commands: a new one is a line here, and a module of its name.
COMMANDS = (
    CommandSpec("runs", "commands.look.runs:runs", LOOK, "List runs, the newest first."),
    CommandSpec(
        "show",
        "commands.look.show:show",
        LOOK,
        "Show one run: who is behind, alerts, phases, metrics, events.",
    ),
    CommandSpec("top", "commands.look.top:top", LOOK, "Watch a run live: which rank hangs, how far each one is."),
    CommandSpec("ui", "commands.look.ui:ui", LOOK, "Look at runs in the browser, live."),
    CommandSpec("plot", "commands.look.plot:plot", LOOK, "Plot metrics, in the terminal or as a picture."),
    CommandSpec(
        "compare",
        "commands.look.compare:compare",
        LOOK,
        "Compare runs: config, metrics, phases, machines.",
    ),
    CommandSpec("ranks", "commands.look.ranks:ranks", LOOK, "Show which rank was slow, as a map or step by step."),
    CommandSpec("failures", "commands.look.failures:failures", LOOK, "Show who failed first, and what followed."),
    CommandSpec("events", "commands.look.events:events", LOOK, "List what happened: alerts, ends, restarts, losses."),
    CommandSpec("system", "commands.look.system:system", LOOK, "Show GPUs, hosts and processes of a run."),
    CommandSpec("media", "commands.look.media:media", LOOK, "Show histograms, texts, images, tables and other media."),
    CommandSpec("logs", "commands.look.logs:logs", LOOK, "Print what a run's processes printed."),
    CommandSpec("artifacts", "commands.look.artifacts:artifacts", LOOK, "List versions of artifacts."),
    CommandSpec("sql", "commands.look.sql:sql", LOOK, "Query the database, live and read-only."),
    CommandSpec("run", "commands.run.run:run", RUN, "Run a command; record its console and exit status."),
    CommandSpec("up", "commands.run.daemons:up", RUN, "Start agent and collector in the background."),
    CommandSpec("down", "commands.run.daemons:down", RUN, "Stop them."),
    CommandSpec("status", "commands.run.status:status", RUN, "Show what runs, and check that an event arrives."),
    CommandSpec("agent", "", RUN, "Run the agent of this node."),
    CommandSpec("collector", "", RUN, "Run the collector: receive, store, answer SQL."),
    CommandSpec("get", "commands.keep.get:get", KEEP, "Copy saved files of a run back."),
    CommandSpec(
        "export",
        "commands.keep.export:export",
        KEEP,
        "Copy runs to directories of Parquet, JSON and files.",
    ),
    CommandSpec(
        "import",
        "commands.keep.import_runs:import_",
        KEEP,
        "Bring in exports, and runs of other libraries.",
    ),
    CommandSpec("edit", "commands.keep.edit:edit", KEEP, "Change name, tags or notes of a run."),
    CommandSpec("rm", "commands.keep.rm:rm", KEEP, "Delete runs."),
    CommandSpec("views", "commands.keep.views:views", KEEP, "List what people saved on the page, or delete one."),
    CommandSpec("prune", "commands.keep.prune:prune", KEEP, "Delete many runs: by age, project, state or size."),
    CommandSpec("sync", "commands.keep.sync:sync", KEEP, "Deliver journals that were recorded elsewhere."),
    CommandSpec("backup", "", KEEP, "Back up the collector's data while it runs."),
    CommandSpec("restore", "", KEEP, "Restore a backup into an empty directory."),
    CommandSpec("rebuild", "", KEEP, "Rebuild the database from the log."),
    CommandSpec("store", "", KEEP, "Check and compact a store of Delta tables."),
    CommandSpec("compact", "", KEEP, "Sort the database for fast queries."),
    CommandSpec("keys", "commands.care.keys:keys", CARE, "Create keys for TCP between hosts, and allow others."),
    CommandSpec("completion", "completion:completion", CARE, "Print the script that completes chiplog's words."),
    CommandSpec("doctor", "commands.care.doctor:doctor", CARE, "Check this machine, and report what to fix."),
)
SECTIONS = (LOOK, RUN, KEEP, CARE, "Other commands")


class LazyGroup(click.Group):
    """Finds commands in COMMANDS and in the entry-point group. A broken plugin affects only its own command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all available commands."""
        plugins = _plugins()
        return [c.name for c in COMMANDS if (c.name in plugins if not c.target else _exists(c.target))] + sorted(
            name for name in plugins if name not in _BUILT_IN
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. Raises ClickException with one line if its module cannot be imported."""
        known = _BUILT_IN.get(cmd_name)
        if known is not None and known.target:
            if not _exists(known.target):
                return None
            module, _, attribute = known.target.partition(":")
            loaded: Any = getattr(importlib.import_module(f"chiplog_cli.{module}"), attribute)
        else:
            plugin = _plugins().get(cmd_name)
            if plugin is None:
                return None
            try:
                loaded = plugin.load()
            except Exception as error:  # a foreign module may raise anything while it is imported
                package = plugin.dist.name if plugin.dist else plugin.value
                raise click.ClickException(
                    f"command {cmd_name!r} of {package} cannot be loaded: {type(error).__name__}: {_line(error)}; "
                    "reinstall that package"
                ) from error
        if not isinstance(loaded, click.Command):
            raise click.ClickException(f"command {cmd_name!r} is {type(loaded).__name__}, not a click command")
        return loaded

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest a similar one."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            from chiplog_client.nearest_names import unknown_name

            if other := OTHER_COMMANDS.get(name):
                raise click.UsageError(f"command {name!r} is unknown; write chiplog {other}", ctx)
            raise click.UsageError(
                unknown_name("command", name, self.list_commands(ctx), "chiplog --help lists all"), ctx
            )
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin with a text, importing none, and the options of the group."""
        helps = {command.name: command.help for command in COMMANDS}
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=helps.get(name)) for name in names), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in sections, importing none of those in COMMANDS."""
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in SECTIONS}
        for name in self.list_commands(ctx):
            known = _BUILT_IN.get(name)
            if known is not None:
                rows[known.section].append((name, known.help))
                continue
            try:
                command = self.get_command(ctx, name)
                text = command.get_short_help_str(60) if command else ""
            except click.ClickException as error:
                text = f"({error.message})"
            rows[SECTIONS[-1]].append((name, text))
        for section, commands in rows.items():
            if commands:
                with formatter.section(section):
                    formatter.write_dl(commands)


_BUILT_IN = {command.name: command for command in COMMANDS}


def _plugins() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _exists(target: str) -> bool:
    """Return True if a built-in command's module exists, without importing it."""
    *folders, module = target.partition(":")[0].split(".")
    return os.path.exists(os.path.join(os.path.dirname(__file__), *folders, f"{module}.py"))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _version() -> str:
    try:
        return importlib.metadata.version("chiplog")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"chiplog {_version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
def chiplog() -> None:
    """Telemetry for distributed training: every rank logs, nothing is lost, one SQL database answers for the whole run.

    Data is read from CHIPLOG_DIR (default ~/.chiplog), or from the collector that CHIPLOG_COLLECTOR names.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for a failure, 2 for bad input, 130 after Ctrl-C.

    Every failure is one line on stderr. A reader that stops reading, such as `head`, is not a failure.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    tolerate_encodings()
    try:
        if not arguments:
            arguments = ["--help"]
        code = chiplog.main(arguments, prog_name="chiplog", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "chiplog"
        remedy = remedy_of(error)
        message = _line_of(error) + remedy
        return _fail(f"{path}: {message}" if ";" in message else f"{path}: {message}; see {path} --help", 2)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return _fail(f"chiplog: {_line_of(error)}", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (BrokenPipeError, SystemExit):  # click raises the second after the first
        # Nothing more can be written; the interpreter would retry at exit and report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(f"chiplog: {_line(error)}", 1)


def _line_of(error: click.ClickException) -> str:
    # Options that click suggests are similar by their dashes alone; remedy_of has better ones.
    text = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    return " ".join(text.split()).rstrip(".")


def _fail(message: str, code: int) -> int:
    click.echo(message, err=True)
    return code
