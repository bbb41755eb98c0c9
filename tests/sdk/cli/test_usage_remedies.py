"""Mistakes in a command line are one line with what to write instead."""

from pathlib import Path

import pytest

from chiplog_cli.root import main
from tests.support.safeguard import proves


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("logs latest --rank 3", "--label rank3 is the label of rank 3"),
        ("plot latest loss --rank 3", "--label rank3 is the label of rank 3"),
        ("runs --json", "--format json"),
        ("histograms latest", "write chiplog media"),
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
        ("logs latest -l 20", "-n 20 prints the last 20 lines"),
        ("logs latest --stderr", "--stream stderr"),
        ("logs latest --grep x", "pipe it: chiplog logs RUN | grep WORD"),
        ("logs latest --since 1h", "--times"),
        ("logs latest rank2", "; write chiplog logs RUN"),
        ("logs --run-id x", "the run is an argument: chiplog COMMAND RUN"),
        ("show latest --zzz x", "see chiplog show --help"),
        ("show latest --label rank3", "--all shows each label"),
        ("show latest --rank 3", "--all shows each label"),
        ("show latest --csv", "--format csv"),
        ("show a b", "; write chiplog show [RUN]"),
        ("show latest --format csv", "'table', 'json', 'md'"),
        ("compare", "name a run, or `latest` for the newest"),
        ("compare a b --host x", "--url tcp://HOST:PORT"),
        ("runs -n 5", "--limit 20 lists 20 runs"),
        ("runs --last 5", "--limit 20 lists 20 runs"),
        ("runs --status finished", "--state finished"),
        ("runs --search x", "words follow: chiplog runs WORDS"),
        ("runs --user me", "see chiplog runs --help"),
        ("runs --stat failed", "did you mean --state?"),
        ("runs --columns loss", "did you mean 'lost'? For a key write 'config.loss' or 'summary.loss'"),
        ("runs --since yesterday", "an age as 90m, 12h, 7d"),
        ("runs --state done", "'running', 'finished', 'failed', 'crashed'"),
        ("runs --limit 0", "x>=1"),
        ("runs --all --limit 3", "give one of them"),
        ("runs --dir a --url tcp://127.0.0.1:1", "give one of them"),
        ("runs --url http://x:1", "write tcp://HOST:PORT"),
        ("plot latest loss --log", "did you mean --log-x or --log-y?"),
        ("plot latest loss -o x.jpg", ".png, .svg, .pdf; give one of them"),
        ("plot latest loss --force", "give -o FILE"),
        ("plot latest --metric loss", "chiplog plot RUN KEY"),
        ("plot latest loss --smooth 1", "0<=x<1"),
        ("top --run x", "the run is an argument: chiplog COMMAND RUN"),
        ("top --rank 3", "--filter rank3"),
        ("top --sort speed", "'attention', 'rank'"),
        ("sql a b", "; write chiplog sql [QUERY]"),
        ("export", "name runs, or use one of --project NAME and --all"),
        ("export latest --format csv", 'chiplog sql "FROM metrics" -o FILE.csv'),
        ("import", "; write chiplog import PATH..."),
        ("import nodir", "name an export of chiplog, or what another library wrote"),
        ("edit x --state finished", "a state follows from how the processes ended"),
        ("edit x --tag a", "--add-tag NAME adds one, --tags replaces all"),
        ("rm x --all", "chiplog prune deletes many runs"),
        ("prune", "give --older-than"),
        ("prune --older-than 3x", "an age as 90m, 12h, 7d"),
        ("prune --keep 5", "did you mean --keep-last?"),
        ("get latest a b", "; write chiplog get [RUN] [PATH]"),
        ("run", "; write chiplog run [--] COMMAND [ARGUMENT]..."),
        ("up --port 1", "chiplog collector --bind tcp://HOST:PORT"),
        ("down --force", "waits until both have stopped"),
        ("down now", "; write chiplog down"),
        ("status extra", "; write chiplog status"),
        ("doctor --fix", "each finding names what to do"),
        ("ui latest", "; write chiplog ui"),
        ("ui --password x", "set CHIPLOG_UI_PASSWORD"),
        ("ui --public", "--host 0.0.0.0"),
        ("sync --timeout 3", "did you mean --timeout-s?"),
        ("sync nodir", "name one that holds journals"),
        ("backup", "; write chiplog backup DIR"),
        ("restore", "; write chiplog restore DIR"),
        ("restore nodir", "Directory 'nodir' does not exist"),
        ("rebuild x", "; write chiplog rebuild"),
        ("compact x", "; write chiplog compact"),
        ("agent --port 3", "--bind tcp://HOST:PORT"),
        ("agent --collector x", "write tcp://HOST:PORT"),
        ("collector --port 3", "--bind tcp://HOST:PORT"),
        ("completion", "bash, zsh, fish"),
        ("keys", "chiplog keys --help"),
        ("ls", "write chiplog runs"),
        ("delete x", "write chiplog rm"),
        ("tail x", "write chiplog logs"),
        ("help", "write chiplog --help"),
        ("version", "write chiplog --version"),
        ("shwo", "did you mean 'show'?"),
        ("zzz", "chiplog --help lists all"),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(capsys: pytest.CaptureFixture[str], command: str, remedy: str) -> None:
    assert main(command.split()) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert remedy in line


@proves(
    "exports-within-are-named", "the directory that an export was written below is no unknown export", condition=False
)
def test_a_directory_of_exports_is_named_with_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("gpt-1", "gpt-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
    assert main(["import", str(tmp_path), "--dir", str(tmp_path / "root")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{tmp_path} is not an export; it has gpt-1 and 1 more: chiplog import {tmp_path}/*" in line
