"""Building the C part of the SDK: where there is a compiler, where there is none, and again after a change."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import everyday
from tests.support.tools import needs

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a directory with what a build needs, and nothing built."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copytree(ROOT / "sdk/chiplog/native", tmp_path / "sdk/chiplog/native", ignore=shutil.ignore_patterns("*.so"))
    return tmp_path


def build(tree: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/build_native.py"]
    return subprocess.run(command, cwd=tree, env={**os.environ, **environ}, capture_output=True, text=True)


def built(tree: Path) -> list[str]:
    return sorted(path.name for path in (tree / "sdk/chiplog/native").glob("*.so"))


def test_without_a_compiler_one_line_says_so_and_the_build_succeeds(tree: Path) -> None:
    done = build(tree, PATH="/nowhere")
    assert done.returncode == 0
    assert done.stdout.startswith("the C part of the SDK was not built: no C compiler")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    assert built(tree) == []


def test_a_wheel_that_must_have_it_is_not_built_without(tree: Path) -> None:
    done = build(tree, PATH="/nowhere", CHIPLOG_NATIVE="require")
    assert done.returncode == 1
    assert "no C compiler" in done.stderr


@pytest.mark.full
@needs("gcc", "Python.h")
def test_a_build_leaves_one_extension_and_one_that_fails_leaves_none(tree: Path) -> None:
    assert build(tree).stdout.startswith("built sdk/chiplog/native/_hot_path")
    assert len(built(tree)) == 1
    source = tree / "sdk/chiplog/native/hot_path.c"
    source.write_text(source.read_text() + "this is no C\n")
    done = build(tree)
    assert "was not built" in done.stdout
    assert "error" in done.stdout
    assert built(tree) == [], "an extension of an older source is not left behind"


@needs("gcc", "Python.h")
def test_the_compiler_has_nothing_to_warn_of(tree: Path) -> None:
    done = build(tree, CFLAGS="-Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers")
    assert done.stdout.startswith("built "), done.stdout


@needs("gcc", "Python.h")
@pytest.mark.parametrize("compiler", everyday(1, ["cc", "false"]))
def test_an_installation_compiles_once_and_again_only_where_that_failed(
    tree: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = tree / "compiler"
    counted.write_text(f'#!/bin/sh\necho >> "{tree}/calls"\nexec {compiler} "$@"\n')
    counted.chmod(0o755)
    monkeypatch.setenv("CC", str(counted))
    (tree / "sdk/chiplog/native/_hot_path.abi3.so").write_text("of an older source")
    for name in ("pyproject.toml", "constraints.txt"):
        (tree / name).touch()
    (tree / ".venv").mkdir()
    spec = importlib.util.spec_from_file_location("bootstrap", tree / "scripts/bootstrap.py")
    assert spec is not None and spec.loader is not None
    bootstrap: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    monkeypatch.setattr(bootstrap, "VENV_PYTHON", sys.executable)
    monkeypatch.setattr(bootstrap, "venv_works", lambda: True)
    monkeypatch.setattr(bootstrap, "install", lambda extra: build(tree))  # pip's build hook does that
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "docs"])
    bootstrap.main()
    has_failed = compiler == "false"
    assert (tree / "calls").read_text().count("\n") == 1 + has_failed
    assert len(built(tree)) == 1 - has_failed
    assert capsys.readouterr().out.count("was not built") == has_failed
    assert (bootstrap.NOT_BUILT in bootstrap.installed()) == has_failed
