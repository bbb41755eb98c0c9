"""Names of artifacts in a run, and the directories that they make."""

import pytest

from chiplog.integrations.mlflow.artifacts.artifact_names import Listed, list_directory, name_in_run

ROOT = "mlflow/artifacts"


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("artifacts", None, "a.txt"), "mlflow/artifacts/a.txt"),
        (("artifacts", "plots/./day1/", "a.txt"), "mlflow/artifacts/plots/day1/a.txt"),
        (("models", "m-1", "artifacts"), "mlflow/models/m-1/artifacts"),
        (("artifacts", ""), "mlflow/artifacts"),
        ((), "mlflow"),
    ],
)
def test_a_path_has_its_name_below_the_folder_of_all_labels(parts: tuple[str | None, ...], name: str) -> None:
    assert name_in_run(*parts) == name


@pytest.mark.parametrize("path", ["..", "../a", "a/../../b", "/etc/passwd", "a\nb", "x" * 1_100])
def test_a_path_that_leaves_the_run_is_refused_in_one_line(path: str) -> None:
    with pytest.raises(ValueError, match="refused") as raised:
        name_in_run("artifacts", path)
    assert "\n" not in str(raised.value)


def test_a_directory_lists_its_files_and_directories_once_by_name() -> None:
    sizes = {f"{ROOT}/b.txt": 2, f"{ROOT}/a/x": 1, f"{ROOT}/a/deep/y": 3, f"{ROOT}s/other": 9}
    assert list_directory(sizes, ROOT, ROOT) == [Listed("a", None), Listed("b.txt", 2)]
    assert list_directory(sizes, f"{ROOT}/a", ROOT) == [Listed("a/deep", None), Listed("a/x", 1)]
    assert list_directory(sizes, f"{ROOT}/b.txt", ROOT) == []  # a file lists nothing
    assert list_directory({}, ROOT, ROOT) == []
