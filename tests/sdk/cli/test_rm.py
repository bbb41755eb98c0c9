"""`chiplog rm`: a run is gone from SQL and from a rebuild; what is wrong deletes nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from chiplog.cli.rm import rm
from chiplog.ops import daemons
from chiplog.query import client as client_module
from chiplog.query.client import QueryError, connect
from chiplog_collector.maintenance import rebuild
from chiplog_schemas.paths import Paths
from tests.support.collector_log import Rank, whole
from tests.support.kept_log import finished, kept_log
from tests.support.safeguard import Safeguard

SAFEGUARDS = [
    Safeguard(
        "a change is carried out although an embedded collector exits at that moment",
        "change-survives-idle-exit",
        condition=True,
        test="test_a_collector_that_exits_at_that_moment_is_started_again",
    ),
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Paths]:
    runs = [finished(number, f"run-{number}") for number in range(1, 4)]
    with kept_log(tmp_path, [whole(*runs), whole(Rank(9, run_id="live", primary=True))]) as place:
        yield place


def runs_in(place: Paths) -> list[str]:
    with connect(dir=place.root) as client:
        return [run for (run,) in client.sql("SELECT run_id FROM runs ORDER BY ALL").tuples()]


def run_rm(place: Paths, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(rm, [*arguments, "--dir", str(place.root)])
    return done.exit_code, " ".join(done.output.split())


def test_runs_are_deleted_without_a_collector_and_with_one_and_stay_deleted_in_a_rebuild(place: Paths) -> None:
    assert run_rm(place, "run-1", "run-2", "--yes") == (0, "deleted 2 runs with 2 labels")
    assert daemons.daemon_pid(place, daemons.COLLECTOR), "only a collector writes"
    assert run_rm(place, "run-3", "-y") == (0, "deleted 1 run with 1 label")
    assert runs_in(place) == ["live"]
    daemons.stop(place, daemons.COLLECTOR)
    rebuild(place)
    assert runs_in(place) == ["live"]


def test_what_is_wrong_deletes_nothing(place: Paths) -> None:
    code, said = run_rm(place, "run-1", "run-9", "--yes")
    assert code == 2
    assert "run 'run-9' is unknown; did you mean 'run-" in said
    code, said = run_rm(place, "run-1", "live", "--yes")
    assert code == 2
    assert "run live is running: rank9 is not over; end it first, or use --force" in said
    code, said = run_rm(place, "run-1")
    assert code == 2
    assert "delete without a question by --yes" in said
    assert runs_in(place) == ["live", "run-1", "run-2", "run-3"]
    assert run_rm(place, "live", "--force", "--yes")[0] == 0
    assert runs_in(place) == ["run-1", "run-2", "run-3"]


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


def test_a_directory_of_another_host_is_left_alone(place: Paths) -> None:
    (place.collector / "host").write_text("elsewhere")
    code, said = run_rm(place, "run-1", "--yes")
    assert code == 2
    assert f"no collector runs for {place.root}, and only it can change data; start it (chiplog up" in said
    assert not daemons.daemon_pid(place, daemons.COLLECTOR)
