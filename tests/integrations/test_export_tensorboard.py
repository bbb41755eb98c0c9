"""What TensorBoard's own reader gives of exported event files is what it gave of those that were imported."""

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integrations.importing import import_into, run_reader, run_script
from tests.integrations.matrix import PYTHON, ROW
from tests.integrations.training import END_S
from tests.support.node import Node

_SUFFIX = "/text_summary"  # of the tags of texts, which an import leaves out
_KINDS = ("scalars", "text", "histograms", "images")


@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "tensorboardX"])
def test_exported_event_files_have_what_the_imported_ones_had(
    module: str, shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = tmp_path / f"back-{module}"
    run_script("write_event_files.py", module, root)
    import_into(shared_node, root)
    lines = _export(shared_node, root.name, tmp_path / "out")
    wanted, read = run_reader("read_event_files.py", root), run_reader("read_event_files.py", tmp_path / "out")
    names = {row["run_id"]: row["name"] for row in shared_node.sql("FROM runs WHERE project = $p", {"p": root.name})}
    found = {names[Path(directory).parent.name]: values for directory, values in read["runs"].items()}
    expected = {
        root.name if Path(directory) == root else str(Path(directory).relative_to(root)): values
        for directory, values in wanted["runs"].items()
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        for kind in _KINDS:
            assert _rows_of(found[name], kind) == _rows_of(values, kind), (name, kind)
    assert any("not written: 1 media of kind " in line or "media of kind table" in line for line in lines), lines
    n_values = sum(len(values[kind]) for values in found.values() for kind in _KINDS)
    assert n_values > 500
    row = {"library": f"event files of {module}, exported again", "version": read["version"], "ranks": 1}
    request.node.user_properties.append((ROW, {**row, "rows": n_values}))


def _export(node: Node, project: str, target: Path) -> list[str]:
    """Export all runs of a project; return the lines on stderr."""
    words = ["-m", "chiplog_cli", "export", "--project", project, "--to", "tensorboard", "-o", str(target)]
    done = subprocess.run(
        [os.environ[PYTHON], *words, "--dir", str(node.root)], capture_output=True, text=True, timeout=END_S
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def _rows_of(values: dict[str, list[Any]], kind: str) -> list[tuple[Any, ...]]:
    """Return the values of a kind, with numbers as float32: an export has these, and old files these histograms."""
    rows = []
    for key, step, us, value in values[kind]:
        if kind == "scalars":
            value = repr(float(np.float32(value)))
        elif kind == "histograms":
            value = np.float32(value).tolist()
        rows.append((key.removesuffix(_SUFFIX), step, us, value))
    return sorted(rows)
