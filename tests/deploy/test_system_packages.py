"""`make system-packages`, tests whose tools are missing, and the summary of `.ci/run` over several pytest runs."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import tools
from tests.support.tools import ROOT, lack, needs, require
from tests.support.waiting import WAIT_S

REPOSITORY = Path(__file__).resolve().parents[2]
TMUX = "tmux is missing; apt-get install tmux"
# The test of this repository that is quick and needs tmux.
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/docs/test_captures.py", "-k", "a_screen_is"]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for PATH with all tools but tmux, the packages of which are installed by `apt-get`, if it is there."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for tool in tools._packages().PACKAGES:
        if tool != "tmux" and (found := shutil.which(tool, path=tools._packages().PATH)):
            (folder / tool).symlink_to(found)
    (folder / "sh").symlink_to("/bin/sh")
    return folder


@pytest.fixture
def no_tmux(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tools._packages(), "PATH", "/nowhere")
    lack.cache_clear()
    yield
    lack.cache_clear()


def run(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "CI"} | environ
    return subprocess.run(
        command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=2 * WAIT_S, check=False
    )


def installed_by(apt_get: str, programs: Path) -> str:
    (programs / "apt-get").write_text(f"#!/bin/sh\n{apt_get}\n")
    (programs / "apt-get").chmod(0o755)
    done = run(sys.executable, tools.SCRIPT, PATH=str(programs))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_without_apt_each_missing_tool_is_one_line(programs: Path) -> None:
    done = run(sys.executable, tools.SCRIPT, PATH=str(programs))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{TMUX}; tests that need it are left out\n" in done.stdout


@needs(ROOT)
def test_root_installs_what_is_missing(programs: Path) -> None:
    made = f'case "$*" in *tmux*) : > {programs}/tmux; /bin/chmod 755 {programs}/tmux ;; esac'
    assert "tmux is missing" not in installed_by(made, programs)
    assert run(sys.executable, tools.SCRIPT, PATH=str(programs)).stdout.count("tmux") == 0


@needs(ROOT)
def test_a_package_that_cannot_be_installed_costs_only_its_own_tests(programs: Path) -> None:
    (programs / "less").unlink()  # a second one: apt-get installs nothing if one of the packages is unknown
    made = f'case "$*" in *tmux*) exit 100 ;; *less*) : > {programs}/less; /bin/chmod 755 {programs}/less ;; esac'
    lines = installed_by(made, programs).splitlines()
    assert f"{TMUX}; tests that need it are left out" in lines
    assert not [line for line in lines if line.startswith("less is missing")]


def test_a_test_without_its_tool_is_skipped_and_fails_in_ci(no_tmux: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=TMUX):
        require("tmux")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=TMUX):
        require("tmux")


def test_the_summary_adds_up_runs_and_refuses_a_skip_without_a_gpu_as_the_reason(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    path = f"{Path(sys.executable).parent}"  # no tmux there
    for ci in ("", "true"):
        done = run(*PYTEST, PATH=path, CI=ci, CHIPLOG_TEST_REPORTS=str(reports))
        assert TMUX in done.stdout, done.stdout + done.stderr
        assert done.stdout.count(TMUX) == 1 or ci, "one line for all tests that need it"
    found = [json.loads(path.read_text()) for path in reports.iterdir()]
    skipped, failed = sorted(found, key=lambda report: report["exit_status"])
    n_tests = skipped["counts"]["skipped"]
    assert n_tests > 0 and failed["counts"]["failed"] + failed["counts"]["error"] == n_tests
    done = run("make", "--silent", "test-summary", f"REPORTS={reports}")
    *lines, last = done.stdout.splitlines()
    assert done.returncode != 0
    assert lines[0] == "skipped for another reason than a missing GPU:"
    assert last.startswith(f"{n_tests} skipped, {n_tests} errors in ")


def test_a_missing_gpu_is_a_reason_to_skip(tmp_path: Path) -> None:
    for number in range(2):
        counts = {"failed": 0, "passed": 2, "skipped": 1, "error": 0}
        report = {"counts": counts, "skipped": [["a", "no GPU here"]], "exit_status": 0, "duration_s": 1.5}
        (tmp_path / f"{number}.json").write_text(json.dumps(report))
    done = run("make", "--silent", "test-summary", f"REPORTS={tmp_path}")
    assert (done.returncode, done.stdout) == (0, "4 passed, 2 skipped in 3.00s\n"), done.stderr
