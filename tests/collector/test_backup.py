"""Backups of a collector's log: what was synced comes back, whatever is written in the meantime."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from chiplog_collector.cli import backup, restore
from chiplog_collector.store.delta_store import DeltaStore
from chiplog_collector.store.outbox import Outbox
from chiplog_collector.store.piece_cutter import PieceCutter
from chiplog_collector.store.publisher import Publisher
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.storage.record import Record
from chiplog_schemas.storage.segment_format import list_segments, read_segment
from chiplog_schemas.storage.watermark import Watermark
from tests.support.collector_log import LOG_ID
from tests.support.index import Index, copy_of
from tests.support.lake import stored_rows
from tests.support.restored_log import Restored
from tests.support.safeguard import proves
from tests.support.sample_log import everything, place_of


def invoke(command: Any, *arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def publish(index: Index, place: Paths, number: int | None = None) -> None:
    """Publish how far the log is synced, as the receiver does."""
    mark = Watermark(place.collector / "synced", writable=True)
    mark.set(index.log.next_number if number is None else number)
    mark.close()


def restored_views(index: Index, target: Path) -> dict[str, list[str]]:
    root = target.with_name(f"{target.name}-restored")
    done = invoke(restore, target, "--dir", root)
    assert done.exit_code == 0, done.output
    return copy_of(index, str(paths_for_root(root).index))


def store_content(place: Paths) -> str:
    """Store a file as the collector does, and return its digest."""
    digest = hashlib.sha256(b"content").hexdigest()
    content = place.files / digest[:2] / digest
    content.parent.mkdir(parents=True)
    content.write_bytes(b"content")
    return digest


@proves("only-synced-records-backed-up", "a backup has no record that may not be on stable storage")
def test_a_backup_of_an_open_log_restores_every_view(index: Index, tmp_path: Path) -> None:
    index.take(*everything())
    before, synced = index.views(), index.log.next_number
    index.log.append(2, b"not synced, as far as the index knows")
    index.log.commit()
    place = place_of(index)
    publish(index, place, synced)
    digest = store_content(place)
    target = tmp_path / "backup"
    done = invoke(backup, target, "--from", place.root)
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) == 1
    [(_, copy)] = list_segments(target / "log")
    assert [item.number for item in read_segment(copy) if isinstance(item, Record)][-1] < synced
    assert restored_views(index, target) == before
    root = tmp_path / "backup-restored"
    assert (paths_for_root(root).files / digest[:2] / digest).read_bytes() == b"content"
    again = invoke(restore, target, "--dir", root)
    assert (again.exit_code, len(again.output.splitlines())) == (2, 1), "it has data now"


@proves("rewritten-segment-copied-again", "a repeated backup follows a log whose segments were rewritten")
def test_a_second_backup_copies_only_what_is_new_or_was_rewritten(index: Index, tmp_path: Path) -> None:
    for payload in everything():
        index.take(payload)
        index.log.skip_to(index.log.next_number + 1)  # begins a new segment
    place, target = place_of(index), tmp_path / "backup"
    publish(index, place)
    segments = [path for _, path in list_segments(place.collector / "log")]
    assert len(segments) > 2
    assert f"{len(segments)} of them copied now" in invoke(backup, target, "--from", place.root).output
    assert "1 of them copied now" in invoke(backup, target, "--from", place.root).output, "the newest one"
    replacement = segments[0].with_name(".rewritten")
    replacement.write_bytes(segments[0].read_bytes()[:-1])
    os.replace(replacement, segments[0])
    os.unlink(segments[1])
    assert "2 of them copied now" in invoke(backup, target, "--from", place.root).output
    assert (target / "log" / segments[0].name).read_bytes() == segments[0].read_bytes()
    assert not (target / "log" / segments[1].name).exists()


def test_a_directory_that_is_no_backup_is_refused_in_one_line_and_stays(index: Index, tmp_path: Path) -> None:
    index.take(*everything())
    place, target = place_of(index), tmp_path / "full"
    publish(index, place)
    target.mkdir()
    (target / "thesis.tex").touch()
    done = invoke(backup, target, "--from", place.root)
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1), done.output
    assert f"{target} is not empty and not a backup" in done.output
    assert [path.name for path in target.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("thesis.tex", "is no backup: it has no manifest.json; name a directory that chiplog backup wrote"),
        ("run.json", "is the export of a run, not a backup; bring it in with chiplog import {target}"),
        ("begun", "is no complete backup: it has no manifest.json; run chiplog backup {target} again"),
    ],
)
def test_a_directory_that_is_no_backup_is_not_restored(tmp_path: Path, name: str, reason: str) -> None:
    target = tmp_path / "full"
    target.mkdir()
    (target / name).touch()
    done = invoke(restore, target, "--dir", tmp_path / "new")
    assert (done.exit_code, done.output) == (2, f"Error: {target} {reason.format(target=target)}\n")
    assert [path.name for path in target.iterdir()] == [name]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("damage", ["manifest", "segment"])
def test_a_damaged_backup_restores_nothing(index: Index, tmp_path: Path, damage: str) -> None:
    index.take(*everything())
    place, target = place_of(index), tmp_path / "backup"
    publish(index, place)
    invoke(backup, target, "--from", place.root)
    if damage == "manifest":
        (target / "manifest.json").write_text(json.dumps({"format": "something else"}))
    else:
        next((target / "log").iterdir()).write_bytes(b"")
    done = invoke(restore, target, "--dir", tmp_path / "new")
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1), done.output
    assert not (tmp_path / "new").exists()


@proves("damaged-backup-refused", "a backup that has changed is not restored without a word", condition=False)
@pytest.mark.parametrize("what", ["segment", "file"])
def test_a_backup_that_has_changed_restores_nothing_unless_damage_is_accepted(
    index: Index, tmp_path: Path, what: str
) -> None:
    index.take(*everything())
    place, target = place_of(index), tmp_path / "backup"
    publish(index, place)
    digest = store_content(place)
    assert invoke(backup, target, "--from", place.root).exit_code == 0
    [(_, segment)] = list_segments(target / "log")
    changed = segment if what == "segment" else target / "files" / digest[:2] / digest
    data = bytearray(changed.read_bytes())
    data[len(data) // 2] ^= 1  # of the same size
    changed.unlink()
    changed.write_bytes(data)
    refused = invoke(restore, target, "--dir", tmp_path / "new")
    assert (refused.exit_code, len(refused.output.splitlines())) == (2, 1), refused.output
    assert f"{changed} has changed since it was backed up" in refused.output
    assert not list((tmp_path / "new").iterdir())
    done = invoke(restore, target, "--dir", tmp_path / "new", "--damaged")
    assert done.exit_code == 0, done.output
    assert (paths_for_root(tmp_path / "new").files / digest[:2] / digest).exists() == (what == "segment")


def test_a_backup_without_checksums_is_restored_and_gets_them_with_the_next_one(index: Index, tmp_path: Path) -> None:
    for payload in everything()[:3]:
        index.take(payload)
        index.log.skip_to(index.log.next_number + 1)
    place, target = place_of(index), tmp_path / "backup"
    publish(index, place)
    assert invoke(backup, target, "--from", place.root).exit_code == 0
    manifest = json.loads((target / "manifest.json").read_bytes())
    sums = [segment.pop("sha256") for segment in manifest["segments"]]
    (target / "manifest.json").write_text(json.dumps(manifest))
    assert invoke(restore, target, "--dir", tmp_path / "new").exit_code == 0
    assert "1 of them copied now" in invoke(backup, target, "--from", place.root).output
    assert [segment["sha256"] for segment in json.loads((target / "manifest.json").read_bytes())["segments"]] == sums


@proves("interrupted-backup-restored", "a backup whose repetition was interrupted can be restored")
@pytest.mark.full
def test_a_backup_whose_repetition_was_interrupted_restores_what_it_had(index: Index, tmp_path: Path) -> None:
    first, *rest = everything()
    index.take(first)
    before, synced = index.views(), index.log.next_number
    index.take(*rest)
    place, target = place_of(index), tmp_path / "backup"
    publish(index, place, synced)
    assert invoke(backup, target, "--from", place.root).exit_code == 0
    manifest = (target / "manifest.json").read_bytes()
    publish(index, place)
    assert invoke(backup, target, "--from", place.root).exit_code == 0
    (target / "manifest.json").write_bytes(manifest)  # as if the second one had been killed before its last step
    assert restored_views(index, target) == before


@proves("fuller-backup-kept", "a log that lost its end does not replace a backup that has it", condition=False)
def test_a_log_with_less_than_the_backup_does_not_replace_it(index: Index, tmp_path: Path) -> None:
    index.take(*everything())
    place, target = place_of(index), tmp_path / "backup"
    publish(index, place)
    assert invoke(backup, target, "--from", place.root).exit_code == 0
    manifest = (target / "manifest.json").read_bytes()
    publish(index, place, index.log.next_number - 1)
    refused = invoke(backup, target, "--from", place.root)
    assert refused.exit_code == 2 and "name another directory" in refused.output
    assert (target / "manifest.json").read_bytes() == manifest


def to_store(index: Index, place: Paths, url: str) -> None:
    """Publish what an index has, as its collector does."""
    outbox, log = Outbox(place.store), LOG_ID.hex()
    publisher = Publisher(DeltaStore(url, log), outbox, log, None)
    publisher.begin()
    cutter = PieceCutter(index.database.connection, LOG_ID, outbox, url)
    cutter.start()
    cutter.close()
    while publisher.publish_next():
        pass


@pytest.mark.promise(11)
def test_a_restored_collector_publishes_on_and_nothing_twice(index: Index, tmp_path: Path) -> None:
    url, payloads = f"file://{tmp_path}/lake", everything()[:-1]
    index.take(*payloads[:3])
    place = place_of(index)
    live = Index(place.collector)
    to_store(live, place, url)
    publish(live, place)
    live.close()
    assert invoke(backup, tmp_path / "backup", "--from", place.root).exit_code == 0
    done = invoke(restore, tmp_path / "backup", "--dir", tmp_path / "new")
    assert done.exit_code == 0, done.output
    until = DeltaStore(url, LOG_ID.hex()).positions(["collectors"])["collectors"]
    assert (
        f"it was published to {url} up to record {until}; end the collector that did that, if it still runs"
        in done.output
    )
    new = paths_for_root(tmp_path / "new")
    found = Restored(new, url)
    found.take(payloads[3:])
    assert found.publish() > 0
    execute = found.follower.database.connection.execute
    for table in ("metrics", "phases"):
        keys = stored_rows(tmp_path / "lake", table, "producer, seq, key")
        n = execute(f"SELECT count(*) FROM (FROM base.{table} UNION ALL FROM base.{table}_recent)").fetchall()[0][0]
        assert len(keys) == len(set(keys)) == n
    found.close()


def test_a_restore_while_the_store_is_away_says_what_comes_next(index: Index, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/lake"
    index.take(*everything()[:3])
    place = place_of(index)
    live = Index(place.collector)
    to_store(live, place, url)
    publish(live, place)
    live.close()
    assert invoke(backup, tmp_path / "backup", "--from", place.root).exit_code == 0
    (tmp_path / "lake").rename(tmp_path / "away")
    (tmp_path / "lake").write_bytes(b"")
    done = invoke(restore, tmp_path / "backup", "--dir", tmp_path / "new")
    assert done.exit_code == 0, done.output
    assert f"it was published to {url}, which cannot be asked now: " in done.output
    assert Outbox(paths_for_root(tmp_path / "new").store).published() is None
