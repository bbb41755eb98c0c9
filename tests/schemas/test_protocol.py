"""The law names everything that the code does, with its number."""

import re
from pathlib import Path

import pytest

from chiplog_schemas import limits
from chiplog_schemas.model import events
from chiplog_schemas.model.block_format import OPAQUE
from chiplog_schemas.model.codes import EndCause
from chiplog_schemas.protocol import file_messages, messages
from chiplog_schemas.query import query_messages
from chiplog_schemas.storage import record

LAW = (Path(__file__).resolve().parents[2] / "schemas" / "PROTOCOL.md").read_text(encoding="utf-8")
LIMITS = {name: value for name, value in vars(limits).items() if name.isupper() and name not in ("KIB", "MIB", "GIB")}


def row_of(section: str, name: str) -> list[str]:
    """Return the cells of the row that begins with this name, in the section of this number."""
    text = LAW.split(f"\n## {section}. ")[1].split("\n## ")[0]
    (row,) = re.findall(rf"^\| `?{name}`? \|(.*)\|$", text, re.MULTILINE)
    return [cell.strip() for cell in row.replace("\\|", "/").split("|")]


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        *(("2", kind) for kind in record.Kind),
        *(("5", kind) for kind in events.EventKind),
        *(("6", kind) for kind in events.Column),
        *(("7", kind) for kind in messages.MessageKind),
        *(("7", kind) for kind in file_messages.FileMessageKind),
        *(("8", kind) for kind in query_messages.QueryMessageKind),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_kind_stands_in_the_law_with_its_number(section: str, kind: record.Kind) -> None:
    assert row_of(section, kind.name)[0] == str(int(kind))


@pytest.mark.parametrize("kind", events.EventKind, ids=lambda kind: kind.name)
def test_every_field_stands_in_the_law_with_its_type_and_in_its_order(kind: events.EventKind) -> None:
    fields = row_of("5", kind.name)[1]
    named = re.findall(r"(\w+) (INT|OBJECT|KEYS|VALUES)\b", fields)
    assert named == [(name, column.name) for name, column in events.FIELDS[kind]]


@pytest.mark.parametrize(
    "fields",
    [events.IDENTITY_FIELDS, events.STATE_FIELDS, events.DEFINITION_FIELDS],
    ids=["identity", "state", "definition"],
)
def test_every_entry_of_the_maps_stands_in_the_law(fields: dict[str, type]) -> None:
    for name, kind in fields.items():
        assert re.search(rf"\b{name} {kind.__name__}\b", LAW), name


@pytest.mark.parametrize("name", LIMITS)
def test_every_limit_stands_in_the_law_with_its_number(name: str) -> None:
    assert row_of("9", name)[0] == f"{LIMITS[name]:,}"


def test_every_word_for_a_summary_stands_in_the_law() -> None:
    assert all(f"`{word}`" in LAW.split("- definition:")[1].splitlines()[0] for word in events.SUMMARIES)


def test_every_cause_of_an_end_stands_in_the_law() -> None:
    entry = LAW.split("\n- cause:")[1].split("\n- ")[0]
    assert all(f"`{cause}`" in entry for cause in EndCause)


def test_the_law_names_no_limit_that_is_not_there() -> None:
    assert set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", LAW)) <= {
        *LIMITS,
        *events.EventKind.__members__,
        *query_messages.QueryMessageKind.__members__,
    }


def test_magics_and_versions_are_those_of_the_law() -> None:
    assert record.MAGIC_BYTES == b"CLR1"
    assert "'CLR1'" in LAW
    assert OPAQUE == 0
    assert file_messages.FILE_VERSIONS == (1, 1)
    assert not set(map(int, file_messages.FileMessageKind)) & set(map(int, messages.MessageKind))
    assert messages.PROTOCOL_VERSIONS == query_messages.QUESTION_VERSIONS == (1, 1)
    assert f"{messages.HEAD_BYTES_MAX:,} bytes" in LAW
    assert f"{messages.REASON_CHARS_MAX} characters" in LAW
    assert all(f"`{kind}`" in LAW for kind in query_messages.ERROR_KINDS)
