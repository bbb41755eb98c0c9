"""The network between agents and collector fails in every way: events come late, never wrong; training waits for none.

Real hosts as far as one machine has them: network namespaces (network.py). Agents on the first hosts, the collector on
the last, TCP with keys between them, and on each agent's host a rank that logs all the while, judged by the oracle.
All faults of this module run at the same time, each in its own network; each test then checks one.
"""

import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from chiplog_schemas.limits import PEER_SILENT_S
from tests.support.network import TOOLS, Network
from tests.support.rounds import SOAK_MINUTES, Rounds
from tests.support.safeguard import proves
from tests.support.site import PAUSE_S, PORT, Drain, Site
from tests.support.tools import require
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("network")  # one worker: what its fixture does is costly

SLOW_PAUSE_S = 0.01  # what a link with loss can carry five times
LONG_S = PEER_SILENT_S + 3.0
FAST = 5.0  # a backlog comes so many times as fast as it arose
TRIES = 3  # for one that nothing disturbs: a machine that is busy may stand still for seconds
AGAIN_S = 5.0  # of a cut in a further try
RESETS = 6


# -- the faults -------------------------------------------------------------------------------------------------------


@dataclass
class Fault:
    """One way to fail: `run` breaks and mends the network of a site, and checks what follows."""

    run: Callable[[Site], None]
    hosts: int = 2
    pause_s: float = PAUSE_S
    slow: tuple[int, ...] = ()


def hold(site: Site, seconds: float, heal: Callable[[], object], *, silent: bool = True) -> Drain:
    """Let a fault that was just begun last, end it, check both; return how what waited drained."""
    begun = time.monotonic()
    time.sleep(seconds)
    ended = time.monotonic()
    heal()
    site.check_fault(begun, ended, silent=silent)
    return site.check_healed(ended)


def drain_fast(site: Site, seconds: float, cut: Callable[[], object], heal: Callable[[], object]) -> None:
    """Keep a cut, and require that the backlog then arrives FAST times as fast as it accumulated.

    The first undisturbed try counts. If all were disturbed, it only has to arrive faster than it accumulated.
    """
    ratios: list[float] = []
    for is_again in range(TRIES):
        cut()
        drain = hold(site, AGAIN_S if is_again else seconds, heal)
        site.say(f"this try was disturbed: {drain.disturbance}" if drain.disturbance else "nothing disturbed this try")
        if not drain.disturbance:
            assert drain.ratio >= FAST, f"what waited came {drain.ratio:.1f} times as fast as it arose, undisturbed"
            return
        ratios.append(drain.ratio)
    assert max(ratios) > 1.0, f"what waited came {ratios} times as fast as it arose"


def cut_towards_collector(site: Site) -> None:
    site.network.cut(2, 1)
    hold(site, LONG_S, lambda: site.network.heal(2))


def cut_towards_agent(site: Site) -> None:
    site.network.cut(1, 2)
    hold(site, LONG_S, lambda: site.network.heal(1), silent=False)  # its last word arrives, and again


def long_cut_of_one_node(site: Site) -> None:
    begun = time.monotonic()

    def cut() -> None:
        site.network.cut(3, 1)
        site.network.cut(1, 3)

    drain_fast(site, LONG_S, cut, lambda: (site.network.heal(1), site.network.heal(3)))
    other, ended = site.watches[2], begun + LONG_S
    came = other.stored_at(ended) - other.stored_at(begun)
    assert came > (other.logged_at(ended) - other.logged_at(begun)) / 2, "the other node had to wait too"


def cable_pulled(site: Site) -> None:
    site.network.unplug(1)
    hold(site, LONG_S, lambda: site.network.plug(1))


def host_vanishes(site: Site) -> None:
    """The collector's host disappears without notice; another with the same address and disk takes its place."""
    begun = time.monotonic()
    site.network.vanish(2)
    time.sleep(4.0)
    ended = time.monotonic()
    site.network.appear(2)
    site.start_collector()
    site.check_fault(begun, ended, silent=False)
    site.check_healed(ended)


def connection_forgotten(site: Site) -> None:
    """A middlebox forgets the connection: both ends keep it open forever. New ones pass."""
    begun = time.monotonic()
    ports = site.network.forget_flows(2, 1, PORT)
    assert ports, "the agent was not connected"
    time.sleep(1.5)  # what was in the collector's hands already
    site.check_healed(time.monotonic())
    still = lambda: set(ports) & set(site.network.connected_ports(2, 1, PORT))  # noqa: E731
    wait_until(lambda: not still(), "the collector to drop what is dead")
    site.say(f"the collector dropped the dead connection {time.monotonic() - begun:.0f} s after its last word")


def agents_host_vanishes(site: Site) -> None:
    """An agent's host disappears without notice, and its connection was idle: nothing waits for an answer."""
    site.agents[1].send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    begun = time.monotonic()
    assert site.network.connected_ports(2, 1, PORT), "the agent was not connected"
    site.network.vanish(1)
    wait_until(lambda: not site.network.connected_ports(2, 1, PORT), "the collector to drop what is dead")
    site.say(f"the collector dropped the dead connection after {time.monotonic() - begun:.0f} s")
    site.network.appear(1)
    site.start_agent(1)


def connections_reset(site: Site) -> None:
    for _ in range(RESETS):  # what they meet may be an acknowledgement, and nothing lost
        site.network.reset(2, 1)
        time.sleep(0.3)
        site.network.heal(2)
        time.sleep(0.5)
    site.network.reset(2, 1)
    hold(site, 4.0, lambda: site.network.heal(2))


def slow_and_lossy(site: Site) -> None:
    """50 ms ± 20 each way, 2 % of the frames lost; and then cut on top of it."""
    about = site.network.run(1, "ss", "-Htin", f"dport = :{PORT}")
    round_trip_ms = float(about.partition(" rtt:")[2].partition("/")[0])
    site.say(f"round trips of {round_trip_ms:.0f} ms")
    assert round_trip_ms > 60, "this link is not slow"
    drain_fast(site, 8.0, lambda: site.network.cut(2, 1), lambda: site.network.heal(2))


def flapping(site: Site) -> None:
    """The cable is loose; each other time a firewall on the way forgets what passed it, and resets connections."""
    chooser = random.Random(1)
    begun = time.monotonic()
    for number in range(10):
        site.network.reset(2, 1) if number % 2 else site.network.unplug(1)
        time.sleep(chooser.uniform(0.1, 1.2))
        site.network.heal(2) if number % 2 else site.network.plug(1)
        time.sleep(chooser.uniform(0.1, 0.6))
    ended = time.monotonic()
    site.check_fault(begun, ended, silent=False)
    site.check_healed(ended)


FAULTS = {
    "test_a_cut_towards_the_collector_only_delays": Fault(cut_towards_collector),
    "test_a_cut_towards_the_agent_only_delays": Fault(cut_towards_agent),
    "test_a_long_cut_of_one_node_delays_that_node_alone": Fault(long_cut_of_one_node, hosts=3),
    "test_a_pulled_cable_only_delays": Fault(cable_pulled),
    "test_a_collector_whose_host_vanished_goes_on_at_another": Fault(host_vanishes),
    "test_a_connection_that_was_forgotten_on_the_way_is_replaced_and_dropped": Fault(connection_forgotten),
    "test_the_connection_of_a_host_that_vanished_is_dropped": Fault(agents_host_vanishes),
    "test_connections_that_are_reset_are_replaced": Fault(connections_reset),
    "test_a_slow_and_lossy_link_drains_five_times_as_fast_as_events_arrive": Fault(
        slow_and_lossy, pause_s=SLOW_PAUSE_S, slow=(2,)
    ),
    "test_a_flapping_link_only_delays": Fault(flapping),
}


def suffer(fault: Fault, directory: Path) -> list[str]:
    """Run one fault in a network of its own; return what was seen."""
    directory.mkdir(exist_ok=True)
    with Network(fault.hosts, slow=fault.slow) as network:
        site = Site(directory, network, fault.hosts, fault.pause_s)
        try:
            site.open()
            fault.run(site)
            site.finish()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{site.log}\n{site.outputs()}") from error
        finally:
            site.close()
        return site.log


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, "Future[list[str]]"]]:
    """All faults whose tests were asked for, at the same time: most of their time is waiting."""
    require(*TOOLS)
    names = [item.name for item in request.session.items if item.path == request.path and item.name in FAULTS]
    with ThreadPoolExecutor(len(FAULTS)) as pool:
        root = tmp_path_factory.mktemp("network")
        yield {name: pool.submit(suffer, FAULTS[name], root / str(n)) for n, name in enumerate(names)}


Outcomes = dict[str, "Future[list[str]]"]


def seen(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    for line in outcomes[request.node.name].result():
        print(line)


@proves("unacknowledged-sent-again", "what was sent in a session that a cut ended is sent again")
@pytest.mark.promise(6)
@pytest.mark.full
def test_a_cut_towards_the_collector_only_delays(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


@proves("retry-soon", "a peer that was given up is tried again soon", value="now + 600.0")
@pytest.mark.full
def test_a_cut_towards_the_agent_only_delays(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


@proves(
    "backlog-in-large-pieces",
    "a backlog is sent as fast as the collector accepts it",
    new="if now < getattr(self, '_paced_until', 0.0):\n"
    "    return\n"
    "self._paced_until = now + 0.04\n"
    "piece = self._source.read(1)",
)
@pytest.mark.full
def test_a_long_cut_of_one_node_delays_that_node_alone(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


@proves(
    "closed-session-frees-credit",
    "what a session that was given up had in flight no longer counts against the credit",
    value="1 << 40",
)
@pytest.mark.full
def test_a_pulled_cable_only_delays(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


@proves(
    "spool-kept-until-acknowledged",
    "the spool keeps what the collector has not acknowledged",
    new="...\nself._source.acknowledged(piece.last + 1)",
)
@pytest.mark.full
def test_a_collector_whose_host_vanished_goes_on_at_another(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


@proves("silent-peer-closed", "a peer that fell silent is given up", condition=False)
@proves("unacknowledged-connection-closed", "a connection on which nothing is acknowledged is closed by the kernel")
@pytest.mark.full
def test_a_connection_that_was_forgotten_on_the_way_is_replaced_and_dropped(
    outcomes: Outcomes, request: pytest.FixtureRequest
) -> None:
    seen(outcomes, request)


@proves("idle-connection-probed", "an idle connection is probed by the kernel", part="1", new="0")
@pytest.mark.full
def test_the_connection_of_a_host_that_vanished_is_dropped(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


@proves("unacknowledged-sent-again", "what was sent in a session that ended is sent again")
@pytest.mark.full
def test_connections_that_are_reset_are_replaced(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


@proves(
    "backlog-in-large-pieces",
    "a backlog is sent in large pieces, many of them before the first is acknowledged",
    value="None if self.protocol.in_flight_bytes else self._source.read(1)",
)
@pytest.mark.full
def test_a_slow_and_lossy_link_drains_five_times_as_fast_as_events_arrive(
    outcomes: Outcomes, request: pytest.FixtureRequest
) -> None:
    seen(outcomes, request)


@proves(
    "session-resumes",
    "each new session states where to continue",
    value="[Resume(message.next)] if self.sessions == 1 else []",
)
@pytest.mark.full
def test_a_flapping_link_only_delays(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


# -- at random --------------------------------------------------------------------------------------------------------


def fail_at_random(site: Site, chooser: random.Random, longest_s: float) -> str:
    """Break one thing for a while; return its name."""
    network, collector = site.network, site.collector_host
    node = chooser.choice(site.nodes)
    fault = chooser.choice(["cut in", "cut out", "cut both ways", "unplug", "reset", "forget", "unplug collector"])
    if fault in ("cut in", "cut both ways"):
        network.cut(node, collector)
    if fault in ("cut out", "cut both ways"):
        network.cut(collector, node)
    if fault == "reset":
        network.reset(collector, node)
    if fault == "forget":
        network.forget_flows(collector, node, PORT)
    if fault.startswith("unplug"):
        network.unplug(collector if fault == "unplug collector" else node)
    time.sleep(chooser.uniform(0.1, longest_s))
    for host in (node, collector):
        if fault != "forget":
            network.heal(host)
        network.plug(host)
    time.sleep(chooser.choice([0.0, 0.2, 2.0]))
    return fault


@proves(
    "retry-soon",
    "whatever ends a session, another is soon attempted",
    value="now + 600.0",
    environment={"CHIPLOG_FAULT_SEED": "561"},
)
@pytest.mark.promise(6)
@pytest.mark.full
@pytest.mark.soak(2)
def test_a_network_that_fails_at_random_loses_and_doubles_nothing(tmp_path: Path, rounds: Rounds) -> None:
    """Invariant: whatever happens between two agents and their collector, all events are stored once."""
    longest_s, faults = (1.5 * PEER_SILENT_S, 2) if SOAK_MINUTES else (1.5, 3)
    for seed in rounds(1):
        chooser = random.Random(seed)
        directory = tmp_path / str(seed)
        directory.mkdir()
        slow = chooser.choice([(), (3,)])
        with Network(3, slow=slow) as network:
            site = Site(directory, network, 3, SLOW_PAUSE_S)
            try:
                site.open()
                for _ in range(faults):
                    rounds.count(fail_at_random(site, chooser, longest_s))
                healed = time.monotonic()
                for node in site.nodes:
                    site.check_healed(healed, node)
                site.finish()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, slow {slow}: {error}\n{site.log}\n{site.outputs()}") from error
            finally:
                site.close()
        print(f"seed {seed}:", *site.log, sep="\n")
