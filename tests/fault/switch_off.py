"""Switch each safeguard off in turn, and see its test turn red: a fault test that cannot fail proves nothing.

    python -m tests.fault.switch_off [-k WORDS] [--jobs N]

Tests declare with `@proves` what they prove (tests/support/safeguard.py). For each safeguard the tree is copied, the
statement with its comment is changed in the copy, and its test runs there, in processes that import the copy. Exit code
1 when a test stays green.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.safeguard import ROOT, AnchorError, Safeguard, anchors, changed_file, proven_in

PACKAGE_ROOTS = ("sdk", "agent", "collector", "schemas")
TEST_FAILED = 1  # pytest's exit status; others mean that the test could not be run
PATIENCE_S = 2400.0  # longer than the timeout of any test


@dataclass
class Outcome:
    """What became of one safeguard's test."""

    is_red: bool
    seconds: float
    last_words: str


def declared(accepts: Callable[[Path], bool] = lambda path: True) -> Iterator[tuple[Path, Safeguard]]:
    """Yield (test module, safeguard) of all accepted modules whose tests prove some."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if accepts(path) and "\n@proves(" in path.read_text(encoding="utf-8"):
            module = path.relative_to(ROOT)
            name = ".".join(module.with_suffix("").parts)
            importlib.import_module(name)
            for safeguard in proven_in(name):
                yield module, safeguard


def undeclared(root: Path = ROOT) -> list[str]:
    """Return a line for each safeguard in the product that no test module declares."""
    names = {safeguard.anchor for _, safeguard in declared()}
    return [
        f"{path}:{line}: no test declares the safeguard {name}; declare it, or remove the comment"
        for name, places in anchors(root).items()
        for path, line in places
        if name not in names
    ]


def trouble(module: Path, safeguard: Safeguard, root: Path = ROOT) -> str:
    """Return why a declaration cannot be carried out; '' when it can."""
    try:
        changed_file(safeguard, root)
    except AnchorError as error:
        return f"{module}: {error}"
    return ""


def switch_off(module: Path, safeguard: Safeguard, patience_s: float = PATIENCE_S) -> Outcome:
    """Run a safeguard's test in a copy of the tree that lacks the safeguard."""
    with tempfile.TemporaryDirectory(prefix="chiplog-off-") as scratch:
        copy = Path(scratch)
        _copy_tree(copy)
        path, text = changed_file(safeguard)
        (copy / path).write_text(text, encoding="utf-8")
        environment = dict(os.environ, CHIPLOG_ROUNDS_TIMES="10", **safeguard.environment)
        for name in ("CHIPLOG_SOAK_MINUTES", "COVERAGE_PROCESS_CONFIG"):  # a copy of the tree is not measured
            environment.pop(name, None)
        environment["PYTHONPATH"] = os.pathsep.join([*(str(copy / name) for name in PACKAGE_ROOTS), str(copy)])
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", f"{module}::{safeguard.test}"]
        begun = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, errors="replace", timeout=patience_s
            )
        except subprocess.TimeoutExpired:
            return Outcome(False, time.monotonic() - begun, "the test did not end")
    lines = done.stdout.splitlines()
    reasons = [line[4:].strip() for line in lines if line.startswith("E   ")] or lines[-3:]
    return Outcome(done.returncode == TEST_FAILED, time.monotonic() - begun, (reasons or ["no output"])[0])


def main() -> int:
    """Switch off what is asked for; print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", dest="words", default="", help="only those whose promise, name, file or test holds this")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    arguments = parser.parse_args()
    chosen = [
        (module, safeguard)
        for module, safeguard in declared()
        if arguments.words in f"{module} {safeguard.promise} {safeguard.anchor} {_file_of(safeguard)} {safeguard.test}"
    ]
    green = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = pool.map(lambda entry: trouble(*entry) or switch_off(*entry), chosen)
        for (module, safeguard), outcome in zip(chosen, outcomes, strict=True):
            if isinstance(outcome, str):
                outcome = Outcome(False, 0.0, outcome)
            green += not outcome.is_red
            word = "red  " if outcome.is_red else "GREEN"
            print(f"{word} {outcome.seconds:5.0f} s  {safeguard.promise}  [{module.name}::{safeguard.test}]")
            print(f"               {outcome.last_words[:180]}", flush=True)
    print(f"{len(chosen)} safeguards switched off, {len(chosen) - green} tests turned red, {green} did not")
    return 1 if green else 0


def _file_of(safeguard: Safeguard) -> str:
    return ", ".join(str(path) for path, _ in anchors().get(safeguard.anchor, []))


def _copy_tree(target: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


if __name__ == "__main__":
    sys.exit(main())
