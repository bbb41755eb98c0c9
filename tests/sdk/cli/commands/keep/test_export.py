"""`chiplog export`: directories of runs; one line and nothing half done for bad input."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chiplog_cli.commands.keep.export import export
from chiplog_schemas.paths import Paths
from tests.support.exported_run import both_runs, make_place, served
from tests.support.safeguard import proves


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return make_place(tmp_path_factory.mktemp("place"), *both_runs())


@pytest.fixture(params=["directory", "collector"])
def source(request: pytest.FixtureRequest, place: Paths) -> Iterator[Path]:
    """The same data without a collector, and behind the socket of one."""
    if request.param == "directory":
        yield place.root
        return
    with served(place):
        yield place.root


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(export, [*arguments, "--dir", str(root)])


@proves("absent-file-reported", "an export without one of the saved files reports that", condition=False)
def test_runs_become_directories(source: Path, tmp_path: Path) -> None:
    done = run(source, "whole", "-o", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    lines = done.stderr.splitlines()
    assert lines[0].startswith("189 points, 5 files, ")
    assert lines[0].endswith(f" bytes, written to {tmp_path}/out/whole")
    assert lines[1:] == ["1 file is not in the export; run.json has the reason in absent_contents"]
    content = json.loads((tmp_path / "out" / "whole" / "run.json").read_text())
    assert (content["format"], content["version"]) == ("chiplog export", 1)
    assert [label["label"] for label in content["labels"]] == ["rank0", "rank1", "rank1"]


def test_the_runs_of_a_project_are_exported_at_once(place: Paths, tmp_path: Path) -> None:
    with served(place):
        done = run(place.root, "--project", "p", "-o", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "whole"]
    assert "run 'r' has not ended: the export has what was stored until now" in done.stderr.splitlines()


@proves("existing-export-kept", "an export never replaces what is there", condition=False)
def test_a_target_that_exists_is_refused_before_anything_is_written(place: Paths, tmp_path: Path) -> None:
    (tmp_path / "whole").write_text("mine")
    done = run(place.root, "r", "whole", "-o", str(tmp_path))
    assert done.exit_code == 2
    assert f"{tmp_path}/whole exists; name another place with -o, or remove it" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    assert (tmp_path / "whole").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name runs, or use one of --project NAME and --all"),
        (["whole", "--all"], "name runs, or use one of --project NAME and --all"),
        (["--project", "p", "--all"], "name runs, or use one of --project NAME and --all"),
        (["whol3"], "run 'whol3' is unknown; did you mean 'whole'?"),
        (["--project", "q"], "project 'q' is unknown; chiplog runs shows the project of each run"),
    ],
)
def test_bad_input_gets_one_line(place: Paths, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(place.root, *arguments, "-o", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].endswith(message)
    assert not (tmp_path / "out").exists()


def test_a_directory_that_cannot_be_written_is_named(place: Paths, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(place.root, "whole", "-o", str(tmp_path / "file"))
    assert done.exit_code == 2
    remedy = "name a directory with -o, in which each run becomes one"
    assert done.stderr.splitlines()[-1] == f"Error: {tmp_path}/file is a file; {remedy}"
    done = run(place.root, "whole", "-o", str(tmp_path / "file" / "below"))
    assert done.exit_code == 1
    assert done.stderr == f"Error: {tmp_path}/file/below cannot be written: Not a directory\n"


def test_a_run_becomes_a_csv_file(source: Path, tmp_path: Path) -> None:
    done = run(source, "whole", "r", "--to", "csv", "-o", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        f"189 points, 3 texts, written to {tmp_path}/out/whole",
        f"600 points, 5 texts, written to {tmp_path}/out/r",
        "run 'r' has not ended: the export has what was stored until now",
    ]
    assert (tmp_path / "out" / "whole" / "metrics.csv").read_text().startswith("run,label,attempt,step,time,")


def test_what_event_files_lack_is_counted(place: Paths, tmp_path: Path) -> None:
    done = run(place.root, "whole", "--to", "tensorboard", "-o", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        f"189 points, 3 texts, 3 histograms, 3 images, written to {tmp_path}/out/whole",
        "not written: 3 images that the collector does not have",
    ]


def test_without_the_library_of_a_format_nothing_is_written(
    place: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ["tensorboard", *(name for name in sys.modules if name.startswith("tensorboard."))]:
        monkeypatch.setitem(sys.modules, name, None)
    done = run(place.root, "whole", "--to", "tensorboard", "-o", str(tmp_path / "out"))
    assert done.exit_code == 1 and "pip install 'chiplog[tensorboard]'" in done.stderr
    assert not (tmp_path / "out").exists()
