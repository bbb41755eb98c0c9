"""What users see: columns in the order that users rely on, and rows worked out by hand."""

import struct
from datetime import datetime
from typing import Any

import pytest

from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.sql import rollups_sql
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import START_US, VIEWS, Rank, block_of, whole
from tests.support.index import Index
from tests.support.safeguard import proves

FACT = ["run_id", "label", "attempt", "rank", "key", "step", "seq", "ts"]
COLUMNS = {
    "runs": "run_id project name run_group job_type tags notes state exit_code created_at ended_at primary_label "
    "n_labels n_attempts n_failed n_running",
    "labels": "run_id label attempt is_primary job_type rank local_rank world_size node pid hostname rank_pid gpus "
    "state exit_code exit_signal reason started_at last_seen_at ended_at",
    "metrics": " ".join([*FACT, "value"]),
    "texts": " ".join([*FACT, "value"]),
    "histograms": " ".join([*FACT, "edges", "counts"]),
    "media": "run_id label attempt step key kind metadata bytes sha256 ts is_stored",
    "artifacts": "project name version type aliases metadata digest bytes made_by used_by n_files description ts",
    "artifact_files": "project name version path bytes sha256 reference is_stored omitted",
    "system": "run_id label rank node device name ts value n_sharers",
    "system_samples": "node device name ts value",
    "console": "run_id label attempt stream line_no seq ts line",
    "config": "run_id key value ts label",
    "summary": "run_id label key value",
    "run_summary": "run_id key value",
    "keys": "run_id label rank key n n_nan first_step last_step step last_value last_at min max mean",
    "run_tags": "run_id key value label ts",
    "metric_definitions": "run_id label name summary step_metric is_hidden",
    "events": "run_id label attempt node seq ts kind level message body",
    "completeness": "run_id label attempt produced stored lost pending reasons",
    "run_places": "run_id collector log is_here n_labels is_silent seen_at",
    "run_sizes": "run_id n_values n_contents content_bytes",
    "phases": "run_id label attempt rank step phase seconds ts",
    "phase_times": "run_id label attempt rank phase n_steps seconds mean_s known_s share",
    "data_wait": "run_id label attempt rank n_steps wait_s median_wait_s max_wait_s max_wait_step step_s share",
    "stragglers": "run_id phase label rank n_steps n_slowest median_s typical_s excess_s share",
    "straggler_windows": "run_id span phase place label rank role waits_for first_step last_step n_steps mean_s "
    "typical_s excess_s share past_share since_step until_step",
    "goodput": "run_id n_labels n_restarts wall_s productive_s goodput startup_s repeated_s down_s other_s",
    "throttle_cost": "run_id label rank node device reason throttled_s share clock_hz free_clock_hz n_steps step_s "
    "free_step_s cost_s measured_by in_steps_s",
    "gpu_events": "run_id label rank node device ts kind level xid message body step",
    "rank_progress": "run_id label attempt rank step reached_at steps_behind seconds_behind",
    "saved_views": "name view ts",
    "files": "run_id path bytes sha256 ts",
    "first_failure": "run_id attempt label rank node ts state exit_code exit_signal reason is_cause uncertainty_s "
    "is_certain others gpu_event",
    "restarts": "run_id attempt label reason last_step stopped_at resumed_step resumed_at steps_again "
    "down_s again_s cost_s",
    "step_skew": "run_id key step n_labels min median max max_label slowest_label",
}
TYPES = {"step": "BIGINT", "value": "DOUBLE", "ts": "TIMESTAMP", "seq": "BIGINT"}


@pytest.mark.parametrize("view", COLUMNS)
def test_each_view_has_the_columns_of_the_contract_in_their_order(index: Index, view: str) -> None:
    described = {name: kind for name, kind, *_ in index.sql(f"DESCRIBE {view}")}
    assert list(described) == COLUMNS[view].split()
    for name, kind in TYPES.items():
        if name in described and (
            name != "value" or view not in {"config", "summary", "run_summary", "run_tags", "texts"}
        ):
            assert described[name] == kind


def test_each_view_has_its_columns_here(index: Index) -> None:
    names = index.sql("SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal")
    assert {name for (name,) in names} == COLUMNS.keys()
    assert COLUMNS.keys() == {*VIEWS, "run_places"}, "rebuilds are compared in every view but that of stores"


def sample(agent: Rank, device: str, at_s: float, **values: float) -> None:
    packed = struct.pack(f"<{len(values)}d", *values.values())
    agent.say(EventKind.SYSTEM, device, pack(list(values)), packed, ts=START_US + int(at_s * 1e6))


def agent_of(number: int, node: str) -> Rank:
    return Rank(number, label="agent", role="agent", node=node, run_id="", rank=None)


def system(index: Index) -> list[tuple[Any, ...]]:
    return index.sql("SELECT label, node, device, value FROM system ORDER BY ALL")


@proves("unclaimed-gpu-has-no-run", "a GPU that no label claims belongs to no run", part="|GPU-|MIG-")
def test_a_sample_belongs_to_the_labels_that_claim_its_device_and_the_hosts_to_its_keeper(index: Index) -> None:
    """Two labels on node-a, the primary among them; node-b has one rank and no primary. Nothing claims GPU-2 and -9."""
    zero = Rank(0, gpus=["GPU-0"], pid=100)
    one = Rank(1, gpus=["GPU-1"], pid=101)
    two = Rank(2, node="node-b", gpus=[], pid=102)
    a, b = agent_of(8, "node-a"), agent_of(9, "node-b")
    for agent, devices in ((a, ["", "GPU-0", "GPU-1", "GPU-2", "pid:101", "pid:999"]), (b, ["", "GPU-9", "pid:102"])):
        for value, device in enumerate(devices):
            sample(agent, device, 1.0, power=float(value))
    index.take(whole(zero, one, two, a, b))
    assert system(index) == [
        ("rank0", "node-a", "", 0.0),
        ("rank0", "node-a", "GPU-0", 1.0),
        ("rank1", "node-a", "GPU-1", 2.0),
        ("rank1", "node-a", "pid:101", 4.0),
        ("rank2", "node-b", "", 0.0),
        ("rank2", "node-b", "pid:102", 2.0),
    ]
    assert index.sql("SELECT count(*) FROM system_samples") == [(9,)], "each sample once, claimed or not"


def shares(index: Index) -> list[tuple[Any, ...]]:
    return index.sql("SELECT label, device, value, n_sharers FROM system ORDER BY ALL")


@proves(
    "sharers-at-sample-time",
    "n_sharers counts the labels at the time of the sample",
    part="(sum(n) OVER changes)::BIGINT",
    new="1",
)
def test_each_row_of_system_has_how_many_labels_the_sample_belongs_to_at_its_time(index: Index) -> None:
    """rank0 and rank1 share GPU-0 until rank1 ends at 2 s; a label of another run claims it from 3 s on."""
    zero, one = Rank(0, gpus=["GPU-0"], pid=100), Rank(1, gpus=["GPU-0", "GPU-1"], pid=101)
    one.say(EventKind.STATE, {"state": "finished"}, ts=START_US + 2_000_000)
    other = Rank(2, run_id="other", gpus=["GPU-0"], pid=102, started_at=START_US + 3_000_000)
    agent = agent_of(9, "node-a")
    for at_s in (1.0, 2.0, 2.5, 3.0):
        for device in ("GPU-0", "GPU-1", ""):
            sample(agent, device, at_s, power=at_s)
    index.take(whole(zero, one, other, agent))
    assert shares(index) == [
        ("rank0", "", 1.0, 1),
        ("rank0", "", 2.0, 1),
        ("rank0", "", 2.5, 1),
        ("rank0", "", 3.0, 2),  # of two runs on the node, each has the host's samples
        ("rank0", "GPU-0", 1.0, 2),
        ("rank0", "GPU-0", 2.0, 2),
        ("rank0", "GPU-0", 2.5, 1),
        ("rank0", "GPU-0", 3.0, 2),
        ("rank1", "GPU-0", 1.0, 2),
        ("rank1", "GPU-0", 2.0, 2),
        ("rank1", "GPU-1", 1.0, 1),
        ("rank1", "GPU-1", 2.0, 1),
        ("rank2", "", 3.0, 2),
        ("rank2", "GPU-0", 3.0, 2),
    ]
    assert index.sql("SELECT sum(value) FROM system_samples WHERE device = 'GPU-0'") == [(8.5,)]
    assert index.sql("SELECT sum(value / n_sharers) FROM system WHERE device = 'GPU-0'") == [(8.5,)]


@proves("resolved-gpus-stay", "a later identity does not undo what the agent resolved", condition=True)
def test_what_an_agent_says_of_a_ranks_gpus_counts_over_what_the_rank_says_before_and_later(index: Index) -> None:
    rank, agent = Rank(0, gpus=["GPU-0", "GPU-1"], pid=100), agent_of(9, "node-a")
    for device in ("GPU-0", "GPU-1"):
        sample(agent, device, 1.0, power=1.0)
    index.take(whole(rank, agent))
    assert [row[2] for row in system(index)] == ["GPU-0", "GPU-1"]
    agent.say(EventKind.PEER, rank.uuid, {"gpus": ["GPU-1"]}, ts=START_US + 2)
    told = len(agent.events) - 1
    rank.become(world_size=8)
    index.take(block_of((agent, told, told), (rank, 1, 1)))
    assert index.sql("SELECT gpus, world_size, state FROM labels") == [(["GPU-1"], 8, "running")]
    assert [row[2] for row in system(index)] == ["GPU-1"]
    index.reopen()
    rank.become(world_size=4)
    index.take(block_of((rank, 2, 2)))
    assert index.sql("SELECT gpus, world_size FROM labels") == [(["GPU-1"], 4)]
    assert index.sql("SELECT count(*) FROM events WHERE kind = 'quarantined'") == [(0,)]


def test_the_primary_keeps_what_nobody_claims_also_when_it_is_not_the_lowest_rank(index: Index) -> None:
    zero, one = Rank(0, primary=False), Rank(1, primary=True)
    agent = agent_of(9, "node-a")
    sample(agent, "", 1.0, load=1.0)
    index.take(whole(zero, one, agent))
    assert system(index) == [("rank1", "node-a", "", 1.0)]


def test_where_no_primary_is_the_lowest_rank_keeps_what_nobody_claims(index: Index) -> None:
    three, two = Rank(3, node="node-b"), Rank(2, node="node-b")
    agent = agent_of(9, "node-b")
    sample(agent, "", 1.0, load=1.0)
    index.take(whole(Rank(0), three, two, agent))
    assert system(index) == [("rank2", "node-b", "", 1.0)]


def test_a_device_claimed_by_two_labels_belongs_to_both(index: Index) -> None:
    agent = agent_of(9, "node-a")
    sample(agent, "GPU-0", 1.0, power=5.0)
    index.take(whole(Rank(0, gpus=["GPU-0"]), Rank(1, gpus=["GPU-0"]), agent))
    assert system(index) == [("rank0", "node-a", "GPU-0", 5.0), ("rank1", "node-a", "GPU-0", 5.0)]


def test_samples_before_the_start_and_after_the_end_of_a_label_are_not_its(index: Index) -> None:
    rank = Rank(0, gpus=["GPU-0"], started_at=START_US + 1_000_000)
    rank.say(EventKind.STATE, {"state": "finished"}, ts=START_US + 3_000_000)
    agent = agent_of(9, "node-a")
    for at_s in (0.5, 1.0, 2.0, 3.0, 3.5):
        sample(agent, "GPU-0", at_s, power=at_s)
        sample(agent, "", at_s, load=at_s)
    index.take(whole(rank, agent))
    assert [row[-1] for row in system(index)] == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]
    assert index.sql("SELECT count(*) FROM system_samples") == [(10,)]


def test_samples_of_a_restarted_label_are_its_once_also_when_its_death_was_noticed_late(index: Index) -> None:
    """Attempt 0 dies unseen; attempt 1 starts at 2 s; at 4 s attempt 0 is found dead."""
    first = Rank(10, "rank0", rank=0, primary=True, gpus=["GPU-0"])
    second = Rank(11, "rank0", rank=0, primary=True, gpus=["GPU-0"], restart=1, started_at=START_US + 2_000_000)
    agent = agent_of(9, "node-a")
    for at_s in (1.0, 2.0, 3.0, 5.0):
        sample(agent, "GPU-0", at_s, power=at_s)
        sample(agent, "", at_s, load=at_s)
    agent.say(EventKind.PEER, first.uuid, {"state": "crashed", "reason": "gone"}, ts=START_US + 4_000_000)
    index.take(whole(first), whole(second), whole(agent))
    assert [row[2:] for row in system(index)] == [
        (device, at_s) for device in ("", "GPU-0") for at_s in (1.0, 2.0, 3.0, 5.0)
    ]


def test_completeness_adds_up_for_every_label_and_attempt(index: Index) -> None:
    zero, one, agent = Rank(0), Rank(1), agent_of(9, "node-a")
    for step in range(10):
        zero.log(step, a=1.0)
    zero.say(EventKind.LOST, b"", 20, 24, "journal full")
    agent.say(EventKind.PEER, one.uuid, {"state": "crashed", "produced": 100})
    agent.say(EventKind.LOST, one.uuid, 50, 59, "disk")
    agent.say(EventKind.LOST, one.uuid, 55, 64, "damaged")
    index.take(whole(zero, one, agent))
    assert index.sql("SELECT label, produced, stored, lost, pending, reasons FROM completeness ORDER BY label") == [
        ("rank0", 25, 12, 5, 8, "journal full"),
        ("rank1", 100, 1, 15, 84, "damaged; disk"),
    ]
    assert index.sql("SELECT count(*) FROM completeness WHERE produced <> stored + lost + pending") == [(0,)]


@proves("rejected-events-lost", "an event that was rejected is lost, with a reason", part="coalesce(r.n, 0)", new="0")
def test_a_rejected_event_is_lost_and_has_a_reason(index: Index) -> None:
    rank, console = Rank(0), Rank(1, role="console", of=Rank(0).uuid.hex(), run_id=None, label=None, primary=False)
    rank.log(1, a=1.0)
    for sender in (rank, console):
        sender.say(EventKind.SUMMARY, {"best": "no JSON"})
    rank.say(EventKind.LOST, b"", 20, 24, "journal full")
    query = "SELECT produced, stored, lost, pending, reasons FROM completeness"
    reasons = "journal full; rejected: see quarantined in events; rejected: see quarantined in events"
    index.take(whole(rank))
    assert index.sql(query) == [(25, 3, 6, 16, "journal full; rejected: see quarantined in events")]
    index.take(whole(console), whole(rank), whole(console))
    assert index.sql(query) == [(27, 4, 7, 16, reasons)], "once, however often it arrives"


@proves(
    "lost-node-pending-unknown",
    "how much a lost node had not sent is unknown",
    part="coalesce(o.is_presumed, false)",
    new="false",
)
def test_what_a_lost_node_had_not_sent_is_unknown_until_it_is_back(index: Index) -> None:
    zero, one, agent = Rank(0), Rank(1), agent_of(9, "node-a")
    for step in range(3):
        one.log(step, a=1.0)
    zero.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    one.say(EventKind.LOST, b"", 20, 24, "journal full")
    query = "SELECT label, produced, stored, lost, pending, reasons FROM completeness ORDER BY label"
    runs = "SELECT state, n_failed, n_running FROM runs"
    index.take(whole(zero, one, agent))
    assert index.sql(runs) == [("finished", 0, 1)]
    index.take((Kind.PRESENCE, pack([b"S" * 16, False, 12_000_000, "node-a", "boot-1"])))
    unknown = "unknown: the node or collector was lost, and what it had not sent; journal full"
    assert index.sql(query) == [("rank0", 2, 2, 0, 0, None), ("rank1", None, 5, 5, None, unknown)]
    assert index.sql(runs) == [("finished", 1, 0)]
    index.take((Kind.PRESENCE, pack([b"S" * 16, True, 0, "node-a", "boot-1"])))
    assert index.sql(query)[1] == ("rank1", 25, 5, 5, 15, "journal full")
    assert index.sql(runs) == [("finished", 0, 1)]
    agent.say(EventKind.PEER, one.uuid, {"state": "crashed", "exit_signal": 9, "produced": 30})
    index.take(whole(agent))
    assert index.sql(query)[1] == ("rank1", 30, 5, 5, 20, "journal full")
    assert index.sql(runs) == [("finished", 1, 0)]


def test_a_runs_state_is_its_primarys_in_its_latest_attempt(index: Index) -> None:
    first = Rank(10, "rank0", primary=True, rank=0)
    first.say(EventKind.STATE, {"state": "failed", "exit_code": 3}, ts=START_US + 5)
    other = Rank(1)
    index.take(whole(first, other))
    query = "SELECT state, exit_code, ended_at, primary_label, n_labels, n_attempts FROM runs"
    assert index.sql(query) == [("failed", 3, datetime(2026, 11, 18, 11, 6, 40, 5), "rank0", 2, 1)]
    second = Rank(11, "rank0", primary=True, rank=0, restart=1)
    index.take(whole(second))
    assert index.sql("SELECT state, n_attempts FROM runs") == [("running", 2)]
    second.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    index.take(whole(second))
    assert index.sql("SELECT state, exit_code FROM runs") == [("finished", 0)]


def test_the_runs_description_is_the_primarys(index: Index) -> None:
    zero = Rank(0, project="gpt", name="n", group="g", job_type="train", tags=["x", "y"], notes="words")
    index.take(whole(Rank(1, project="other", job_type="eval")), whole(zero))
    query = "SELECT project, name, run_group, job_type, tags, notes FROM runs"
    assert index.sql(query) == [("gpt", "n", "g", "train", ["x", "y"], "words")]
    assert index.sql("SELECT label, job_type FROM labels ORDER BY label") == [("rank0", "train"), ("rank1", "eval")]


def test_the_summary_is_what_was_said_else_the_last_value(index: Index) -> None:
    rank = Rank(0)
    rank.log(0, loss=2.0, accuracy=0.5, odd=float("nan"))
    rank.say(EventKind.SUMMARY, {"accuracy": "0.9", "words": '"best"'})
    rank.log(1, loss=1.0, accuracy=0.6)
    rank.say(EventKind.SUMMARY, {"accuracy": "0.8"})
    index.take(whole(rank))
    assert index.sql("SELECT key, value FROM summary ORDER BY key") == [
        ("accuracy", "0.8"),
        ("loss", "1.0"),
        ("odd", '"nan"'),
        ("words", '"best"'),
    ]


def test_the_skew_of_a_step_is_worked_out_over_labels(index: Index) -> None:
    ranks = [Rank(number) for number in range(3)]
    for rank, value in zip(ranks, (1.0, 5.0, 2.0), strict=True):
        rank.log(7, step_s=value)
    index.take(whole(*ranks))
    assert index.sql("SELECT * FROM step_skew") == [("r", "step_s", 7, 3, 1.0, 2.0, 5.0, "rank1", "rank1")]


@pytest.mark.parametrize(
    ("values", "slowest"),
    [
        ((5.0, 5.0, 2.0), "rank0"),
        ((1.0, float("nan"), 2.0), "rank2"),
        ((float("nan"),) * 3, "rank0"),
        ((float("-inf"), float("nan"), float("nan")), "rank0"),
    ],
)
def test_the_slowest_of_equals_is_the_first_name_and_nan_is_slow_only_among_its_like(index, values, slowest) -> None:
    ranks = [Rank(number) for number in range(3)]
    for rank, value in zip(ranks, values, strict=True):
        rank.log(7, step_s=value)
    index.take(*(whole(rank) for rank in reversed(ranks)))
    assert index.sql("SELECT max_label, slowest_label FROM step_skew") == [(slowest, slowest)]


def test_media_are_rows_that_know_whether_their_content_is_stored(index: Index) -> None:
    rank = Rank(0)
    for step, size in ((0, 5), (1, 6)):
        rank.say(EventKind.MEDIA, step, "images", "image", b"\7" * 32, size, '{"caption": "a"}')
    index.take(whole(rank), (Kind.STORED, pack([b"S" * 16, b"\7" * 32, 5])))
    rows = index.sql("SELECT * EXCLUDE (ts) REPLACE (metadata->>'caption' AS metadata) FROM media ORDER BY step")
    assert rows == [
        ("r", "rank0", 0, 0, "images", "image", "a", 5, "07" * 32, True),
        ("r", "rank0", 0, 1, "images", "image", "a", 6, "07" * 32, False),  # of another size: not that content
    ]


def test_the_size_of_a_run_counts_each_content_once(index: Index) -> None:
    rank, other = Rank(0), Rank(1, run_id="other")
    rank.log(0, loss=1.0, lr=2.0)
    rank.log(1, loss=1.0)
    for step, (digest, size) in enumerate(((b"\7", 5), (b"\7", 5), (b"\6", 9))):
        rank.say(EventKind.MEDIA, step, "images", "image", digest * 32, size, "{}")
    index.take(whole(rank, other))
    assert index.sql("FROM run_sizes ORDER BY ALL DESC") == [("r", 3, 2, 14), ("other", 0, 0, 0)]


def test_phases_console_texts_and_histograms_are_rows_with_names(index: Index) -> None:
    rank = Rank(0)
    rank.say(EventKind.PHASES, 4, pack(["forward", "data"]), struct.pack("<2d", 0.5, 0.25))
    rank.say(EventKind.CONSOLE, 2, 7, "a line")
    rank.say(EventKind.TEXT, 4, "note", "words")
    rank.say(EventKind.HISTOGRAM, 4, "w", struct.pack("<2d", 0, 1), struct.pack("<d", 9))
    index.take(whole(rank))
    assert index.sql("SELECT label, step, phase, seconds FROM phases ORDER BY phase") == [
        ("rank0", 4, "data", 0.25),
        ("rank0", 4, "forward", 0.5),
    ]
    assert index.sql("SELECT label, stream, line_no, seq, line FROM console") == [("rank0", "stderr", 7, 2, "a line")]
    assert index.sql("SELECT key, step, value FROM texts") == [("note", 4, "words")]
    assert index.sql("SELECT key, edges, counts FROM histograms") == [("w", [0.0, 1.0], [9.0])]


def console_of(rank: Rank, number: int = 100, **identity: Any) -> Rank:
    """Return a producer that sends the console output of a rank."""
    said = {"role": "console", "of": rank.uuid.hex(), "run_id": None, "label": None, "primary": None} | identity
    console = Rank(number, **said)
    console.events.clear()
    console.identity = {name: value for name, value in console.identity.items() if value is not None}
    console.say(EventKind.IDENTITY, console.identity)
    return console


def test_the_lines_of_a_console_belong_to_the_label_of_its_producer(index: Index) -> None:
    rank = Rank(0)
    console = console_of(rank)
    console.say(EventKind.CONSOLE, 1, 1, "from C")
    console.say(EventKind.NOTICE, "console_lost", "warning", "3 lines", {"lines": 3})
    index.take(whole(console))
    assert index.sql("SELECT label, line FROM console") == [(None, "from C")], "the owner is unknown yet"
    index.take(whole(rank))
    assert index.sql("SELECT run_id, label, attempt, seq, line FROM console") == [("r", "rank0", 0, 1, "from C")]
    assert index.sql("SELECT run_id, label, attempt, kind FROM events") == [("r", "rank0", 0, "console_lost")]
    rank.become(run_id="agreed", label="rank7")
    index.take(block_of((rank, 1, 1)))
    assert index.sql("SELECT run_id, label, line FROM console") == [("agreed", "rank7", "from C")]


def test_a_console_is_neither_a_label_nor_an_attempt_and_its_end_is_nobodys(index: Index) -> None:
    rank = Rank(0)
    first, second = console_of(rank, 100), console_of(rank, 101)
    first.say(EventKind.CONSOLE, 1, 1, "one")
    second.say(EventKind.CONSOLE, 1, 2, "two")
    agent = Rank(50, role="agent", run_id=None, label=None)
    agent.say(EventKind.PEER, first.uuid, {"state": "crashed", "reason": "killed", "produced": 5})
    agent.say(EventKind.LOST, first.uuid, 2, 3, "gone")
    second.say(EventKind.STATE, {"state": "finished"})
    index.take(whole(rank, first, second), whole(agent))
    assert index.sql("SELECT label, attempt, state FROM labels") == [("rank0", 0, "running")]
    assert index.sql("SELECT state, n_labels, n_attempts, primary_label FROM runs") == [("running", 1, 1, "rank0")]
    assert index.sql("SELECT kind, level, label FROM events ORDER BY kind") == [
        ("console_helper", "warning", "rank0"),
        ("lost", "error", "rank0"),
    ]
    # 1 of the rank, 5 of the first (2 stored, 2 lost, 1 pending), 3 of the second.
    assert index.sql("SELECT * FROM completeness") == [("r", "rank0", 0, 9, 6, 2, 1, "gone")]


@proves("console-of-own-node", "a console writes lines only for a label of its own node", value="owner is not None")
@pytest.mark.parametrize(
    "said",
    [
        {"node": "node-b"},
        {"of": bytes([77] * 16).hex()},
        {"of": "no producer"},
        {"of": bytes([100] * 16).hex()},
        {"run_id": "r", "label": "rank0", "primary": True, "of": None},
    ],
    ids=["another node", "unknown", "no hex", "itself", "a label of its own"],
)
def test_a_console_of_nobody_on_its_node_puts_no_line_into_a_label(index: Index, said) -> None:
    rank = Rank(0)
    console = console_of(rank, **said)
    console.say(EventKind.CONSOLE, 1, 1, "smuggled")
    index.take(whole(rank, console))
    assert index.sql("SELECT run_id, label, line FROM console") == [(None, None, "smuggled")]
    assert index.sql("SELECT run_id, label, produced FROM completeness") == [("r", "rank0", 1)]
    assert index.sql("SELECT run_id, label FROM labels") == [("r", "rank0")]


# The view keys, from the facts themselves. Attempts of a label follow one another.
FROM_FACTS = """
WITH newest AS (
    SELECT * FROM metrics QUALIFY attempt = max(attempt) OVER (PARTITION BY run_id, label, key)
)
SELECT m.run_id, m.label, min(m.rank), m.key, count(*), count(*) FILTER (isnan(m.value)), min(m.step), max(m.step),
       any_value(n.step), any_value(n.value), max(m.ts), min(m.value) FILTER (NOT isnan(m.value)),
       max(m.value) FILTER (NOT isnan(m.value)), avg(m.value) FILTER (NOT isnan(m.value))
FROM metrics m JOIN (
    SELECT run_id, label, key, max(step) AS step, arg_max(value, seq) AS value FROM newest GROUP BY ALL
) n USING (run_id, label, key) GROUP BY m.run_id, m.label, m.key
"""


def test_the_view_keys_agrees_with_the_facts_before_and_after_they_are_sorted(index: Index) -> None:
    nan, inf = float("nan"), float("inf")
    first, again, other = Rank(0), Rank(3, "rank0", rank=0, launch="later"), Rank(1)
    for step, value in enumerate([4.0, nan, inf, 2.0, -1.0]):
        first.log(10 - step, loss=value, alone=nan)  # downwards: the last value is not of the largest step
        other.log(step, loss=value * 2)
    for step in (3, 1, 2):
        again.log(step, loss=step / 4)
    index.take(whole(first, other))
    index.take(whole(again))

    def found(query: str) -> list[str]:
        return sorted(map(repr, index.sql(query)))

    assert found("FROM keys") == found(FROM_FACTS) and len(found("FROM keys")) == 3
    index.database.connection.execute(rollups_sql())
    assert found("FROM keys") == found(FROM_FACTS)
    [row] = index.sql(
        "SELECT n, n_nan, last_step, step, last_value, min, max FROM keys WHERE label = 'rank0' AND key = 'loss'"
    )
    assert row == (8, 1, 10, 3, 0.5, -1.0, inf)
    assert index.sql("SELECT n_nan, min, mean FROM keys WHERE key = 'alone'") == [(5, None, None)]
