"""The options --format and -o: a format by name or by the suffix of the file, and contradictions."""

import click
import pytest

from chiplog_cli.output import FORMATS, Output, chosen_output


@pytest.mark.parametrize(
    ("form", "path", "chosen"),
    [
        (None, None, "table"),
        ("csv", None, "csv"),
        (None, "out", "table"),
        (None, "out.txt", "table"),
        *((None, f"a.b/out.{form}", form) for form in FORMATS if form != "table"),
        (None, "OUT.PQ", "parquet"),
        (None, "out.feather", "arrow"),
        ("csv", "out.xlsx", "csv"),
        ("csv", "out.txt", "csv"),
        ("parquet", "out", "parquet"),
        ("parquet", "out.pq", "parquet"),
    ],
)
def test_the_format_is_named_or_follows_from_the_file(form, path, chosen):
    assert chosen_output(form, path) == Output(chosen, path)


@pytest.mark.parametrize(
    ("form", "path", "message"),
    [
        (None, "out.xlsx", r"file 'out.xlsx': .xlsx is not a known format; use one of .csv, .json, .jsonl, .parquet, "),
        ("parquet", None, r"format parquet needs a file; add -o FILE.parquet"),
        ("csv", "out.parquet", r"--format csv and the name of file 'out.parquet' contradict each other"),
        ("arrow", "out.csv", r"--format arrow and the name of file 'out.csv' contradict each other"),
    ],
)
def test_a_format_that_cannot_be_written_is_one_line(form, path, message):
    with pytest.raises(click.UsageError, match=message):
        chosen_output(form, path)


def test_a_command_may_have_fewer_formats():
    with pytest.raises(click.UsageError, match=r"use one of .json, .txt, or --format"):
        chosen_output(None, "out.csv", ("table", "json"))
