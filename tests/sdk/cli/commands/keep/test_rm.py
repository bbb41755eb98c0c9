"""`chiplog rm`: a run is gone from SQL and from a rebuild; what is wrong, or may mean another run, deletes nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from chiplog_cli.commands.keep.rm import rm
from chiplog_client import client as client_module
from chiplog_client import daemons
from chiplog_client.client import QueryError, connect
from chiplog_collector.maintenance import rebuild
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import Paths
from chiplog_schemas.process.log_owner import LogOwnership
from tests.support.collector_log import START_US, Rank, whole
from tests.support.kept_log import finished, kept_log
from tests.support.safeguard import proves
from tests.support.terminal import Terminal


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Paths]:
    runs = [finished(number, f"run-{number}", name="first try") for number in range(1, 4)]
    with kept_log(tmp_path, [whole(*runs), whole(Rank(9, run_id="live", primary=True))]) as place:
        yield place


def runs_in(place: Paths) -> list[str]:
    with connect(dir=place.root) as client:
        return [run for (run,) in client.sql("SELECT run_id FROM runs ORDER BY ALL").tuples()]


def run_rm(place: Paths, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(rm, [*arguments, "--dir", str(place.root)])
    return done.exit_code, " ".join(done.output.split())


def test_runs_are_deleted_without_a_collector_and_with_one_and_stay_deleted_in_a_rebuild(place: Paths) -> None:
    lines = "deleted run-1 (first try) deleted run-2 (first try) deleted 2 runs with 2 labels"
    assert run_rm(place, "run-1", "run-2", "--yes") == (0, lines)
    assert daemons.daemon_pid(place, daemons.COLLECTOR), "only a collector writes"
    assert run_rm(place, "run-3", "-y") == (0, "deleted run-3 (first try) deleted 1 run with 1 label")
    assert runs_in(place) == ["live"]
    daemons.stop(place, daemons.COLLECTOR)
    rebuild(place)
    assert runs_in(place) == ["live"]


def test_a_run_of_other_collectors_is_said_to_be_asked_for(place: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"runs": 1, "labels": 0, "asked": ["node-b"]}
    monkeypatch.setattr(client_module.Client, "delete_runs", lambda *_, **__: answer)
    asked = "the collector on node-b was asked, and carries it out within a minute"
    assert run_rm(place, "run-1", "--yes") == (0, f"deleted run-1 (first try) deleted 1 run {asked}")


def test_what_is_wrong_deletes_nothing(place: Paths) -> None:
    code, said = run_rm(place, "run-1", "run-9", "--yes")
    assert code == 2
    assert "run 'run-9' is unknown; did you mean 'run-" in said
    code, said = run_rm(place, "run-1", "live", "--yes")
    assert code == 2
    assert "run 'live' is running; end it first, or add --force" in said
    code, said = run_rm(place, "run-1")
    assert code == 2
    assert "there is no terminal to confirm this on; delete without a question by --yes" in said
    assert runs_in(place) == ["live", "run-1", "run-2", "run-3"]
    assert run_rm(place, "live", "--force", "--yes")[0] == 0
    assert runs_in(place) == ["run-1", "run-2", "run-3"]


@proves(
    "change-survives-idle-exit",
    "a change is carried out although an embedded collector exits at that moment",
    condition=True,
)
@pytest.mark.full
def test_a_collector_that_exits_at_that_moment_is_started_again(place: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(dir=place.root) as client:
        real, calls = client_module.CollectorConnection.change, []

        def change(self: object, *arguments: object) -> dict[str, object]:
            calls.append(arguments)
            if len(calls) == 1:
                daemons.stop(place, daemons.COLLECTOR)
                raise QueryError("stopping", "the collector is stopping; ask again later")
            return real(self, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(client_module.CollectorConnection, "change", change)
        assert client.delete_runs(["run-1"])["runs"] == 1
    assert "run-1" not in runs_in(place)


def test_the_directory_of_a_service_is_left_to_its_operator(place: Paths) -> None:
    LogOwnership(place, is_service=True).release()
    code, said = run_rm(place, "run-1", "--yes")
    assert code == 2
    assert f"no collector runs for {place.root}, and only it can change data; start it (chiplog up" in said
    assert not daemons.daemon_pid(place, daemons.COLLECTOR)


@pytest.fixture
def similar(tmp_path: Path) -> Iterator[Paths]:
    """Yield a directory with runs that one word may mean; `newest` is the newest, and `agreed` was `before` first."""
    named = {"exp-1": "baseline", "exp-10": "other", "exp-2": "latest", "newest": None}
    runs = [
        finished(number, run_id, age_days=10 - number, **({"name": name} if name else {}))
        for number, (run_id, name) in enumerate(named.items(), 1)
    ]
    merged = Rank(9, run_id="before", label="rank0", primary=True, start_us=START_US - 10**13)
    merged.become(run_id="agreed", formerly="before")
    merged.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    with kept_log(tmp_path, [whole(*runs), whole(merged)]) as place:
        yield place


@proves("unasked-deletion-needs-exact-id", "without a question a deletion takes exact IDs only", value="chosen_run")
def test_what_may_mean_another_run_deletes_nothing_without_a_question(similar: Paths) -> None:
    assert run_rm(similar, "exp-1", "--yes") == (0, "deleted exp-1 (baseline) deleted 1 run with 1 label")
    left = runs_in(similar)
    for word, says in {
        "exp-1": "run 'exp-1' is unknown; did you mean 'exp-10'",
        "new": "run 'new' is unknown; did you mean 'newest'? A change needs the exact ID",
        "other": "run 'other' is unknown; did you mean 'exp-10', whose name that is? A change needs the exact ID",
        "latest": "'latest' is not the ID of a run, which a change needs; the newest run is 'newest'",
    }.items():
        code, said = run_rm(similar, word, "--yes")
        assert (code, says in said) == (2, True), said
        assert run_rm(similar, "newest", word, "--yes")[0] == 2
    assert run_rm(similar, "zzzzzz", "--yes")[1].endswith("run 'zzzzzz' is unknown; chiplog runs lists all")
    assert runs_in(similar) == left == ["agreed", "exp-10", "exp-2", "newest"]
    assert run_rm(similar, "before", "--yes") == (0, "deleted agreed deleted 1 run with 1 label"), "an ID that it had"
    assert run_rm(similar, "before", "--yes")[0] == 2


def test_a_question_shows_id_and_name_of_what_a_word_means(similar: Paths) -> None:
    def answer(word: str, shown: str, keys: str) -> int:
        with Terminal(similar.root, "rm", word) as terminal:
            terminal.wait_for(shown)
            terminal.wait_for("Delete this")
            terminal.type(keys)
            return terminal.end()

    before = runs_in(similar)
    assert answer("exp-1", r"exp-1 \(baseline\): 1 labels, 3 values", "n\n") != 0, "the ID, not a beginning"
    assert runs_in(similar) == before
    assert answer("exp-10", r"exp-10 \(other\): 1 labels", "y\n") == 0
    assert answer("baseline", r"exp-1 \(baseline\): 1 labels", "y\n") == 0
    with Terminal(similar.root, "rm", "latest") as terminal:
        terminal.wait_for("run 'latest' is ambiguous: exp-2, newest")
        assert terminal.end() == 2
    assert answer("exp", r"exp-2 \(latest\): 1 labels", "y\n") == 0
    assert answer("latest", r"newest: 1 labels", "y\n") == 0
    assert runs_in(similar) == ["agreed"]
