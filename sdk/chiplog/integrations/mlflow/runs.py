"""The runs that this process writes to, and what it has written: MLflow asks for it right afterwards."""

import os
import threading
import uuid
from collections import OrderedDict

from mlflow.environment_variables import MLFLOW_EXPERIMENT_ID

from chiplog.integrations.mlflow.addresses import Address
from chiplog.integrations.mlflow.launches import is_launched, launch_variables, open_run
from chiplog.integrations.mlflow.library import invalid
from chiplog.integrations.mlflow.metrics import POINTS_MAX
from chiplog.integrations.mlflow.records import ENDED, FAILED, KILLED, RunRecord
from chiplog.recording.run import current_run
from chiplog.recording.run.run import Run
from chiplog.safety.process_number import process_number
from chiplog.settings import clean_name
from chiplog_schemas.clock import now_us
from chiplog_schemas.limits import NAME_CHARS_MAX

_RECORDS_MAX = 1_000  # runs in memory, of ended ones POINTS_MAX values at most; the database has the others
_OPEN_MAX = 64  # runs at once: each has a thread and a journal


class RunBook:
    """The runs of this process, by the ID that MLflow has. One that is written after its end is opened again."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._records: OrderedDict[str, RunRecord] = OrderedDict()
        self._lock = threading.RLock()
        self._process = process_number()
        self._has_run = False  # this process has opened one: the next ones are its own

    def find(self, run_id: str) -> RunRecord | None:
        """Return a run of this process; None if it has not written it."""
        return self._records.get(run_id)

    def list_all(self) -> list[RunRecord]:
        """Return all runs of this process."""
        return list(self._records.values())

    def create(self, experiment_id: str, project: str, name: str | None) -> RunRecord:
        """Open the run that `start_run()` makes without an ID: the first time that of the launch or of the script."""
        self._follow_fork()
        with self._lock, current_run.opening():
            self._close_oldest()
            environ = launch_variables(os.environ)
            is_first, self._has_run = not self._has_run, True
            adopted = self._run_of_script() if is_first else None
            if adopted is not None:
                inner = adopted
            elif is_first and is_launched(environ):
                inner = open_run(self._address, environ, project=project, name=name)
            else:
                environ.pop("CHIPLOG_RUN_ID", None)
                inner = open_run(self._address, environ, project=project, name=name, run_id=uuid.uuid4().hex)
            record = RunRecord(inner.id, experiment_id, name or "", created_ms=now_us() // 1000, inner=inner)
            record.is_created, record.is_adopted = True, adopted is not None
            self._keep(record)
        return record

    def expect(self, run_id: str, experiment_id: str) -> RunRecord:
        """Return the record of a run that this process is about to join, and knows nothing of."""
        self._follow_fork()
        record = RunRecord(run_id, experiment_id, state="finished", created_ms=now_us() // 1000)
        with self._lock:
            self._keep(record)
        return record

    def open(self, record: RunRecord, project: str | None = None) -> RunRecord:
        """Make a run writable: join it, or open it again after its end, under the same label."""
        self._follow_fork()
        if record.is_open:
            return record
        with self._lock, current_run.opening():
            if not record.is_open:
                self._close_oldest()
                environ = launch_variables(os.environ)
                environ.pop("CHIPLOG_PROJECT", None)  # the run has one
                record.inner = open_run(
                    self._address, environ, joins=True, resume="allow", run_id=record.run_id, project=project
                )
        return record

    def writer(self, run_id: str, experiment_id: str | None = None, project: str | None = None) -> RunRecord:
        """Return a run that can be written: joined if another process has made it. project: of one that none has.

        Raises MlflowException for what is not the ID of a run.
        """
        cleaned, faults = clean_name(run_id, NAME_CHARS_MAX)
        if cleaned != run_id:
            raise invalid(f"run ID {run_id!r:.80} has {faults}; give the ID of a run")
        record = self.find(run_id) or self.expect(run_id, experiment_id or MLFLOW_EXPERIMENT_ID.get() or "0")
        if not record.is_open:
            self.open(record, project)
        return record

    def end(self, record: RunRecord) -> None:
        """Finish a run for this label."""
        if record.inner is not None and record.is_open and not record.is_adopted:
            record.inner.finish(1 if record.status in (FAILED, KILLED) else 0)

    def _close_oldest(self) -> None:
        """Finish what was opened again after its end, and the oldest of too many runs."""
        opened = [record for record in self._records.values() if record.is_open and not record.is_adopted]
        n_too_many = max(len(opened) - _OPEN_MAX + 1, 0)
        for number, record in enumerate(opened):
            if record.status in ENDED or number < n_too_many:
                self.end(record)

    def _keep(self, record: RunRecord) -> None:
        self._records[record.run_id] = record
        ended = [other for other in self._records.values() if not (other.is_open or other is record)]
        n_points = sum(other.metrics.n_points for other in ended)
        for other in ended:
            if n_points <= POINTS_MAX and len(self._records) <= _RECORDS_MAX:
                break
            n_points -= other.metrics.n_points
            del self._records[other.run_id]

    def _run_of_script(self) -> Run | None:
        """Return the run that the script has opened itself, with chiplog.init(); None without one."""
        known = [record.inner for record in self._records.values()]
        opened = [run for run in current_run.open_runs() if not run._run_journal.is_inherited and run not in known]
        return opened[-1] if opened else None

    def _follow_fork(self) -> None:
        """In a forked child: the runs are its parent's, and its own first one comes."""
        if self._process != (number := process_number()):
            self._process, self._has_run = number, False
            self._lock = threading.RLock()


_books: dict[tuple[str | None, str | None], RunBook] = {}


def book_of(address: Address) -> RunBook:
    """Return the runs of this process at an address, which all stores and artifact repositories share."""
    place = address.directory, address.collector
    return _books.setdefault(place, RunBook(address))
