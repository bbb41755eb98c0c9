"""The SQL cookbook: every view is on a page with its columns, and each worked query returns the rows printed below it.

After changing a query, `python -m tests.docs.test_cookbook` writes its rows into the page. Read them before a commit.
"""

import re
import struct
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.collector_log import START_US, Rank
from tests.support.index import Index
from tests.support.stored_media import log_table, store_content

from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.change_record import Action, Change, encode_change
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.query.execute import tables_found
from chiplog_schemas.storage.record import Kind

SQL = Path(__file__).resolve().parents[2] / "docs" / "sql"
PAGES = sorted(page for page in SQL.glob("*.md") if page.stem != "index")
MACROS = SQL / "macros.md"
WORKED = re.compile(r"^```sql\n(.*?)^```\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


# -- the recorded history ---------------------------------------------------------------------------------------------


class Story:
    """Producers with unique IDs, their events, and the index made of them."""

    def __init__(self, directory: Path) -> None:
        self.index = Index(directory)
        self._producers = 0

    def rank(self, run_id: str, number: int | None, label: str | None = None, **identity: Any) -> Rank:
        """Return a new producer."""
        self._producers += 1
        rank = Rank(
            self._producers, label or f"rank{number}", rank=number, run_id=run_id, primary=number == 0, **identity
        )
        rank.uuid = self._producers.to_bytes(16, "big")
        return rank

    def agent(self, node: str) -> Rank:
        """Return the producer of an agent."""
        agent = self.rank("", None, "agent", node=node)
        agent.become(role="agent")
        return agent

    def deliver(self, *ranks: Rank, made_s: float = 200.0, received_s: float = 200.05) -> None:
        """Log all events of some producers as one block, made and received at these times."""
        builder = BlockBuilder()
        for rank in ranks:
            for seq, event in enumerate(rank.events):
                builder.add(rank.uuid, seq, event)
        self.index.log.append(Kind.BLOCK, builder.build(at(made_s)))
        number = self.index.log.next_number
        self.index.log.append(Kind.RECEIPT, pack([at(received_s), [[b"S" * 16, 0, number, 1, None]]]))
        self.index.log.commit()
        self.index.follow()


def at(seconds: float) -> int:
    """Return a time in µs."""
    return START_US + round(seconds * 1e6)


def numbers(rank: Rank, kind: EventKind, first: Any, at_s: float, **values: float) -> None:
    """Add an event of numbers: metrics or phases of a step, or a sample of a device."""
    rank.say(kind, first, pack(list(values)), struct.pack(f"<{len(values)}d", *values.values()), ts=at(at_s))


def metric(rank: Rank, step: int, at_s: float, key: str, value: float) -> None:
    """Add one number."""
    rank.say(EventKind.METRICS, step, pack([key]), struct.pack("<d", value), ts=at(at_s))


def end(rank: Rank, at_s: float, **state: Any) -> None:
    """Add the end of a label, as it reports it."""
    rank.say(EventKind.STATE, state or {"state": "finished", "exit_code": 0}, ts=at(at_s))


def raises(rank: Rank, at_s: float, reason: str) -> None:
    """Add an uncaught exception and the end that it causes."""
    rank.say(EventKind.NOTICE, "traceback", "error", reason, {"traceback": "Traceback …"}, ts=at(at_s))
    end(rank, at_s, state="failed", exit_code=1, reason=reason)


def gpt(story: Story) -> None:
    """Run gpt-1: two ranks on one node; rank1 fails at its last step."""
    ranks = [story.rank("gpt-1", number, project="gpt", gpus=[f"GPU-{number}"]) for number in (0, 1)]
    ranks[0].say(EventKind.CONFIG, {"lr": "0.1", "model": '{"width": 512, "depth": 8}'}, ts=at(1))
    ranks[0].say(EventKind.DEFINE, "train/loss", {"summary": "min"}, ts=at(1))
    for step, losses in enumerate(((4.0, 4.5), (2.0, 3.5), (2.5, 3.0))):
        for rank, loss in zip(ranks, losses, strict=True):
            metric(rank, step, 10 + 10 * step, "train/loss", loss)
    ranks[0].say(EventKind.TEXT, 2, "sample", "To be, or not", ts=at(31))
    edges, counts = struct.pack("<4d", -1.0, 0.0, 1.0, 2.0), struct.pack("<3d", 10.0, 70.0, 20.0)
    ranks[0].say(EventKind.HISTOGRAM, 2, "weights", edges, counts, ts=at(31))
    for item, caption in enumerate(("a seven", "a one")):
        metadata = f'{{"caption": "{caption}", "item": {item}}}'
        ranks[1].say(EventKind.MEDIA, 2, "digits", "image", bytes([item]) * 32, 310 + item, metadata, ts=at(31))
    tables = (
        [{"prompt": "2 + 2 =", "score": 0.5}, {"prompt": "To be", "score": 0.25}],
        [{"prompt": "2 + 2 =", "score": 0.75}],
    )
    contents = [log_table(rank, 2, "samples", rows, ts=at(31)) for rank, rows in zip(ranks, tables, strict=True)]
    ranks[0].say(EventKind.FILE, "checkpoints/last.pt", 4096, bytes(range(32)), ts=at(32))
    for step in range(2):
        digest = bytes([step]) * 32
        ranks[0].say(
            EventKind.ARTIFACT_FILE, digest, "weights.pt", 4096 + step, bytes(range(step, 32 + step)), "", ts=at(32)
        )
        ranks[0].say(EventKind.ARTIFACT_FILE, digest, "corpus", 0, None, "s3://corpora/en", ts=at(32))
        metadata = f'{{"step": {step}}}'
        ranks[0].say(EventKind.ARTIFACT, "gpt", "model", "model", digest, 2, 4096 + step, metadata, "", ts=at(32))
    ranks[0].say(EventKind.ARTIFACT_ALIAS, "gpt", "model", bytes(32), "best", 1, ts=at(32))
    ranks[1].say(EventKind.ARTIFACT_USE, "gpt", "model", bytes(32), ts=at(33))
    ranks[0].say(EventKind.SUMMARY, {"note": '"diverged late"'}, ts=at(33))
    for rank, key, value in ((0, "dataset", "en-2"), (0, "stage", "draft"), (1, "stage", "reviewed"), (1, "tmp", "x")):
        ranks[rank].say(EventKind.TAG, key, value, ts=at(33 + rank))
    ranks[0].say(EventKind.TAG, "tmp", None, ts=at(35))
    ranks[1].say(EventKind.NOTICE, "alert", "warning", "loss spike: at step 1", {}, ts=at(21))
    for line_no, line in enumerate(("epoch 1", "100 %"), 1):
        ranks[1].say(EventKind.CONSOLE, 1, line_no, line, ts=at(20 + line_no))
    ranks[1].say(EventKind.CONSOLE, 2, 3, "ValueError: bad batch", ts=at(35))
    raises(ranks[1], 35, "ValueError: bad batch")
    end(ranks[0], 40)
    agent = story.agent("node-a")
    for second, (used, busy) in enumerate(((0.9, 0.5), (0.7, 0.5))):
        for device, value in (("GPU-0", used), ("GPU-1", busy), ("GPU-2", 0.0)):
            agent.say(
                EventKind.SYSTEM,
                device,
                pack(["hw.gpu.utilization"]),
                struct.pack("<d", value),
                ts=at(15 + second),
            )
    story.deliver(*ranks, agent)
    story.index.take(*(store_content(story.index.files, content) for content in contents))


def failing(story: Story) -> None:
    """Run failing: three ranks on two nodes, one of which has a clock 5 s ahead."""
    first, second, third = (story.rank("failing", n, node="node-b" if n == 2 else "node-a") for n in range(3))
    one, other = story.agent("node-a"), story.agent("node-b")
    raises(second, 12.0, "ValueError: boom")
    vanished = {"state": "crashed", "produced": len(first.events), "exit_signal": 15, "reason": "killed by SIGTERM"}
    one.say(EventKind.PEER, first.uuid, vanished, ts=at(12.4))
    raises(third, 17.1, "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]")
    story.deliver(first, second, one, made_s=13.0, received_s=13.05)
    story.deliver(third, other, made_s=18.0, received_s=13.06)


def restarted(story: Story) -> None:
    """Run restarted: fails at second 95 and continues from step 8."""
    first = story.rank("restarted", 0)
    again = story.rank("restarted", 0, restart=1)
    for step in range(10):
        metric(first, step, step * 10, "loss", 1.0)
    raises(first, 95, "ValueError: boom")
    metric(again, 8, 150, "loss", 1.0)
    metric(again, 9, 160, "loss", 1.0)
    end(again, 170)
    story.deliver(first, again)


def slow(story: Story) -> None:
    """Run slow: rank2 takes longer in forward."""
    ranks = [story.rank("slow", number) for number in range(3)]
    for rank, times in zip(ranks, ((1.0, 1.0), (1.0, 1.0), (3.0, 2.0)), strict=True):
        for step, seconds in enumerate(times):
            numbers(rank, EventKind.PHASES, step, 10 * step + seconds, forward=seconds)
        end(rank, 30)
    story.deliver(*ranks)


def waiting(story: Story) -> None:
    """Run waiting: rank0 waits for data in four steps."""
    rank, idle = story.rank("waiting", 0), story.rank("waiting", 1)
    numbers(rank, EventKind.PHASES, 0, 1, data=1.0)
    numbers(rank, EventKind.PHASES, 1, 3, data=0.5, step=2.0)
    numbers(rank, EventKind.PHASES, 2, 7, data=2.0, step=4.0)
    numbers(rank, EventKind.PHASES, 3, 9, data=0.5, step=2.0)
    numbers(idle, EventKind.PHASES, 3, 9, data=0.0, step=2.0)
    for one in (rank, idle):
        end(one, 10)
    story.deliver(rank, idle)


def behind(story: Story) -> None:
    """Run behind: three ranks of which the last one is three steps behind."""
    ranks = [story.rank("behind", number) for number in range(3)]
    for rank, step, at_s in zip(ranks, (12, 12, 9), (60, 61, 45), strict=True):
        metric(rank, step, at_s, "loss", 1.0)
    story.deliver(*ranks)


def repeated(story: Story) -> None:
    """Run repeated: fails at second 55, starts again at second 70 and does steps 2 and 3 again."""
    first, again = story.rank("repeated", 0), story.rank("repeated", 0, restart=1, started_at=at(70))
    for step in range(4):
        numbers(first, EventKind.PHASES, step, 20 + 10 * step, step=10.0)
    raises(first, 55, "RuntimeError: boom")
    for step in range(2, 6):
        numbers(again, EventKind.PHASES, step, 70 + 10 * step, step=10.0)
    end(again, 125)
    story.deliver(first, again)


def hot(story: Story) -> None:
    """Run hot: its GPU is throttled from second 4 to 7, fails at second 8.4, and is lost at second 9."""
    rank, agent = story.rank("hot", 0, node="node-h", gpus=["GPU-H"]), story.agent("node-h")
    for second in range(8):
        reasons, clock_hz, seconds = (32.0, 1.2e9, 0.75) if second >= 4 else (0.0, 2e9, 0.5)
        values = {"hw.gpu.clock.sm": clock_hz, "hw.gpu.throttle.reasons": reasons}
        numbers(agent, EventKind.SYSTEM, "GPU-H", second, **values)
        numbers(rank, EventKind.PHASES, second, second + 0.5, step=seconds)
    end(rank, 8.5, state="crashed", exit_signal=6)
    fallen = {"device": "GPU-H", "code": 79}
    facts = {"cpu": {"model": "AMD EPYC 9654", "threads": 192}, "kernel": "6.1.0", "driver": "580.95.05"}
    agent.say(EventKind.NOTICE, "node_facts", "info", "node-h: 8 GPUs, kernel 6.1.0", facts, ts=at(0))
    agent.say(EventKind.NOTICE, "gpu.xid", "error", "GPU-H has fallen off the bus", fallen, ts=at(8.4))
    agent.say(EventKind.NOTICE, "gpu.lost", "error", "lost: fell off the bus (GPU-H)", {"device": "GPU-H"}, ts=at(9))
    story.deliver(rank, agent)


def capped(story: Story) -> None:
    """Run capped: from second 4 to 7 its GPU is at its power limit for half of the time, as it counts."""
    rank, agent = story.rank("capped", 0, node="node-c", gpus=["GPU-C"]), story.agent("node-c")
    for second in range(8):
        seconds, sw_power = (0.75, 100.0 + (second - 4) / 2) if second >= 4 else (0.5, 100.0)
        values = {"hw.gpu.clock.sm": 1.5e9 if second >= 4 else 2e9, "hw.gpu.throttle.time.sw_power": sw_power}
        numbers(agent, EventKind.SYSTEM, "GPU-C", second, **values)
        numbers(rank, EventKind.PHASES, second, second + 0.5, step=seconds)
    end(rank, 9)
    story.deliver(rank, agent)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """Return the index of the recorded history."""
    index = history(tmp_path_factory.mktemp("cookbook"))
    yield index
    index.close()


def history(directory: Path) -> Index:
    """Record the history."""
    story = Story(directory)
    for tell in (gpt, failing, restarted, slow, waiting, behind, repeated, hot, capped):
        tell(story)
    view = Change(b"8 bytes!", Action.SAVE_VIEW, {"name": "overview", "view": '{"keys": ["train/loss"]}'})
    return story.index.take((Kind.MANAGE, encode_change(view)))


# -- the pages --------------------------------------------------------------------------------------------------------


def documented_views() -> dict[str, list[str]]:
    """Return the columns of each section of the cookbook that is named like a view, in order."""
    views: dict[str, list[str]] = {}
    for page in PAGES:
        if page == MACROS:
            continue
        for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
            columns = re.findall(r"^\| (\w+) \| .+ \|$", section, re.MULTILINE)
            views[section.partition("\n")[0]] = [column for column in columns if column != "column"]
    return views


def test_every_view_has_a_section_with_its_columns_in_order(index: Index) -> None:
    names = index.sql(
        "SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal AND NOT temporary"
    )
    assert documented_views() == {name: [row[0] for row in index.sql(f"DESCRIBE {name}")] for (name,) in names}


def test_every_macro_has_a_section_with_its_call_and_its_columns(index: Index) -> None:
    query = """SELECT DISTINCT function_name, parameters FROM duckdb_functions()
        WHERE function_type = 'table_macro' AND schema_name = 'main' AND NOT internal"""
    calls = {f"{name}({', '.join(parameters)})" for name, parameters in index.sql(query)}
    sections = MACROS.read_text(encoding="utf-8").split("\n## ")[1:]
    assert {re.search(r"^`(.+)`: ", section, re.MULTILINE)[1] for section in sections} == calls
    for section in sections:
        columns = [name for name in re.findall(r"^\| (\w+) \| .+ \|$", section, re.MULTILINE) if name != "column"]
        [called] = re.findall(r"FROM (\w+\(.*?\))(?:\s|;)", section)
        assert [row[0] for row in index.sql(f"DESCRIBE FROM {called}")] == columns, called


def test_every_section_has_one_worked_query() -> None:
    for page in PAGES:
        for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
            name = section.partition("\n")[0]
            worked = WORKED.findall(section)
            assert len(worked) == 1, name
            assert re.search(rf"\b{name}\b", worked[0][0]), name


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        pytest.param(*worked, id=worked[0].split("\n")[0][:60])
        for page in PAGES
        for worked in WORKED.findall(page.read_text())
    ],
)
def test_a_worked_query_returns_the_rows_on_the_page(index: Index, query: str, rows: str) -> None:
    assert rows_of(index, query) == rows


def test_the_common_questions_are_queries_that_run(index: Index) -> None:
    table = (SQL / "index.md").read_text(encoding="utf-8").partition("## Common questions")[2]
    queries = re.findall(r"\| `((?:SELECT|PIVOT) .+?)` \|", table)
    assert len(queries) >= 5
    for query in queries:
        index.sql(query)


def rows_of(index: Index, query: str) -> str:
    """Return the answer to a query as the pages print it: columns aligned, two spaces apart."""
    with tables_found(index.database.connection, query):
        cursor = index.database.connection.execute(query)
        names = [column[0] for column in cursor.description]
        table = [names, *([cell(value) for value in row] for row in cursor.fetchall())]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join(lines) + "\n"


def cell(value: Any) -> str:
    """Return a value as the pages print it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(cell, value)) + "]"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    return "NULL" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def write_rows() -> None:
    """Write the rows of each worked query into its page."""
    with tempfile.TemporaryDirectory() as directory:
        index = history(Path(directory))
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            text = WORKED.sub(lambda found: f"```sql\n{found[1]}```\n\n```text\n{rows_of(index, found[1])}```", text)
            page.write_text(text, encoding="utf-8")
        index.close()


if __name__ == "__main__":
    write_rows()
