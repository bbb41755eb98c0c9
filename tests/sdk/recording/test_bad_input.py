"""Bad names, calls in the wrong order or twice: one behaviour, one message with the remedy, and no exception.

Bad configs have separate tests (test_config.py), and so have bad values (test_recorder.py).
"""

import pytest

import chiplog
from chiplog_schemas.model.events import EventKind
from tests.support.safeguard import proves
from tests.support.waiting import wait_until

QUIET = {"mode": "offline", "capture_console": False}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def identity_of(offline) -> dict[str, object]:
    return offline(EventKind.IDENTITY)[0].fields["identity"]


@proves("run-id-is-no-directory", "no run ID or label is the name of a directory", condition=False)
@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("sweep/17", "sweep_17"),
        ("two\nlines", "two_lines"),
        (" spaces ", "spaces"),
        ("🚀 gpt 🔥", "🚀 gpt 🔥"),
        (17, "17"),
        ("\udcff", "_"),
        (".", "_"),
        ("..", "__"),
        ("%2E.", "__"),
        (".%2e", "__"),
        ("..x", "..x"),
    ],
)
@pytest.mark.parametrize("what", ["run_id", "label"])
def test_a_run_id_or_label_that_cannot_be_kept_is_changed_and_said_once(
    chiplog_dir, offline, caplog, what, given, used
):
    run = chiplog.init(**QUIET, **{what: given})
    run.log({"x": 1.0})
    run.finish()
    assert identity_of(offline)[what] == used
    is_changed = str(given) != used
    assert len(said(caplog)) == is_changed, said(caplog)
    rows = [event.fields["message"] for event in offline(EventKind.NOTICE) if event.fields["notice"] == "bad_value"]
    assert len(rows) == is_changed, "it is a row in `events` too"
    if is_changed:
        assert f"{used!r} is used" in rows[0]


def test_run_ids_of_ten_kilobytes_that_begin_alike_are_two_runs(chiplog_dir, caplog) -> None:
    ids = []
    for end in "ab":
        run = chiplog.init(**QUIET, run_id="x" * 10_000 + end)
        ids.append(run.id)
        assert chiplog.init(**QUIET, run_id="x" * 10_000 + end) is run, "and the same one is the same"
        run.finish()
    assert ids[0] != ids[1]
    assert {len(run_id) for run_id in ids} == {128}
    assert all(len(message) < 400 for message in said(caplog))


@pytest.mark.parametrize("blank", ["", "  ", "\n"])
def test_an_empty_run_id_or_label_is_none_and_one_is_made_up(chiplog_dir, offline, caplog, blank) -> None:
    run = chiplog.init(**QUIET, run_id=blank, label=blank)
    run.finish()
    assert len(run.id) > 10
    assert "-" in run.label
    assert len(said(caplog)) == (2 if blank else 0)


def test_names_for_people_are_one_line_and_the_rest_of_them_is_kept(chiplog_dir, offline, caplog) -> None:
    run = chiplog.init(project="gpt 🚀/nano", name="a\nb\x1b[31m", group="g" * 5_000, notes="two\nlines", **QUIET)
    run.finish()
    identity = identity_of(offline)
    assert (identity["project"], identity["name"]) == ("gpt 🚀/nano", "a b [31m")
    assert len(identity["group"]) == 1_024
    assert identity["notes"] == "two\nlines"
    assert sorted(message.split()[1] for message in said(caplog)) == ["group", "name"]


def test_init_twice_without_a_word_of_another_run_is_the_open_run_where_the_run_is_known(chiplog_dir, caplog) -> None:
    first = chiplog.init(**QUIET, run_id="r")
    assert chiplog.init(**QUIET, run_id="r") is first
    assert chiplog.init(**QUIET, run_id="r", label=first.label) is first
    assert said(caplog) == ["chiplog: init() was called twice for run r; the open run is returned"] * 2
    other = chiplog.init(**QUIET, run_id="r", label="another")
    assert other is not first
    assert first._finished, "one process is one writer at a time"
    other.finish()


@pytest.mark.promise(3)
@pytest.mark.parametrize("bad", [object(), [], {"a": 1}, b"bytes", float("nan"), True])
def test_whatever_is_given_as_a_name_init_returns_a_run_that_logs(chiplog_dir, offline, bad) -> None:
    run = chiplog.init(bad, run_id=bad, label=bad, name=bad, group=bad, job_type=bad, notes=bad, tags=bad, **QUIET)
    run.log({"x": 1.0})
    run.finish()
    assert len(offline(EventKind.METRICS)) == 1


def test_a_metric_and_a_phase_without_a_name_are_told_to_have_one(chiplog_dir, caplog) -> None:
    run = chiplog.init(**QUIET, run_id="r")
    with run.phase(""):
        run.log({"": 1.0})
    run.finish()
    assert said(caplog) == [
        "chiplog: a phase has no name, and is not recorded; give the phase a name",
        "chiplog: a value has no name: its key is ''; give it a name",
    ]


def test_an_address_that_is_none_is_named_with_the_form_of_an_address(chiplog_dir, caplog) -> None:
    with chiplog.init(agent="garbage", capture_console=False) as run:
        run.log({"a": 1.0})
        wait_until(lambda: "garbage" in caplog.text, "a warning")
    assert "'garbage' is not an address; write tcp://HOST:PORT or ipc:///path" in caplog.text


@pytest.mark.parametrize("name", ["primary", "capture_console", "update_finish_state"])
def test_a_yes_or_no_that_is_neither_is_one_warning_and_its_default(chiplog_dir, offline, caplog, name) -> None:
    with chiplog.init(mode="offline", run_id="r", **{"capture_console": False, name: "maybe"}) as run:
        assert run.is_primary, "as of a process without a launcher"
    [message] = [text for text in said(caplog) if name in text]
    assert message == (
        f"chiplog: {name}='maybe' is neither true nor false; its default is used, so give one of "
        "True, False, 1, 0, yes, no, on, off"
    )
    rows = [event.fields["message"] for event in offline(EventKind.NOTICE) if event.fields["notice"] == "bad_value"]
    assert [f"chiplog: {row}" for row in rows] == [message]


@pytest.mark.parametrize("given", ["often", -1, 0.01, 1e9, float("nan"), [1]], ids=repr)
def test_an_interval_of_samples_that_is_none_is_one_warning(chiplog_dir, offline, caplog, given) -> None:
    chiplog.init(**QUIET, run_id="r", sample_interval_s=given).finish()
    [message] = said(caplog)
    assert "sample_interval_s=" in message and "give 0.1 to 3600 s, or 0 for no samples" in message
    assert "sample_interval_s" not in offline(EventKind.IDENTITY)[0].fields["identity"]


def test_a_directory_that_cannot_be_made_is_one_line_with_the_remedy_and_the_end_counts_what_is_lost(caplog) -> None:
    with chiplog.init(dir="/dev/null/x", run_id="r", capture_console=False) as run:
        run.log({"x": 1.0})
        run._tick()
    assert said(caplog) == [
        "chiplog: no journal in /dev/null/x/journals: Not a directory (/dev/null/x); events are kept in memory only, "
        "bounded, and end with this process unless an agent takes them; set dir= or CHIPLOG_DIR to a directory "
        "that this user can write",
        "chiplog: 4 events reached no agent and end with this process: there is no journal on disk",
    ]


def test_of_a_journal_in_memory_nothing_says_that_it_is_kept(caplog) -> None:
    with chiplog.init(dir="/dev/null/x", agent="garbage", run_id="r", capture_console=False) as run:
        run.log({"x": 1.0})
        wait_until(lambda: "'garbage' is not an address" in caplog.text, "a warning")
    assert "keeps everything" not in caplog.text
    assert "events are kept in memory, bounded, until an agent answers" in caplog.text
