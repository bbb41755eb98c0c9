"""The README is held by tests: its ten lines run, its ten queries answer, its links lead somewhere, its files exist."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import chiplog
from chiplog_cli.root import COMMANDS
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from tests.support.marks import everyday
from tests.support.node import Node
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.xdist_group("readme")  # one worker: what its fixture does is costly

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", README, re.DOTALL)
PROGRAM = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]

TWO_RANKS = """
import os, sys, time, chiplog
rank = int(sys.argv[1])
run = chiplog.init(project="readme", run_id="two", label=f"rank{rank}", primary=rank == 0, config={"lr": 0.1})
step = 0
while step < 20 or not os.path.exists(sys.argv[2]):
    with run.phase("forward"):
        time.sleep(0.05)
    run.log({"train/loss": 1.0 / (step + 1) + rank}, step=step)
    step += 1
print("done", rank)
if rank == 1:
    raise SystemExit(chiplog.finish(exit_code=3))
run.finish()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in which the README's program ran, and two ranks of which one failed."""
    root = tmp_path_factory.mktemp("readme")
    environ = os.environ | {"CHIPLOG_DIR": str(root)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environ, check=True)
    sampled = root / "sampled"
    command = [sys.executable, "-c", TWO_RANKS]
    ranks = [subprocess.Popen([*command, str(rank), str(sampled)], env=environ) for rank in (0, 1)]
    where, node = paths_for_root(root), Node(root)
    try:
        node.until("SELECT 1 FROM system WHERE run_id = 'two' HAVING count(DISTINCT label) = 2")
    finally:
        sampled.touch()
        for process in ranks:
            process.wait(WAIT_S)
    node.until("SELECT 1 FROM labels WHERE state <> 'running' HAVING count(*) = 3")
    yield root
    for directory in (where.agent, where.collector):
        pid = lock_holder_pid(directory / "lock")
        if pid > 0:
            os.kill(pid, signal.SIGTERM)
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.05)


def test_there_are_ten_queries() -> None:
    assert len(QUERIES) == 10


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.splitlines()[0][:60])
def test_each_query_answers_with_rows(recorded: Path, query: str) -> None:
    with chiplog.connect(dir=recorded) as client:
        assert client.sql(query.strip().rstrip(";")).rows()


def test_the_queries_run_on_the_command_line_as_they_stand(recorded: Path) -> None:
    environ = os.environ | {"CHIPLOG_DIR": str(recorded)}
    command = [sys.executable, "-m", "chiplog_cli", "sql", QUERIES[1]]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank1" in done.stdout


def test_the_ten_lines_are_ten_lines_and_the_example_is_as_short() -> None:
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) <= 10
    example = (ROOT / "sdk/examples/minimal.py").read_text(encoding="utf-8")
    assert example.endswith(PROGRAM), "the README shows sdk/examples/minimal.py, to the letter"


def test_every_link_and_every_named_test_leads_to_a_file() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README) + re.findall(r"tests/[\w/]+\.py", README)
    assert targets
    missing = [target for target in targets if not target.startswith("http") and not (ROOT / target).exists()]
    assert not missing


def test_the_readme_names_every_command_and_no_other() -> None:
    section = README.split("## Commands")[1].split("## ")[0]
    assert set(re.findall(r"`([a-z]+)`", section)) == {command.name for command in COMMANDS}


@pytest.mark.parametrize(("page", "heading"), [("README.md", "What it does not do yet"), ("sdk/README.md", "Limits")])
def test_no_command_that_exists_is_listed_as_missing(page: str, heading: str) -> None:
    section = (ROOT / page).read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("## ")[0]
    words = set(re.findall(r"`(?:chiplog )?([a-z]+)`", section))
    assert words & {command.name for command in COMMANDS} == set()


@pytest.mark.parametrize("page", everyday(2, ["docs/index.md", "docs/sql/index.md", "docs/topics/python-queries.md"]))
def test_the_python_of_the_documentation_runs(recorded: Path, page: str) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert programs
    for program in programs:
        environ = os.environ | {"CHIPLOG_DIR": str(recorded)}
        command = [sys.executable, "-c", f"import chiplog\n{program}"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
