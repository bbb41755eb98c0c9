"""A run with everything that any view of the page shows, written without a collector: plain, or full of markup."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import duckdb

from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.storage.content_files import content_path
from tests.support.media_run import png

BEGUN = "TIMESTAMP '2026-01-02 03:00:00'"
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
        path = content_path(paths_for_root(root).files, hashlib.sha256(content).digest())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _fill(database: duckdb.DuckDBPyConnection, dress: Dress) -> None:
    """Write two runs of RANKS ranks on two nodes, with STEPS steps of a second.

    rank3 is slow in `data` from step 80 to 119. rank5 fails at CRASH_S with a traceback, and rank6 is ended 2 s later.
    Only the first run has samples of machines, files and media.
    """
    d = {name: dress(name) for name in ("project", "group", "job", "tag", "notes", "note", "name")}
    rank = "'" + dress("rank").replace("'", "''") + "' || r"
    node = "'" + dress("node").replace("'", "''") + "' || r // 4"
    gpu = "'" + dress("GPU").replace("'", "''") + "-' || r"
    database.execute("INSERT INTO base.position (next_number) VALUES (1)")
    for run in (1, 2):
        database.execute(
            "INSERT INTO base.runs (run, run_id, project, name, run_group, job_type, tags, notes, primary_label) "
            f"SELECT $run, $run_id, $project, $name, $group, $job, [$tag], $notes, {rank} FROM range(1) t(r)",
            {
                "run": run,
                "run_id": run_id_of(dress, run),
                **{name: d[name] for name in ("project", "name", "group", "job", "tag", "notes")},
            },
        )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, agent_node, pid, "
        "gpus, started_at, produced, state, ended_at, exit_code) "
        f"SELECT run * 100 + r, 'rank', run, {rank}, 0, r = 0, r, "
        f"{node}, {node}, 1000 + r, [{gpu}], {BEGUN}, 100000, 'finished', {BEGUN} + to_seconds({STEPS}), 0 "
        f"FROM range(1, 3) t(run), range({RANKS}) u(r)"
    )
    database.execute(
        "UPDATE base.producers SET state = 'failed', exit_code = 1, reason = $reason, cause = 'exception', ended_at = "
        f"{BEGUN} + to_seconds({CRASH_S}) WHERE producer = 105",
        {"reason": dress("ValueError: the loss is not finite")},
    )
    database.execute(
        "UPDATE base.producers SET state = 'crashed', exit_code = NULL, exit_signal = 15, ended_at = "
        f"{BEGUN} + to_seconds({CRASH_S + 2}) WHERE producer = 106"
    )
    database.execute(
        f"INSERT INTO base.intervals SELECT producer, 0, 39999, {BEGUN} FROM base.producers "
        f"UNION ALL SELECT producer, CASE producer WHEN 101 THEN 40005 ELSE 40000 END, 99999, {BEGUN} "
        "FROM base.producers"
    )
    names = dict(enumerate(("step", "data", "forward", "backward"), 1))
    names |= dict(enumerate(("train/loss", "train/accuracy", "lr"), 10))
    names |= {20: "weights", 21: "sample", 30: "hw.gpu.utilization", 31: "hw.gpu.throttle.reasons"}
    names |= {32: "hw.gpu.memory.usage", 33: "system.memory.usage"}
    fixed = {1, 30, 31, 32, 33}  # names that chiplog itself gives
    for number, name in names.items():
        database.execute("INSERT INTO base.names VALUES ($1, $2)", [number, name if number in fixed else dress(name)])
    database.execute(
        f"INSERT INTO base.metrics SELECT producer, key, s, s * 20 + key, {BEGUN} + to_seconds(s), CASE key "
        "WHEN 10 THEN 2 / (1 + s / 20) + rank / 50 + sin(s) / 30 WHEN 11 THEN 1 - 1 / (1 + s / 30) ELSE 0.001 END "
        f"FROM base.producers, range(10, 13) t(key), range({STEPS}) u(s) WHERE NOT (producer = 105 AND s >= {CRASH_S})"
    )
    slow = "CASE WHEN run = 1 AND s BETWEEN 80 AND 119 THEN 0.3 ELSE 0 END"
    database.execute(
        f"INSERT INTO base.phases SELECT producer, key, s, 10000 + s * 20 + key, {BEGUN} + to_seconds(s + 1), CASE key "
        f"WHEN 1 THEN 1 + {slow} WHEN 2 THEN 0.1 + CASE WHEN rank = 3 THEN {slow} ELSE 0 END WHEN 3 THEN 0.4 "
        f"ELSE 0.5 + CASE WHEN rank <> 3 THEN {slow} ELSE 0 END END "
        f"FROM base.producers, range(1, 5) t(key), range({STEPS}) u(s)"
    )
    database.execute(
        f"INSERT INTO base.console SELECT producer, CASE s % 9 WHEN 8 THEN 'stderr' ELSE 'stdout' END, s, 20000 + s, "
        f"{BEGUN} + to_seconds(s) + to_microseconds(rank), CASE WHEN s % 50 = 49 THEN "
        "chr(27) || '[1;31mERROR' || chr(27) || '[0m ' || $word || chr(27) || "
        "']8;;javascript:alert(8)' || chr(7) || 'link' WHEN s % 20 = 19 THEN chr(27) || '[33mWARNING' || chr(27) || "
        "'[0m slow ' || $word ELSE 'step ' || s || ': ok' END "
        f"FROM base.producers, range({STEPS}) t(s) WHERE run = 1",
        {"word": dress("the last batch")},
    )
    event = "INSERT INTO base.events (producer, seq, ts, kind, level, message, body) SELECT $producer, $seq, " + BEGUN
    for at, (producer, second, kind, level, message, body) in enumerate(
        (
            (
                105,
                CRASH_S,
                "traceback",
                "error",
                dress("ValueError: the loss is not finite"),
                {
                    "traceback": "Traceback (most recent call last):\n  File "
                    + dress("train.py")
                    + ", line 3\nValueError: "
                    + dress("the loss is not finite")
                },
            ),
            (100, 50, "alert", "warning", dress("the loss has a spike"), {"text": dress("at step 50")}),
            (
                1101,
                60,
                "gpu.lost",
                "error",
                dress("a GPU fell off the bus"),
                {"device": dress("GPU") + "-5", "code": 79},
            ),
            (
                100,
                0,
                "environment",
                "info",
                "",
                {
                    "python": dress("3.11"),
                    "git": {dress("branch"): dress("main")},
                    "packages": {dress("torch"): dress("2.9")},
                },
            ),
            (100, 70, dress("kind"), "info", dress("message"), {dress("key"): dress("value")}),
        )
    ):
        database.execute(
            f"{event} + to_seconds($second), $kind, $level, $message, $body",
            {
                "producer": producer,
                "seq": 30000 + at,
                "second": second,
                "kind": kind,
                "level": level,
                "message": message,
                "body": json.dumps(body),
            },
        )
    database.execute("INSERT INTO base.losses VALUES (101, 40000, 40004, $1)", [dress("the queue was full")])
    for run in (1, 2):
        for key, value in (
            (dress("lr"), run / 10),
            (dress("optimizer"), dress(f"adam {run}")),
            (dress("layers"), [12, dress("x")]),
        ):
            database.execute(
                f"INSERT INTO base.config VALUES ($1, 0, {BEGUN}, $2, $3)", [run * 100, key, json.dumps(value)]
            )
        database.execute(
            f"INSERT INTO base.summary VALUES ($1, 0, {BEGUN}, $2, $3)",
            [run * 100, dress("best"), json.dumps(dress("good"))],
        )
    database.execute(
        f"INSERT INTO base.histograms SELECT 100, 20, s, 50000 + s, {BEGUN} + to_seconds(s), "
        "[(b - 8) / 8 * (1 + s / 100) FOR b IN range(17)], [b * (16 - b) FOR b IN range(16)] "
        f"FROM range({STEPS}) t(s)"
    )
    database.execute(
        f"INSERT INTO base.texts SELECT 100, 21, s * 50, 60000 + s, {BEGUN} + to_seconds(s * 50), $1 "
        "FROM range(4) t(s)",
        [dress("To be, or not to be")],
    )
    # Samples: an agent per node.
    database.execute(
        f"INSERT INTO base.producers (producer, role, label, attempt, node) SELECT 1100 + r // 4, 'agent', 'agent', 0, "
        f"{node} FROM range(0, {RANKS}, 4) u(r)"
    )
    database.execute(
        f"INSERT INTO base.names SELECT 1000 + r, {gpu} FROM range({RANKS}) u(r) UNION ALL VALUES (1100, '')"
    )
    database.execute(
        "INSERT INTO base.system SELECT 1100 + r // 4, 1000 + r, key, "
        f"{BEGUN} + to_seconds(s * 5), CASE key WHEN 30 THEN 0.9 - r / 50 + sin(s) / 40 WHEN 31 THEN "
        "CASE WHEN r = 1 AND s BETWEEN 10 AND 14 THEN 64 ELSE 1 END ELSE (20 + r) * 1073741824 END "
        f"FROM range({RANKS}) u(r), range(30, 33) t(key), range(41) v(s) "
        f"UNION ALL SELECT 1100 + n, 1100, 33, {BEGUN} + to_seconds(s * 5), 2.0e11 + s * 1e9 "
        "FROM range(2) t(n), range(41) v(s)"
    )
    for number, (path, content) in enumerate(files_of(dress).items()):
        digest = hashlib.sha256(content).hexdigest()
        database.execute(
            f"INSERT INTO base.files VALUES (100, $1, {BEGUN}, $2, $3, $4)",
            [70000 + number, path, len(content), digest],
        )
        if not path.endswith(".bin"):  # has not arrived
            database.execute(f"INSERT INTO base.stored VALUES ($1, $2, {BEGUN})", [digest, len(content)])
    database.execute(
        f"INSERT INTO base.saved_views VALUES ($1, $2, {BEGUN})",
        ["sql/" + dress("all runs"), json.dumps({"query": "SELECT 1 AS " + '"' + dress("n").replace('"', '""') + '"'})],
    )
