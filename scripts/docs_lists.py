"""The lists in the documentation that repeat code, generated from the code. cog calls these functions (`make docs`).

A page holds such a list between `[[[cog` and `[[[end]]]`. `python -m cogapp --check` fails when a list is out of date.
"""

import ast
import inspect
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import docs_imports

from chiplog_agent.stats.gpu.xids import XIDS, Xid
from chiplog_cli.root import COMMANDS, chiplog
from chiplog_schemas import limit_settings
from chiplog_schemas.model.system_metrics import GPU_METRICS, HOST_METRICS, PIPELINE_METRICS, RANK_METRICS, SystemMetric

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its full name, subcommands after their group."""
    context = click.Context(chiplog, info_name="chiplog")
    for known in COMMANDS:
        command = chiplog.get_command(context, known.name)
        assert command is not None, known.name
        yield from _with_subcommands(f"chiplog {known.name}", command)


def _with_subcommands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for child in command.list_commands(click.Context(command)):
            loaded = command.get_command(click.Context(command), child)
            assert loaded is not None
            yield from _with_subcommands(f"{name} {child}", loaded)


def page_api() -> str:
    """Return a section for each request that the page's server answers, from the docstrings of its handlers."""
    from starlette.routing import Mount, Route

    from chiplog_page.app import build_app
    from chiplog_page.server.source import Source

    mounted = [route for route in build_app(Source()).routes if isinstance(route, Mount) and route.path == "/api"]
    handlers = [route.endpoint for mount in mounted for route in mount.routes or () if isinstance(route, Route)]
    parts = []
    for handler in dict.fromkeys(handlers):
        head, _, rest = (inspect.getdoc(handler) or "").partition(":")
        parts.append(f"## `{head}`\n\n{_sentence(rest.strip())}")
    return "\n\n".join(parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def metric_tables() -> str:
    """Return a table for each kind of device, with a row for each metric of the agent."""
    sections = (
        ("A GPU", GPU_METRICS),
        ("The host", HOST_METRICS),
        ("A rank", RANK_METRICS),
        ("chiplog itself", PIPELINE_METRICS),
    )
    return "\n\n".join(f"## {title}\n\n{_metric_table(metrics.values())}" for title, metrics in sections)


def _metric_table(metrics: Iterable[SystemMetric]) -> str:
    rows = ["| name | unit | kind | every | what | source | verified |", "|---|---|---|---|---|---|---|"]
    for of in metrics:
        kind, every = "counter" if of.is_counter else "gauge", f"{of.period_s:g} s" if of.period_s else "sample"
        rows.append(f"| `{of.name}` | {of.unit} | {kind} | {every} | {of.title} | {of.source} | {of.verified} |")
    return "\n".join(rows)


def xid_table() -> str:
    """Return a table of the XIDs that chiplog knows. Codes with the same meaning share a row."""
    codes: dict[Xid, list[int]] = {}
    for code, xid in XIDS.items():
        codes.setdefault(xid, []).append(code)
    rows = ["| code | what happened | level | what to do |", "|---|---|---|---|"]
    for xid, known in codes.items():
        rows.append(f"| {', '.join(map(str, known))} | {xid.text} | `{xid.severity}` | {xid.advice} |")
    return "\n".join(rows)


def module_tables() -> str:
    """Return a table of the modules of each package, in the words of their docstrings."""
    parts = []
    for package in docs_imports.PACKAGES.values():
        folders = sorted(path.parent for path in Path(ROOT, package).rglob("__init__.py"))
        parts.append(f"## `{package}/`\n\n{_purpose(folders[0] / '__init__.py')}")
        for folder in folders:
            inside = folder.relative_to(Path(ROOT, package)).as_posix()
            if inside != ".":
                parts.append(f"### `{inside}/`\n\n{_purpose(folder / '__init__.py')}")
            modules = sorted(path for path in folder.glob("*.py") if not path.stem.startswith("__"))
            rows = [f"| `{path.name}` | {_escape(_purpose(path))} |" for path in modules]
            if rows:
                parts.append("\n".join(["| module | what it does |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _purpose(path: Path) -> str:
    """Return the first paragraph of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split()).replace("<", "&lt;")


def command_table() -> str:
    """Return a table of the commands, by purpose."""
    lines = ["| command | what it does |", "|---|---|"]
    for command in COMMANDS:
        anchor = f"chiplog-{command.name}"
        lines.append(f"| [`chiplog {command.name}`](#{anchor}) | {_escape(command.help)} |")
    return "\n".join(lines)


def command_reference() -> str:
    """Return a section for each command: usage, help text, arguments and options."""
    parts: list[str] = []
    for name, command in commands():
        context = click.Context(command, info_name=name)
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        parts.append(f"{'#' * len(name.split())} {name}\n")
        parts.append(f"```text\n{usage}\n```\n")
        if command.help:
            parts.append(_help_text(command.help))
        if command.epilog:
            parts.append(_help_text(command.epilog))
        rows = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
        if rows:
            parts.append("| option | meaning |\n|---|---|\n" + "\n".join(_option(option, context) for option in rows))
        parts.append("")
    return "\n".join(parts).rstrip()


def _help_text(text: str) -> str:
    """Return a help text as Markdown. A paragraph that begins with click's mark (a backspace) keeps its lines."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            body = paragraph.removeprefix("\b").strip("\n")
            paragraphs.append(f"```text\n{inspect.cleandoc(body)}\n```\n")
        else:
            paragraphs.append(paragraph.replace("<", "&lt;") + "\n")
    return "\n".join(paragraphs)


def _option(option: click.Option, context: click.Context) -> str:
    names, meaning = option.get_help_record(context) or (", ".join(option.opts), option.help or "")
    meaning = _escape(meaning).replace("[", "\\[")  # else `[x>=1]` reads as a link
    names = names.replace("|", "&#124;").replace("<", "&lt;")  # in backticks an escaped bar would show its backslash
    return f"| <code>{names}</code> | {meaning} |"


def bounds_table() -> str:
    """Return a table of the bounds that users may set: variable, default, least, most, who reads it, what it bounds."""
    lines = ["| variable | default | least | most | read by | what it bounds |", "|---|---|---|---|---|---|"]
    defaults = limit_settings.Limits()
    for variable, (least, most) in limit_settings.RANGES.items():
        default = getattr(defaults, variable.removeprefix("CHIPLOG_").lower())
        readers, meaning = BOUNDS[variable]
        lines.append(f"| `{variable}` | {default:,} | {least:,} | {most:,} | {readers} | {meaning} |")
    return "\n".join(lines)


# variable -> (who reads it, what it bounds)
BOUNDS = {
    "CHIPLOG_JOURNAL_BYTES_MAX": (
        "rank",
        "journal on disk, per run and process; events that do not fit are dropped and declared lost",
    ),
    "CHIPLOG_JOURNAL_MEMORY_BYTES_MAX": ("rank", "journal in memory, while the disk refuses writes"),
    "CHIPLOG_EVENT_BYTES_MAX": ("rank", "one event; can only be lowered"),
    "CHIPLOG_KEYS_MAX": ("rank", "metric names per run and process; can only be lowered"),
    "CHIPLOG_CONSOLE_LINES_PER_S": ("rank", "captured lines per second, sustained"),
    "CHIPLOG_CONSOLE_BURST_LINES": ("rank", "captured lines in one burst"),
    "CHIPLOG_FILE_BYTES_MAX": ("rank", "one file that `save()` accepts"),
    "CHIPLOG_OUTBOX_BYTES_MAX": ("rank", "saved files on this node that the collector does not have yet"),
    "CHIPLOG_ARTIFACT_WAIT_S": ("rank", "seconds that reading an artifact waits for the collector before it raises"),
    "CHIPLOG_FILES_BYTES_MAX": ("collector", "saved files of all runs; a file that does not fit waits in its outbox"),
    "CHIPLOG_SPOOL_BYTES_MAX": (
        "agent, rank",
        "spool; `--spool-bytes-max` wins. In a rank: its journal in offline mode",
    ),
    "CHIPLOG_CREDIT_BYTES": ("agent, collector", "bytes sent and not yet acknowledged, per sender"),
    "CHIPLOG_QUERY_TIMEOUT_S": ("collector", "seconds that one query may take, whatever its client asks for"),
    "CHIPLOG_QUERIES_AT_ONCE": ("collector", "queries that run at the same time"),
    "CHIPLOG_QUERIES_WAITING_MAX": ("collector", "queries that wait; one more is answered `busy`"),
    "CHIPLOG_QUERY_MEMORY_BYTES": ("collector", "memory of all queries and of the index"),
    "CHIPLOG_HOT_DAYS": (
        "collector",
        "days after which numbers, texts and console lines leave the database if a store has them; 0: never",
    ),
    "CHIPLOG_COLD_GB": ("collector", "gigabytes of a store that one query may read"),
    "CHIPLOG_RETENTION_DAYS": ("collector", "days for which runs are kept after their end; 0: forever"),
    "CHIPLOG_SYSTEM_SECONDS_DAYS": (
        "collector",
        "days until samples of hosts and GPUs become means over a minute; 0: never",
    ),
    "CHIPLOG_SYSTEM_MINUTES_DAYS": ("collector", "days until these become means over an hour; 0: never"),
    "CHIPLOG_SYSTEM_RETENTION_DAYS": ("collector", "days for which samples of hosts and GPUs are kept; 0: forever"),
}


def view_table() -> str:
    """Return a table of the views, from the sections of the cookbook. A test compares those with the database."""
    lines = ["| view | what a row is | page |", "|---|---|---|"]
    for page in ("runs", "values", "time", "machine"):
        with open(os.path.join(ROOT, "docs", "sql", f"{page}.md"), encoding="utf-8") as file:
            text = file.read()
        title = text.split("\n", 1)[0].removeprefix("# ")
        for name, what in re.findall(r"^## (\w+)\n\n(.+)$", text, re.MULTILINE):
            lines.append(f"| [`{name}`]({page}.md#{name}) | {what} | [{title}]({page}.md) |")
    return "\n".join(lines)


def macro_table() -> str:
    """Return a table of the table macros, from the sections of their page. A test compares those with the database."""
    with open(os.path.join(ROOT, "docs", "sql", "macros.md"), encoding="utf-8") as file:
        text = file.read()
    lines = ["| macro | what it returns |", "|---|---|"]
    for name, call, what in re.findall(r"^## (\w+)\n\n`(.+)`: (.+)$", text, re.MULTILINE):
        lines.append(f"| [`{call}`](macros.md#{name}) | {what[0].upper()}{what[1:]} |")
    return "\n".join(lines)


def decisions() -> dict[str, list[str]]:
    """Return the pages of docs/decisions by group, in the order of the site's navigation in mkdocs.yml."""
    nav = Path(ROOT, "mkdocs.yml").read_text(encoding="utf-8")
    groups: dict[str, list[str]] = {}
    group = ""
    for name, page in re.findall(
        r"^ +- (?:([\w ]+):|decisions/(\S+)\.md)$", nav.split("  - Decisions:\n")[1], re.MULTILINE
    ):
        group = name or group
        if page and page != "index":
            groups.setdefault(group, []).append(page)
    return groups


def decision_table(folder: str = "", heading: str = "##") -> str:
    """Return a table of the decisions for each group: the title of each page, and its first sentence."""
    parts = []
    for group, pages in decisions().items():
        lines = [f"{heading} {group}\n", "| decision | in one sentence |", "|---|---|"]
        for page in pages:
            title, summary = Path(ROOT, "docs", "decisions", f"{page}.md").read_text(encoding="utf-8").split("\n\n")[:2]
            lines.append(f"| [{title.removeprefix('# ')}]({folder}{page}.md) | {_escape(summary)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def store_tables() -> str:
    """Return a table of the tables of a store: what each holds, and how its files are sorted."""
    from chiplog_collector.store.published_tables import COMPLETE, PUBLISHED

    lines = ["| table | rows | sorted by |", "|---|---|---|"]
    for table in PUBLISHED:
        if table.is_series:
            rows = "one for each series of a piece"
        elif table.is_dimension:
            rows = "the newest of what changed; a later row replaces an earlier one"
        else:
            rows = "what arrived"
        lines.append(f"| `{table.name}` | {rows} | {', '.join(table.order)} |")
    return "\n".join([*lines, f"| `{COMPLETE}` | one for each piece, committed last | |"])


LOG_BYTES, DATABASE_BYTES = 10.5, 13.5  # of a value: tests/bench/README.md


def sizing_table() -> str:
    """Return a table of the disk space that trainings of several sizes need in a day."""
    lines = ["| ranks | metrics | per second | values per second | GB a day |", "|---|---|---|---|---|"]
    for ranks, metrics, rate in ((8, 20, 1), (64, 20, 1), (64, 50, 5), (512, 20, 1), (512, 50, 5), (4096, 20, 1)):
        values = ranks * metrics * rate
        gigabytes = values * 86_400 * (LOG_BYTES + DATABASE_BYTES) / 1e9
        lines.append(f"| {ranks:,} | {metrics} | {rate} | {values:,} | {gigabytes:.{0 if gigabytes >= 10 else 1}f} |")
    return "\n".join(lines)


def reads_table() -> str:
    """Return a table of the functions with which the page and the commands ask, from their docstrings."""
    folder = Path(ROOT, "sdk", "chiplog_client", "reads")
    lines = ["| function | what it does |", "|---|---|"]
    for path in sorted(folder.rglob("*.py")):
        module = ".".join(path.relative_to(folder.parents[1]).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.args.args:
                annotation = node.args.args[0].annotation
                if annotation is not None and ast.unparse(annotation) == "Client":
                    purpose = (ast.get_docstring(node) or "").split("\n\n")[0]
                    lines.append(f"| `{module}.{node.name}` | {_escape(purpose)} |")
    return "\n".join(lines)


def _escape(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
