"""Folders of Lightning's CSVLogger: `version_N` with metrics.csv and hparams.yaml, and the folder that has several."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chiplog_client.transfer.importers.csv_file import read_table
from chiplog_client.transfer.importers.formats import Options
from chiplog_client.transfer.importers.imported_run import Config, ImportedRun, ImporterError, Part, run_id_of_path

_METRICS, _HYPERPARAMETERS = "metrics.csv", "hparams.yaml"


def is_one(path: Path) -> bool:
    """Return True if a path is a folder of the CSVLogger, or has some."""
    return bool(_folders_of(path))


def _folders_of(path: Path) -> list[Path]:
    """Return the folders with metrics, the versions in their order."""
    if (path / _METRICS).is_file():
        return [path]
    found = {file.parent for pattern in ("version_*", "*/version_*") for file in path.glob(f"{pattern}/{_METRICS}")}
    return sorted(found, key=lambda folder: (str(folder.parent), len(folder.name), folder.name))


def read(path: Path, options: Options) -> Iterator[Part]:
    """Yield a run for each version."""
    folders = _folders_of(path)
    if not folders:
        raise ImporterError(f"{path}: no {_METRICS} in it; name a folder like lightning_logs/version_0")
    for folder in folders:
        name = "/".join(folder.resolve().parts[-2:])
        run = ImportedRun(
            source=folder, run_id=run_id_of_path("lightning", folder), name=name, of_path=frozenset({"name"})
        )
        hyperparameters = _hyperparameters(folder / _HYPERPARAMETERS)  # read first: bad ones end the import
        yield from read_table(folder / _METRICS, run, options.column_map)
        if hyperparameters:
            ts = (folder / _HYPERPARAMETERS).stat().st_mtime_ns // 1000
            yield Config(values={str(key): value for key, value in hyperparameters.items()}, ts=ts)


def _hyperparameters(path: Path) -> dict[Any, Any]:
    """Return the hyperparameters in a file, which may be missing."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise ImporterError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    if text.strip() in ("", "{}"):
        return {}
    try:
        import yaml
    except ImportError as error:
        raise ImporterError(
            f"{path}: YAML is read by PyYAML, which is not installed; pip install 'chiplog[lightning]'"
        ) from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Reads plain values only: of Python's objects, which Lightning writes too, what they are made of."""

    def construct(loader: Any, _: str, node: Any) -> Any:
        if isinstance(node, yaml.MappingNode):
            return loader.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return loader.construct_sequence(node, deep=True)
        return loader.construct_scalar(node) or node.tag.rpartition(":")[2]

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", construct)
    Loader.add_multi_constructor("!", construct)
    try:
        found = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise ImporterError(f"{path}{place}: {problem}; correct the file, or move it away") from error
    if not isinstance(found, dict):
        raise ImporterError(f"{path}: it has no names with values; correct the file, or move it away")
    return found
