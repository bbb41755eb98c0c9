"""`chiplog plot`: curves at any width, files that are not replaced by accident, and one line for bad input."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import ON_ONE_WORKER, one_line
from tests.support.hand_written import hand_written, kept_open
from tests.support.marks import everyday
from tests.support.plotted_runs import fill_plotted_runs
from tests.support.safeguard import proves

pytestmark = ON_ONE_WORKER


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("plotted")
    with hand_written(root) as database:
        fill_plotted_runs(database)
    with kept_open(root):
        yield root


@pytest.mark.parametrize("width", everyday(1, [80, 100, 160]))
def test_a_plot_fits_the_width(chiplog, root, width):
    code, text, errors = chiplog("plot", "gpt-a", "loss", root=root, COLUMNS=str(width), LINES="24")
    assert (code, errors) == (0, "")
    lines = text.splitlines()
    assert lines[0] == "loss" and len(lines) <= 24
    assert width - 8 <= max(map(len, lines)) <= width
    assert lines[-1] == "a rank0 0.001   b rank1 0.002   c rank2 0.003   d rank3 0.004"


def test_several_runs_and_keys_are_plotted_and_what_is_left_out_is_counted(chiplog, root):
    code, text, errors = chiplog(
        *("plot", "gpt-a", "grad_norm", "loss", "--run", "gpt-b", "--label", "rank2", "--x", "time"), root=root
    )
    assert code == 0
    assert [line for line in text.splitlines() if line in ("grad_norm", "loss")] == ["grad_norm", "loss"]
    assert "a gpt-a 1   b gpt-b 1" in text and "a gpt-a 0.003   b gpt-b 0.012" in text
    assert errors.splitlines()[0].startswith("10 of 1000 values of key 'grad_norm' of run 'gpt-a' are NaN or infinite")


def test_many_labels_are_a_band(chiplog, root):
    assert (
        chiplog("plot", "gpt-64", "loss", "--log-y", root=root)[1]
        .splitlines()[-1]
        .startswith("64 labels: min, median, max 0.03")
    )


@pytest.mark.parametrize("suffix", everyday(1, ["png", "svg"]))
def test_a_picture_is_written(chiplog, root, tmp_path, suffix):
    path = tmp_path / f"loss.{suffix}"
    assert chiplog("plot", "gpt-64", "loss", "-o", str(path), root=root) == (0, "", "")
    assert path.stat().st_size > 5_000
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@proves("picture-kept", "a plot replaces no file without being told to", condition=False)
def test_an_existing_file_is_replaced_only_by_force(chiplog, root, tmp_path):
    path = tmp_path / "loss.svg"
    path.write_text("mine")
    code, text, errors = chiplog("plot", "gpt-a", "loss", "-o", str(path), root=root)
    assert (code, text) == (2, "")
    assert one_line(errors) == f"chiplog plot: file '{path}' exists; --force replaces it"
    assert path.read_text() == "mine"
    assert chiplog("plot", "gpt-a", "loss", "-o", str(path), "--force", root=root)[0] == 0
    assert path.read_text() != "mine"


def test_without_matplotlib_one_line_names_the_command_and_the_terminal_still_works(chiplog, root, tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('No module named matplotlib')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    code, _, errors = chiplog("plot", "gpt-a", "loss", "-o", str(tmp_path / "p.png"), root=root, PYTHONPATH=path)
    assert code == 1
    assert "pip install 'chiplog[plot]'" in one_line(errors)
    assert chiplog("plot", "gpt-a", "loss", root=root, PYTHONPATH=path)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["gpt-c", "loss"], "run 'gpt-c' is unknown; did you mean"),
        (["gpt-a", "lss"], "key 'lss' of run 'gpt-a' is unknown; did you mean 'loss'?"),
        (["gpt-a", "nan"], "has no finite value: all 400 are NaN or infinite; there is nothing to plot"),
        (["gpt-a", "loss", "-o", "/nowhere/loss.png"], "file '/nowhere/loss.png' cannot be written"),
    ],
)
def test_bad_input_is_one_line_that_names_it(chiplog, root, arguments, part):
    code, text, errors = chiplog("plot", *arguments, root=root)
    assert (code, text) == (2, "")
    assert part in one_line(errors)
