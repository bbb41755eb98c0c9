"""constraints.txt: it has a pin for each requirement and each tested Python, and make targets install what it names."""

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from chiplog_cli.health_checks import TESTED_DUCKDB
from tests.support.loaded_script import REPOSITORY, load_script

# What a fake interpreter of .venv is called with, and the variables that pip reads.
RECORD = '#!/bin/sh\nprintf "%s " "$@" "constraint:$PIP_CONSTRAINT" "build:$PIP_BUILD_CONSTRAINT" > "{}"\n'


def pinned(python: str) -> dict[str, str]:
    """Return name -> version for a Python; a name that is pinned twice fails."""
    found: dict[str, str] = {}
    for line in (REPOSITORY / "constraints.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        pin = Requirement(line)
        if pin.marker is None or pin.marker.evaluate({"python_version": python}):
            assert pin.name not in found, f"{pin.name} has two versions for Python {python}"
            found[pin.name] = str(pin.specifier).removeprefix("==")
    return found


@pytest.mark.parametrize("python", [*load_script("scripts/constraints.py").PYTHONS, "3.14"])
def test_each_requirement_has_a_pin_that_satisfies_it(python: str) -> None:
    pins = pinned(python)
    for requirement in load_script("scripts/constraints.py").declared():
        if requirement.name != "chiplog":
            version = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement} and the pin {version}"


def test_the_pins_hold_for_the_first_release_of_a_python() -> None:
    """Debian 12 has 3.11.2. pip would search for other versions, and at last download PyTorch for GPUs."""
    first = "{}.{}.0".format(*sys.version_info)
    for name, version in pinned("{}.{}".format(*sys.version_info)).items():
        try:
            about = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # what builds chiplog, and what another extra needs
        if about.version == version:
            pythons = about.metadata.get("Requires-Python") or ""
            assert first in SpecifierSet(pythons), f"{name} {version} needs Python {pythons}"


def test_a_pin_is_a_name_and_a_version_and_comes_from_anywhere() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    for line in lines:
        assert re.fullmatch(r'#.*|[a-z0-9-]+==[a-z0-9.]+( ; [a-z_]+ (<|>=) "[\d.]+"( and [a-z_]+ < "[\d.]+")?)?', line)
        assert not line.startswith(("nvidia-cu", "nvidia-nc", "cuda-", "triton")), "PyTorch is the one for CPUs"


def test_the_duckdb_that_doctor_calls_tested_is_the_pinned_one() -> None:
    for python in load_script("scripts/constraints.py").PYTHONS:
        assert pinned(python)["duckdb"].startswith(f"{TESTED_DUCKDB}.")


@pytest.mark.parametrize(
    ("versions", "lines"),
    [
        (["1", "1", "1"], ["x==1"]),
        ([None, "1", None], ["x==1"]),
        (["1", None, "2"], ['x==1 ; python_version < "3.13"', 'x==2 ; python_version >= "3.13"']),
        (["1", "2", "2"], ['x==1 ; python_version < "3.12"', 'x==2 ; python_version >= "3.12"']),
    ],
)
def test_versions_that_differ_between_pythons_have_markers(versions: list[str | None], lines: list[str]) -> None:
    assert load_script("scripts/constraints.py").pins("x", versions) == lines


@pytest.mark.parametrize("latest", ["", "0", "1"])
def test_make_targets_install_the_pinned_versions_unless_the_latest_are_asked_for(
    latest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATEST", latest)
    monkeypatch.setenv("PIP_CONSTRAINT", "mine.txt")
    monkeypatch.delenv("PIP_BUILD_CONSTRAINT", raising=False)
    bootstrap, python, called = load_script("scripts/bootstrap.py"), tmp_path / "python", tmp_path / "called"
    python.write_text(RECORD.format(called))
    python.chmod(0o755)
    monkeypatch.setattr(bootstrap, "VENV_PYTHON", str(python))
    bootstrap.install("dev")
    found = called.read_text()
    assert ("--upgrade-strategy=eager" in found) == (latest == "1")
    expected = (
        "constraint:mine.txt build:" if latest == "1" else "constraint:mine.txt constraints.txt build:constraints.txt"
    )
    assert found.strip().endswith(expected)


def test_other_versions_are_installed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = []
    for constraints, latest in (("a==1", ""), ("a==2", ""), ("a==2", "1")):
        monkeypatch.setenv("LATEST", latest)
        bootstrap = load_script("scripts/bootstrap.py")
        monkeypatch.setattr(bootstrap, "ROOT", str(tmp_path))
        for path in ("pyproject.toml", *bootstrap.NATIVE):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
        (tmp_path / bootstrap.CONSTRAINTS).write_text(constraints)
        stamps.append(bootstrap.wanted("dev")[:2])
    assert len({tuple(stamp) for stamp in stamps}) == 3
