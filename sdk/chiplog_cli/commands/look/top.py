"""`chiplog top`: a live screen of a run: what each rank does, and which one hangs."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from chiplog_cli.completion import complete_runs
from chiplog_cli.options import open_client, resolve_run, source_options
from chiplog_cli.output import FORMATS, Output, output_options
from chiplog_cli.tables.writers import Rows, write_result
from chiplog_cli.top.terminal_keys import read_keys, unbuffered
from chiplog_cli.top.top_screen import Screen, View, body, chosen_rows, heading, press
from chiplog_client.client import Client, NoDataError, QueryError, connect
from chiplog_client.reads.live_run import Frame, LiveRun
from chiplog_client.reads.rank_states import ROW_COLUMNS, ROW_TYPES, SORTS, row_values

INTERVAL_S = 2.0
INTERVAL_MIN_S = 0.2
QUERY_SHARE_MAX = 0.2  # of the time: frames that take long are read less often
OLD_S = 5.0  # an answer that takes longer says so
AGE_MIN_S = 2.0  # a younger frame has no age, however often frames are read
_KEYS_WAIT_S = 0.1  # what a person does not notice
_NEWEST_RUNNING = """
SELECT run_id FROM runs ORDER BY state = 'running' DESC, created_at DESC NULLS LAST, run_id DESC LIMIT 1
"""

LEGEND = """\b
State    meaning
hangs    no new step for 10 s and for 5 times the median step time; the label is
         at a lower step than others, finished ones too, or in another phase
         than most
waits    no new step either; it is at the foremost step, another label hangs
stalled  no label has a new step, and nothing shows which one is the cause
late     nothing arrives from its node, no samples either: see chiplog status
slow     takes more than 1.2 times the median step time

\b
Keys     s sort   r reverse   / filter   g group   p pause   h help   q quit
"""


@click.command(epilog=LEGEND)
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--once", is_flag=True, help="Print one frame and exit; also into a pipe.")
@output_options(*FORMATS)
@click.option(
    "--interval",
    type=click.FloatRange(INTERVAL_MIN_S, 3600),
    default=INTERVAL_S,
    show_default=True,
    metavar="S",
    help="Seconds between two frames.",
)
@click.option(
    "--sort", type=click.Choice(tuple(SORTS)), default="attention", show_default=True, help="Order of labels."
)
@click.option(
    "--filter", "text", default="", metavar="WORDS", help="Only labels that match: by label, node, state, phase."
)
@click.option(
    "--group",
    type=click.Choice(("auto", "node", "none")),
    default="auto",
    show_default=True,
    help="One line per node instead of per label; auto: if the labels do not fit.",
)
@source_options
def top(
    run: str | None,
    once: bool,
    output: Output,
    interval: float,
    sort: str,
    text: str,
    group: str,
    dir_: str | None,
    url: str | None,
) -> None:
    """Watch a run live: which rank hangs, how far each rank is, its step time, phase, GPU and memory.

    RUN is an ID, the beginning of one, a name, or `latest`; without it the newest running run, else the newest run.

    Labels that failed, hang, wait or are slow come first. `idle` is the time since the last new step, `seen` since the
    last event of any kind, `step time` the mean of the last 20 steps, `phase` the newest that ended, or with `in` one
    that has been open for a long time. `goodput` is that of the view, which has it for runs with `step()`; it is read
    every 30 s. Into a pipe or a file, and in another format than `table`, it prints one frame. csv, json, jsonl,
    parquet and arrow have one row for each label.
    """
    view = View(sort=sort, filter=text, group=group)
    with open_client(dir_, url) as client:
        live = LiveRun(resolve_run(client, run) if run is not None else _newest_running(client))
        if once or output != Output() or not sys.stdout.isatty():
            _print_once(client, live, view, output)
            return
    _watch(_Reader(live, dir_, url, interval), view, interval)


def _newest_running(client: Client) -> str:
    rows = client.sql(_NEWEST_RUNNING).rows()
    if not rows:
        raise click.UsageError("no run has been recorded yet; start one first")
    return str(rows[0]["run_id"])


def _print_once(client: Client, live: LiveRun, view: View, output: Output) -> None:
    frame = live.read(client)
    if frame is None:
        raise click.ClickException(f"run {live.run_id!r} has no label yet; try again")
    write_result(
        Rows(
            ("run_id", "ts", *ROW_COLUMNS),
            [(frame.run_id, frame.now, *row_values(row)) for row in chosen_rows(frame, view)],
            {"run_id": "VARCHAR", "ts": "TIMESTAMP", **ROW_TYPES},
        ),
        output,
        sheets=lambda: _sheets(frame.for_people(), view, is_markdown=output.form == "md"),
    )


def _sheets(frame: Frame, view: View, *, is_markdown: bool) -> list[Any]:
    lines = [line for line in heading(frame) if line.plain]
    if not is_markdown:
        return [*lines, "", *body(frame, view, None)]
    parts = [part for line in lines for part in (line, "")] + body(frame, view, None)
    return [part.plain if isinstance(part, Text) else part for part in parts]


class _Reader:
    """Reads frames in a thread, so that keys work while a query runs. A query that fails keeps the last frame."""

    def __init__(self, live: LiveRun, dir_: str | None, url: str | None, interval_s: float) -> None:
        self.frame: Frame | None = None
        self.read_at = time.monotonic()  # when the newest frame was asked for
        self.is_paused = False
        self.n_reads = 0
        self._asked_at: float | None = None  # of the read that is in progress
        self._error = ""
        self._interval_s = interval_s
        self._live = live
        self._source: dict[str, Any] = {"url": url, "dir": dir_, "start": False}
        # A daemon: the command may end while a query waits for a collector that does not answer.
        threading.Thread(target=self._loop, name="chiplog-top", daemon=True).start()

    @property
    def status(self) -> str:
        """Return why the frame is old; empty if it is not."""
        now, asked_at = time.monotonic(), self._asked_at
        # Between two reads there is a pause, which is long if reads take long.
        is_late = asked_at is not None and now - asked_at > max(OLD_S, 3 * self._interval_s)
        if self.is_paused or self.frame is None:
            return "" if self.is_paused else self._error
        age_s = now - self.read_at
        why = self._error or ("no answer yet" if is_late else "")
        is_old = age_s > max(AGE_MIN_S, 2 * self._interval_s)
        return f"frame of {int(age_s)}s ago{': ' if why else ''}{why}" if why or is_old else ""

    def _loop(self) -> None:
        client: Client | None = None
        while True:
            took_s = 0.0
            if not self.is_paused:
                began = self._asked_at = time.monotonic()
                client = self._read(client)
                self._asked_at = None
                took_s = time.monotonic() - began
                self.n_reads += 1
            time.sleep(max(self._interval_s, took_s / QUERY_SHARE_MAX))

    def _read(self, client: Client | None) -> Client | None:
        """Read a frame; return the client for the next one, None after an error."""
        began = time.monotonic()
        try:
            client = client or connect(**self._source)
            frame = self._live.read(client)
            if frame is not None:
                self.frame, self.read_at = frame.for_people(), began
            self._error = "" if frame is not None else f"run {self._live.run_id} is not in the database"
            return client
        except (QueryError, NoDataError, OSError, ValueError) as error:  # safeguard: top-survives-collector
            self._error = " ".join(str(error).split())
            if client is not None:
                client.close()
            return None


def _watch(reader: _Reader, view: View, interval_s: float) -> None:
    """Show frames until a key ends the command. A change of the terminal's size is shown at once."""
    console = Console()
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    with _ended_by_signals(), _noted(signal.SIGTSTP, signal.SIGCONT) as noted:
        while True:
            keys = unbuffered(keyboard) if keyboard is not None else contextlib.nullcontext()
            with keys, Live(console=console, screen=True, auto_refresh=False) as live:
                if not _show(reader, view, interval_s, live, keyboard, noted):
                    return
            if signal.SIGTSTP in noted:  # safeguard: stopped-top-restores-terminal
                _stop()
            noted.clear()  # after SIGCONT the terminal may have other modes and other contents


def _show(
    reader: _Reader, view: View, interval_s: float, live: Live, keyboard: int | None, noted: Collection[int]
) -> bool:
    """Show frames until a key ends the command, and return False; True if a signal has been noted."""
    shown: Any = None
    while not noted:
        status = reader.status
        state = (reader.n_reads, status, live.console.size, repr(view))
        if state != shown:
            live.update(Screen(reader.frame, view, status, interval_s), refresh=True)
            shown = state
        if keyboard is None:
            time.sleep(_KEYS_WAIT_S)
            continue
        for key in read_keys(keyboard, _KEYS_WAIT_S):
            if not press(view, key, live.console.size.height):
                return False
        reader.is_paused = view.is_paused
    return True


@contextlib.contextmanager
def _noted(*numbers: signal.Signals) -> Iterator[set[int]]:
    """Yield a set in which these signals are noted when they arrive."""
    noted: set[int] = set()
    before = {number: signal.signal(number, lambda which, _: noted.add(which)) for number in numbers}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop() -> None:
    """Stop this process as Ctrl-Z does; return when it is continued."""
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTSTP)  # to this thread: it stops here, and not somewhere later
    signal.signal(signal.SIGTSTP, handler)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End the command at SIGTERM and SIGHUP, so that the terminal is restored."""

    def end(number: int, _: Any) -> None:
        raise click.exceptions.Exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
