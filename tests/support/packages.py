"""The packages of the product, as pyproject.toml lists them, and where their tests are."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FILES = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]["files"]
PACKAGES = {Path(path).name: ROOT / path for path in _FILES}  # the folder of each


def mirror_of(package: str) -> Path:
    """Return the folder that mirrors a package: tests/sdk for `chiplog`, tests/sdk/client for `chiplog_client`."""
    folder = PACKAGES[package].parent
    part = package.removeprefix("chiplog").removeprefix("_")
    return ROOT / "tests" / folder.name / ("" if part == folder.name else part)
