"""Mistakes in a command line are one line with what to write instead."""

from pathlib import Path

import pytest

from chiplog.cli.root import main
from tests.support.safeguard import Safeguard

SAFEGUARDS = [
    Safeguard(
        "the directory that an export was written below is no unknown export",
        "exports-within-are-named",
        condition=False,
        test="test_a_directory_of_exports_is_named_with_them",
    ),
]


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("logs latest --rank 3", "--label rank3 is the label of rank 3"),
        ("plot latest loss --rank 3", "--label rank3 is the label of rank 3"),
        ("runs --json", "--format json"),
        ("logs", "name a run, or `latest` for the newest"),
        ("plot", "name a run, or `latest` for the newest"),
        ("plot latest", "name a metric: chiplog show RUN lists them"),
        ("compare latest", "name a run, or `latest` for the newest"),
        ("get", "name a run, or `latest` for the newest"),
        ("rm", "chiplog runs lists the IDs"),
        ("edit", "chiplog runs lists the IDs"),
        ("runs --columns lr", "'config.lr' or 'summary.lr'"),
        ("runs --sort lr", "'config.lr' or 'summary.lr'"),
        ("logs latest --lines 20", "-n 20 prints the last 20 lines"),
        ("show latest --labl x", "see chiplog show --help"),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(capsys: pytest.CaptureFixture[str], command: str, remedy: str) -> None:
    assert main(command.split()) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert remedy in line


def test_a_directory_of_exports_is_named_with_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("gpt-1", "gpt-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
    assert main(["import", str(tmp_path), "--dir", str(tmp_path / "root")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{tmp_path} is not an export; it has gpt-1 and 1 more: chiplog import {tmp_path}/*" in line
