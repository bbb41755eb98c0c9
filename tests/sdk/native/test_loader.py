import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog.native import loader

ROOT = Path(__file__).parents[3]
PROGRAM = """
from chiplog.native.loader import hot_path, why_not
from chiplog.recording.run.run import Run
print(hot_path is None, why_not, Run.log.__class__.__name__, sep="|")
"""


def loaded(package: Path, switch: str) -> str:
    """Return what a process prints that imports the SDK from this directory."""
    environ = {"CHIPLOG_NATIVE": switch, "PYTHONPATH": f"{package}:{ROOT / 'schemas'}"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def test_switched_off_a_run_has_the_python_functions() -> None:
    assert loaded(ROOT / "sdk", "0") == "True|CHIPLOG_NATIVE=0|function"


def test_where_nothing_was_built_a_run_has_the_python_functions(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "sdk/chiplog", tmp_path / "chiplog", ignore=shutil.ignore_patterns("*.so"))
    expected = "True|not built: no C compiler or no Python.h at installation|function"
    assert loaded(tmp_path, "1") == expected


def test_an_extension_that_cannot_be_loaded_is_not_used(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "sdk/chiplog", tmp_path / "chiplog", ignore=shutil.ignore_patterns("*.so"))
    (tmp_path / "chiplog/native/_hot_path.abi3.so").write_bytes(b"of another machine")
    assert loaded(tmp_path, "1").startswith("True|not usable: ")


def test_an_extension_from_before_builds_were_compared_is_not_used(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "sdk/chiplog", tmp_path / "chiplog", ignore=shutil.ignore_patterns("*.so"))
    (tmp_path / "chiplog/native/_hot_path.py").write_text("VERSION = 1\n")
    assert loaded(tmp_path, "1").startswith("True|built of another source; run ")


@pytest.mark.skipif(loader.hot_path is None, reason="the C part of the SDK is not built, or switched off")
def test_an_extension_of_another_source_is_not_used(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "sdk/chiplog", tmp_path / "chiplog")
    assert loaded(tmp_path, "1") == "False||method_descriptor"
    with (tmp_path / "chiplog/native/hot_path.c").open("a") as source:
        source.write("/* changed */\n")
    assert loaded(tmp_path, "1").startswith("True|built of another source; run ")
    (tmp_path / "chiplog/native/hot_path.c").unlink()
    assert loaded(tmp_path, "1") == "False||method_descriptor"
