"""The options --format and -o: in which format a command writes its table, and where."""

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

FORMATS = ("table", "csv", "json", "jsonl", "parquet", "arrow", "md")
# The format of a file by its suffix. txt is the table as written into a pipe.
SUFFIXES = {
    **{form: form for form in FORMATS if form != "table"},
    "txt": "table",
    "feather": "arrow",
    "pq": "parquet",
    "ndjson": "jsonl",
}
BINARY = ("parquet", "arrow")


@dataclass(frozen=True, slots=True)
class Output:
    """A format of FORMATS, and the file; None: standard output."""

    form: str = "table"
    path: str | None = None


def output_options(*forms: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --format and -o to a command, which receives them as `output`. forms: those of FORMATS that it supports."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_output(*args: Any, form: str | None, path: str | None, **named: Any) -> Any:
            return command(*args, output=chosen_output(form, path, forms), **named)

        options = (
            click.option(
                "--format", "form", type=click.Choice(forms), help="Default: by the suffix of FILE, else table."
            ),
            click.option("-o", "--output", "path", metavar="FILE", help="Write there, complete or not at all."),
        )
        for option in reversed(options):
            with_output = option(with_output)
        return with_output

    return decorate


def chosen_output(form: str | None, path: str | None, forms: Sequence[str] = FORMATS) -> Output:
    """Return the output for the options' values. Raises UsageError if they contradict each other."""
    suffix = os.path.splitext(path or "")[1].removeprefix(".").lower()
    by_suffix = SUFFIXES.get(suffix)
    if form is None:
        if suffix and by_suffix not in forms:  # safeguard: unknown-suffix-refused
            known = ", ".join(f".{name}" for name, meant in SUFFIXES.items() if meant in forms)
            raise click.UsageError(f"file {path!r}: .{suffix} is not a known format; use one of {known}, or --format")
        form = by_suffix or "table"
    elif by_suffix not in (None, form) and (form in BINARY or by_suffix in BINARY):
        raise click.UsageError(f"--format {form} and the name of file {path!r} contradict each other; leave one out")
    if form in BINARY and path is None:
        raise click.UsageError(f"format {form} needs a file; add -o FILE.{form}")
    return Output(form, path)
