"""Facts of processes: which one this is, and whether the one that wrote a record has ended."""

import os
import subprocess
import sys

from chiplog.identity.process_info import random_word, read_process_facts
from chiplog_schemas.process.inherited_run import PARENT_RUN, SETUP
from tests.support.waiting import WAIT_S

PARENT = """
import os, subprocess, sys
import chiplog
run = chiplog.init(mode="offline", run_id="parents", capture_console=False)
late = [sys.executable, "-c", sys.argv[1]]
subprocess.Popen(late, stdin=int(sys.argv[2]), start_new_session=True)
subprocess.Popen(["sh", "-c", '"$0" "$@"; exit $?', *late], stdin=int(sys.argv[2]))  # as timeout(1) would
print(os.environ["CHIPLOG_PARENT_RUN"], flush=True)
sys.stdin.readline()
os._exit(0)
"""
LATE_CHILD = """
import os
os.read(0, 1)
import chiplog
os.write(1, chiplog.init(mode="offline", capture_console=False).id.encode() + b"\\n")  # beside another's
"""
LAUNCHER = "import os, chiplog; chiplog.setup(); print(os.environ['CHIPLOG_SETUP'])"
OTHERS = """
import os, sys
from chiplog.identity.identity import resolve_identity
from chiplog.identity.process_info import read_process_facts
for os.environ[sys.argv[1]] in sys.argv[2:]:
    print(resolve_identity(os.environ, read_process_facts()).run_id)
"""


def runs_of(name: str, *records: str) -> list[str]:
    """Return the runs of a process that has such a record, in a terminal that is younger than the writer."""
    command = ["sh", "-c", '"$0" "$@"; exit $?', sys.executable, "-c", OTHERS, name, *records]
    return subprocess.check_output(command, text=True, timeout=WAIT_S, start_new_session=True).splitlines()


def test_a_parents_record_counts_until_the_parent_ends_and_then_for_what_it_started_itself(chiplog_dir) -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-c", PARENT, LATE_CHILD, str(reading)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, pass_fds=[reading], **pipes) as parent, os.fdopen(writing, "w") as late_children:
        os.close(reading)
        record = parent.stdout.readline().strip()
        assert runs_of(PARENT_RUN, record) == ["parents"]
        parent.stdin.write("\n")
        parent.stdin.close()
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
        assert runs_of(PARENT_RUN, record) != ["parents"], "it has ended, and its parent has not reaped it"
        assert parent.wait(WAIT_S) == 0
        world = record.split("/")[4]
        as_before = record.partition(f"/{world}")[0]
        elsewhere = record.replace(world, "another-boot.1")
        stale, *unknown = runs_of(PARENT_RUN, record, elsewhere, as_before)
        assert stale != "parents", "no process can be in that run any more"
        assert unknown == ["parents"] * 2, "it is unknown whether these have ended"
        late_children.write("\n\n")
        late_children.close()
        assert parent.stdout.read().split() == ["parents"] * 2, "they were started while the run was open"


def test_what_a_launcher_prepared_is_for_its_workers_also_when_it_has_left() -> None:
    record = subprocess.check_output([sys.executable, "-c", LAUNCHER], text=True, timeout=WAIT_S).strip()
    prepared = record.partition(":")[2].split("/")[0]
    given_out_again = f"{os.getpid()}:{record.partition(':')[2]}"
    kept, other = runs_of(SETUP, record, given_out_again)
    assert kept == prepared
    assert other != prepared, "its PID belongs to another process: the record is stale"


def test_the_facts_of_this_process_are_the_same_when_asked_again() -> None:
    first, second = read_process_facts(), read_process_facts()
    assert (first.host, first.pid, first.parent) == (second.host, second.pid, second.parent)
    assert first.random != second.random
    assert len(random_word(8)) == 8
