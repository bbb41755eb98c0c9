"""The formats that `chiplog import` reads, each one module: which format a path has, and the runs in it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from chiplog_client.transfer.importers.imported_run import Part


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says beside the path. column_map: from --map, the column of each role; see csv_file.py."""

    column_map: Mapping[str, str] = field(default_factory=dict)


class Importer(Protocol):
    """A module of a format. It imports the library that owns the format only in `read`."""

    def is_one(self, path: Path) -> bool:
        """Return True if a path is of this format, by its name and first bytes. It may not exist."""
        ...

    def read(self, path: Path, options: Options) -> Iterator[Part]:
        """Yield the runs and their parts. Raises ImporterError, also when the library is missing; OSError."""
        ...


# In the order in which they are guessed: the special ones first.
FORMATS = {
    "wandb": "wandb_run",
    "mlflow": "mlflow_stores",
    "tensorboard": "tensorboard_files",
    "trackio": "trackio_file",
    "lightning": "lightning_csv",
    "huggingface": "trainer_state",
    "csv": "csv_file",
}


def importer_of(name: str) -> Importer:
    """Return the module of a format."""
    return cast(Importer, import_module(f"chiplog_client.transfer.importers.{FORMATS[name]}"))


def guess_format(path: Path) -> str | None:
    """Return the name of the format of a path, or None."""
    return next((name for name in FORMATS if importer_of(name).is_one(path)), None)
