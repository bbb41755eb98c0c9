"""A log that was written before ends carried codes reads as it read then.

`written_before_codes` holds the segment of such a log, made with the code of that time, and the rows that the views of
that time gave for it. It is never made again. One row was changed since: rejected events count as lost.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_collector.index.database import Database
from chiplog_collector.index.follower import LogFollower
from chiplog_schemas.storage.record import Record
from chiplog_schemas.storage.segment_format import log_owner, read_segment
from tests.support.safeguard import proves

OLD = Path(__file__).parent / "written_before_codes"
SAID = json.loads((OLD / "views.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Return the index over the old log."""
    directory = tmp_path_factory.mktemp("old")
    segment = directory / "00000000000000000000.seg"
    segment.write_bytes(gzip.decompress((OLD / "log.seg.gz").read_bytes()))
    owner = log_owner(directory)
    assert owner is not None
    database = Database(directory / "index.duckdb", owner)
    follower = LogFollower(database, directory)
    end = max(item.number for item in read_segment(segment) if isinstance(item, Record)) + 1
    while database.next_number < end:
        follower.step(end)
    yield database
    database.close()


@proves(
    "old-exit-cause-from-reason",
    "the cause of an end that an older agent reported is found in its reason",
    value='end_cause(said.get("cause")) or end_cause("exit_status")',
)
@proves(
    "old-exception-cause-from-message",
    "the cause of an exception that an older rank reported is found in its message",
    value="named or EndCause.EXCEPTION",
)
@pytest.mark.parametrize("view", SAID)
def test_the_views_give_the_rows_that_they_gave_then(database: Database, view: str) -> None:
    rows = database.connection.execute(SAID[view]["query"]).fetchall()
    assert [list(row) for row in rows] == SAID[view]["rows"]
