"""How a rank ended, by everything that its node knows: exit status, out-of-memory kills, torchelastic's error file.

Called when a journal is adopted, once its lock proves that the process is gone. A rank's own report of its end has
priority and is not handled here.
"""

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chiplog_agent.ranks.elastic_error_file import ElasticErrorFileReader
from chiplog_agent.ranks.oom import OomKill, OomWatcher
from chiplog_agent.ranks.origins import origin_of_dead, origin_of_living
from chiplog_agent.ranks.process_watcher import ProcessExit, ProcessWatcher
from chiplog_schemas.limits import ADOPT_INTERVAL_S
from chiplog_schemas.model.codes import EndCause
from chiplog_schemas.model.end_text import cause_of_exception
from chiplog_schemas.process.exit_status import UNKNOWN_EXIT, awaits_status, read_status
from chiplog_schemas.process.file_lock import kernel_lock_holder_pid
from chiplog_schemas.process.pool_owners import ended_well, is_alive
from chiplog_schemas.process.procfs import maps_file, program_of
from chiplog_schemas.storage.journal_dir import HEAD_NAME, LOCK_NAME, JournalHead, decode_head

VANISHED = "vanished without finish(): killed, out of memory, or os._exit"
STATE_LOST = "finished, but its last events were lost with the memory of its process"
_UNSEEN = {  # by (finished, left) of the head page: the reason when the exit status is unknown
    (False, False): VANISHED,
    (False, True): UNKNOWN_EXIT,
    (True, False): STATE_LOST,
    (True, True): STATE_LOST,
}
EXECUTED = "its process became another program by exec"
DISMISSED = "a worker that its owner ended, and the owner ended well"
# Between the ends of a worker and its owner; after this it counts as crashed until the owner has ended.
_OWNER_MAX_S = 10.0
# From the end of a process until its console's helper reports its status; the helper may be starting.
_HELPER_MAX_S = 3.0
# From the release of a running process's lock until it holds the lock again: it closed all descriptors, and its sender
# thread checks every second, on a machine that is not overloaded.
_RETAKE_MAX_S = 5.0
# From the release of a process's lock to its exit status; a driver that hangs delays that forever.
_LEAVING_MAX_S = 10.0


class ExitCauseResolver:
    """Determines the ends of the producers of a journals directory."""

    def __init__(self, journals: Path, owners: Path | None = None) -> None:
        self._journals = journals
        self._owners = owners if owners is not None else journals.parent / "owners"
        self._processes = ProcessWatcher()
        self._oom_kills = OomWatcher()
        self._errors = ElasticErrorFileReader()
        self._pids: dict[bytes, int] = {}
        # Time at which their locks were found free, while their exit status is pending.
        self._leaving: dict[bytes, float] = {}

    @property
    def watched(self) -> set[bytes]:
        """The producers whose processes are watched, or were until they ended."""
        return set(self._pids)

    def pid_of(self, producer: bytes) -> int:
        """Return the PID of a producer's process as the kernel names it; 0 if it was never seen."""
        return self._pids.get(producer, 0)

    def fileno(self) -> int:
        """Return a descriptor that is readable once a rank's process has ended."""
        return self._processes.fileno()

    def on_hello(self, producer: bytes, peer_pid: int = 0) -> None:
        """Watch the process that holds the lock of a producer's journal, else the one at the other end of its socket.

        peer_pid: of the latter, from the kernel; 0 without one: then a producer without a journal here is not watched.
        """
        self._leaving.pop(producer, None)
        if producer in self._pids:
            return
        # safeguard: pid-from-socket
        pid = kernel_lock_holder_pid(self._journals / producer.hex() / LOCK_NAME) or peer_pid
        if pid > 0:
            self._pids[producer] = pid
            self._processes.watch(producer, pid)
            self._oom_kills.watch(producer, pid)

    def wait(self, wait_s: float) -> bool:
        """Wait until a process has ended, at most this long. Return True if one has."""
        return self._processes.wait(wait_s)

    def poll(self, now_us: int) -> bool:
        """Record the processes that ended since the last call.

        Return True if any did. Called in every turn of the loop.
        """
        self._errors.begin_turn()
        return self._processes.poll(now_us)

    def is_watched(self, producer: bytes) -> bool:
        """Return True if the kernel will report the end of a producer's process, and has not done so."""
        return self._processes.is_watched(producer)

    def is_alive(self, producer: bytes) -> bool:
        """Return True if the process of a producer is watched and has not ended.

        A process that ended before it could be watched is not: the kernel will never report its end.
        """
        # safeguard: unwatched-end-is-not-alive
        return self._processes.is_alive(producer) and not self._processes.is_due(producer)

    def is_dead(self, producer: bytes) -> bool:
        """Return True if the process of a producer was watched and its end was noted."""
        return self._processes.exit_of(producer) is not None

    def exit_status_pending(self, producer: bytes) -> bool:
        """Return True, for a limited time, if the exit status of a producer whose lock is free may still arrive."""
        if self._program_after_exec(producer) is not None:
            return False
        now = time.monotonic()
        if self._processes.is_due(producer):
            return now - self._leaving.setdefault(producer, now) < _LEAVING_MAX_S
        if self._processes.exit_of(producer) is None and awaits_status(self._journals / producer.hex()):
            return now - self._leaving.setdefault(producer, now) < _HELPER_MAX_S
        if self._awaits_owner(producer):
            return now - self._leaving.setdefault(producer, now) < _OWNER_MAX_S
        # safeguard: live-process-keeps-journal
        if self._processes.is_alive(producer) and not self._has_finished(producer):
            return now - self._leaving.setdefault(producer, now) < _RETAKE_MAX_S
        return False

    def _has_finished(self, producer: bytes) -> bool:
        head = self._head_of(producer)
        return head is not None and (head.finished or head.left)

    def _head_of(self, producer: bytes) -> JournalHead | None:
        try:
            return decode_head((self._journals / producer.hex() / HEAD_NAME).read_bytes())
        except OSError:
            return None

    def _program_after_exec(self, producer: bytes) -> str | None:
        """Return the name of the program that a producer's process has become by exec; None if it has not.

        That process lives, is the one that wrote the journal, and maps it no more. One that only closed its
        descriptors, or is stopped, still maps it.
        """
        head = self._head_of(producer)
        if head is None or head.finished or self._processes.exit_of(producer) is not None:
            return None
        identity = head.identity
        pid = origin_of_dead(self._pids.get(producer, 0), identity).pid
        if "uptime" not in identity or not origin_of_living(pid, identity, is_local=True).pid:
            return None  # an older process, or a PID that was used again
        if maps_file(pid, f"{producer.hex()}/{HEAD_NAME}") is not False or self._processes.is_due(producer):
            return None
        return program_of(pid)

    def _awaits_owner(self, producer: bytes) -> bool:
        """Return True if a producer may be a worker that its owner, which still runs, has ended."""
        head = self._head_of(producer)
        owner = head.identity.get("owner", "") if head is not None and not head.finished else ""
        return bool(owner) and is_alive(owner)

    def may_be_dismissed(self, identity: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
        """Return True if this is the end of a worker whose owner still runs, and may end well."""
        owner = identity.get("owner", "")
        return _may_be_dismissal(state) and bool(owner) and is_alive(owner)

    def dismissal_of(self, identity: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the STATE map of a worker whose owner ended well; None if it did not."""
        owner = identity.get("owner", "")
        if not (_may_be_dismissal(state) and owner and ended_well(self._owners, owner)):
            return None
        kept = {name: value for name, value in state.items() if name != "cause"}
        return {**kept, "state": "finished", "reason": DISMISSED}

    def forget(self, producer: bytes) -> None:
        """Drop the state of a delivered producer."""
        self._processes.forget(producer)
        self._oom_kills.forget(producer)
        self._pids.pop(producer, None)
        self._leaving.pop(producer, None)

    def end_by_exec(self, producer: bytes, now_us: int, failure: str) -> tuple[int, dict[str, Any]] | None:
        """Return what `resolve` does if the process has become another program by exec, else None."""
        program = None if failure else self._program_after_exec(producer)
        if program is None:  # safeguard: exec-ends-attempt
            return None
        return now_us, {"state": "finished", "reason": f"{EXECUTED}: {program}" if program else EXECUTED}

    def resolve(
        self,
        producer: bytes,
        identity: Mapping[str, Any],
        now_us: int,
        *,
        finished: bool,
        left: bool = False,
        failure: str = "",
        failure_cause: EndCause | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Return when a producer's process ended, and the STATE map of its end.

        identity: its own. finished, left: from its journal's head page. failure: the exception that ended its code,
        according to its journal. failure_cause: the cause that its writer named, if any.
        """
        death = self._processes.exit_of(producer)
        if death is None or death.status is None:
            death = self._status_of_helper(producer) or death  # safeguard: helper-knows-exit
        state: dict[str, Any] = {"state": "crashed", "reason": _UNSEEN[finished, left], "cause": EndCause.UNSEEN}
        detail: dict[str, Any] = {}
        ts_us = now_us
        if death is None:
            state["late_us"] = self._latest_delay_us(producer, identity, now_us)
        else:
            ts_us = death.ts_us
            detail["status_by"] = death.source or "nobody"
            if death.exit_code is not None:
                state |= _by_exit(death.exit_code, finished=finished, left=left)
            elif death.exit_signal is not None:
                state |= _by_signal(death.exit_signal, finished=finished)
            if death.exit_signal == signal.SIGKILL and (kill := self._kill_of(producer)) is not None:
                state |= {"reason": f"out of memory: {kill.text}", "cause": EndCause.OUT_OF_MEMORY}
                detail |= {"out_of_memory": kill.source, "cgroup": kill.group}
        if state["state"] != "finished":
            error = self._error_of(producer, identity)
            if error:
                detail |= error
                message = error["message"]
                if state["cause"] is not EndCause.OUT_OF_MEMORY and message and not failure:
                    cause = cause_of_exception(message)
                    state |= {"reason": f"{state['reason']}; its error file says: {message}", "cause": cause}
        if failure and state["state"] != "finished":  # safeguard: reported-exception-is-reason
            cause = cause_of_exception(failure, failure_cause)
            state |= {"state": "failed", "reason": _after(failure, death, state["reason"]), "cause": cause}
        if failure == "":
            state = self.dismissal_of(identity, state) or state
        if detail:
            state["detail"] = detail
        return ts_us, {name: _plain(value) for name, value in state.items() if value is not None}

    def _latest_delay_us(self, producer: bytes, identity: Mapping[str, Any], now_us: int) -> int:
        """Return how long ago, at most, a process without an exit status ended, in µs.

        If it was watched, the last regular scan found its lock. Otherwise it may have ended right after its start.
        """
        if producer in self._pids:
            return int(ADOPT_INTERVAL_S * 1e6)
        return max(0, now_us - int(identity.get("started_at", now_us)))

    def _kill_of(self, producer: bytes) -> OomKill | None:
        return self._oom_kills.kill_of(producer, self._pids.get(producer, 0))

    def _status_of_helper(self, producer: bytes) -> ProcessExit | None:
        """Return how a producer's process ended, from its console's helper, which had a pidfd of it from the start."""
        status = read_status(self._journals / producer.hex())
        return None if status is None else ProcessExit(status[0], status[1], f"{status[2]} of the console's helper")

    def _error_of(self, producer: bytes, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return message and traceback of a rank's error file; nothing if there is none, or only an older one.

        Processes that a rank starts inherit its variables: the file belongs to the rank alone.
        """
        path = identity.get("error_file")
        if not path or "rank" not in identity:
            return {}
        return self._errors.read(path, self._journals / producer.hex(), identity.get("started_at", 0))


def _may_be_dismissal(state: Mapping[str, Any]) -> bool:
    """Return True if an end looks like that of a worker of a terminated pool, or if nothing is known about it."""
    is_unknown = "exit_code" not in state and state.get("exit_signal", signal.SIGTERM) == signal.SIGTERM
    return state["state"] == "crashed" and is_unknown


def _after(failure: str, death: ProcessExit | None, reason: str) -> str:
    """Return the reason of a rank whose exception is known, and which ended before it reported its state."""
    is_by_signal = death is not None and death.exit_signal is not None
    return f"{failure}; then {reason}" if is_by_signal else failure


def _by_exit(code: int, *, finished: bool, left: bool) -> dict[str, Any]:
    cause = EndCause.EXIT_STATUS if code else None
    if left:
        reason = f"exit code {code}: SystemExit, or an exception that no hook saw" if code else None
        return {"state": "failed" if code else "finished", "exit_code": code, "reason": reason, "cause": cause}
    if finished:  # only the reason of its end was lost
        return {"state": "failed" if code else "finished", "exit_code": code, "reason": STATE_LOST, "cause": cause}
    reason = f"ended with exit code {code} without finish(): os._exit, or native code"
    return {"exit_code": code, "reason": reason, "cause": EndCause.EXIT_STATUS}


def _by_signal(number: int, *, finished: bool) -> dict[str, Any]:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    reason = f"killed by {name}{', after finish()' if finished else ''}"
    return {"exit_signal": number, "reason": reason, "cause": EndCause.EXIT_STATUS}


def _plain(value: Any) -> Any:
    """Return a value that msgpack supports: a code as its text."""
    return value.value if isinstance(value, EndCause) else value
