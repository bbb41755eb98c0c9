"""The ranks' numbers, read from real processes with real children."""

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chiplog_agent.stats.rank.process_tree import (
    GROUP_NAMES,
    PROCESS_NAMES,
    ProcessStats,
    Stat,
    _Rank,
    _spent_ticks,
    _Tree,
    read_stat,
)
from chiplog_schemas.process.procfs import resident_bytes
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

CHILD = "import sys; print('up', flush=True); sys.stdin.read()"
PRELUDE = f"""
import os, subprocess, sys, threading, time
CHILD = {CHILD!r}
def child(*arguments, **options):
    process = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, **options)
    process.stdout.readline()
    return process
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a rank: code that prints PIDs on one line, then runs until its input ends."""
    processes: list[subprocess.Popen[str]] = []

    def run(code: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def say(process: "subprocess.Popen[str]", text: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def sample(stats: ProcessStats) -> dict[str, dict[str, float]]:
    return {device: dict(zip(names, values, strict=True)) for device, names, values in stats.read()}


def settled(stats: ProcessStats, pid: int) -> dict[str, float]:
    """Return a rank's second sample: the first only sets where its CPU time stood."""
    assert f"pid:{pid}" not in sample(stats)
    return sample(stats)[f"pid:{pid}"]


def watching(*pids: int) -> ProcessStats:
    stats = ProcessStats()
    stats.watch(pids)
    return stats


def test_a_rank_is_sampled_from_its_second_period_on(start: Start) -> None:
    rank = start("print('up', flush=True); sys.stdin.read()")
    line(rank)
    stats = watching(rank.pid)
    assert stats.read() == []
    [(device, names, values)] = stats.read()
    count = len(PROCESS_NAMES)
    assert (device, names[:count]) == (f"pid:{rank.pid}", PROCESS_NAMES)
    assert names[count:] == GROUP_NAMES[: len(names) - count]
    found = dict(zip(names, values, strict=True))
    assert found["process.memory.usage"] > 1 << 20 and found["process.threads"] == 1.0
    assert found["process.open_file_descriptors"] == len(os.listdir(f"/proc/{rank.pid}/fd"))


def test_descriptors_are_counted_on_kernels_before_6_2_too(start: Start) -> None:
    rank = start("print('up', flush=True); sys.stdin.read()")
    line(rank)
    stats = watching(rank.pid)
    stats._fd_size = False
    assert settled(stats, rank.pid)["process.open_file_descriptors"] == len(os.listdir(f"/proc/{rank.pid}/fd"))


def test_children_and_grandchildren_belong_to_the_rank(start: Start) -> None:
    rank = start("""
inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', '''" + CHILD + "'''])"
p = subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
p.stdout.readline()
print('up', flush=True); sys.stdin.read()""")
    line(rank)
    assert settled(watching(rank.pid), rank.pid)["process.threads"] == 3.0


def test_a_child_of_a_second_thread_belongs_to_the_rank(start: Start) -> None:
    rank = start("""
def run():
    c = child()
    print('up', flush=True)
    time.sleep(600)
threading.Thread(target=run, daemon=True).start()
sys.stdin.read()""")
    line(rank)
    stats = watching(rank.pid)
    assert settled(stats, rank.pid)["process.threads"] == 3.0  # two threads and the child
    assert sample(stats)[f"pid:{rank.pid}"]["process.threads"] == 3.0  # and between two full walks it stays


def test_a_worker_that_starts_later_is_noticed_at_the_next_sample(start: Start) -> None:
    rank = start(
        "print('up', flush=True); sys.stdin.readline(); c = child(); print('up', flush=True); sys.stdin.read()"
    )
    line(rank)
    stats = watching(rank.pid)
    assert settled(stats, rank.pid)["process.threads"] == 1.0
    say(rank)
    line(rank)
    assert sample(stats)[f"pid:{rank.pid}"]["process.threads"] == 2.0


def test_a_childs_cpu_time_counts(start: Start) -> None:
    rank = start("""
c = subprocess.Popen([sys.executable, "-c", "print('up', flush=True)\\nwhile True: pass"], stdout=subprocess.PIPE)
c.stdout.readline()
print('up', flush=True); sys.stdin.read(); c.kill()""")
    line(rank)
    stats = watching(rank.pid)
    stats.read()
    deadline = time.monotonic() + WAIT_S
    utilization = 0.0
    while utilization < 0.05 and time.monotonic() < deadline:
        time.sleep(0.2)
        utilization = sample(stats)[f"pid:{rank.pid}"]["process.cpu.utilization"]
    assert 0.05 <= utilization < 3.0
    rank.communicate("")


def spent(stats: ProcessStats, pid: int, until: Callable[[], bool]) -> float:
    """Sample until something holds, and return the CPU seconds that all samples of a rank add up to."""
    total, last = 0.0, stats._ranks[pid].sampled_at
    deadline = time.monotonic() + WAIT_S
    done = False
    while not done:
        assert time.monotonic() < deadline, f"{total} s after {WAIT_S:g} s"
        time.sleep(0.1)
        done = until()  # before the sample: it is the last one
        found = sample(stats)[f"pid:{pid}"]
        now = stats._ranks[pid].sampled_at
        total += found["process.cpu.utilization"] * (now - last)
        last = now
    return total


def begin(stats: ProcessStats, pid: int) -> None:
    """Take a rank's first sample, which only sets the base of its CPU time."""
    stats.read()
    assert stats._ranks[pid].sampled_at


def readable(process: "subprocess.Popen[str]") -> bool:
    return bool(select.select([process.stdout], [], [], 0)[0])


def used(rank: "subprocess.Popen[str]") -> float:
    """Return the CPU time that a rank reports for itself and its waited-for children since it was up."""
    return float(line(rank))


def begun(rank: "subprocess.Popen[str]") -> ProcessStats:
    """Watch a rank that is up, and let it go on."""
    line(rank)
    stats = watching(rank.pid)
    begin(stats, rank.pid)
    say(rank)
    return stats


@proves(
    "short-children-cpu-counts", "the CPU time of children that live shorter than a period counts", value="max(own, 0)"
)
def test_children_that_live_50_ms_count_with_all_their_cpu_time(start: Start) -> None:
    """Ten children after each other use 0.05 s each, nearly all of what the rank uses."""
    rank = start("""
before = sum(os.times()[:4])
print('up', flush=True); sys.stdin.readline()
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        end = time.process_time() + 0.05
        while time.process_time() < end: pass
        os._exit(0)
    os.waitpid(pid, 0)
print(sum(os.times()[:4]) - before, flush=True); sys.stdin.readline()""")
    stats = begun(rank)
    total = spent(stats, rank.pid, lambda: readable(rank))
    truth = used(rank)
    assert truth > 0.2, "far more than what the rank itself used"
    assert total == pytest.approx(truth, rel=0.15, abs=0.05)


def test_a_child_that_starts_in_the_tick_of_a_sample_counts() -> None:
    """The kernel rounds the start down to whole ticks, so it seems to be before the sample."""
    rank, root = _Rank(1), Stat(True, 1, 0, 0, 1, 50)
    rank.tree, rank.sampled_at = _Tree({1: root}, {}), 100.7 / os.sysconf("SC_CLK_TCK")
    child = Stat(True, session=1, cpu_ticks=4, children_ticks=0, threads=1, start_ticks=100)
    assert _spent_ticks(rank, _Tree({1: root, 2: child}, {})) == 4


@proves(
    "child-cpu-counts-once",
    "a child's CPU time counts once, when it runs and not again when it is waited for",
    value="-waited_for",
)
@pytest.mark.full
def test_a_child_that_was_sampled_counts_once_also_after_its_parent_waited_for_it(start: Start) -> None:
    rank = start("""
before = sum(os.times()[:4])
print('up', flush=True); sys.stdin.readline()
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        end = time.process_time() + 0.5
        while time.process_time() < end: pass
        os._exit(0)
    time.sleep(0.8)  # a zombie for a while, as a rule
    os.waitpid(pid, 0)
print(sum(os.times()[:4]) - before, flush=True); sys.stdin.readline()""")
    stats = begun(rank)
    total = spent(stats, rank.pid, lambda: readable(rank))
    truth = used(rank)
    assert truth > 1.4
    assert total == pytest.approx(truth, rel=0.1, abs=0.05)


@pytest.mark.full
def test_a_child_whose_parent_does_not_wait_takes_nothing_from_the_others(start: Start) -> None:
    """SIGCHLD is ignored: when the first child has ended, its time is in no process's times any more."""
    rank = start("""
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def burn(seconds):
    begin_r, begin_w = os.pipe()
    end_r, end_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(begin_w)
        os.close(end_w)
        os.read(begin_r, 1)  # until it was sampled for the first time
        end = time.process_time() + seconds
        while time.process_time() < end: pass
        print(time.process_time(), flush=True)
        os.read(end_r, 1)  # until it was sampled
        os._exit(0)
    print('forked', flush=True)
    sys.stdin.readline()
    os.close(begin_w)
    sys.stdin.readline()
    os.close(end_w)
    try: os.waitpid(pid, 0)
    except ChildProcessError: pass  # it has ended, and left no status
print('up', flush=True); sys.stdin.readline()
burn(0.6); burn(1.2)""")
    stats = begun(rank)
    for _ in range(2):
        assert line(rank).strip() == "forked"
        assert spent(stats, rank.pid, lambda: True) < 0.1
        say(rank)
        taken = spent(stats, rank.pid, lambda: readable(rank))
        assert taken == pytest.approx(used(rank), rel=0.1, abs=0.05)
        say(rank)


# A child uses a second.
WAITS = """
pid = os.fork()
if pid == 0:
    end = time.process_time() + 1.0
    while time.process_time() < end: pass
    os._exit(0)
print(pid, flush=True)
os.waitpid(pid, 0)
print('waited', flush=True); sys.stdin.readline()"""


@proves(
    "waited-rank-cpu-apart",
    "a rank's CPU time is not its parent's, too, once the parent has waited for it",
    part="+ _ended(rank.tree.apart, tree.apart)",
)
@pytest.mark.full
def test_a_rank_that_its_parent_waits_for_is_no_cpu_time_of_the_parent(start: Start) -> None:
    parent = start(WAITS)
    inner = int(line(parent))
    stats = watching(parent.pid, inner)
    begin(stats, parent.pid)
    total = spent(stats, parent.pid, lambda: readable(parent))
    assert total < 0.3


def test_a_child_that_becomes_a_rank_takes_its_cpu_time_along(start: Start) -> None:
    """It is a member of its parent's tree first, and a rank with a device once it has called init()."""
    parent = start(WAITS)
    inner = int(line(parent))
    stats = watching(parent.pid)
    begin(stats, parent.pid)
    ends = time.monotonic() + 0.3
    first = spent(stats, parent.pid, lambda: time.monotonic() > ends)
    stats.watch([parent.pid, inner])
    rest = spent(stats, parent.pid, lambda: readable(parent))
    assert rest < 0.3
    assert first + rest < 0.75


def proc_cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its waited-for children, as the kernel tells it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def test_cpu_time_lies_between_readings_of_proc_and_stays_when_children_end(start: Start) -> None:
    """The first child is waited for; the second one's time is in no other process's when it has ended."""
    rank = start("""
import signal
BURN = "import time\\nwhile time.process_time() < 0.3: pass"
while time.process_time() < 0.2: pass
print('up', flush=True); sys.stdin.readline()
subprocess.run([sys.executable, "-c", BURN])
print('waited', flush=True); sys.stdin.readline()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
c = subprocess.Popen([sys.executable, "-c", BURN + "\\nprint('up', flush=True); input()"], stdin=subprocess.PIPE,
                     stdout=subprocess.PIPE)
c.stdout.readline()
print(c.pid, flush=True); sys.stdin.readline()
c.stdin.close(); c.wait()
print('gone', flush=True); sys.stdin.readline()""")
    line(rank)
    stats = watching(rank.pid)
    stats.read()

    def between(*children: int) -> float:
        low = proc_cpu_s(rank.pid) + sum(map(proc_cpu_s, children))
        value = sample(stats)[f"pid:{rank.pid}"]["process.cpu.time"]
        assert low - 1e-6 <= value <= proc_cpu_s(rank.pid) + sum(map(proc_cpu_s, children)) + 1e-6
        return value

    assert between() >= 0.19
    say(rank)
    line(rank)
    assert between() >= 0.48
    say(rank)
    second = int(line(rank))
    value = between(second)
    say(rank)
    line(rank)
    assert sample(stats)[f"pid:{rank.pid}"]["process.cpu.time"] >= value > proc_cpu_s(rank.pid) + 0.2


def test_a_process_that_no_signal_wakes_is_blocked(start: Start, tmp_path: Path) -> None:
    """posix_spawn waits in state D for its child, which waits for the other end of a FIFO."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    rank = start(f"""
print('up', flush=True); sys.stdin.readline()
os.posix_spawn("/bin/true", ["true"], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, {str(fifo)!r}, os.O_RDONLY, 0)])
print('woken', flush=True); sys.stdin.readline()""")
    line(rank)
    stats = watching(rank.pid)
    assert settled(stats, rank.pid)["process.blocked"] == 0.0
    say(rank)
    wait_until(lambda: ") D " in Path(f"/proc/{rank.pid}/stat").read_text(), "state D")
    assert sample(stats)[f"pid:{rank.pid}"]["process.blocked"] == 1.0
    fifo.write_text("")
    line(rank)
    assert sample(stats)[f"pid:{rank.pid}"]["process.blocked"] == 0.0


def test_cpu_time_from_before_the_first_sample_does_not_count(start: Start) -> None:
    rank = start("""
while time.process_time() < 0.5: pass
print('up', flush=True); sys.stdin.read()""")
    line(rank)
    stats = watching(rank.pid)
    stats.read()
    time.sleep(0.1)
    assert sample(stats)[f"pid:{rank.pid}"]["process.cpu.utilization"] < 0.5


def test_a_vanished_rank_is_absent_and_the_others_go_on(start: Start) -> None:
    dead, alive = start("sys.stdin.read()"), start("sys.stdin.read()")
    stats = watching(dead.pid, alive.pid)
    stats.read()
    dead.kill()
    deadline = time.monotonic() + WAIT_S
    while read_stat(dead.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(sample(stats)) == [f"pid:{alive.pid}"]  # a zombie is gone, too
    dead.communicate()
    assert list(sample(stats)) == [f"pid:{alive.pid}"]


def test_a_process_under_a_dead_ranks_pid_is_not_taken_for_it(start: Start) -> None:
    rank = start("sys.stdin.read()")
    stats = watching(rank.pid)
    stats.read()
    stats._ranks[rank.pid].start_ticks -= 1  # the same PID with another start time, as after reuse
    assert sample(stats) == {}
    stats.watch([rank.pid])  # named again, it is a new rank
    settled(stats, rank.pid)


def test_a_rank_started_by_another_rank_is_counted_once(start: Start) -> None:
    rank = start("c = child(); print(c.pid, flush=True); sys.stdin.read()")
    inner = int(line(rank))
    stats = watching(rank.pid, inner)
    stats.read()
    samples = sample(stats)
    assert samples[f"pid:{rank.pid}"]["process.threads"] == 1.0
    assert samples[f"pid:{inner}"]["process.threads"] == 1.0


def test_our_own_daemon_is_no_work_of_the_rank_that_started_it(start: Start) -> None:
    rank = start("""
a = child("chiplog_agent", start_new_session=True)
b = child("a worker in a session of its own", start_new_session=True)
print('up', flush=True); sys.stdin.read()""")
    line(rank)
    assert settled(watching(rank.pid), rank.pid)["process.threads"] == 2.0  # the rank and the worker


def test_a_name_with_brackets_and_spaces_does_not_confuse_the_reader(start: Start) -> None:
    rank = start("open('/proc/self/comm', 'w').write('a) Z (b 1 2'); print('up', flush=True); sys.stdin.read()")
    line(rank)
    stat = read_stat(rank.pid)
    assert stat is not None and stat.threads == 1 and resident_bytes(rank.pid) > 0


def test_a_pid_that_nobody_has_is_absent() -> None:
    assert watching(2**22 + 1).read() == []


V2 = "30 23 0:26 / MOUNT rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


@proves(
    "own-memory-group", "each rank shows the memory of its own control group", part="rank.pid", new="min(self._ranks)"
)
def test_the_agents_host_and_each_ranks_group_are_told_apart(tmp_path: Path) -> None:
    """Two ranks in jobs with limits of their own; `proc` holds their files, the processes are real."""
    ranks = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    try:
        proc = tmp_path / "proc"
        (proc / "self").mkdir(parents=True)
        (proc / "self/mountinfo").write_text(V2.replace("MOUNT", str(tmp_path / "fs")))
        for number, rank in enumerate(ranks):
            job = tmp_path / f"fs/job{number}"
            job.mkdir(parents=True)
            for name, text in {"max": (number + 1) << 20, "current": 1000 + number, "stat": "anon 1\n"}.items():
                (job / f"memory.{name}").write_text(f"{text}\n")
            (proc / str(rank.pid)).mkdir()
            (proc / str(rank.pid) / "cgroup").write_text(f"0::/job{number}\n")
        stats = ProcessStats(proc=str(proc))
        stats.watch([rank.pid for rank in ranks])
        stats.read()
        found = [dict(zip(names, values, strict=True)) for _, names, values in stats.read()]
        memory = [(of["cgroup.memory.usage"], of["cgroup.memory.limit"]) for of in found]
        by_rank = dict(zip(sorted(rank.pid for rank in ranks), memory, strict=True))
        assert by_rank == {rank.pid: (1000 + n, (n + 1) << 20) for n, rank in enumerate(ranks)}
        (tmp_path / "fs/job0/memory.max").write_text("max\n")
        shutil.rmtree(tmp_path / "fs/job1")  # the job has ended under its rank
        names = dict(
            zip([rank.pid for rank in ranks], [{n for n in s[1] if "cgroup" in n} for s in stats.read()], strict=True)
        )
        assert sorted(map(sorted, names.values())) == [[], ["cgroup.memory.usage"]]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_a_rank_in_a_limited_group_of_this_machine_shows_that_limit(group: Path) -> None:
    code = (
        "import os, sys\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "kept = b'x' * (32 << 20)\nprint('up', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(group / "cgroup.procs")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"up\n"
            stats = ProcessStats()
            stats.watch([rank.pid])
            stats.read()
            [(_, names, values)] = stats.read()
            found = dict(zip(names, values, strict=True))
            assert found["cgroup.memory.limit"] == 256 << 20
            assert 32 << 20 < found["cgroup.memory.usage"] < 256 << 20
        finally:
            rank.kill()
