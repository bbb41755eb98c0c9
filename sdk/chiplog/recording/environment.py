"""What a primary tells of where it ran: git commit, command line, versions, and a few variables. Starts no process.

Git is read from its files: a child process of ours could be met by the training's own wait(). So nothing is known of
files that were changed and not committed.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from chiplog.values.metrics import clean_utf8

ENV_DISABLE = "CHIPLOG_SURROUNDINGS"  # 0: nothing of this is told
# Of the environment these and nothing else: it holds cloud tokens, and whatever a cluster puts there.
VARIABLES = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED"}
    | {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "SLURM_JOB_ID", "SLURM_JOB_NAME"}
)
PREFIXES = ("NCCL_", "GLOO_", "PYTORCH_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_")
_VARIABLE_CHARS_MAX = 500
_PACKAGES_MAX = 2_000
_FILE_BYTES_MAX = 8 << 20  # of packed-refs, which has a line for each branch and tag
_PARENTS_MAX = 64
WAIT_S = 0.25  # of the second that finish() may take, for a run that ends before this was gathered


def collect_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts as plain values, without secrets."""
    from chiplog.safety.redaction import (  # here: an import of chiplog pays nothing
        is_secret_name,
        redact_command,
        redact_text,
    )

    main = getattr(sys.modules.get("__main__"), "__file__", None)
    torch = sys.modules.get("torch")
    facts = {
        **git_of(os.path.dirname(os.path.abspath(main)) if main else os.getcwd()),
        "command": [clean_utf8(argument) for argument in redact_command(command_line())],
        "directory": os.getcwd(),
        "python": sys.version.partition(" ")[0],
        "torch": getattr(torch, "__version__", None),
        "cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "packages": packages(sys.path),
        "variables": {
            name: clean_utf8(redact_text(value, _VARIABLE_CHARS_MAX))
            for name, value in sorted(environ.items())
            if (name in VARIABLES or name.startswith(PREFIXES)) and not is_secret_name(name)
        },
    }
    return {name: clean_utf8(str(fact)) if isinstance(fact, str) else fact for name, fact in facts.items() if fact}


def git_of(directory: str) -> dict[str, str]:
    """Return `commit` and `branch` of the working copy that a directory lies in, as far as its files tell."""
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
    if os.path.isfile(dot):  # a worktree or a submodule: one line that says where the rest is
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
    """Return the command that this process was started by; of one that multiprocessing started, the program's.

    A spawned process has `python -c "from multiprocessing.spawn import …"` of its own, and is given the program's
    arguments. The interpreter's options are not among these.
    """
    own = getattr(sys, "orig_argv", sys.argv)
    is_spawned = any(argument.startswith("from multiprocessing.") for argument in own[1:])
    return [*own[:1], *sys.argv] if is_spawned else own


def packages(path: list[str]) -> dict[str, str]:
    """Return name → version of installed packages, by the names of their directories: reading them takes a second."""
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
    """Gathers the facts in a thread of its own, once: a file system that hangs must hold nobody up."""

    def __init__(self, say: Callable[[str, dict[str, Any]], None], environ: Mapping[str, str]) -> None:
        self._say = say
        self._environ = environ
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_over = False

    def start(self) -> None:
        """Begin, unless that was done before, or is not wanted. The sender's thread and the end may both call it."""
        if self._environ.get(ENV_DISABLE) == "0":
            return
        with self._lock:
            if self._thread is None and not self._is_over:
                thread = threading.Thread(target=self._run, name="chiplog-surroundings", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread is left just now, or no more are started: an exit
                    thread.start()
                    self._thread = thread  # behind its start: the other caller may join it at once

    def stop(self) -> None:
        """Wait a moment for what is under way; what comes later is not said any more."""
        if self._thread is not None:
            self._thread.join(WAIT_S)
        with self._lock:
            self._is_over = True

    def _run(self) -> None:
        try:
            facts = collect_environment(self._environ)
            commit, command = facts.get("commit", "no commit"), " ".join(facts.get("command", ()))
            message = f"{commit[:12]}: {command}"[:500]
        except Exception as error:  # whatever a file system or a foreign module raises
            facts, message = {}, f"not known: {type(error).__name__}"
        with self._lock:
            if not self._is_over:
                self._say(message, facts)
