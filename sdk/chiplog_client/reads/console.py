"""What the processes of a run printed: lines by label, stream, text and time, and those that were stored since."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.parameters import CHOSEN_LABELS

Line = tuple[int, int]  # producer and seq of a stored line: what was stored after it is found whatever the times are
_NEWEST = """
SELECT producer, seq FROM reads.console
WHERE run_id = $run AND place = (SELECT max(place) FROM reads.console WHERE run_id = $run)
"""
_PLACE = """
coalesce((SELECT max(place) FROM reads.console WHERE run_id = $run AND producer = ${0}_producer AND seq = ${0}_seq), -1)
"""
# Clocks may be wrong and lines may arrive late, so new lines are not always later than known ones.
_LINES = f"""
SELECT label, attempt, stream, line_no, ts, line, (SELECT [producer, seq] FROM ({_NEWEST})) AS newest FROM reads.console
WHERE run_id = $run AND {CHOSEN_LABELS} AND ($stream = '' OR stream = $stream)
  AND ($search = '' OR contains(lower(line), lower($search))) AND {{chosen}}
ORDER BY ts {{order}}, label {{order}}, attempt {{order}}, line_no {{order}} LIMIT $limit OFFSET $offset
"""


@dataclass(frozen=True)
class LinesRequest:
    """What to read.

    Attributes:
        run: ID of the run.
        limit: Lines at most.
        labels: Only of these; all if empty.
        stream: stdout or stderr; "" for both.
        search: Only lines with this text, in any case.
        is_forward: The first lines, not the last ones.
        at: Forward only lines after this time, else only those until then; None for all.
        since: Only lines that were stored after this one.
        until: Only lines that were stored before this one, and this one.
        offset: Lines that are left out, from the side where reading begins.
    """

    run: str
    limit: int
    labels: tuple[str, ...] = ()
    stream: str = ""
    search: str = ""
    is_forward: bool = False
    at: str | None = None
    since: Line | None = None
    until: Line | None = None
    offset: int = 0


def read_lines(client: Client, request: LinesRequest) -> tuple[list[dict[str, Any]], Line | None]:
    """Return lines in the order of their times, and the line of the run that was stored last; None without lines.

    Raises:
        QueryError: The query has no result.
    """
    named: dict[str, Any] = {"run": request.run, "labels": list(request.labels), "stream": request.stream}
    named |= {"search": request.search, "limit": request.limit, "offset": request.offset}
    conditions = []
    if request.at is not None:
        conditions.append(f"ts {'>' if request.is_forward else '<='} $at::TIMESTAMP")
        named["at"] = request.at
    for name, sign, line in (("since", ">", request.since), ("until", "<=", request.until)):
        if line is not None:
            conditions.append(f"place {sign} {_PLACE.format(name)}")
            named |= {f"{name}_producer": line[0], f"{name}_seq": line[1]}
    order = "ASC" if request.is_forward else "DESC"
    rows = client.sql(_LINES.format(chosen=" AND ".join(conditions) or "true", order=order), named).rows()
    newest = [row.pop("newest") for row in rows]
    return rows if request.is_forward else rows[::-1], (newest[0][0], newest[0][1]) if newest else None


def read_pages(client: Client, request: LinesRequest) -> Iterator[tuple[list[dict[str, Any]], Line | None]]:
    """Yield all lines of a request, so many at a time as its limit is, as of `read_lines`.

    Lines that are stored in the meantime are left out: they come after the line that each page returns.
    """
    until = request.until
    while True:
        rows, newest = read_lines(client, replace(request, until=until))
        until = until or newest
        yield rows, until
        if len(rows) < request.limit:
            return
        request = replace(request, offset=request.offset + len(rows))


def read_newest(client: Client, run: str) -> Line | None:
    """Return the line of a run that was stored last; None without lines. Raises QueryError."""
    rows = client.sql(_NEWEST, {"run": run}).tuples()
    return (rows[0][0], rows[0][1]) if rows else None
