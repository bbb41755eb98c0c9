"""A run with everything that any view of the page shows, written without a collector: plain, or full of markup."""

import json
from collections.abc import Callable
from pathlib import Path

import duckdb

from chiplog_schemas.paths import paths_for_root
from tests.support.media_run import png
from tests.support.run_builder import RunBuilder, Sql
from tests.support.stored_media import store_content

STEPS = 200
RANKS = 8
CRASH_S = 190  # rank5 fails then
Dress = Callable[[str], str]

MARKUP = (
    "<img src=x onerror=alert(1)>\"><script>alert(2)</script><a href='javascript:alert(3)'>go</a>"
    "</style></title><svg/onload=alert(4)>\u202egnp\u202c{{7*7}}"
)


def marked(text: str) -> str:
    """Return a text with markup after it."""
    return f"{text} {MARKUP}"


def run_id_of(dress: Dress, number: int) -> str:
    """Return a run ID, 1 or 2, as far as the SDK would let it in: at most 128 characters without a slash."""
    return dress(f"whole-{number}").replace("/", "_")[:128]


def files_of(dress: Dress) -> dict[str, bytes]:
    """Return paths and contents of the files that rank0 saves: a kind for each preview."""
    word = dress("word")
    return {
        dress("samples/step_0100") + ".png": png(200, 60, 20),
        dress("notes") + ".txt": f"first line\n{word}\n".encode() * 50,
        dress("page") + ".html": f"<!doctype html><script>parent.alert(5)</script>{word}".encode(),
        dress("drawing")
        + ".svg": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(6)'><script>alert(7)</script></svg>",
        dress("scores") + ".csv": f'name,value\n"{word.replace(chr(34), chr(34) * 2)}",1\nplain,2.5\n'.encode(),
        dress("settings") + ".json": json.dumps({"lr": 0.1, dress("note"): word}).encode(),
        dress("worst") + ".table.json": json.dumps({"columns": ["id", dress("text")], "data": [[7, word]]}).encode(),
        dress("model") + ".bin": b"\x00\x01" * 100,
    }


def fill_whole_runs(database: duckdb.DuckDBPyConnection) -> None:
    """Write the runs `whole-1` and `whole-2` with plain words."""
    _fill(database, lambda text: text)


def fill_marked_runs(database: duckdb.DuckDBPyConnection) -> None:
    """Write the same with MARKUP in every word that a run may choose; see `run_id_of`."""
    _fill(database, marked)


def store_whole_files(root: Path, dress: Dress) -> None:
    """Store the contents of the files, as the collector does."""
    for content in files_of(dress).values():
        store_content(paths_for_root(root).files, content)


def _fill(database: duckdb.DuckDBPyConnection, dress: Dress) -> None:
    """Write two runs of RANKS ranks on two nodes, with STEPS steps of a second.

    rank3 is slow in `data` from step 80 to 119. rank5 fails at CRASH_S with a traceback, and rank6 is ended 2 s later.
    Only the first run has samples of machines, files and media.
    """
    d = {name: dress(name) for name in ("project", "group", "job", "tag", "notes", "note", "name")}

    def numbered(word: str, number: str) -> Sql:
        return Sql("'" + dress(word).replace("'", "''") + f"' || {number}")

    build = RunBuilder(database)
    build.position()
    node = numbered("node", "rank // 4")
    for run in (1, 2):
        run_id = run_id_of(dress, run)
        named = {"project": d["project"], "name": d["name"], "run_group": d["group"], "job_type": d["job"]}
        primary = dress("rank") + "0"
        build.run(run_id, **named, tags=[d["tag"]], notes=d["notes"], primary_label=primary)
        ended = {"state": "finished", "ended_s": STEPS, "exit_code": 0}
        placed = {"node": node, "agent_node": node, "pid": Sql("1000 + rank"), "gpus": [numbered("GPU", "'-' || rank")]}
        build.ranks(run_id, RANKS, label=numbered("rank", "rank"), produced=100000, **placed, **ended)
    first = "run = 1 AND rank ="
    reason = dress("ValueError: the loss is not finite")
    failed = {"state": "failed", "exit_code": 1, "reason": reason, "cause": "exception"}
    build.update(f"{first} 5", **failed, ended_s=CRASH_S)
    build.update(f"{first} 6", state="crashed", exit_code=None, exit_signal=15, ended_s=CRASH_S + 2)
    build.received(0, 39999)
    build.received(f"CASE WHEN {first} 1 THEN 40005 ELSE 40000 END", 99999)
    build.lost(40000, 40004, dress("the queue was full"), where=f"{first} 1")
    for seq, (key, value) in enumerate(
        (
            ("train/loss", "2 / (1 + step / 20) + rank / 50 + sin(step) / 30"),
            ("train/accuracy", "1 - 1 / (1 + step / 30)"),
            ("lr", 0.001),
        ),
        10,
    ):
        alive = f"NOT ({first} 5 AND step >= {CRASH_S})"
        build.metrics({dress(key): value}, steps=STEPS, seq=f"step * 20 + {seq}", where=alive)
    slow = "CASE WHEN run = 1 AND step BETWEEN 80 AND 119 THEN 0.3 ELSE 0 END"
    for seq, (phase, seconds) in enumerate(
        (
            ("step", f"1 + {slow}"),  # a name that chiplog itself gives
            (dress("data"), f"0.1 + CASE WHEN rank = 3 THEN {slow} ELSE 0 END"),
            (dress("forward"), 0.4),
            (dress("backward"), f"0.5 + CASE WHEN rank <> 3 THEN {slow} ELSE 0 END"),
        ),
        10001,
    ):
        build.phases({phase: seconds}, steps=STEPS, seq=f"step * 20 + {seq}", at="step + 1")
    _fill_texts(build, dress)
    _fill_samples(build, dress)


def _fill_texts(build: RunBuilder, dress: Dress) -> None:
    """Write what has words: lines, events, config, media and files."""
    word = "'" + dress("the last batch").replace("'", "''") + "'"
    line = (
        "CASE WHEN step % 50 = 49 THEN "
        f"chr(27) || '[1;31mERROR' || chr(27) || '[0m ' || {word} || chr(27) || "
        "']8;;javascript:alert(8)' || chr(7) || 'link' WHEN step % 20 = 19 THEN chr(27) || '[33mWARNING' || chr(27) || "
        f"'[0m slow ' || {word} ELSE 'step ' || step || ': ok' END"
    )
    stream = Sql("CASE step % 9 WHEN 8 THEN 'stderr' ELSE 'stdout' END")
    printed = {"seq": "20000 + step", "line_no": Sql("step"), "at": "step + rank / 1e6"}
    build.console(Sql(line), stream=stream, steps=STEPS, **printed, where="run = 1")
    first = "run = 1 AND rank ="
    reason = dress("ValueError: the loss is not finite")
    place = f"Traceback (most recent call last):\n  File {dress('train.py')}, line 3\nValueError: "
    traceback = {"traceback": place + dress("the loss is not finite")}
    environment = {
        "python": dress("3.11"),
        "git": {dress("branch"): dress("main")},
        "packages": {dress("torch"): dress("2.9")},
    }
    spike, spiked = dress("the loss has a spike"), {"text": dress("at step 50")}
    build.event("traceback", reason, level="error", body=traceback, seq=30000, at=CRASH_S, where=f"{first} 5")
    build.event("alert", spike, level="warning", body=spiked, seq=30001, at=50, where=f"{first} 0")
    build.event("environment", body=environment, seq=30003, where=f"{first} 0")
    own = {dress("key"): dress("value")}
    build.event(dress("kind"), dress("message"), body=own, seq=30004, at=70, where=f"{first} 0")
    for run in (1, 2):
        values = {"lr": run / 10, "optimizer": dress(f"adam {run}"), "layers": [12, dress("x")]}
        primary = f"run = {run} AND is_primary"
        build.config({dress(key): value for key, value in values.items()}, where=primary)
        build.summary({dress("best"): dress("good")}, where=primary)
    edges, counts = "[(b - 8) / 8 * (1 + step / 100) FOR b IN range(17)]", "[b * (16 - b) FOR b IN range(16)]"
    build.histogram(dress("weights"), edges, counts, steps=STEPS, seq="50000 + step", where=f"{first} 0")
    texts = {dress("sample"): dress("To be, or not to be")}
    build.texts(texts, steps=range(0, 200, 50), seq="60000 + step // 50", where=f"{first} 0")
    for number, (path, content) in enumerate(files_of(dress).items()):  # one has not arrived
        stored = not path.endswith(".bin")
        build.file(path, content, seq=70000 + number, is_stored=stored, where=f"{first} 0")
    query = 'SELECT 1 AS "' + dress("n").replace('"', '""') + '"'
    build.saved_view("sql/" + dress("all runs"), {"query": query})


def _fill_samples(build: RunBuilder, dress: Dress) -> None:
    """Write samples of the machines, by an agent per node, and the loss of a GPU."""
    gpus = {
        "hw.gpu.utilization": "0.9 - rank / 50 + sin(step) / 40",
        "hw.gpu.throttle.reasons": "CASE WHEN rank = 1 AND step BETWEEN 10 AND 14 THEN 64 ELSE 1 END",
        "hw.gpu.memory.usage": "(20.0 + rank) * 1073741824",
    }
    build.samples("p.gpus[1]", gpus, steps=41, at="step * 5", where="run = 1")
    used = {"system.memory.usage": "2.0e11 + step * 1e9"}
    build.samples("''", used, steps=41, at="step * 5", where="run = 1 AND rank % 4 = 0")
    lost = {"device": dress("GPU") + "-5", "code": 79}
    second = "role = 'agent' AND node LIKE '%1'"
    build.event("gpu.lost", dress("a GPU fell off the bus"), level="error", body=lost, seq=30002, at=60, where=second)
