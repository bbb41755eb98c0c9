"""`chiplog views`: what people saved on the page, as a list, and gone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chiplog_cli.commands.keep.views import views
from chiplog_client.client import connect
from tests.support.collector_log import whole
from tests.support.hand_written import hand_written, kept_open
from tests.support.kept_log import finished, kept_log
from tests.support.run_builder import RunBuilder

SAVED = {
    "runs/good": {"query": "filter=lr%3C1+-tag%3Aold&sort=-summary.loss&run=r1"},
    "runs/everything": {"query": ""},
    "run/a%2Fb/wide": {"tab": "curves", "query": "x=time"},
    "sql/ends": {"query": "FROM labels\nWHERE run_id = 'a'"},
    "odd": [1],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("views")
    with hand_written(root) as database:
        for name, view in SAVED.items():
            RunBuilder(database).saved_view(name, view)
    with kept_open(root):
        yield root


def call(root: Path, *arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(views, [*arguments, "--dir", str(root)])


def test_views_are_listed_with_what_they_show(root: Path) -> None:
    lines = [" ".join(line.split()) for line in call(root).stdout.splitlines()]
    assert lines[0] == "name what saved UTC address"
    assert lines[2:] == [
        "odd all 2026-01-02 03:00",
        "run/a%2Fb/wide curves; x time 2026-01-02 03:00 #/run/RUN/curves?x=time",
        "runs/everything all 2026-01-02 03:00 #/runs",
        "runs/good filter lr<1 -tag:old; sort -summary.loss 2026-01-02 03:00 "
        "#/runs?filter=lr%3C1+-tag%3Aold&sort=-summary.loss&run=r1",
        "sql/ends FROM labels WHERE run_id = 'a' 2026-01-02 03:00 "
        "#/sql?q=FROM%20labels%0AWHERE%20run_id%20%3D%20%27a%27",
    ]


def test_json_has_the_view_itself(root: Path) -> None:
    rows = {row["name"]: row for row in json.loads(call(root, "--format", "json").stdout)}
    assert {name: row["view"] for name, row in rows.items()} == SAVED
    assert (rows["run/a%2Fb/wide"]["kind"], rows["run/a%2Fb/wide"]["project"]) == ("run", "a/b")


def test_a_view_is_deleted_by_its_name(tmp_path: Path) -> None:
    with kept_log(tmp_path, [whole(finished(1, "run-1"))]) as place:
        assert call(place.root).stdout.startswith("nothing is saved")
        with connect(dir=place.root) as client:
            client.save_view("runs/good", "{}")
        wrong = call(place.root, "--delete", "runs/god")
        assert wrong.exit_code == 2 and "view 'runs/god' is unknown; did you mean 'runs/good'?" in wrong.stderr
        assert call(place.root, "--delete", "runs/good").stderr == "deleted runs/good\n"
        assert call(place.root).stdout.startswith("nothing is saved")
