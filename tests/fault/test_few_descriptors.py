"""A rank that may open hardly any file: it trains to its end, and what it logged comes out all the same.

libzmq aborts the process whose descriptors run out while it starts its threads: with three to six of them, that was the
end of the training. Now nothing of libzmq begins before there are enough, and the journal waits: for descriptors, or
for an agent to adopt it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog_schemas.storage.journal_dir import list_journals
from tests.support.node import Node
from tests.support.oracle import compare
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

FREE = range(13)
EVENTS = 60

# One process for each count of free descriptors, forked before chiplog is begun: an import costs more than a rank.
STAGE = """
import json, os, resource, struct, sys, time
import chiplog, zmq  # all that is imported needs files
import chiplog.identity.rendezvous, chiplog.journal.sender, encodings.idna, traceback
directory, run_id, comes_back = sys.argv[1:4]
first, last, events = map(int, sys.argv[4:])

def be_rank(free):
    label = f"free{free}"
    target = os.open(f"{directory}/{label}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(f"{directory}/{label}.err", os.O_WRONLY | os.O_CREAT, 0o600), 2)
    used = sorted(map(int, os.listdir("/proc/self/fd")))[:-1]  # without the one that lists them
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.dup(0) for _ in range(max(used) + 1 - len(used))]  # all free numbers are above the open ones
    used = 1 + max(max(used), *held, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + free, hard))
    run = chiplog.init(project="p", run_id=run_id, label=label, capture_console=False)
    for step in range(events):
        if comes_back and step == events // 2:
            time.sleep(0.3)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        value = step * 1.5 + free
        run.log({"value": value}, step=step)
        os.write(target, f"{step} {struct.pack('<d', value).hex()}\\n".encode())
        time.sleep(0.002)
    journal = run._journal
    if comes_back:
        end = time.monotonic() + 120
        while journal.acked < journal.next_seq and time.monotonic() < end:
            time.sleep(0.02)
        if journal.acked < journal.next_seq:
            os._exit(9)
    run.finish()
    os._exit(0)

pids = {}
for free in range(first, last + 1):
    pid = os.fork()
    if not pid:
        try:
            be_rank(free)
        except BaseException:
            traceback.print_exc()
            os._exit(8)
    pids[free] = pid
print(json.dumps({free: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for free, pid in pids.items()}))
"""


def ranks(directory: Path, run_id: str, *, comes_back: bool) -> dict[int, tuple[int, str]]:
    """Return exit code and stderr for each count of free descriptors."""
    directory.mkdir(exist_ok=True)
    arguments = [str(directory), run_id, "back" if comes_back else "", str(FREE[0]), str(FREE[-1]), str(EVENTS)]
    done = subprocess.run(
        [sys.executable, "-c", STAGE, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.stdout, done.stderr
    codes = json.loads(done.stdout)
    return {free: (codes[str(free)], (directory / f"free{free}.err").read_text()) for free in FREE}


def check(node: Node, directory: Path, run_id: str, free: int) -> None:
    query = f"SELECT step, value FROM metrics WHERE run_id = '{run_id}' AND label = 'free{free}'"
    rows = node.until(query, lambda rows: len(rows) >= EVENTS)
    verdict = compare(directory / f"free{free}", rows)
    assert (verdict.ok, verdict.expected, verdict.extra) == (True, EVENTS, []), (free, verdict)


@proves(
    "context-needs-descriptors",
    "no context is created without the descriptors that it needs",
    new="if True:\n    return\n...",
)
@pytest.mark.promise(3)
@pytest.mark.timeout(900)
def test_a_rank_with_few_descriptors_trains_to_its_end_and_its_journal_comes_out(node: Node, tmp_path: Path) -> None:
    found = ranks(tmp_path / "few", "few", comes_back=False)
    assert {free: code for free, (code, _) in found.items()} == dict.fromkeys(FREE, 0), found
    in_memory = {free for free, (_, said) in found.items() if "kept in memory only" in said}
    assert in_memory <= set(range(4)), "a journal needs few descriptors"
    for free in set(FREE) - in_memory:
        check(node, tmp_path / "few", "few", free)
    for free in FREE:
        said = found[free][1]
        assert "Traceback" not in said, said
        assert said.count("the agent cannot be reached yet") <= 1, said
    assert "cannot be reached yet" in found[6][1]


@proves(
    "descriptors-checked-again",
    "a rank that had too few descriptors checks again whether there are more",
    new="self._offline_loop()",
)
@pytest.mark.timeout(900)
@pytest.mark.full
def test_a_rank_whose_descriptors_come_back_delivers_everything_itself(node: Node, tmp_path: Path) -> None:
    found = ranks(tmp_path / "back", "back", comes_back=True)
    assert {free: code for free, (code, _) in found.items()} == dict.fromkeys(FREE, 0), found
    for free in FREE:
        check(node, tmp_path / "back", "back", free)
    wait_until(lambda: not list_journals(node.place.journals), "no journal left")
