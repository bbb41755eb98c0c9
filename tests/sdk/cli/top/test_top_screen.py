"""The screen of `chiplog top`: at any size it fits, and the label that hangs is first."""

import io
from datetime import datetime

import pytest
from rich.console import Console

from chiplog_cli.top.top_screen import Screen, View, body, bytes_text, footer, heading, press
from chiplog_client.reads.live_run import Frame
from chiplog_client.reads.rank_states import SORTS, RankRow, judge


def frame_of(n: int, hangs: int | None = None) -> Frame:
    rows = []
    for number in range(n):
        row = RankRow(f"rank{number}", rank=number, node=f"node{number // 8}", step=100, idle_s=60.0, seen_s=50.0)
        row.pace_s, row.gpu, row.gpu_memory, row.gpu_memory_limit = 0.5, 0.9, 60 * 2**30, 80 * 2**30
        row.memory, row.open_phase = 2**32, "all_reduce"
        if hangs is None:
            row.idle_s, row.open_phase, row.phase = 0.4, None, "forward"
        elif number == hangs:
            row.step, row.steps_behind, row.open_phase, row.open_s = 99, 1, "data", 58.0
        rows.append(row)
    judge(rows)
    return Frame("run-a", datetime(2026, 1, 2, 3, 4, 5), rows, elapsed_s=100.0, goodput=0.5)


def lines_of(frame: Frame | None, view: View, width: int, height: int, error: str = "") -> list[str]:
    target = io.StringIO()
    console = Console(file=target, width=width, height=height, color_system=None, legacy_windows=False)
    console.print(Screen(frame, view, error, 2.0), end="")
    return target.getvalue().split("\n")


@pytest.mark.parametrize("n", [1, 8, 64, 1000])
@pytest.mark.parametrize(("width", "height"), [(40, 10), (80, 24), (100, 40), (160, 50)])
@pytest.mark.parametrize("group", ["auto", "node", "none"])
def test_a_screen_fits_and_shows_the_label_that_hangs_first(n: int, width: int, height: int, group: str) -> None:
    lines = lines_of(frame_of(n, hangs=n // 2), View(group=group), width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    shown = " ".join(lines)
    assert f"rank{n // 2}" in shown
    if n > 1:
        assert f"rank{n // 2} hangs, no new step for 1m00s, at step 99" in lines[2] or width < 80
    if width >= 80 and group == "none":
        assert f"rank{n // 2}" in lines[6], lines
    if width >= 80:
        assert "q quit" in lines[-1]


def test_a_thousand_ranks_are_grouped_by_node_with_the_worst_labels_above() -> None:
    lines = lines_of(frame_of(1000, hangs=417), View(), 120, 40)
    assert lines[4].split()[:2] == ["label", "node"]
    assert lines[6].split()[:4] == ["rank417", "node52", "hangs", "1m00s"]
    assert lines[8].split()[0] == "node"
    assert lines[10].split()[:5] == ["node52", "8", "1", "hangs", "1m00s"]
    assert any(line.startswith("1 to ") and line.endswith(" of 125 nodes") for line in (line.strip() for line in lines))


def test_ranks_of_one_node_are_not_grouped_by_themselves() -> None:
    frame = frame_of(8, hangs=1)
    [table] = body(frame, View(), 6)
    assert table.caption == "1 to 2 of 8 labels"


def test_without_a_stall_the_slowest_label_is_named() -> None:
    frame = frame_of(8)
    assert "no label takes more than 1.2 times" in heading(frame)[2].plain
    frame.rows[3].pace_s = 1.0
    judge(frame.rows)
    assert heading(frame)[2].plain == "slowest: rank3, 2.0 times the median step time"


def test_the_heading_names_what_failed_first() -> None:
    frame = frame_of(3)
    for number, ended_s in ((1, 30.0), (2, 20.0)):
        row = frame.rows[number]
        row.state, row.ended_s, row.reason = "failed", ended_s, f"ValueError: {number}"
    judge(frame.rows)
    assert heading(frame)[2].plain == "rank1, rank2 failed, rank1 first 30.0s ago: ValueError: 1"
    assert heading(frame)[1].plain == "3 labels: 1 running, 2 failed  step 100  500ms/step  goodput 50%"


def test_the_heading_points_to_status_when_nothing_arrives() -> None:
    frame = frame_of(2)
    for row in frame.rows:
        row.idle_s = row.seen_s = 48.0
    judge(frame.rows, {row.node for row in frame.rows if row.node})
    assert heading(frame)[1].plain.startswith("2 labels: 2 late")
    assert (
        heading(frame)[2].plain == "nothing has arrived from node0 for 48.0s: telemetry is late, see `chiplog status`"
    )


def test_the_heading_has_the_newest_event_of_a_gpu() -> None:
    frame = frame_of(8)
    frame.gpu_event = {"label": "rank3", "kind": "gpu.xid", "ago_s": 75.0, "message": "XID 79: fell off the bus"}
    frame.gpu_event["advice"] = None
    assert heading(frame)[2].plain == "rank3: GPU error 1m15s ago: XID 79: fell off the bus"
    frame.gpu_event["advice"] = "drain the node"
    assert heading(frame)[2].plain == "rank3: GPU error 1m15s ago: XID 79: fell off the bus; to do: drain the node"
    assert "no label takes more than" in heading(frame)[3].plain


def test_the_heading_has_the_verdict_of_the_page() -> None:
    frame = frame_of(8)
    frame.verdict = {"text": "rank3 cost 59 s in step 7.", "is_slow": True, "has_failed": False}
    assert heading(frame)[2].plain == "rank3 cost 59 s in step 7."
    hanging = frame_of(8, hangs=2)
    hanging.verdict = frame.verdict
    assert heading(hanging)[2].plain.startswith("rank2 hangs")
    assert heading(hanging)[2].plain.endswith("; rank3 cost 59 s in step 7.")
    frame.rows[1].state, frame.rows[1].reason = "failed", "ValueError: 1"
    judge(frame.rows)
    frame.verdict = {"text": "rank1 failed first, after step 6: ValueError: 1.", "is_slow": False, "has_failed": True}
    assert heading(frame)[2].plain == "rank1 failed first, after step 6: ValueError: 1."


def test_keys_sort_filter_group_pause_scroll_and_quit() -> None:
    view = View()
    for name in [*list(SORTS)[1:], "attention"]:
        assert press(view, "s", 24)
        assert view.sort == name
    press(view, "r", 24)
    press(view, "g", 24)
    press(view, "p", 24)
    assert (view.is_reversed, view.group, view.is_paused) == (True, "node", True)
    press(view, " ", 24)
    press(view, "h", 24)
    assert (view.is_paused, view.has_help) == (False, True)
    press(view, "page down", 24)
    press(view, "up", 24)
    assert view.offset == 15
    assert press(view, "q", 24) is False


def test_a_filter_is_typed_kept_and_dropped() -> None:
    view = View()
    for key in ["/", *"rankq", "backspace", "7", "enter"]:
        assert press(view, key, 24)
    assert (view.filter, view.typed) == ("rank7", None)
    lines = lines_of(frame_of(64), view, 100, 30)
    assert [line.split()[0] for line in lines[6:] if line.startswith("rank")] == ["rank7"]
    assert "filter 'rank7'" in lines[-1]
    press(view, "/", 24)
    press(view, "x", 24)
    assert "filter: rank7x" in footer(view, "", 2.0, 100).plain
    press(view, "escape", 24)
    assert view.filter == "rank7"
    press(view, "escape", 24)
    assert view.filter == ""


def test_scrolling_stops_at_the_last_label() -> None:
    view = View(group="none", offset=10_000)
    lines = lines_of(frame_of(100), view, 100, 30)
    assert any("rank99" in line for line in lines)
    assert 0 < view.offset < 100


def test_help_fits_eighty_columns() -> None:
    lines = lines_of(frame_of(8), View(has_help=True), 80, 24)
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("goodput") for line in lines)


def test_an_error_is_shown_below_the_last_frame() -> None:
    lines = lines_of(frame_of(8), View(), 100, 24, error="collector silent\x1b[2J")
    assert lines[0].startswith("run-a") and lines[-1].startswith("collector silent\\x1b[2J  by attention")
    assert lines_of(None, View(), 100, 24)[0].startswith("reading the first frame")


def test_bytes_are_short() -> None:
    assert [bytes_text(None), bytes_text(2**21), bytes_text(3 * 2**29), bytes_text(2**33, 2**34)] == [
        "",
        "2M",
        "1.5G",
        "8/16G",
    ]
