"""Ranks that agree on a run ID in a real store of torch.distributed: which proposal wins, and a silent store."""

import subprocess
import sys

import pytest

from tests.support.ports import free_ports
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.xdist_group("torchrun")


# One process plays all ranks: only their exchange with the store matters.
WORDS = """
import torch.distributed as dist
from chiplog.identity import rendezvous
from chiplog.identity.rendezvous import Agreement, RunIdRendezvous
from chiplog.identity.identity import Identity

class Rank:
    def __init__(self, word, firm=False):
        self.word = word
        self.question = RunIdRendezvous(
            Identity(word, "label", "launch", needs_agreement=True, run_id_is_final=firm, launch_cache_key="l")
        )

    def asks(self, wait_s=60.0):
        rendezvous._agreed = 0  # each rank represents a separate process
        self.question.poll_group(self.word)
        return self.question.take_answer(wait_s)

    def hears(self):
        deadline = time.monotonic() + 120
        while (word := self.question.take_answer()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return word and word.run_id

first = Rank("first")
assert first.asks() is None, "there is no group yet"
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
assert first.asks() == Agreement("first", 0, 1)
assert first.asks() is None, "nothing new"
assert Rank("second").asks().run_id == "first"
assert Rank("before the restart", firm=True).asks().run_id == "before the restart"
assert first.hears() == "before the restart", "a generated ID gives way to a later firm one"
assert Rank("another", firm=True).asks().run_id == "before the restart", "the first of two firm ones"
assert Rank("third").asks().run_id == "before the restart"
"""

ENDS_EARLY = """
import torch.distributed as dist
from chiplog.identity.rendezvous import RunIdRendezvous
from chiplog.identity.identity import Identity
from chiplog.safety import background_threads

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
question = RunIdRendezvous(Identity("mine", "label", "launch", needs_agreement=True, launch_cache_key="l"))
question.poll_group("mine")
assert question.take_answer(60.0)
[thread] = background_threads._threads
assert thread.is_alive(), "it waits for a firm proposal"
background_threads._wait_for_all()
assert not thread.is_alive(), "it may be in torch while the interpreter ends"
"""

STANDS_STILL = """
import atexit, os, signal
import torch.distributed as dist
import chiplog
from chiplog.identity.rendezvous import RunIdRendezvous
from chiplog.identity.identity import Identity

port = int(sys.argv[1])
host = os.fork()
if host == 0:
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    signal.pause()
atexit.register(os.kill, host, signal.SIGKILL)  # stopped, it would keep the pipes of a test that fails
store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
os.kill(host, signal.SIGSTOP)
os.waitpid(host, os.WUNTRACED)  # until it has stopped: it may be answering on another core
question = RunIdRendezvous(Identity("mine", "label", "launch", needs_agreement=True))
question.poll_group("mine")
assert question.take_answer(0.1) is None
run = chiplog.init(mode="offline", capture_console=False)
for step in range(1000):
    run.log({"x": 1.0})
begun = time.monotonic()
run.finish()
print(f"finished in {time.monotonic() - begun:.1f} s", flush=True)
os.kill(host, signal.SIGKILL)
os._exit(0)
"""

EXPECTED = """
import chiplog
from chiplog.identity import rendezvous

with chiplog.init(mode="offline", capture_console=False) as run:
    assert not run._run_journal.sender._must_hurry(), "without torch no group comes"
    import torch.distributed
    assert run._run_journal.sender._must_hurry()
    now = time.monotonic()
    rendezvous.time.monotonic = lambda: now + 61.0
    assert not run._run_journal.sender._must_hurry()
"""


def output_of(script: str) -> str:
    command = [sys.executable, "-c", "import sys, time\n" + script, str(free_ports())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@proves("firm-run-id-wins", "a word that a launch had before a restart replaces one that was made up", condition=False)
def test_the_first_word_is_everybodys_until_a_firm_one_comes() -> None:
    output_of(WORDS)


@proves(
    "firm-run-id-not-awaited-at-exit",
    "a process that ends waits for no firm run ID, and is not in torch when the interpreter ends",
    part="is_exiting.wait(pause_s)",
    new="time.sleep(pause_s)",
)
def test_a_process_that_ends_waits_for_no_firm_proposal() -> None:
    output_of(ENDS_EARLY)


@proves(
    "agreement-in-own-thread",
    "a thread of its own waits for the group's store",
    new="self._exchange_in_thread(*found, candidate)\nis_asked = True",
)
@pytest.mark.full
def test_a_store_whose_host_stands_still_holds_nobody_up() -> None:
    assert output_of(STANDS_STILL).startswith("finished in")


@proves(
    "expected-group-polled-often",
    "a group that may come is looked for often, because RPC between two workers may last a tenth of a second",
    part="self._membership.rendezvous.expects_group",
    new="False",
)
@pytest.mark.full
def test_a_group_that_may_come_keeps_the_ticks_of_the_sender_thread_frequent_for_a_minute() -> None:
    output_of(EXPECTED)
