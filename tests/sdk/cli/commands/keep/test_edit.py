"""`chiplog edit`: what describes a run changes as asked, and nothing else."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from chiplog_cli.commands.keep.edit import edit
from chiplog_cli.commands.look.show import show
from chiplog_client.client import Client, connect
from chiplog_schemas.paths import Paths
from tests.support.collector_log import whole
from tests.support.kept_log import finished, kept_log
from tests.support.safeguard import proves

ROW = "SELECT name, notes, tags, project, run_group, job_type FROM runs WHERE run_id = 'run-1'"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paths]:
    run = finished(1, "run-1", name="old", tags=["a"], notes="n", project="p", job_type="train")
    with kept_log(tmp_path_factory.mktemp("root"), [whole(run)]) as place:
        yield place


def run_edit(place: Paths, *arguments: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(edit, [*arguments, "--dir", str(place.root)])
    return done.exit_code, done.output.splitlines()


def test_fields_change_as_asked_and_others_stay(place: Paths) -> None:
    code, lines = run_edit(place, "run-1", "--name", "baseline", "--notes", "", "--add-tag", "best", "--group", "g")
    assert code == 0
    assert lines == [
        "run-1 (old): name 'old' → 'baseline'",
        "run-1 (old): notes 'n' → none",
        "run-1 (old): group none → 'g'",
        "run-1 (old): tags a → a, best",
    ]
    with connect(dir=place.root) as client:
        assert client.sql(ROW).tuples() == [("baseline", None, ["a", "best"], "p", "g", "train")]
        assert run_edit(place, "run-1", "--tags", " x , y, x", "--project", "q")[0] == 0
        assert client.sql(ROW).tuples() == [("baseline", None, ["x", "y"], "q", "g", "train")]
        assert run_edit(place, "run-1", "--remove-tag", "x", "--add-tag", "z", "--job-type", "eval")[0] == 0
        assert client.sql(ROW).tuples() == [("baseline", None, ["y", "z"], "q", "g", "eval")]
    asked = {"run_id": "run-1", "asked": ["node-a", "node-b"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "edit_run", lambda *_, **__: asked)
        assert run_edit(place, "run-1", "--name", "far")[1] == [
            "run-1 (baseline): name 'baseline' → 'far'",
            "the collectors on node-a and node-b were asked, and carry it out within a minute",
        ]
    page = CliRunner().invoke(show, ["run-1", "--dir", str(place.root)])
    assert page.exit_code == 0 and "edited project, tags of run run-1" in page.output, page.output


@proves(
    "edit-needs-exact-id",
    "an edit, which asks nothing, takes exact IDs only",
    part="require_exact_run",
    new="__import__('chiplog_cli.options', fromlist=['cli']).resolve_run",
)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run-1"], "nothing to change; give --name"),
        (["run-2", "--name", "n"], "run 'run-2' is unknown; did you mean 'run-1'"),
        (["run", "--name", "n"], "run 'run' is unknown; did you mean 'run-1'? A change needs the exact ID"),
        (["latest", "--name", "n"], "'latest' is not the ID of a run, which a change needs; the newest run is 'run-1'"),
        (["run-1 again", "--name", "n"], "run 'run-1 again' is unknown; did you mean 'run-1'"),
        (["run-1", "--tags", "a", "--add-tag", "b"], "--tags replaces all tags"),
        (["run-1", "--remove-tag", "nope"], "has no tag 'nope'; it has "),
        (["run-1", "--name", "n" * 2_000], "name exceeds its limit; shorten it"),
    ],
)
def test_what_is_wrong_is_one_line_and_changes_nothing(place: Paths, arguments: list[str], says: str) -> None:
    with connect(dir=place.root) as client:
        before = client.sql(ROW).tuples()
        code, lines = run_edit(place, *arguments)
        assert code == 2
        assert says in lines[-1]
        assert client.sql(ROW).tuples() == before
