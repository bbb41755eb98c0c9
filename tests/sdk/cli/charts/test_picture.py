"""Pictures of curves: PNG, SVG and PDF, by the suffix."""

import re
from pathlib import Path

import click
import pytest

from chiplog_cli.charts.curves import Curve, Panel
from chiplog_cli.charts.picture import picture_format, write_picture
from tests.support.marks import everyday

PANELS = [
    Panel("train/loss", "step", [Curve("rank0", [0.0, 1.0], [2.0, 1.0], raw=Curve("rank0", [0.0, 1.0], [3.0, 1.0]))]),
    Panel("cost in $", "time", [Curve("64 labels", [0.0, 90.0], [2.0, 1.0], low=[1.0, 0.5], high=[3.0, 2.0])]),
]
HEADS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("form", everyday(1, HEADS))
def test_a_picture_has_the_format_of_its_suffix(tmp_path: Path, form: str) -> None:
    path = tmp_path / "p"
    assert picture_format(f"a/b.{form.upper()}") == form
    write_picture(PANELS, str(path), form)
    assert path.read_bytes().startswith(HEADS[form])


def test_an_svg_has_titles_axes_and_names_as_text_and_is_the_same_each_time(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        write_picture(PANELS, str(path), "svg", is_log_y=True)
    text = paths[0].read_text()
    for part in ("train/loss", "rank0", "step", "cost in $", "64 labels"):
        assert f">{part}<" in text, part
    assert text == paths[1].read_text()


def test_more_curves_than_colours_are_told_apart_by_dashes(tmp_path: Path) -> None:
    curves = [Curve(f"rank{rank}", [0.0, 1.0], [0.0, float(rank)]) for rank in range(20)]
    write_picture([Panel("loss", "step", curves)], str(tmp_path / "p"), "svg")
    lines = re.findall(r'stroke: (#\w+);[^"]*stroke-width: 1.2', (tmp_path / "p").read_text())
    styles = re.findall(r'style="(fill: none;[^"]*stroke-width: 1.2[^"]*)"', (tmp_path / "p").read_text())
    assert len(set(lines)) == 10 and len(set(styles)) == 20


def test_an_unknown_suffix_is_bad_input() -> None:
    with pytest.raises(click.UsageError, match=r"file 'loss.jpg' has none of the suffixes .png, .svg, .pdf"):
        picture_format("loss.jpg")
