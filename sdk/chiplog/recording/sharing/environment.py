"""Record where a primary runs: git commit, command line, versions, and a few variables. Starts no process.

Git is read from its files, because the training's own wait() could reap a child process of chiplog. So uncommitted
changes are unknown.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chiplog.safety.text import clean_utf8
from chiplog_schemas.interrupts import handlers_held, unless_interrupt

RECORDS_ENVIRONMENT = "CHIPLOG_SURROUNDINGS"  # a variable; 0: record none of this
# Only these variables are recorded: the environment may hold cloud tokens and other secrets of a cluster.
VARIABLES = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED"}
    | {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "SLURM_JOB_ID", "SLURM_JOB_NAME"}
)
PREFIXES = ("NCCL_", "GLOO_", "PYTORCH_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_")
_VARIABLE_CHARS_MAX = 500
_PACKAGES_MAX = 2_000
_FILE_BYTES_MAX = 8 << 20  # of packed-refs, which has a line for each branch and tag
_PARENTS_MAX = 64
WAIT_S = 0.25  # part of finish()'s one second, for a run that ends before the facts are collected


def collect_environment(environ: Mapping[str, str], launched: Sequence[str] = ()) -> dict[str, Any]:
    """Return the facts as plain values, without secrets.

    launched: as in `RunSettings`. The versions of such a process say nothing about the training.
    """
    from chiplog.safety.redaction import (  # imported late: `import chiplog` stays fast
        is_secret_name,
        redact_command,
        redact_text,
    )

    main = None if launched else getattr(sys.modules.get("__main__"), "__file__", None)
    facts = {  # safeguard: secret-hidden-before-journal
        **git_of(os.path.dirname(os.path.abspath(main)) if main else os.getcwd()),
        "launched" if launched else "command": [
            clean_utf8(argument) for argument in redact_command(launched or command_line())
        ],
        "directory": os.getcwd(),
        **({} if launched else _versions()),
        "variables": {
            name: clean_utf8(redact_text(value, _VARIABLE_CHARS_MAX))
            for name, value in sorted(environ.items())
            if (name in VARIABLES or name.startswith(PREFIXES)) and not is_secret_name(name)
        },
    }
    return {name: clean_utf8(str(fact)) if isinstance(fact, str) else fact for name, fact in facts.items() if fact}


def _versions() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    return {
        "python": sys.version.partition(" ")[0],
        "torch": getattr(torch, "__version__", None),
        "cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "packages": packages(sys.path),
    }


def git_of(directory: str) -> dict[str, str]:
    """Return `commit` and `branch` of the working copy that contains a directory, as far as its files show."""
    for _ in range(_PARENTS_MAX):
        dot = os.path.join(directory, ".git")
        if os.path.exists(dot):
            return _git(dot, directory)
        above = os.path.dirname(directory)
        if above == directory:
            break
        directory = above
    return {}


def _git(dot: str, directory: str) -> dict[str, str]:
    if os.path.isfile(dot):  # a worktree or a submodule: one line with the path of the git directory
        dot = os.path.join(directory, _read(dot).removeprefix("gitdir:").strip())
    common = os.path.join(dot, _read(os.path.join(dot, "commondir")).strip() or ".")
    head = _read(os.path.join(dot, "HEAD")).strip()
    if not head.startswith("ref:"):
        return {"commit": head} if _is_commit(head) else {}
    name = head.removeprefix("ref:").strip()
    found = {"branch": name.removeprefix("refs/heads/")}
    commit = _read(os.path.join(common, name)).strip()
    if not commit:
        packed = _read(os.path.join(common, "packed-refs")).splitlines()
        commit = next((line.partition(" ")[0] for line in packed if line.partition(" ")[2] == name), "")
    return found | {"commit": commit} if _is_commit(commit) else found


def _is_commit(text: str) -> bool:
    return len(text) in (40, 64) and all(character in "0123456789abcdef" for character in text)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_FILE_BYTES_MAX)
    except (OSError, ValueError):
        return ""


def command_line() -> list[str]:
    """Return the command line of this process; for a process that multiprocessing started, the program's.

    A spawned process has the command line `python -c "from multiprocessing.spawn import …"`, and gets the program's
    arguments without the interpreter's options.
    """
    own = sys.orig_argv
    is_spawned = any(argument.startswith("from multiprocessing.") for argument in own[1:])
    return [*own[:1], *getattr(sys, "argv", [])] if is_spawned else own


def packages(path: list[str]) -> dict[str, str]:
    """Return name → version of installed packages, from directory names: reading their metadata takes a second."""
    found: dict[str, str] = {}
    for directory in path:
        try:
            entries = os.listdir(directory or ".")
        except OSError:
            continue
        for entry in entries:
            stem, dot, kind = entry.rpartition(".")
            name, dash, version = stem.partition("-")
            if dot and dash and kind in ("dist-info", "egg-info") and len(found) < _PACKAGES_MAX:
                found.setdefault(clean_utf8(name), clean_utf8(version.partition("-")[0]))
    return dict(sorted(found.items()))


class EnvironmentCollector:
    """Collect the facts once, in a dedicated thread: a file system that hangs must not block the training."""

    def __init__(
        self, emit: Callable[[str, dict[str, Any]], None], environ: Mapping[str, str], launched: Sequence[str] = ()
    ) -> None:
        self._emit = emit
        self._environ = environ
        self._launched = launched
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_over = False

    def start(self) -> None:
        """Start once. The sender thread and finish() may both call this."""
        with self._lock:
            if self._thread is None and not self._is_over:
                thread = threading.Thread(target=self._run, name="chiplog-surroundings", daemon=True)
                try:
                    with handlers_held():  # as in start_thread()
                        thread.start()
                        self._thread = thread  # after its start: the other caller may join it at once
                except unless_interrupt(RuntimeError):  # out of threads, or the interpreter exits
                    pass

    def stop(self) -> None:
        """Wait briefly for the thread; drop its result if it comes later."""
        if self._thread is not None:
            self._thread.join(WAIT_S)
        with self._lock:
            self._is_over = True

    def _run(self) -> None:
        try:
            facts = collect_environment(self._environ, self._launched)
            commit, command = (
                facts.get("commit", "no commit"),
                " ".join(facts.get("launched") or facts.get("command", ())),
            )
            message = f"{commit[:12]}: {command}"[:500]
        except Exception as error:  # a file system or a foreign module may raise anything
            facts, message = {}, f"not known: {type(error).__name__}"
        with self._lock:
            if not self._is_over:
                self._emit(message, facts)
