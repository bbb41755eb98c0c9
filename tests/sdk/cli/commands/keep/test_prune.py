"""`chiplog prune`: the runs that match all conditions, shown first, and deleted only when asked."""

from collections.abc import Iterator
from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner

from chiplog_cli.commands.keep.prune import parse_size, prune, size_text
from chiplog_client.client import connect
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import Paths
from tests.support.collector_log import START_US, Rank, whole
from tests.support.kept_log import finished, kept_log
from tests.support.safeguard import proves


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paths]:
    big = finished(3, "big", project="vision", age_days=1)
    big.events.insert(-1, big.events[-1])
    big.events.pop()
    big.say(EventKind.FILE, "model.bin", 3_000_000, bytes(32))
    for step in range(2):  # one content
        big.say(EventKind.MEDIA, step, "image", "image", bytes([7]) * 32, 1_000_000, "{}")
    runs = [
        finished(1, "old", project="gpt", age_days=100),
        finished(2, "new", project="gpt", n_steps=50),
        big,
        Rank(4, run_id="live", project="gpt", rank=0, label="rank0", primary=True, start_us=START_US - 10**12),
        finished(5, "chat-1", project="chat"),
        Rank(6, run_id="chat-1", project="chat"),  # a label that runs although the primary has ended
        *(Rank(5 + n, run_id=f"chat-{n}", project="chat", rank=0, label="a", primary=True) for n in range(2, 6)),
    ]
    with kept_log(tmp_path_factory.mktemp("root"), [whole(run) for run in runs]) as place:
        yield place


def run_prune(place: Paths, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(prune, [*arguments, "--dir", str(place.root)])
    return done.exit_code, done.output


def selected(place: Paths, *arguments: str) -> list[str]:
    code, output = run_prune(place, *arguments)
    assert code == 0, output
    return sorted(line.split()[0] for line in output.splitlines() if line.split()[:1] and line.split()[0] in RUNS)


RUNS = {"old", "new", "big", "live"}


@proves("prune-leaves-running-runs", "prune leaves runs that are running")
def test_conditions_select_the_runs_that_match_all_of_them(place: Paths) -> None:
    before = datetime.fromtimestamp(START_US / 1e6 - 50 * 86_400, UTC).date().isoformat()
    assert selected(place, "--older-than", before) == ["old"]
    assert selected(place, "--project", "gpt") == ["new", "old"], "live is running"
    assert selected(place, "--project", "gpt", "--force") == ["live", "new", "old"]
    assert selected(place, "--state", "finished", "--project", "vision") == ["big"]
    assert selected(place, "--state", "failed") == []
    assert selected(place, "--larger-than", "1MB") == ["big"]
    assert selected(place, "--keep-last", "1") == ["old"], "the newest of each project stays"
    assert selected(place, "--keep-last", "0", "--older-than", before) == ["old"]


@proves(
    "prune-of-running-runs-refused",
    "prune fails if it leaves all runs that match because they are running",
    condition=False,
)
def test_runs_that_are_running_are_named_and_refused_if_no_other_run_matches(place: Paths) -> None:
    code, output = run_prune(place, "--project", "gpt")
    line = "1 run that matches is left out, because labels run: live; end it or add --force"
    assert code == 0 and line in output.splitlines() and "2 runs, 53 values, 0 of files" in output.splitlines()
    code, output = run_prune(place, "--project", "chat", "--yes")
    named = "chat-1, chat-2, chat-3 and 2 more"
    line = f"Error: 5 runs that match are left out, because labels run: {named}; end them or add --force"
    assert (code, output.splitlines()[-1]) == (2, line)
    assert run_prune(place, "--older-than", "2020-01-01", "--yes") == (0, "no run matches\n")


def test_nothing_is_deleted_without_yes_and_then_what_was_shown(place: Paths) -> None:
    code, output = run_prune(place, "--larger-than", "1MB")
    assert code == 0
    assert "1 run, 3 values, 4.0 MB of files" in output
    assert "nothing was deleted; add --yes to delete these runs" in output
    code, output = run_prune(place, "--larger-than", "1MB", "--yes")
    assert output.endswith("deleted 1 run with 1 label\n")
    with connect(dir=place.root) as client:
        assert client.sql("SELECT run_id FROM runs WHERE project <> 'chat' ORDER BY ALL").tuples() == [
            ("live",),
            ("new",),
            ("old",),
        ]
        assert client.sql("SELECT message FROM events WHERE kind = 'run_deleted'").tuples() == [
            ("deleted run big (chiplog prune)",)
        ]
    assert run_prune(place, "--larger-than", "1MB", "--yes") == (0, "no run matches\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--yes"], "no condition is given"),
        (["--larger-than", "big"], "size 'big' is not a number with a unit"),
        (["--project", "gtp"], "project 'gtp' is unknown; did you mean 'gpt'?"),
        (["--state", "running"], "'running' is not one of"),
    ],
)
def test_what_is_wrong_is_one_line(place: Paths, arguments: list[str], says: str) -> None:
    code, output = run_prune(place, *arguments)
    assert code == 2
    assert says in " ".join(output.split())


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("500MB", 500_000_000), ("10GiB", 10 << 30), ("1.5 kb", 1_500), ("7", 7), ("7b", 7)]
)
def test_sizes_are_read_as_people_write_them(text: str, n_bytes: int) -> None:
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "1 parsec", "inf"])
def test_anything_else_is_no_size(text: str) -> None:
    with pytest.raises(click.UsageError):
        parse_size(text)


def test_sizes_are_written_as_people_read_them() -> None:
    assert [size_text(n) for n in (0, 12, 1_500, 3_000_000, 2_500_000_000)] == [
        "0",
        "12 B",
        "1.5 KB",
        "3.0 MB",
        "2.5 GB",
    ]
