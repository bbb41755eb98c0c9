"""The two wheels of a release: ranks and nodes install chiplog-sdk alone, and chiplog has the rest."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.packages import ROOT
from tests.support.waiting import WAIT_S

NEEDED = ("zmq", "msgpack", "click", "numpy", "psutil", "pynvml")  # of chiplog-sdk
RANK = """
import json, sys, chiplog
before = set(sys.modules)
run = chiplog.init(run_id="thin")
for step in range(10):
    with run.phase("forward"):
        run.log({"loss": 1 / (step + 1)}, step=step)
run.finish()
found = {name.split(".")[0]: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
print(json.dumps(sorted(name for name, path in found.items() if path and "/needed/" in path)))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return both wheels by distribution, as `pip wheel` builds them from the sources of the split."""
    folder = tmp_path_factory.mktemp("wheels")
    sources = subprocess.check_output([sys.executable, "scripts/split_wheels.py", folder], cwd=ROOT, text=True).split()
    for source in sources:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source]
        subprocess.run(command, check=True, timeout=WAIT_S)
    return {path.name.partition("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def needed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the packages that chiplog-sdk requires, and nothing else."""
    folder = tmp_path_factory.mktemp("site") / "needed"
    folder.mkdir()
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        origin = Path(spec.origin)
        found = origin.parent if origin.name == "__init__.py" else origin
        for path in (found, *found.parent.glob(f"{'pyzmq' if name == 'zmq' else name}.libs")):
            (folder / path.name).symlink_to(path)
    return folder


def unpacked(wheels: dict[str, Path], names: list[str], target: Path) -> Path:
    for name in names:
        zipfile.ZipFile(wheels[name]).extractall(target)
    return target


def run(paths: list[Path], root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python without any installed package but those in some directories."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CHIPLOG_", "PYTHON"))}
    environ |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "CHIPLOG_DIR": str(root), "HOME": str(root)}
    python = Path(sys.base_prefix) / "bin" / "python3"
    return subprocess.run(
        [python, *arguments], cwd=root.parent, env=environ, capture_output=True, text=True, timeout=WAIT_S
    )


def test_no_file_is_in_both_and_the_rest_requires_the_sdk_of_its_version(wheels: dict[str, Path]) -> None:
    assert wheels.keys() == {"chiplog", "chiplog-sdk"}
    names = {name: set(zipfile.ZipFile(path).namelist()) for name, path in wheels.items()}
    assert names["chiplog"] & names["chiplog-sdk"] == set()
    assert {entry.split("/")[0] for entry in names["chiplog-sdk"] if "dist-info" not in entry} == {
        "chiplog",
        "chiplog_agent",
        "chiplog_schemas",
    }
    [version] = {path.name.split("-")[1] for path in wheels.values()}
    metadata = zipfile.ZipFile(wheels["chiplog"]).read(f"chiplog-{version}.dist-info/METADATA").decode()
    assert f"Requires-Dist: chiplog-sdk=={version}\n" in metadata
    thin = zipfile.ZipFile(wheels["chiplog-sdk"]).read(f"chiplog_sdk-{version}.dist-info/METADATA").decode()
    assert sum("Requires-Dist: " in line and "extra ==" not in line for line in thin.splitlines()) <= 6


def test_with_the_sdk_alone_a_rank_records_and_what_it_recorded_waits_for_the_rest(
    wheels: dict[str, Path], needed: Path, tmp_path: Path
) -> None:
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    thin = unpacked(wheels, ["chiplog-sdk"], tmp_path / "thin")
    done = run([thin, needed], root, "-c", RANK)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["msgpack", "zmq"], "a rank imports these two alone"
    [line] = [line for line in done.stderr.splitlines() if "collector" in line]
    assert "pip install chiplog" in line and "CHIPLOG_COLLECTOR" in line
    assert len(list((root / "journals").rglob("*.seg"))) == 1, "the journal waits"
    assert not (root / "collector").exists()

    client = run([thin, needed], root, "-c", "import chiplog; chiplog.connect()")
    assert client.stderr.splitlines()[-1].startswith("ImportError: chiplog.connect is in the package chiplog, ")
    names = run([thin, needed], root, "-c", "from chiplog import Client")
    assert "pip install chiplog" in names.stderr.splitlines()[-1]
    assert run([thin, needed], root, "-m", "chiplog_agent", "--help").stdout.startswith("Usage: chiplog agent")
    command = run([thin, needed], root, "-m", "chiplog.cli", "runs")
    assert (command.returncode, command.stderr.count("\n")) == (1, 1)

    whole = unpacked(wheels, ["chiplog-sdk", "chiplog"], tmp_path / "whole")
    packages = Path(importlib.util.find_spec("duckdb").origin).parents[1]  # type: ignore[union-attr,arg-type]
    others = tmp_path / "others"
    others.mkdir()
    for path in packages.iterdir():
        if not path.name.startswith(("chiplog", "__editable__", "_chiplog")) and path.suffix != ".pth":
            (others / path.name).symlink_to(path)
    found = run(
        [whole, others], root, "-m", "chiplog_cli", "sql", "SELECT count(*) AS n FROM metrics", "--format", "csv"
    )
    run([whole, others], root, "-m", "chiplog_cli", "down")
    assert found.stdout.split() == ["n", "10"], found.stderr
