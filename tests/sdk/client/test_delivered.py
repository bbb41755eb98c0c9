"""What was delivered is known by name, size and directory; a copy in full counts as new."""

from pathlib import Path

from chiplog_client import delivered


def test_a_file_is_delivered_to_the_directory_that_was_noted(tmp_path: Path) -> None:
    journal, root, other = tmp_path / "one", tmp_path / "root", tmp_path / "other"
    journal.write_bytes(b"1234")
    assert not delivered.is_delivered(journal)
    delivered.mark([journal], root)
    assert delivered.is_delivered(journal)
    assert delivered.is_delivered(journal, root)
    assert not delivered.is_delivered(journal, other)


def test_what_has_another_size_since_then_is_not_delivered(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    (journal / "0").write_bytes(b"12")
    delivered.mark([journal], tmp_path)
    assert delivered.is_delivered(journal)
    (journal / "1").write_bytes(b"3")
    assert not delivered.is_delivered(journal)


def test_saved_files_are_noted_beside_the_journals(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    content = tmp_path / "files" / "content"
    content.write_bytes(b"1")
    delivered.mark([content], tmp_path)
    assert (tmp_path / delivered.MARKS_NAME).is_file()
    assert delivered.is_delivered(content)


def test_a_torn_line_costs_that_line(tmp_path: Path) -> None:
    journal = tmp_path / "one"
    journal.write_bytes(b"1")
    (tmp_path / delivered.MARKS_NAME).write_text('["one", 1\n[]\n{}\n')
    assert not delivered.is_delivered(journal)
    delivered.mark([journal], tmp_path)
    assert delivered.is_delivered(journal)
