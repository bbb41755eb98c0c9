"""`chiplog media`: histograms, texts, images, tables and other media of a run, and their files."""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from chiplog_cli.charts.histogram_map import bar, histogram_lines, legend
from chiplog_cli.commands.keep.get import SavedFile, copy_files
from chiplog_cli.completion import complete_labels, complete_media_keys, complete_runs
from chiplog_cli.options import open_client, require_label, resolve_run, source_options
from chiplog_cli.output import Output, output_options
from chiplog_cli.suggestions import require_known
from chiplog_cli.tables.fitted_table import Sheet
from chiplog_cli.tables.format_values import number_text, printable
from chiplog_cli.tables.plain_table import Column
from chiplog_cli.tables.tables import NULL, plain_cell
from chiplog_cli.tables.writers import write_object, write_sheets
from chiplog_client.client import Client
from chiplog_client.reads.media.histograms import HistogramsRequest, read_histograms, read_quantiles
from chiplog_client.reads.media.logged_media import read_media
from chiplog_client.reads.media.logged_tables import TABLE_BYTES_MAX, read_table
from chiplog_client.reads.media.run_contents import read_logged_keys
from chiplog_client.reads.media.texts import read_texts
from chiplog_schemas.storage.content_files import invalid_path_reason

LIMIT = 20  # a screen
LIMIT_MAX = 10_000  # rows of one key; their files are copied one by one
HEIGHT = 16  # rows of a picture
BINS_MAX = 32  # of one histogram
_NAME_WIDTH = 12  # of the bounds beside a picture
_BAR_WIDTH = 30
_FIGURES = ("min", "q05", "median", "q95", "max")
EXAMPLES = """\b
Examples:
  chiplog media latest
  chiplog media latest weights/layer0
  chiplog media gpt-1 samples --step 400 --label rank0
  chiplog media gpt-1 images --save pictures
"""


@dataclass(frozen=True)
class _Choice:
    """What to read of a key."""

    run: str
    labels: tuple[str, ...]
    step: int | None
    search: str
    limit: int


@click.command(epilog=EXAMPLES)
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.argument("keys", metavar="[KEY]...", nargs=-1, shell_complete=complete_media_keys)
@click.option("--kind", metavar="KIND", help="Only of this kind, such as histogram, text, image or table.")
@click.option("--step", type=int, metavar="STEP", help="Only of the last step up to this one that has the key.")
@click.option("--label", "labels", multiple=True, metavar="NAME", shell_complete=complete_labels, help="Only theirs.")
@click.option("--search", default="", metavar="TEXT", help="Only texts that contain this, in any case.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, LIMIT_MAX), metavar="N", help=f"The newest N.  [default: {LIMIT}]"
)
@click.option("--save", "directory", metavar="DIR", help="Write the files of the media to a directory, all by default.")
@output_options("table", "json")
@source_options
def media(
    run: str,
    keys: tuple[str, ...],
    kind: str | None,
    step: int | None,
    labels: tuple[str, ...],
    search: str,
    limit: int | None,
    directory: str | None,
    output: Output,
    dir_: str | None,
    url: str | None,
) -> None:
    """Show what a run logged beside numbers: histograms, texts, images, tables, audio, video, HTML, figures, 3D.

    RUN is an ID, the beginning of one, a name, or `latest`, which is also the default. Without a KEY it lists the keys.
    Of a histogram it draws how often each range of values occurred over the steps, or with --step in each bin. Several
    labels are summed. Of texts it prints the newest, of media a row for each. Of tables it also prints the rows of the
    newest one. --save writes the files as DIR/KEY_STEP_LABEL.FORMAT.
    """
    with open_client(dir_, url) as client:
        run_id = resolve_run(client, run)
        for label in labels:
            require_label(client, run_id, label)
        found = read_logged_keys(client, run_id)
        entries = _entries(found)
        for key in keys:
            known = dict.fromkeys(entry["key"] for entry in entries)
            require_known(f"key of media of run {run_id!r}", key, known, f"chiplog media {run_id} lists all")
        chosen = [entry for entry in entries if not keys or entry["key"] in keys]
        if kind is not None:
            known = dict.fromkeys(entry["kind"] for entry in chosen)
            require_known(f"kind of media of run {run_id!r}", kind, known, f"chiplog media {run_id} lists all")
            chosen = [entry for entry in chosen if entry["kind"] == kind]
        if directory is not None:
            _save(client, _Choice(run_id, labels, step, "", limit or LIMIT_MAX), chosen, Path(directory))
            return
        if not keys:
            if output.form == "json":
                write_object(found, output.path)
            else:
                write_sheets([_keys(chosen)] if chosen else ["no histogram, text or media"], output)
            return
        choice = _Choice(run_id, labels, step, search, limit or LIMIT)
        shown = [entry | _read(client, choice, entry) for entry in chosen]
        if output.form == "json":
            write_object({"logged": shown}, output.path)
        else:
            write_sheets(_sheets(client, choice, shown), output)


def _entries(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each key and kind."""
    kinds = [("histogram", row) for row in found["histograms"]] + [("text", row) for row in found["texts"]]
    return [{"kind": kind, **row} for kind, row in kinds] + found["media"]


def _keys(entries: list[dict[str, Any]]) -> Sheet:
    columns = [Column("key", is_name=True), Column("kind", is_whole=True)]
    sheet = Sheet([*columns, *(Column(name, is_number=True) for name in ("logged", "first step", "last step"))])
    for row in entries:
        steps = str(row["first_step"]), str(row["last_step"])
        sheet.add(plain_cell(row["key"]), row["kind"], f"{row['n']:,}", *steps)
    return sheet


def _read(client: Client, choice: _Choice, entry: dict[str, Any]) -> dict[str, Any]:
    """Return what the page has of a key."""
    key, kind, step = entry["key"], entry["kind"], choice.step
    if kind == "histogram":
        return _read_histograms(client, choice, key)
    if kind == "text":
        return read_texts(client, choice.run, key, step, choice.labels, choice.search, limit=choice.limit)
    return read_media(client, choice.run, key, kind, step, choice.labels, limit=choice.limit)


def _read_histograms(client: Client, choice: _Choice, key: str) -> dict[str, Any]:
    """Return the picture, and quantiles of its first and its last step; with a step its bins."""
    columns = max(shutil.get_terminal_size((80, 24)).columns - _NAME_WIDTH, 10)
    request = HistogramsRequest(choice.run, key, choice.labels, rows=HEIGHT, columns=columns)
    if choice.step is None:
        found = read_histograms(client, request)
        ends = list(dict.fromkeys((found["first_step"], found["last_step"]))) if found["n"] else []
    else:
        until = read_histograms(client, HistogramsRequest(choice.run, key, choice.labels, last=choice.step, rows=1))
        if not until["n"]:
            until = read_histograms(client, HistogramsRequest(choice.run, key, choice.labels, rows=1))
        at = until["last_step"] if (until["last_step"] or 0) <= choice.step else until["first_step"]
        found = read_histograms(client, HistogramsRequest(choice.run, key, choice.labels, at, at, rows=BINS_MAX))
        ends = [at] if found["n"] else []
    quantiles = (read_quantiles(client, request, end) for end in ends)
    return {**found, "quantiles": [row for row in quantiles if row is not None]}


def _sheets(client: Client, choice: _Choice, shown: list[dict[str, Any]]) -> Iterator[Sheet | str | Text]:
    for number, found in enumerate(shown):
        if number:
            yield ""
        if found["kind"] == "histogram":
            yield from _histogram(found)
        elif found["kind"] == "text":
            yield from _texts(found, choice)
        else:
            yield from _media(client, found)


def _histogram(found: dict[str, Any]) -> Iterator[Sheet | Text]:
    name = printable(found["key"])
    if not found["n"]:
        yield Text(f"{name}: no histogram of these labels with values")
        return
    if len(found["step"]) == 1:
        yield _bins(found)
    else:
        together = max(found["n_steps"])
        each = "" if together == 1 else f", up to {together:,} of them in a column"
        yield Text(f"{name}, steps {found['first_step']:,} to {found['last_step']:,}{each}", "bold")
        yield from map(Text, histogram_lines(found))
        yield Text(legend(found), "dim italic")
    names = ["step", "values", "min", "5 %", "median", "95 %", "max"]
    sheet = Sheet(Column(name, is_number=True) for name in names)
    for row in found["quantiles"]:
        sheet.add(str(row["step"]), number_text(row["n"]), *(_figure(row[name]) for name in _FIGURES))
    if sheet.rows:
        yield Text("")
        yield sheet


def _figure(value: float) -> str:
    return number_text(float(f"{value:.4g}"))


def _bins(found: dict[str, Any]) -> Sheet:
    columns = [*(Column(name, is_number=True) for name in ("from", "to", "values")), Column("", is_whole=True)]
    sheet = Sheet(columns, f"{printable(found['key'])}, step {found['step'][0]:,}")
    for low, high, count in zip(found["edges"], found["edges"][1:], found["counts"], strict=False):
        ends = [_figure(edge) for edge in (low, high)]
        sheet.add(*ends, number_text(count), bar(count, found["largest"], _BAR_WIDTH))
    return sheet


def _texts(found: dict[str, Any], choice: _Choice) -> Iterator[Text]:
    """Yield the texts of a key, the newest last."""
    if not found["rows"]:
        yield Text(
            f"{printable(found['key'])}: no text " + (f"with {choice.search!r}" if choice.search else "of these")
        )
    for number, row in enumerate(reversed(found["rows"])):
        if number:
            yield Text("")
        yield Text(f"{printable(found['key'])}, step {row['step']:,}, {printable(row['label'])}", "bold")
        yield Text("\n".join(map(printable, row["value"].splitlines())))
        if (n_left := row["n_chars"] - len(row["value"])) > 0:
            yield Text(f"{n_left:,} more characters; --label {printable(row['label'])} prints them", "dim italic")
    if found["is_cut"]:
        yield Text(f"the newest {len(found['rows'])} texts; --limit shows more", "dim italic")


def _media(client: Client, found: dict[str, Any]) -> Iterator[Sheet | str]:
    """Yield a row for each medium, the newest last, and the rows of the newest table."""
    name, rows = printable(found["key"]), found["rows"]
    columns = [
        Column("step", is_number=True),
        Column("label", is_name=True),
        *[Column("item", is_number=True, drop=2)] * any(row["item"] is not None for row in rows),
        Column("type", is_whole=True),
        Column("what", drop=1),
        *[Column("caption")] * any(row["metadata"].get("caption") for row in rows),
        Column("bytes", is_number=True),
    ]
    names = [column.name for column in columns]
    sheet = Sheet(columns, f"{name}, {found['kind']}")
    for row in sorted(rows, key=lambda row: row["step"]):
        cells: dict[str, str | Text] = {
            "step": str(row["step"]),
            "label": plain_cell(row["label"]),
            "item": "" if row["item"] is None else str(row["item"]),
            "type": plain_cell(str(row["metadata"].get("format", ""))),
            "what": plain_cell(_what(row)),
            "caption": plain_cell(str(row["metadata"].get("caption") or "")),
            "bytes": f"{row['bytes']:,}",
        }
        sheet.add(*(cells[name] for name in names))
    if not rows:
        sheet.caption = "none of these labels"
    elif found["is_cut"]:
        sheet.caption, sheet.is_partial = f"the newest {len(rows)}; --limit shows more", True
    yield sheet
    if found["kind"] == "table" and rows:
        yield ""
        yield from _table(client, name, rows[0])


def _what(row: dict[str, Any]) -> str:
    """Return the size of a medium in its own units, and whether its file is missing."""
    about = row["metadata"]
    parts = []
    if "width" in about:
        parts.append(f"{about['width']} x {about['height']}")
    if "n_rows" in about:
        parts.append(f"{about['n_rows']:,} rows, {about['n_columns']:,} columns")
    if "duration_s" in about:
        parts.append(f"{about['duration_s']:.3g} s")
    return ", ".join(parts + ["has not arrived"] * (not row["is_stored"]))


def _table(client: Client, name: str, row: dict[str, Any]) -> Iterator[Sheet | str]:
    title = f"{name}, step {row['step']:,}, {printable(row['label'])}"
    if not row["is_stored"] or row["bytes"] > TABLE_BYTES_MAX:
        why = f"{row['bytes']:,} bytes, more than {TABLE_BYTES_MAX:,}" if row["is_stored"] else "has not arrived"
        yield f"{title}: {why}"
        return
    found = read_table(client.read_file(row["sha256"]), limit=LIMIT)
    columns = (Column(printable(column["name"]), is_number=column["is_number"]) for column in found["columns"])
    sheet = Sheet(columns, title, has_blocks=True)
    for values in found["rows"]:
        sheet.add(*[_cell(value) for value in values])
    if (more := found["n_rows"] - len(found["rows"])) > 0:
        sheet.caption, sheet.is_partial = f"{more:,} more rows; --save DIR writes the table as Parquet", True
    yield sheet


def _cell(value: Any) -> Text:
    if value is None:
        return plain_cell(NULL, "dim italic")
    return plain_cell(number_text(value) if isinstance(value, float) else str(value))


def _save(client: Client, choice: _Choice, entries: Sequence[dict[str, Any]], directory: Path) -> None:
    """Write the files of media. Raises UsageError if one exists."""
    files: list[SavedFile] = []
    for entry in entries:
        if entry["kind"] in ("histogram", "text"):
            continue
        found = read_media(
            client, choice.run, entry["key"], entry["kind"], choice.step, choice.labels, limit=choice.limit
        )
        stored = [row for row in found["rows"] if row["is_stored"]]
        if len(stored) < len(found["rows"]):
            click.echo(f"{entry['key']}: {len(found['rows']) - len(stored)} have not arrived, left out", err=True)
        for row in stored:
            name = _file_name(row)
            if (reason := invalid_path_reason(name)) is not None:  # safeguard: saved-media-stay-below-target
                raise click.ClickException(f"medium {name!r:.200} cannot be written: {reason}")
            if any(file.path == name for file in files):
                raise click.UsageError(f"two media have the file name {name!r:.200}; choose one by --kind or --label")
            files.append(SavedFile(name, row["bytes"], row["sha256"], directory / name))
    if not files:
        raise click.UsageError(f"run {choice.run!r} has no media of this choice; chiplog media {choice.run} lists all")
    if taken := next((file.target for file in files if os.path.lexists(file.target)), None):
        raise click.UsageError(f"{taken} exists; give another directory to --save")
    copy_files(client, files)


def _file_name(row: dict[str, Any]) -> str:
    parts = [row["key"], str(row["step"]), row["label"].replace("/", "_")]
    parts += [] if row["item"] is None else [str(row["item"])]
    return f"{'_'.join(parts)}.{row['metadata'].get('format') or 'bin'}"
