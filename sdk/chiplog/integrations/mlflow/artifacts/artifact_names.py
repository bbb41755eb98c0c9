"""The names that artifacts of MLflow have among the files of a run, and the directories that they make (pure).

`mlflow/artifacts/…` are those of the run, `mlflow/models/MODEL_ID/artifacts/…` those of a model that it logged.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from chiplog_schemas.storage.content_files import ANY_LABEL_FOLDER, invalid_path_reason


class Listed(NamedTuple):
    """An entry of a directory. size: None for a directory."""

    path: str
    size: int | None


def name_in_run(*parts: str | None) -> str:
    """Return the name in the run of a path in parts, each of which may have slashes. Raises ValueError."""
    words = [word for part in parts if part for word in part.split("/")]
    if ".." in words or any(part.startswith("/") for part in parts if part):
        path = "/".join(part for part in parts if part)
        raise ValueError(f"artifact path {path!r:.200} is refused: it must be relative, without '..'")
    name = ANY_LABEL_FOLDER + "/".join(word for word in words if word not in ("", "."))
    if name != ANY_LABEL_FOLDER and (reason := invalid_path_reason(name)):
        raise ValueError(f"artifact path {name!r:.200} is refused: {reason}")
    return name.rstrip("/")


def list_directory(sizes: Mapping[str, int], directory: str, root: str) -> list[Listed]:
    """Return the entries of a directory by name, each with its path below the root.

    sizes: of files, by name in the run. directory, root: names in the run.
    """
    found: dict[str, int | None] = {}
    for name in names_below(sizes, directory):
        entry, is_deeper, _ = name[len(directory) + 1 :].partition("/")
        found[f"{directory}/{entry}"] = None if is_deeper else sizes[name]
    return [Listed(path[len(root) + 1 :], found[path]) for path in sorted(found)]


def names_below(names: Iterable[str], directory: str) -> list[str]:
    """Return the names that are in a directory, at any depth."""
    return [name for name in names if name.startswith(f"{directory}/")]
