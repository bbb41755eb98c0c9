"""Slices in, records out: the receipt names the sender of each record of a commit, exactly."""

import random

from chiplog_collector.receiver.commit import OWN_SENDER, CommitBuilder, LogEntry, recover_lost, recover_senders
from chiplog_schemas.codec import unpack
from chiplog_schemas.limits import RECORD_BYTES_MAX, SENDERS_MAX
from chiplog_schemas.model.receipt import RestrictedSender, decode_receipt
from chiplog_schemas.storage.record import CorruptRange, Kind, Record, scan_records
from chiplog_schemas.storage.record import encode as frame
from tests.support.collector_log import START_US, Rank, block_of
from tests.support.safeguard import proves

ONE, TWO = b"1" * 16, b"2" * 16


def slice_of(first: int, count: int = 1) -> bytes:
    """Return a slice of a spool: blocks numbered from `first` on."""
    rank = Rank(1)
    return b"".join(frame(Kind.BLOCK, first + n, block_of((rank, 0, 0))) for n in range(count))


def logged(accepted: list[LogEntry], first: int = 0) -> list[Record]:
    """Return records as a log numbers them."""
    data = b"".join(
        frame(entry.kind, first + n, entry.record.payload if entry.record is not None else entry.payload)
        for n, entry in enumerate(accepted)
    )
    found = [item for item in scan_records(data) if isinstance(item, Record)]
    assert len(found) == len(accepted)
    return found


def test_each_record_is_its_senders_however_slices_gaps_and_permits_interleave() -> None:
    """Invariant: a receipt has the same sender and nodes for a record as the call that added it."""
    for seed in range(200):
        chooser = random.Random(seed)
        intake = CommitBuilder({})
        entries = [intake.senders_record()] * chooser.randint(0, 1)
        expected: list[RestrictedSender | None] = [None] * len(entries)
        next_numbers = {ONE: 5, TWO: 0}
        for _ in range(chooser.randint(0, 12)):
            sender = chooser.choice([ONE, TWO])
            nodes = chooser.choice([None, (), ("a",), ("a", "b-*")])
            first, count = next_numbers[sender], chooser.randint(1, 3)
            if chooser.random() < 0.2:
                taken = [intake.add_gap(sender, first, first + 1, "gone")]
                expected.append(...)
            else:
                payload = slice_of(first, count) + b"junk" * chooser.randint(0, 1)
                taken = intake.add_slice(sender, first, first + count - 1, payload, nodes)
                next_numbers[sender] = first + count
                expected += [None if nodes is None else RestrictedSender(sender, nodes)] * len(taken)
            entries += taken
        entries.append(intake.receipt_record(START_US))
        begin = chooser.randint(0, 1000)
        *records, last = logged(entries, begin)
        receipt = decode_receipt(last.payload, last.number)
        assert receipt is not None
        assert receipt.received_us == START_US
        told = [receipt.speaker_of(record.number) for record in records]
        known = [pair for pair in zip(told, expected, strict=True) if pair[1] is not ...]  # a gap has no sender
        assert all(said == speaker for said, speaker in known), (seed, known)
        assert receipt.uncommitted([record.number for record in records if record.kind != Kind.SENDERS]) == frozenset()
        done = intake.committed()
        found = recover_senders([*records, last])
        assert {sender: found[sender] for sender in done} == done, seed


@proves("senders-record-fits", "a SENDERS record fits", condition=False)
def test_a_senders_record_fits_however_many_senders_there_were() -> None:
    """Every agent that begins with an empty spool is a new one."""
    intake = CommitBuilder({})
    for n in range(SENDERS_MAX + 10):
        intake.add_gap(n.to_bytes(16, "big"), 0, (1 << 62), "made up")
    intake.committed()
    [record] = logged([intake.senders_record()])
    assert len(record.payload) < RECORD_BYTES_MAX // 2
    found = recover_senders([record])
    assert len(found) == SENDERS_MAX
    assert (bytes(16) in found, (SENDERS_MAX + 9).to_bytes(16, "big") in found) == (False, True)


def test_a_change_is_of_no_sender() -> None:
    intake = CommitBuilder({ONE: 3})
    entries = [*intake.add_slice(ONE, 3, 3, slice_of(3)), intake.add_change(b"one"), intake.add_change(b"two")]
    entries.append(intake.receipt_record(START_US))
    receipt = logged(entries)[-1]
    found = decode_receipt(receipt.payload, receipt.number)
    assert found is not None
    assert [found.sender_of(number) for number in range(3)] == [ONE, OWN_SENDER, OWN_SENDER]
    assert [found.speaker_of(number) for number in range(3)] == [None] * 3
    assert intake.committed() == {ONE: 4}
    assert recover_senders(logged(entries)) == {ONE: 4}


def test_numbers_that_can_never_come_count_as_had() -> None:
    intake = CommitBuilder({})
    entries = [intake.add_gap(ONE, 3, 7, "damaged")]
    entries.append(intake.receipt_record(START_US))
    assert intake.committed() == {ONE: 8}
    assert recover_senders(logged(entries)) == {ONE: 8}


def test_an_older_reader_finds_the_fields_that_it_knows_in_their_places() -> None:
    intake = CommitBuilder({})
    intake.add_slice(ONE, 3, 5, slice_of(3, 3), ("a",))
    [record] = logged([intake.receipt_record(START_US)])
    received, [row] = unpack(record.payload)
    assert (received, row[:4]) == (START_US, [ONE, 3, 6, 3])


def test_a_commit_that_lacks_a_record_is_sent_again_from_its_first_row_on() -> None:
    intake = CommitBuilder({ONE: 3})
    entries = [intake.senders_record(), *intake.add_slice(ONE, 3, 3, slice_of(3), ("a",))]
    entries += intake.add_slice(TWO, 0, 0, slice_of(0), ("b",))
    entries += intake.add_slice(ONE, 4, 4, slice_of(4), ("a",))
    records = logged([*entries, intake.receipt_record(START_US)])
    assert recover_senders(records) == {ONE: 5, TWO: 1}
    assert recover_senders([records[0], CorruptRange(0, 1, "gone"), *records[2:]]) == {ONE: 3, TWO: 0}


def test_records_of_a_commit_that_never_ended_are_told_from_those_whose_receipt_was_damaged() -> None:
    intake = CommitBuilder({})
    intake.add_slice(ONE, 0, 1, slice_of(0, 2), ("a",))
    [record] = logged([intake.receipt_record(START_US)], 20)
    receipt = decode_receipt(record.payload, 20)
    assert receipt is not None
    assert receipt.uncommitted([15, 16, 17, 18, 19]) == {15, 16, 17}, "they touch the next commit"
    assert receipt.uncommitted([15, 16, 18, 19]) == frozenset(), "17 was their receipt"
    assert receipt.uncommitted([18, 19]) == frozenset()
    assert receipt.speaker_of(16) is None


def test_who_is_lost_is_known_from_the_log_as_far_as_it_was_committed() -> None:
    """Invariant: after each commit a start finds lost whom the last presences declare so, whatever segment is read."""
    intake = CommitBuilder({ONE: 3, TWO: 1})
    lost, here = [False, 12, "", ""], [True, 0, "", ""]
    uncommitted = intake.add_presence(ONE, lost)
    assert recover_lost(logged([intake.senders_record(), uncommitted])) == set(), "its receipt is not there"
    before = [uncommitted, intake.add_presence(TWO, lost), intake.receipt_record(START_US)]
    intake.committed()
    begins = intake.senders_record()
    assert recover_lost(logged(before)) == recover_lost(logged([begins])) == {ONE, TWO}
    behind = [intake.add_presence(TWO, here), intake.receipt_record(START_US)]
    intake.committed()
    records = logged([begins, *behind])
    assert recover_lost(records) == {ONE}
    assert recover_lost([records[0], CorruptRange(0, 1, "gone"), records[2]]) == set(), "then it is recorded again"
    assert recover_senders(records) == {ONE: 3, TWO: 1}
    assert recover_lost(logged([CommitBuilder({ONE: 3, TWO: 1}, recover_lost(records)).senders_record()])) == {ONE}
