"""Lay out a frame of `chiplog top`: the run, what needs attention, the labels or their nodes, and the keys."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.segment import Segment
from rich.text import Text

from chiplog_cli.tables.fitted_table import Column, Sheet
from chiplog_cli.tables.format_values import duration_text, printable, seconds_text
from chiplog_cli.tables.tables import plain_cell
from chiplog_client.reads.event_kinds import kind_title
from chiplog_client.reads.live_run import Frame
from chiplog_client.reads.rank_states import (
    SLOW_RATIO,
    SORTS,
    NodeRow,
    RankRow,
    Severity,
    by_node,
    matches,
    median_pace_s,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

ROWS_UNGROUPED = 64  # into a pipe; more labels are grouped by node
WORST_SHOWN = 8  # labels above the nodes
NAMES_SHOWN = 3  # labels in one line
_ATTENTION_LINES = 2  # a reason may be long; `chiplog show` has all of it
_GPU_EVENT_LINES = 3  # in 80 columns the others have what to do
_TABLE_LINES = 4  # of a table, beside its rows: names, rule, rows left out, columns left out
_GIB = 1 << 30
_STYLES = {
    Severity.FAILED: "bold red",
    Severity.HANGS: "bold red",
    Severity.STALLED: "red",
    Severity.WAITS: "yellow",
    Severity.LATE: "yellow",
    Severity.SLOW: "yellow",
    Severity.STARTING: "dim",
    Severity.RUNNING: "",
    Severity.FINISHED: "green",
}
_CULPRITS = (Severity.FAILED, Severity.HANGS, Severity.STALLED, Severity.SLOW)  # of those that wait there are many
_NEEDS_ATTENTION = (*_CULPRITS, Severity.WAITS, Severity.LATE)
HELP = """\
s  sort: attention, rank, step, time, gpu, memory, seen     r  reverse
/  filter by words: rank7, node-3, hangs, all_reduce        escape  no filter
g  group by node: auto, always, never                       p  pause, continue
arrows, page up, page down, home, end  scroll               h  help    q  quit

hangs    no new step for 10 s and for 5 times the median step time; the label
         is at a lower step than others, finished ones too, or in another
         phase than most
waits    no new step either; it is at the foremost step, another label hangs
stalled  no label has a new step, and nothing shows which one is the cause
late     nothing arrives from its node, no samples either: see chiplog status
slow     more than 1.2 times the median step time

idle       time since the last new step; seen: since the last event
step time  mean of the last 20 steps
phase      the newest that ended; "in X" is open for long
goodput    share of the run's time in steps of step(), at most 30 s old"""
KEYS = ("q quit", "h help", "s sort", "/ filter", "g group", "p pause", "r reverse")


@dataclass
class View:
    """What the keys change."""

    sort: str = "attention"
    is_reversed: bool = False
    group: str = "auto"  # auto, node, none
    filter: str = ""
    offset: int = 0
    is_paused: bool = False
    has_help: bool = False
    typed: str | None = None  # the filter that is being typed


def heading(frame: Frame) -> list[Text]:
    """Return the lines about the run: its state, how far it is, and what needs attention."""
    first = Text()
    first.append(printable(frame.run_id), "bold")
    for name in (frame.project, frame.name):
        if name:
            first.append(f"  {printable(name)}")
    state_style = {"running": "cyan", "finished": "green"}.get(frame.state, "bold red")
    first.append(f"  {frame.state}", state_style)
    if frame.elapsed_s is not None:
        first.append(f" {duration_text(frame.elapsed_s)}")
    if frame.n_attempts > 1:
        first.append(f"  {frame.n_attempts} attempts")
    first.append(f"  {frame.now:%H:%M:%S} UTC", "dim")
    return [first, _progress(frame), *_gpu_event(frame), _attention(frame)]


_WORDS = {
    Severity.RUNNING: "running",
    Severity.SLOW: "slow",
    Severity.HANGS: "hanging",
    Severity.STALLED: "stalled",
    Severity.WAITS: "waiting",
    Severity.LATE: "late",
    Severity.STARTING: "starting",
    Severity.FAILED: "failed",
    Severity.FINISHED: "finished",
}


def _progress(frame: Frame) -> Text:
    counts = Counter(row.severity for row in frame.rows)
    line = Text(f"{len(frame.rows)} label{'s' * (len(frame.rows) != 1)}: ")
    for number, (severity, word) in enumerate((s, w) for s, w in _WORDS.items() if counts[s]):
        line.append(f"{', ' if number else ''}{counts[severity]} {word}", _STYLES[severity])
    steps = [row.step for row in frame.rows if row.step is not None and (row.is_running or frame.state != "running")]
    if steps:
        low, high = min(steps), max(steps)
        line.append(f"  step {high}" if low == high else f"  step {low} to {high}")
    pace = median_pace_s(frame.rows)
    if pace:
        line.append(f"  {seconds_text(pace)}/step")
    if frame.goodput is not None:
        line.append(f"  goodput {frame.goodput:.0%}")
    return line


def _gpu_event(frame: Frame) -> list[Text]:
    """Return a line about the newest event of a GPU; none without one."""
    event = frame.gpu_event
    if event is None:
        return []
    text = f"{printable(event['label'])}: {kind_title(event['kind'])} {duration_text(event['ago_s'])} ago"
    text += f": {printable(event['message'] or '')}"
    return [Text(f"{text}; to do: {printable(event['advice'])}" if event["advice"] else text, "red")]


def _attention(frame: Frame) -> Text:
    """Return the one line to read at night: which label hangs or failed, and the verdict on the run."""
    verdict = frame.verdict or {"text": "", "is_slow": False, "has_failed": False}
    by_severity: dict[Severity, list[RankRow]] = {}
    for row in sorted(frame.rows, key=SORTS["attention"]):
        by_severity.setdefault(row.severity, []).append(row)
    parts = []
    if not verdict["has_failed"] and (failed := by_severity.get(Severity.FAILED)):
        first = max(failed, key=lambda row: row.ended_s or 0.0)
        ago = f" {duration_text(first.ended_s)} ago" if first.ended_s is not None else ""
        reason = f": {printable(first.reason)}" if first.reason else ""
        parts.append(
            f"{_names(failed)} failed, {first.label} first{ago}{reason}"
            if len(failed) > 1
            else f"{first.label} {first.state}{ago}{reason}"
        )
    if hanging := by_severity.get(Severity.HANGS):
        row = hanging[0]
        text = f"{_names(hanging)} hang{'s' * (len(hanging) == 1)}, no new step for {duration_text(row.idle_s or 0.0)}"
        text += f", at step {row.step}" if row.step is not None else ""
        text += f", {where}" if (where := _where(row)) else ""
        waiting = len(by_severity.get(Severity.WAITS, ()))
        parts.append(text + (f"; {waiting} wait{'s' * (waiting == 1)}" if waiting else ""))
    if stalled := by_severity.get(Severity.STALLED):
        longest = max(row.idle_s or row.seen_s or 0.0 for row in stalled)
        all_of = "all running labels" if len(stalled) == sum(row.is_running for row in frame.rows) else _names(stalled)
        parts.append(f"no new step for {duration_text(longest)}: {all_of}; nothing shows which one is the cause")
    if late := by_severity.get(Severity.LATE):
        nodes = sorted({row.node or "" for row in late})
        of = printable(nodes[0]) if len(nodes) == 1 else f"{len(nodes)} nodes"
        silent = duration_text(min(row.seen_s or 0.0 for row in late))
        parts.append(f"nothing has arrived from {of} for {silent}: telemetry is late, see `chiplog status`")
    text = printable(verdict["text"])
    if parts or verdict["has_failed"]:
        shown = [*parts, *([text] if text and (verdict["has_failed"] or verdict["is_slow"]) else [])]
        return Text("; ".join(shown), "bold red")
    if text:
        return Text(text, "yellow" if verdict["is_slow"] else "dim")
    paced = [row for row in frame.rows if row.pace_s and row.is_running]
    typical = median_pace_s(frame.rows)
    if len(paced) > 1 and typical:
        slowest = max(paced, key=lambda row: row.pace_s or 0.0)
        ratio = (slowest.pace_s or 0.0) / typical
        if ratio > SLOW_RATIO:
            return Text(f"slowest: {slowest.label}, {ratio:.1f} times the median step time", "yellow")
        return Text(f"no label takes more than {SLOW_RATIO:g} times the median step time", "dim")
    return Text("")


def _names(rows: Sequence[RankRow]) -> str:
    more = len(rows) - NAMES_SHOWN
    return ", ".join(printable(row.label) for row in rows[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _where(row: RankRow) -> str:
    if row.open_phase:
        return f"in {printable(row.open_phase)}" + (f" for {duration_text(row.open_s)}" if row.open_s else "")
    return "in no phase" if row.open_phase == "" else ""


def bytes_text(used: float | None, limit: float | None = None) -> str:
    """Return bytes in MiB or GiB, with a limit after them."""
    if used is None:
        return ""
    if limit is not None:
        return f"{used / _GIB:.0f}/{limit / _GIB:.0f}G"
    return f"{used / _GIB:.1f}G" if used >= _GIB else f"{used / (1 << 20):.0f}M"


def state_cell(row: RankRow) -> Text:
    """Return what a label does, with how long if that is too long."""
    text = row.status
    if row.severity in (Severity.HANGS, Severity.STALLED, Severity.WAITS, Severity.LATE):
        age = row.idle_s if row.step is not None and row.severity != Severity.LATE else row.seen_s
        text += f" {duration_text(age)}" if age is not None else ""
    return plain_cell(text, _STYLES[row.severity])


def phase_text(row: RankRow) -> str:
    """Return `in X` for a phase that is open for long, else the newest phase that ended."""
    if row.is_running and row.open_phase is not None:
        return f"in {row.open_phase or 'no phase'}"
    return row.phase or ""


def rank_table(rows: Sequence[RankRow], *, has_nodes: bool) -> Sheet:
    """Lay out labels, one a line. Columns without any value are omitted, and nodes if `has_nodes` is False."""

    def has(name: str) -> bool:
        return any(getattr(row, name) is not None for row in rows)

    has_tries = any(row.attempt for row in rows)
    has_ranks = any(row.rank is not None and row.label != f"rank{row.rank}" for row in rows)
    has_phases = has("phase") or has("open_phase")
    # Narrow terminals first lose what the state repeats.
    columns = [
        Column("label", is_name=True),
        *[Column("rank", is_number=True, drop=4)] * has_ranks,
        *[Column("try", is_number=True, drop=2)] * has_tries,
        *[Column("node", is_name=True, drop=3)] * has_nodes,
        Column("state", is_whole=True),
        Column("step", is_number=True),
        Column("behind", is_number=True, drop=6),
        Column("idle", is_number=True, drop=5),
        Column("step time", is_number=True, drop=9),
        *[Column("phase", is_name=True, drop=10)] * has_phases,
        *[Column("GPU", is_number=True, drop=8)] * has("gpu"),
        *[Column("GPU mem", is_number=True, drop=7)] * has("gpu_memory"),
        *[Column("memory", is_number=True, drop=1)] * has("memory"),
        Column("seen", is_number=True, drop=11),
    ]
    sheet = Sheet(columns)
    for row in rows:
        is_urgent = row.severity <= Severity.HANGS
        sheet.add(
            plain_cell(row.label, "bold red" if is_urgent else ""),
            *[str(row.rank) if row.rank is not None else ""] * has_ranks,
            *[str(row.attempt)] * has_tries,
            *[plain_cell(row.node)] * has_nodes,
            state_cell(row),
            str(row.step) if row.step is not None else "",
            plain_cell(str(row.steps_behind) if row.steps_behind else "", "red" if is_urgent else ""),
            duration_text(row.idle_s) if row.idle_s is not None and row.is_running else "",
            plain_cell(
                seconds_text(row.pace_s) if row.pace_s else "", _STYLES[Severity.SLOW] * (row.severity == Severity.SLOW)
            ),
            *[plain_cell(phase_text(row))] * has_phases,
            *[f"{row.gpu:.0%}" if row.gpu is not None else ""] * has("gpu"),
            *[bytes_text(row.gpu_memory, row.gpu_memory_limit)] * has("gpu_memory"),
            *[bytes_text(row.memory)] * has("memory"),
            duration_text(row.seen_s) if row.seen_s is not None and row.is_running else "",
        )
    return sheet


def node_table(nodes: Sequence[NodeRow]) -> Sheet:
    """Lay out nodes, one a line: how many labels, the worst state, ranges of steps and step times, means of GPUs."""
    rows = [row for node in nodes for row in node.rows]
    has_gpu, has_memory = any(row.gpu is not None for row in rows), any(row.gpu_memory is not None for row in rows)
    columns = [
        Column("node", is_name=True),
        Column("labels", is_number=True, drop=2),
        Column("state", is_whole=True),
        Column("of", is_name=True, drop=5),
        Column("step", is_number=True),
        Column("behind", is_number=True, drop=4),
        Column("step time", is_number=True, drop=8),
        *[Column("GPU", is_number=True, drop=7)] * has_gpu,
        *[Column("GPU mem", is_number=True, drop=3)] * has_memory,
        Column("seen", is_number=True, drop=6),
    ]
    sheet = Sheet(columns)
    for node in nodes:
        counts = Counter(row.severity for row in node.rows)
        worst = node.worst
        state = state_cell(worst)
        if counts[worst.severity] < len(node.rows):
            state = plain_cell(f"{counts[worst.severity]} {state.plain}", _STYLES[worst.severity])
        steps, paces = [int(step) for step in node.values("step")], node.values("pace_s")
        seen = [row.seen_s for row in node.rows if row.seen_s is not None and row.is_running]
        behind = max((row.steps_behind for row in node.rows), default=0)
        sheet.add(
            plain_cell(node.node or "unknown", "bold red" if worst.severity <= Severity.HANGS else ""),
            str(len(node.rows)),
            state,
            plain_cell(worst.label if worst.severity in _NEEDS_ATTENTION else ""),
            (str(max(steps)) if min(steps) == max(steps) else f"{min(steps)}-{max(steps)}") if steps else "",
            str(behind) if behind else "",
            f"{seconds_text(statistics.median(paces))}" if paces else "",
            *[f"{statistics.mean(node.values('gpu')):.0%}" if node.values("gpu") else ""] * has_gpu,
            *[bytes_text(max(node.values("gpu_memory"), default=None))] * has_memory,
            duration_text(max(seen)) if seen else "",
        )
    return sheet


def chosen_rows(frame: Frame, view: View) -> list[RankRow]:
    """Return the labels that the filter lets pass, in the order of the view."""
    rows = [row for row in frame.rows if not view.filter or matches(row, view.filter)]
    return sorted(rows, key=SORTS[view.sort], reverse=view.is_reversed)


def body(frame: Frame, view: View, lines: int | None) -> list[Any]:
    """Return the tables that fit in `lines` lines; None: all labels, or all nodes of many labels."""
    rows = ordered = chosen_rows(frame, view)
    if not rows:
        return [Text(f"no label matches {view.filter!r}" if view.filter else "no label yet", "dim")]
    room = len(rows) if lines is None else max(1, lines - _TABLE_LINES)
    has_nodes = len({row.node for row in frame.rows}) > 1
    is_grouped = view.group == "node" or (
        view.group == "auto" and len(rows) > (ROWS_UNGROUPED if lines is None else room) and has_nodes
    )
    if not is_grouped:
        shown = _page(ordered, view, room)
        table = rank_table(shown, has_nodes=has_nodes)
        table.caption = _caption(view, len(shown), len(ordered), "labels")
        return [table]
    nodes = by_node(rows, view.sort)
    if view.is_reversed:
        nodes.reverse()
    worst = [row for row in ordered if row.severity in _CULPRITS] if not view.is_reversed else []
    room_of_worst = WORST_SHOWN if lines is None else min(WORST_SHOWN, max(1, (lines - 2 * _TABLE_LINES) // 2))
    tables: list[Any] = []
    if worst:
        table = rank_table(worst[:room_of_worst], has_nodes=True)
        hidden = len(worst) - room_of_worst
        table.caption = f"{hidden} more that need attention" if hidden > 0 else ""
        tables += [table, ""]
    used = (min(len(worst), room_of_worst) + _TABLE_LINES + 1 + (len(worst) > room_of_worst)) if worst else 0
    shown_nodes = _page(nodes, view, len(nodes) if lines is None else max(1, lines - used - _TABLE_LINES))
    table = node_table(shown_nodes)
    table.caption = _caption(view, len(shown_nodes), len(nodes), "nodes")
    return [*tables, table]


def _page(rows: Sequence[Any], view: View, room: int) -> Sequence[Any]:
    """Return the visible rows, and limit the offset to what can be scrolled."""
    view.offset = max(0, min(view.offset, len(rows) - room))
    return rows[view.offset : view.offset + room]


def _caption(view: View, shown: int, n_all: int, what: str) -> str:
    return f"{view.offset + 1} to {view.offset + shown} of {n_all} {what}" if shown < n_all else ""


def footer(view: View, error: str, interval_s: float, width: int) -> Text:
    """Return the status line: an error and the state of the view, then as many keys as fit."""
    if view.typed is not None:
        return Text(f"filter: {view.typed}_   enter keeps it, escape drops it", "bold")
    line = Text()
    if error:
        line.append(f"{printable(error)}  ", "bold red")
    if view.is_paused:
        line.append("paused  ", "bold yellow")
    if view.filter:
        line.append(f"filter {view.filter!r}  ", "bold")
    sort = view.sort + (" reversed" if view.is_reversed else "")
    line.append(f"by {sort}, every {interval_s:g}s ", "dim")
    for key in KEYS:
        if line.cell_len + len(key) + 2 <= width:
            line.append(f"  {key}", "dim")
    return line


def press(view: View, key: str, lines: int) -> bool:
    """Change the view as a key says; return False if it quits. lines: of the screen, for page up and page down."""
    if view.typed is not None:
        _type(view, key)
        return True
    if key in ("q", "end of input"):
        return False
    if key == "s":
        names = list(SORTS)
        view.sort = names[(names.index(view.sort) + 1) % len(names)]
    elif key == "r":
        view.is_reversed = not view.is_reversed
    elif key == "g":
        groups = ("auto", "node", "none")
        view.group = groups[(groups.index(view.group) + 1) % len(groups)]
    elif key == "/":
        view.typed = view.filter
    elif key in ("p", " "):
        view.is_paused = not view.is_paused
    elif key in ("h", "?"):
        view.has_help = not view.has_help
    elif key == "escape":
        view.filter, view.has_help = "", False
    else:
        _scroll(view, key, lines)
        return True
    view.offset = 0
    return True


def _scroll(view: View, key: str, lines: int) -> None:
    page = max(1, lines - 8)
    moves = {
        "down": 1,
        "j": 1,
        "up": -1,
        "k": -1,
        "page down": page,
        "page up": -page,
        "home": -1 << 30,
        "end": 1 << 30,
    }
    view.offset = max(0, view.offset + moves.get(key, 0))


def _type(view: View, key: str) -> None:
    typed = view.typed or ""
    if key == "enter":
        view.filter, view.typed, view.offset = typed, None, 0
    elif key in ("escape", "end of input"):
        view.typed = None
    elif key == "backspace":
        view.typed = typed[:-1]
    elif len(key) == 1:
        view.typed = typed + key


class Screen:
    """One whole screen: a frame, cropped, and the footer in the last line."""

    def __init__(self, frame: Frame | None, view: View, error: str, interval_s: float) -> None:
        self._frame = frame
        self._view = view
        self._error = error
        self._interval_s = interval_s

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Yield the lines of the screen."""
        height, options = console.height, options.update(height=None)
        lines = console.render_lines(Group(*self._parts(console, options.max_width, height)), options)[: height - 1]
        lines += [[Segment("")]] * (height - 1 - len(lines))
        status = footer(self._view, self._error, self._interval_s, options.max_width)
        status.truncate(options.max_width)
        lines += console.render_lines(status, options)[:1]
        for number, line in enumerate(lines):
            yield from line
            if number < height - 1:
                yield Segment.line()

    def _parts(self, console: "Console", width: int, height: int) -> Iterable[Any]:
        if self._frame is None:
            return [Text("" if self._error else "reading the first frame ...", "dim")]
        *about, attention = heading(self._frame)
        gpu_events = about[2:]
        for line in about[:2]:
            line.truncate(width, overflow="ellipsis")
        about[2:] = [part for line in gpu_events for part in line.wrap(console, width)[:_GPU_EVENT_LINES]]
        about += attention.wrap(console, width)[:_ATTENTION_LINES]
        if self._view.has_help:
            return [*about, "", Text(HELP)]
        return [*about, "", *body(self._frame, self._view, height - len(about) - 2)]
