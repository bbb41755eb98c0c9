"""The same training gives the same rows, whether chiplog records it, or another library whose files are imported."""

from pathlib import Path

import pytest

from tests.integrations.importing import import_into, run_script
from tests.integrations.matrix import ROW
from tests.support.node import Node

_RECORDED = {"chiplog": {}, "wandb": {}, "mlflow": {"MLFLOW_TRACKING_URI": "chiplog://"}}
_IMPORTED = {"tensorboard": "tensorboard", "mlflow": "mlflow.db", "trackio": "trackio.db"}
_QUERY = "SELECT key, step, value FROM metrics JOIN runs USING (run_id) WHERE project = '{}' ORDER BY key, step"


@pytest.fixture(scope="module")
def expected(shared_node: Node, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """Return the rows of the training that chiplog recorded."""
    return _recorded(shared_node, tmp_path_factory.mktemp("same"), "chiplog")


def _recorded(node: Node, directory: Path, library: str) -> list[dict[str, object]]:
    project = f"{directory.name}-{library}"
    environ = {"CHIPLOG_DIR": str(node.root), **_RECORDED[library]}
    run_script("one_training.py", library, project, directory=directory, **environ)
    return node.until(_QUERY.format(project), lambda rows: len(rows) == 200)


@pytest.mark.parametrize("library", ["wandb", "mlflow"])
def test_what_chiplog_records_in_the_place_of_a_library(
    library: str,
    expected: list[dict[str, object]],
    shared_node: Node,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    row = {"library": f"the same training by {library}, into chiplog", "ranks": 1, "rows": len(expected)}
    request.node.user_properties.append((ROW, row))
    assert _recorded(shared_node, tmp_path, library) == expected


@pytest.mark.parametrize("library", list(_IMPORTED))
def test_what_is_imported_from_a_library(
    library: str,
    expected: list[dict[str, object]],
    shared_node: Node,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    row = {"library": f"the same training by {library}, imported", "ranks": 1, "rows": len(expected)}
    request.node.user_properties.append((ROW, row))
    place = tmp_path / _IMPORTED[library]
    environ = {"MLFLOW_TRACKING_URI": f"sqlite:///{place}", "TRACKIO_DIR": str(tmp_path)}
    run_script("one_training.py", library, place.stem, directory=tmp_path, **environ)
    project = f"{tmp_path.name}-imported"
    import_into(shared_node, "--project", project, place)
    assert shared_node.sql(_QUERY.format(project)) == expected
    again = import_into(shared_node, "--project", project, place)
    assert sum("it had all of its events before" in line for line in again) == 1
    assert shared_node.sql(_QUERY.format(project)) == expected
