"""Deletions of runs that other collectors of a store carried out: what this collector still has to delete of them.

The publisher finds them in the table `deletions`, and the index answers each by a record of its own log.

CHIPLOG_DIR/collector/store/
  requests.json     {"seen": {log: number of its last piece}, "waiting": [[log, number, run ID], …]}; by the publisher
  answered.json     [[log, number, run ID, last own record], …]: those that need nothing any more; by the index
  deletions.new     exists if the table has rows that the publisher has not looked at; made by the index
"""

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from chiplog_schemas.atomic_file import atomic_write
from chiplog_schemas.paths import ensure_private_dir

_ALL = 1 << 62  # above the number of any record


@dataclass(frozen=True, slots=True, order=True)
class DeletionRequest:
    """A run that another log deleted, and the piece of that log which says so."""

    log: str
    number: int
    run_id: str


class DeletionRequests:
    """The three files. Any method raises OSError.

    Args:
        directory: The directory `store` of a collector.
        log: The ID of its log, 32 hex digits.
    """

    def __init__(self, directory: Path, log: str) -> None:
        self._directory = directory
        self._log = log
        self._requests = directory / "requests.json"
        self._answered = directory / "answered.json"
        self._news = directory / "deletions.new"
        self._published = -1  # the last record of the own log that the store has

    def note_news(self) -> None:
        """Note that another log may have deleted something: the publisher then looks at the table."""
        ensure_private_dir(self._directory)
        self._news.touch()

    def take_news(self) -> bool:
        """Return True if the table may have news, once."""
        try:
            self._news.unlink()
        except FileNotFoundError:
            return False
        return True

    def take(self, found: Iterable[DeletionRequest]) -> None:
        """Keep the requests that are new. Those before the first look concern nothing that is recorded later.

        found: all requests of the table `deletions`.
        """
        others = sorted({request for request in found if request.log != self._log})
        known = _read(self._requests)
        seen: dict[str, int] = {} if known is None else dict(known["seen"])
        waiting = self._unpublished()
        if known is not None:
            # safeguard: each-request-seen-once
            waiting += [request for request in others if request.number > seen.get(request.log, -1)]
        seen |= {request.log: max(request.number, seen.get(request.log, -1)) for request in others}
        found_now = {"seen": seen, "waiting": [astuple(request) for request in waiting]}
        if found_now != known:
            ensure_private_dir(self._directory)
            atomic_write(self._requests, json.dumps(found_now).encode(), durable=True)

    def pass_over(self, log: str) -> None:
        """Count all requests of a log as seen: it is the former ID of this one, which has carried them out."""
        try:
            known = json.loads(self._requests.read_bytes())
            known["seen"][log] = _ALL
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return  # before the first look, or damaged, which the publisher reports
        atomic_write(self._requests, json.dumps(known).encode(), durable=True)

    def waiting(self) -> list[DeletionRequest]:
        """Return the requests without an answer."""
        answers = self._answers()
        return [request for request in self._listed() if request not in answers]

    def answered_until(self, published: int) -> dict[str, int] | None:
        """Return by log the last piece whose requests the store has all answers to; None before the first look.

        published: the last record of the own log that the store has. A host may be lost before it has an answer.
        """
        self._published = published
        known = _read(self._requests)
        if known is None:
            return None
        until = {str(log): int(number) for log, number in known["seen"].items()}
        for request in self._unpublished():
            until[request.log] = min(request.number - 1, until.get(request.log, -1))
        return until

    def note_answer(self, request: DeletionRequest, number: int) -> None:
        """Note that a request needs nothing any more. number: the last record of the own log that was applied."""
        listed = set(self._listed())
        # The publisher forgot the others.
        answers = {each: at for each, at in self._answers().items() if each in listed}
        answers[request] = number
        noted = [(*astuple(each), at) for each, at in answers.items()]
        atomic_write(self._answered, json.dumps(noted).encode(), durable=True)

    def _unpublished(self) -> list[DeletionRequest]:
        """Return the requests to which the store has no answer."""
        answers = self._answers()
        # safeguard: unpublished-answer-is-none
        return [each for each in self._listed() if each not in answers or answers[each] > self._published]

    def _listed(self) -> list[DeletionRequest]:
        known = _read(self._requests)
        return [] if known is None else [DeletionRequest(*entry) for entry in known["waiting"]]

    def _answers(self) -> dict[DeletionRequest, int]:
        # Before the first release of the store, an entry had no fourth part.
        return {DeletionRequest(*entry[:3]): [*entry, -1][3] for entry in _read(self._answered) or ()}


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OSError(f"{path} is damaged; remove it: {error}") from error
