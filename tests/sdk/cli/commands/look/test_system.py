"""`chiplog system`: what was sampled, what went wrong with GPUs, and a line for each device."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chiplog_cli.commands.look.system import POINTS, _unit, system
from tests.support.hand_written import hand_written, kept_open
from tests.support.sampled_run import fill_sampled_run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("sampled")
    with hand_written(root) as database:
        fill_sampled_run(database)
    with kept_open(root):
        yield root


def call(root: Path, *arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(system, [*arguments, "--dir", str(root)])


def test_without_a_name_all_samples_and_the_marks_of_gpus_are_listed(root: Path) -> None:
    names, marks = call(root, "sampled").stdout.split("\n\n")
    rows = [line.split() for line in names.splitlines()[2:]]
    assert [(row[0], row[-1]) for row in rows][1] == ("hw.power.limit", "W"), "it never changed"
    assert [line.split()[3:] for line in marks.splitlines()[3:]] == [
        ["rank1", "GPU-1-1", "HW", "thermal", "slowdown"],
        ["rank1", "GPU-1-1", "lost", "XID", "79"],
    ]


def test_a_name_has_a_line_for_each_device_of_the_chosen_labels(root: Path) -> None:
    lines = call(root, "sampled", "hw.gpu.utilization").stdout.splitlines()
    assert lines[0] == "GPU utilization, %"
    rows = {line.split()[0]: line.split()[1:4] for line in lines[3:]}
    assert rows == {"rank0": ["90"] * 3, "rank1": ["50"] * 3}
    assert 1 < len(lines[-1].split()[-1]) <= POINTS
    chosen = call(root, "sampled", "hw.gpu.utilization", "--label", "rank1").stdout.splitlines()
    assert [line.split()[0] for line in chosen[3:]] == ["rank1"]


def test_lines_go_over_the_steps_of_their_nodes(root: Path) -> None:
    lines = call(root, "sampled", "hw.gpu.utilization", "--by", "step").stdout.splitlines()
    assert lines[0] == "GPU utilization, %, steps 0 to 499"
    assert lines[1].endswith("over steps")
    assert {line.split()[0]: line.split()[1:4] for line in lines[3:]} == {"rank0": ["90"] * 3, "rank1": ["50"] * 3}
    found = json.loads(call(root, "sampled", "hw.power.limit", "--by", "step", "--format", "json").stdout)
    assert found["curves"][0]["width"] == 16, "steps in a bucket"
    none = call(root, "many", "hw.gpu.utilization", "--by", "step").stdout
    assert none.splitlines()[-1] == "no sample after the first step of its node", "the run has no step"


def test_a_counter_is_shown_per_second(root: Path) -> None:
    lines = call(root, "sampled", "system.network.io.receive").stdout.splitlines()
    assert lines[0] == "Network received, B per second"
    assert [line.split()[:2] for line in lines[3:]] == [["node-1-0", "1000"], ["node-1-1", "1000"]]


@pytest.mark.parametrize(
    ("quantity", "is_rate", "most", "unit"),
    [
        ("bytes", False, 4.2e9, (2**30, "GiB")),
        ("bytes", True, 2048, (2**10, "KiB per second")),
        ("bytes", False, 0, (1, "B")),
        ("seconds", True, 0.1, (0.01, "% of the time")),
        ("", True, 5, (1, "per second")),
        ("", False, 5, (1, "")),
    ],
)
def test_values_have_the_units_of_the_page(quantity: str, is_rate: bool, most: float, unit: tuple[float, str]) -> None:
    assert _unit({"quantity": quantity, "is_rate": is_rate}, most) == unit


def test_json_has_what_the_page_has(root: Path) -> None:
    assert json.loads(call(root, "sampled", "--format", "json").stdout)["n_marks"] == 2
    [curve] = json.loads(call(root, "sampled", "hw.power.limit", "--format", "json").stdout)["curves"]
    assert (curve["kind"], curve["quantity"]) == ("lines", "watts")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sampled", "hw.gpu.util"], "did you mean 'hw.gpu.utilization'?"),
        (["sampled", "--label", "rank9"], "label 'rank9'"),
        (["sampled", "--by", "step"], "--by step needs a NAME; chiplog system sampled lists them"),
    ],
)
def test_an_unknown_name_is_one_line(root: Path, arguments: list[str], message: str) -> None:
    done = call(root, *arguments)
    assert done.exit_code == 2 and message in done.stderr
