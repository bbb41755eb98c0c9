"""Records of logging as rows of `events`."""

import logging
import logging.config
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import chiplog
from chiplog.integrations.logging import ChiplogHandler
from chiplog.integrations.logging.handler import level_word
from chiplog.recording.log.alerts import ALERT_BURST
from chiplog_schemas.model.events import EventKind
from tests.support.forks import FORKS
from tests.support.node import Node
from tests.support.sdk_events import by_label
from tests.support.signals import handling
from tests.support.threads import run_side_by_side
from tests.support.waiting import WAIT_S

SCRIPT = """
import logging, os, signal, sys
import chiplog
from chiplog.integrations.logging import ChiplogHandler

run = chiplog.init(run_id="logged")
logging.getLogger().addHandler(ChiplogHandler())
chiplog.capture_warnings()
"""


def test_a_record_is_a_row_with_what_logging_knows(logger: logging.Logger, recorded: Any) -> None:
    logger.handlers = [ChiplogHandler()]
    logger.info("epoch %d of %s", 3, "ten", extra={"lr": 0.5, "shape": [1, 2], "big": 1 << 80})
    [row] = recorded()
    assert (row["notice"], row["level"], row["message"]) == ("log", "info", "epoch 3 of ten")
    body = row["body"]
    assert Path(body.pop("path")) == Path(__file__)
    assert body.pop("line") > 0
    assert body == {
        "logger": "train.loop",
        "level": "INFO",
        "function": "test_a_record_is_a_row_with_what_logging_knows",
        "thread": "MainThread",
        "extra": {"lr": 0.5, "shape": "[1, 2]", "big": str(1 << 80)},
    }


def test_an_exception_brings_its_traceback(logger: logging.Logger, recorded: Any) -> None:
    logger.handlers = [ChiplogHandler()]
    try:
        raise ValueError("no batch")
    except ValueError:
        logger.exception("step failed", stack_info=True)
    [row] = recorded()
    assert (row["level"], row["message"], row["body"]["exception"]) == ("error", "step failed", "ValueError")
    assert row["body"]["traceback"].endswith("ValueError: no batch\n")
    assert "test_handler.py" in row["body"]["stack"]


@pytest.mark.parametrize(
    ("number", "word"), [(5, "debug"), (20, "info"), (25, "info"), (30, "warning"), (40, "error"), (50, "error")]
)
def test_each_level_has_a_word(number: int, word: str) -> None:
    assert level_word(number) == word


def test_a_loop_leaves_a_few_rows_and_a_count_that_is_exact(logger: logging.Logger, recorded: Any) -> None:
    logger.handlers = [ChiplogHandler()]
    n = 100_000
    for step in range(n // 2):
        logger.info("step %d", step)
        logger.info(f"loss {step / 7} at {step}")
    logger.error("the disk is full")
    rows = recorded()
    kept = Counter(row["message"].split()[0] for row in rows if row["notice"] == "log")
    told = [row["body"]["messages"] for row in rows if row["notice"] == "logs_suppressed"]
    # On a slow machine the loop lasts so long that some more are kept, and the others are counted in several rows.
    assert ALERT_BURST <= kept["step"] < 1_000 and ALERT_BURST <= kept["loss"] < 1_000
    assert kept["the"] == 1, "what one level says too often costs the others nothing"
    assert sum(messages.get("train.loop: step %d", 0) for messages in told) == n // 2 - kept["step"]
    assert sum(messages.get("train.loop: loss #.# at #", 0) for messages in told) == n // 2 - kept["loss"]


def test_several_threads_lose_no_record(logger: logging.Logger, recorded: Any) -> None:
    logger.handlers = [ChiplogHandler()]

    def work(name: str) -> None:
        for _ in range(200):
            logger.warning(f"from {name}")

    run_side_by_side(work, "abcdefgh")
    rows = recorded()
    kept = Counter(row["body"]["thread"] for row in rows if row["notice"] == "log")
    assert min(kept[name] for name in "abcdefgh") >= ALERT_BURST
    told = sum(row["body"]["count"] for row in rows if row["notice"] == "logs_suppressed")
    assert kept.total() + told == 8 * 200


def test_chiplogs_own_loggers_are_left_out(recorded: Any) -> None:
    handler = ChiplogHandler()
    logging.getLogger("chiplog").addHandler(handler)
    try:
        chiplog.alert("t", unknown=1)
        logging.getLogger("chiplog_page").warning("own")
    finally:
        logging.getLogger("chiplog").removeHandler(handler)
    assert [row["notice"] for row in recorded()] == ["bad_value"]


def test_two_handlers_record_a_record_once(logger: logging.Logger, recorded: Any) -> None:
    logger.handlers = [ChiplogHandler(), ChiplogHandler()]
    logger.info("once")
    assert [row["message"] for row in recorded()] == ["once"]


def test_level_filter_and_formatter_count(logger: logging.Logger, recorded: Any) -> None:
    handler = ChiplogHandler("ERROR")
    handler.addFilter(lambda record: "secret" not in record.msg)
    handler.setFormatter(logging.Formatter("%(name)s says %(message)s"))
    logger.handlers = [handler]
    logger.warning("too low")
    logger.error("secret")
    logger.error("this")
    assert [row["message"] for row in recorded()] == ["train.loop says this"]


def test_a_config_of_logging_names_the_handler(logger: logging.Logger, recorded: Any) -> None:
    named = {"class": "chiplog.integrations.logging.ChiplogHandler", "level": "WARNING"}
    of_logger = {"train.loop": {"handlers": ["chiplog"], "level": "INFO", "propagate": False}}
    config = {"version": 1, "disable_existing_loggers": False, "handlers": {"chiplog": named}, "loggers": of_logger}
    logging.config.dictConfig(config)
    logger.info("left out")
    logger.warning("kept")
    assert [row["message"] for row in recorded()] == ["kept"]


class _Bad:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _LogsItself:
    def __str__(self) -> str:
        logging.getLogger("train.loop").info(_LogsItself())
        return "logs itself"


def test_bad_records_cost_only_what_is_bad_in_them(
    logger: logging.Logger, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.handlers = [ChiplogHandler(), logging.NullHandler()]  # logging itself formats nothing
    logger.info("%d and %d", "one")
    logger.info(_Bad())
    logger.info("x" * 100_000)
    logger.info("lone \ud800", extra={"bad": _Bad(), **{f"n{i}": i for i in range(60)}})
    logger.info(_LogsItself())
    logger.info({"step": 1})
    made = {"name": "q", "levelno": 20, "msg": "made", "exc_info": True, "exc_text": "Traceback of a queue"}
    logger.handle(logging.makeLogRecord(made))
    rows = recorded()
    assert [row["notice"] for row in rows if row["notice"] != "log"] == []
    kept = {row["message"][:20]: row["body"] for row in rows}
    assert kept["%d and %d"]["arguments"] == "('one',)"
    assert kept["x" * 20]["chars"] == 100_000
    surrogate = kept["lone \\ud800"]
    assert len(surrogate["extra"]) + surrogate["extra_left_out"] == 61
    assert sum(row["message"] == "logs itself" for row in rows) == 3, "and no recursion without end"
    assert kept["made"]["traceback"] == "Traceback of a queue"
    assert "{'step': 1}" in kept and len(rows) == 9


def test_a_signal_handler_may_log_and_raise_in_a_record(logger: logging.Logger, recorded: Any) -> None:
    logger.handlers = [ChiplogHandler()]

    class Interrupted:
        def __str__(self) -> str:
            signal.raise_signal(signal.SIGUSR1)
            return "interrupted"

    def note(number: int, frame: FrameType | None) -> None:
        logger.error("preempted")
        raise TimeoutError("of the training")

    with handling(signal.SIGUSR1, note), pytest.raises(TimeoutError, match="of the training"):
        logger.info(Interrupted())
    logger.info("after")
    assert [row["message"] for row in recorded()] == ["preempted", "after"]


def test_without_an_open_run_nothing_happens(logger: logging.Logger, chiplog_dir: Path) -> None:
    logger.handlers = [ChiplogHandler()]
    logger.error("before")
    run = chiplog.init(mode="offline", capture_console=False)
    run.finish()
    logger.error("after")
    chiplog.init(mode="disabled")
    logger.error("disabled")


def test_as_the_only_handler_it_leaves_errors_on_stderr(
    logger: logging.Logger, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    last = logging.Handler(logging.WARNING)
    monkeypatch.setattr(last, "emit", lambda record: shown.append(record.getMessage()))
    monkeypatch.setattr(logging, "lastResort", last)
    logger.handlers = [ChiplogHandler(logging.ERROR), ChiplogHandler()]
    logger.info("info")
    logger.warning("warning")
    logger.addHandler(logging.NullHandler())
    logger.error("error")
    assert shown == ["warning"]
    assert [row["message"] for row in recorded()] == ["info", "warning", "error"]


@pytest.mark.parametrize("how", FORKS)
def test_a_forked_child_has_a_label_and_limits_of_its_own(
    how: str, logger: logging.Logger, run: chiplog.Run, offline: Any
) -> None:
    logger.handlers = [ChiplogHandler()]
    for _ in range(ALERT_BURST + 10):
        logger.info("again")
    pid = FORKS[how]()
    if not pid:
        logger.info("again")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    run.finish()
    labels = by_label(offline())
    assert len(labels) == 2
    of_child = next(events for label, events in labels.items() if label != "rank0")
    told = [event.fields for event in of_child if event.kind == EventKind.NOTICE]
    assert [(row["notice"], row["message"]) for row in told] == [("log", "again")]


def test_a_record_is_there_after_kill_9(node: Node) -> None:
    script = SCRIPT + 'logging.getLogger("a").error("last words"); os.kill(os.getpid(), signal.SIGKILL)'
    child = subprocess.run([sys.executable, "-c", script], timeout=WAIT_S)
    assert child.returncode == -signal.SIGKILL
    query = "SELECT message, level, label FROM events WHERE kind = 'log'"
    [row] = node.until(query)
    assert (row["message"], row["level"]) == ("last words", "error")


def test_each_rank_has_its_records_beside_a_flood(node: Node) -> None:
    script = SCRIPT + (
        'log = logging.getLogger("loop"); log.setLevel(logging.INFO)\n'
        'log.error("of rank %s", os.environ["RANK"])\n'
        'for step in range(20_000): log.info("step %d", step)\n'
        'import warnings; warnings.warn("slow")\n'
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=WAIT_S)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert all("UserWarning: slow" in text and "of rank" in text for text in printed), "shown as without chiplog"
    node.until("SELECT count(*) AS n FROM labels WHERE state = 'finished'", lambda rows: rows[0]["n"] == 2)
    node.until("SELECT sum(pending) AS n FROM completeness", lambda rows: rows[0]["n"] == 0)
    found = node.sql(
        "SELECT label, kind, level, message, body->>'logger' AS logger, (body->>'count')::INT AS n FROM events "
        "WHERE run_id = 'logged' AND kind IN ('log', 'warning', 'logs_suppressed')"
    )
    for rank in range(2):
        own = [row for row in found if row["label"] == f"rank{rank}"]
        assert [row["message"] for row in own if row["level"] == "error"] == [f"of rank {rank}"]
        assert [row["message"] for row in own if row["kind"] == "warning"] == ["slow"]
        kept = sum(row["kind"] == "log" and row["level"] == "info" for row in own)
        assert kept < 1_000
        assert kept + sum(row["n"] or 0 for row in own) == 20_000
