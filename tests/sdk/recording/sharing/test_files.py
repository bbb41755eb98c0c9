"""`run.save`: what it copies, the names in the run, what it rejects, and that no event comes without the bytes."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog.recording.sharing import files
from chiplog_cli import main
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import paths_for_root
from tests.support.journals import Event, read_events
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.signals import handling, raising
from tests.support.waiting import wait_until

Offline = Callable[..., list[Event]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of the test's own."""
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def run(chiplog_dir: Path) -> chiplog.Run:
    return chiplog.init(mode="offline", capture_console=False)


def said(offline: Offline) -> dict[str, tuple[int, bytes]]:
    """Return the file events: bytes and digest by path."""
    return {e.fields["path"]: (e.fields["bytes"], e.fields["sha256"]) for e in offline(EventKind.FILE)}


def notices(offline: Offline) -> list[tuple[str, str]]:
    """Return (kind, message) of each diagnostic."""
    events = offline(EventKind.NOTICE)
    return [(e.fields["body"]["kind"], e.fields["message"]) for e in events if e.fields["notice"] == "bad_value"]


def outbox(chiplog_dir: Path) -> dict[str, bytes]:
    """Return what lies in the outbox of offline runs, by name."""
    return {path.name: path.read_bytes() for path in paths_for_root(chiplog_dir).offline_files.iterdir()}


def test_a_file_is_copied_by_content_and_said_with_path_size_and_hash(
    run: chiplog.Run, here: Path, chiplog_dir: Path, offline: Offline
) -> None:
    data = os.urandom(3 << 20)
    (here / "ckpt").mkdir()
    (here / "ckpt" / "last.pt").write_bytes(data)
    assert run.save("ckpt/last.pt") == ["ckpt/last.pt"]
    (here / "ckpt" / "last.pt").write_bytes(b"the next epoch")  # the saved copy does not change
    digest = hashlib.sha256(data)
    assert said(offline) == {"ckpt/last.pt": (len(data), digest.digest())}
    assert outbox(chiplog_dir) == {digest.hexdigest(): data}
    directory = paths_for_root(chiplog_dir).offline_files
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


def test_one_content_is_one_copy_whatever_it_is_called(
    run: chiplog.Run, here: Path, chiplog_dir: Path, offline: Offline
) -> None:
    for name in ("a", "b"):
        (here / name).write_bytes(b"same")
        run.save(name)
    run.save("a")
    (here / "empty").touch()
    run.save("empty")
    assert len(offline(EventKind.FILE)) == 4
    assert sorted(outbox(chiplog_dir).values()) == [b"", b"same"]


@pytest.mark.parametrize(
    ("path", "name", "names"),
    [
        ("model.pt", None, ["model.pt"]),
        ("./sub/../model.pt", None, ["model.pt"]),
        ("{here}/model.pt", None, ["model.pt"]),
        ("{here}/../outside/x/y.txt", None, ["y.txt"]),
        ("model.pt", "best/final.pt", ["best/final.pt"]),
        ("sub", None, ["sub/a.txt", "sub/deep/b.txt"]),
        ("sub/", None, ["sub/a.txt", "sub/deep/b.txt"]),
        (".", None, ["[1].txt", "model.pt", "sub/a.txt", "sub/deep/b.txt"]),
        ("sub", "all", ["all/a.txt", "all/deep/b.txt"]),
        ("../outside/x", None, ["x/y.txt"]),
        ("*.pt", None, ["model.pt"]),
        ("sub/*", None, ["sub/a.txt", "sub/deep/b.txt"]),
        ("sub/*.txt", "texts", ["texts/a.txt"]),
        ("**/*.txt", None, ["[1].txt", "sub/a.txt", "sub/deep/b.txt"]),
        ("[1].txt", None, ["[1].txt"]),
        (Path("model.pt"), None, ["model.pt"]),
        (b"model.pt", None, ["model.pt"]),
    ],
    ids=str,
)
def test_what_a_path_names_and_what_it_is_called_in_the_run(
    run: chiplog.Run, here: Path, path: Any, name: str | None, names: list[str]
) -> None:
    for file in ("model.pt", "sub/a.txt", "sub/deep/b.txt", "../outside/x/y.txt", "[1].txt"):
        (here / file).parent.mkdir(parents=True, exist_ok=True)
        (here / file).write_text(file)
    path = path.format(here=here) if isinstance(path, str) else path
    assert sorted(run.save(path, name)) == names


def test_links_to_files_are_followed_and_links_to_directories_are_not(run: chiplog.Run, here: Path) -> None:
    (here / "blobs").mkdir()
    (here / "blobs" / "x").write_text("weights")
    (here / "model").mkdir()
    (here / "model" / "weights").symlink_to("../blobs/x")
    (here / "model" / "again").symlink_to("..")
    assert run.save("model") == ["model/weights"]


def test_what_cannot_be_saved_is_one_line_each_and_the_rest_is_saved(
    run: chiplog.Run, here: Path, offline: Offline, caplog: pytest.LogCaptureFixture
) -> None:
    (here / "d").mkdir()
    os.mkfifo(here / "d" / "pipe")
    (here / "d" / "good").write_text("good")
    (here / "d" / "circle").symlink_to("circle")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(here / "d" / "socket"))
        assert run.save("d") == ["d/good"]
    for bad, name in (("missing.pt", None), ("*.none", None), ("d/good", "../up"), ("d/good", "/etc/x"), (17, None)):
        assert run.save(bad, name) == []  # type: ignore[arg-type]  # what users pass
    assert run.save("d/good", "a\nb") == []
    assert run.save("d/good", "x" * 2_000) == []
    assert run.save("bad\0name") == []
    kinds = [kind for kind, _ in notices(offline)]
    assert sorted(set(kinds)) == ["file_bad_path", "file_irregular", "file_missing", "file_unreadable"]
    assert all("\n" not in message and len(message) < 600 for _, message in notices(offline))
    assert "file 'd/pipe': it is not a regular file; it is not saved" in [message for _, message in notices(offline)]
    assert "file 'missing.pt': No such file or directory; it is not saved" in caplog.text
    run.finish()
    counts = [e.fields["body"] for e in offline(EventKind.NOTICE) if e.fields["notice"] == "bad_values"][-1]
    assert counts["file_bad_path"] == 6


def test_bounds_refuse_with_the_variable_that_sets_them(
    chiplog_dir: Path, here: Path, monkeypatch: pytest.MonkeyPatch, offline: Offline
) -> None:
    monkeypatch.setenv("CHIPLOG_FILE_BYTES_MAX", "700000")
    monkeypatch.setenv("CHIPLOG_OUTBOX_BYTES_MAX", "1048576")
    run = chiplog.init(mode="offline", capture_console=False)
    for name, size in (("first", 700_000), ("large", 700_001), ("second", 400_000), ("small", 300_000)):
        (here / name).write_bytes(name.encode().ljust(size))
    assert [run.save(name) for name in ("first", "large", "second", "small")] == [["first"], [], [], ["small"]]
    messages = dict(notices(offline))
    assert "700001 bytes, the limit is 700000, set by CHIPLOG_FILE_BYTES_MAX" in messages["file_too_large"]
    assert "1048576, set by CHIPLOG_OUTBOX_BYTES_MAX" in messages["outbox_full"]
    assert sum(map(len, outbox(chiplog_dir).values())) == 1_000_000


def test_a_directory_of_very_many_files_is_saved_up_to_the_limit(
    run: chiplog.Run, here: Path, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "FILES_PER_SAVE_MAX", 3)
    (here / "d").mkdir()
    for number in range(5):
        (here / "d" / str(number)).write_text(str(number))
    assert run.save("d") == ["d/0", "d/1", "d/2"]
    assert [kind for kind, _ in notices(offline)] == ["too_many_files"]


@proves("save-bytes-bounded", "one save() copies no more bytes than may wait", condition=False)
def test_one_call_copies_no_more_bytes_than_may_wait_and_says_where_it_ended(
    chiplog_dir: Path, here: Path, monkeypatch: pytest.MonkeyPatch, offline: Offline
) -> None:
    """The agent frees the outbox at the same time, so the outbox's own bound does not end such a call."""
    monkeypatch.setenv("CHIPLOG_OUTBOX_BYTES_MAX", "1048576")
    monkeypatch.setattr(files, "_bytes_in", lambda outbox: 0)  # an agent that takes all at once
    run = chiplog.init(mode="offline", capture_console=False)
    (here / "d").mkdir()
    for number in range(6):
        (here / "d" / str(number)).write_bytes(bytes([number]) * 400_000)
    assert run.save("d") == ["d/0", "d/1"]
    message = dict(notices(offline))["too_many_bytes"]
    assert message == (
        "file 'd': more than 1048576 bytes at once, set by CHIPLOG_OUTBOX_BYTES_MAX; 'd/2' and the files after it "
        "are not saved, so save fewer files"
    )


@proves(
    "save-refuses-whole-disk", "save() takes no whole disk, no home and not chiplog's own directory", condition=False
)
def test_the_whole_disk_a_home_and_the_directory_of_chiplog_are_refused_in_one_line(
    run: chiplog.Run, chiplog_dir: Path, here: Path, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run.save(f"{directory}/")` with an empty variable is the whole disk."""
    home = here / "home" / "me"
    (home / "x").mkdir(parents=True)
    (home / "x" / "a").write_text("a")
    (home / "b").write_text("b")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(files, "FILES_PER_SAVE_MAX", 3)  # of a disk, if it were taken
    for path in ("/", "/*", "/**", "//", home, f"{home}/*", "home", chiplog_dir):
        assert run.save(path) == []
    assert not paths_for_root(chiplog_dir).offline_files.exists()
    assert {kind for kind, _ in notices(offline)} == {"too_much"}
    messages = [message for _, message in notices(offline)]
    assert messages[0] == ("file '/': it is the whole disk; none of it is saved, so give a directory or files below it")
    assert any("it belongs to CHIPLOG_DIR" in message for message in messages)
    assert any("it is, or holds, a home directory" in message for message in messages)
    assert run.save(home / "x") == ["home/me/x/a"]
    monkeypatch.chdir(home)
    assert run.save("b*") == ["b"]


def test_a_directory_without_a_file_in_it_is_one_line(run: chiplog.Run, here: Path, offline: Offline) -> None:
    (here / "d" / "deep").mkdir(parents=True)
    assert run.save("d") == []
    assert notices(offline) == [("file_missing", "file 'd': it contains no files; nothing is saved")]


def test_what_chiplog_itself_writes_is_not_saved_with_the_directory_it_lies_in(
    run: chiplog.Run, chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.log({"a": 1.0})
    (chiplog_dir.parent / "work" / "a").write_text("a")
    assert run.save(chiplog_dir.parent) == [f"{chiplog_dir.parent.name}/work/a"]
    monkeypatch.chdir(chiplog_dir.parent)
    assert run.save("**") == ["work/a"]


def test_a_file_that_is_written_to_meanwhile_is_saved_as_read_and_said_to_be(
    run: chiplog.Run, here: Path, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here / "log.txt"
    path.write_bytes(b"x" * 1_000)
    read, own_thread = os.read, threading.get_ident()

    def reads_while_it_grows(descriptor: int, n: int) -> bytes:
        if threading.get_ident() == own_thread and path.stat().st_size == 1_000:
            with path.open("ab") as file:
                file.write(b"y" * 500)
        return read(descriptor, n)

    monkeypatch.setattr(files.os, "read", reads_while_it_grows)
    assert run.save("log.txt") == ["log.txt"]
    monkeypatch.undo()
    assert [kind for kind, _ in notices(offline)] == ["file_changed"]


@proves("interrupt-passes-save", "what a signal handler raises passes through save()", new="new.unlink()")
def test_what_a_signal_handler_raises_while_a_file_is_saved_reaches_the_training(
    run: chiplog.Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename_and_expire(source: Path, target: Path) -> None:
        rename(source, target)
        signal.raise_signal(signal.SIGUSR1)

    rename = os.rename
    (here / "s.txt").write_text("saved")
    monkeypatch.setattr(files.os, "rename", rename_and_expire)
    with handling(signal.SIGUSR1, raising(TimeoutError("own"))), pytest.raises(TimeoutError, match="own"):
        run.save("s.txt")


def test_only_the_primary_saves_and_others_are_told_once(
    chiplog_dir: Path, here: Path, offline: Offline, caplog: pytest.LogCaptureFixture
) -> None:
    (here / "a").write_text("a")
    run = chiplog.init(mode="offline", primary=False, label="rank3", capture_console=False)
    assert [run.save("a") for _ in range(3)] == [[], [], []]
    assert caplog.text.count("only the primary's files are the run's; call it where run.is_primary") == 1
    run.finish()
    assert offline(EventKind.NOTICE)[-1].fields["body"] == {"save_not_primary": 3}
    assert not offline(EventKind.FILE)
    assert not paths_for_root(chiplog_dir).offline_files.exists()


def test_any_label_saves_below_the_folder_of_all_labels(chiplog_dir: Path, here: Path, offline: Offline) -> None:
    (here / "a").write_text("a")
    run = chiplog.init(mode="offline", primary=False, label="rank3", capture_console=False)
    saved = run._files.save_for_any_label("a", "mlflow/artifacts/a")
    assert [(file.path, file.size, file.sha256) for file in saved] == [
        ("mlflow/artifacts/a", 1, hashlib.sha256(b"a").digest())
    ]
    run.finish()
    assert run._files.save_for_any_label("a", "mlflow/artifacts/b") == []
    assert said(offline) == {"mlflow/artifacts/a": (1, hashlib.sha256(b"a").digest())}


def test_a_disabled_or_finished_run_saves_nothing_and_nothing_is_raised(
    chiplog_dir: Path, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (here / "a").write_text("a")
    assert chiplog.init(mode="disabled").save("a") == []
    assert caplog.text == ""
    run = chiplog.init(mode="offline", capture_console=False)
    run.finish()
    assert run.save("a") == []
    assert "after finish()" in caplog.text
    assert not paths_for_root(chiplog_dir).offline_files.exists()


def test_an_outbox_that_cannot_be_made_costs_the_file_and_not_the_training(
    run: chiplog.Run, chiplog_dir: Path, here: Path, offline: Offline
) -> None:
    (here / "a").write_text("a")
    paths_for_root(chiplog_dir).offline_files.write_text("a file in its place")
    assert run.save("a") == []
    run.log({"x": 1.0})
    assert [kind for kind, _ in notices(offline)] == ["file_unreadable"]
    assert len(offline(EventKind.METRICS)) == 1


def test_a_process_that_is_killed_in_the_middle_leaves_no_event_without_its_bytes(
    chiplog_dir: Path, here: Path
) -> None:
    with (here / "big").open("wb") as file:
        file.write(os.urandom(1 << 20))
        file.truncate(64 << 20)
    code = (
        "import chiplog, itertools\n"
        "run = chiplog.init(mode='offline', capture_console=False)\n"
        "for n in itertools.count():\n"
        "    open('big', 'r+b').write(b'%d' % n)\n"
        "    run.save('big')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=here)
    directory = paths_for_root(chiplog_dir).offline_files

    def n_saved() -> int:
        return sum(not path.name.startswith(".") for path in directory.iterdir()) if directory.exists() else 0

    wait_until(lambda: n_saved() >= 2, "two saves")
    process.send_signal(signal.SIGKILL)
    process.wait()
    events = [e for e in read_events(directory.parent) if e.kind == EventKind.FILE]
    assert len(events) >= 1
    for event in events:
        data = (directory / event.fields["sha256"].hex()).read_bytes()
        assert (len(data), hashlib.sha256(data).digest()) == (event.fields["bytes"], event.fields["sha256"])


def test_files_of_offline_runs_are_delivered_by_sync_once_and_again_when_asked(
    bare_node: Node, here: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (here / name).write_text(name)
    with chiplog.init(mode="offline", dir=tmp_path / "laptop", run_id="off", capture_console=False) as run:
        run.save("*")
    offline = tmp_path / "laptop" / "offline"
    bare_node.start()
    for flags in ([], [], ["--again"], ["--delete"]):
        assert main(["sync", str(offline), "--dir", str(bare_node.root), *flags]) == 0
        bare_node.until("SELECT message FROM events WHERE kind = 'file_stored'", lambda rows: len(rows) == 2)
        wait_until(lambda: not list(bare_node.place.outbox.iterdir()), "an outbox that is empty")
        assert len(list((offline / "files").iterdir())) == (0 if flags == ["--delete"] else 2)
    rows = bare_node.sql("SELECT run_id, path, bytes FROM files ORDER BY path")
    assert rows == [{"run_id": "off", "path": "a", "bytes": 1}, {"run_id": "off", "path": "b", "bytes": 1}]
    kept = [path.read_text() for path in bare_node.place.files.rglob("*") if path.is_file()]
    assert sorted(kept) == ["a", "b"]
