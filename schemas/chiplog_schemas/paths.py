"""The files under CHIPLOG_DIR and the sockets that belong to it. The three daemons and the SDK agree here.

    CHIPLOG_DIR/                default ~/.chiplog
      journals/<producer>/      one per opened run of a process: lock, head, segments
      owners/                   whether each process that owns a pool of workers ended well
      launches/                 run IDs that launches agreed on, for restarted ranks
      steps/                    the last step of each label that counts its own steps
      agent/                    lock, spool/, link
      collector/                lock, log/, index.duckdb, files/, store/
      outbox/                   saved files on their way to the collector, by content; offline runs use offline/files
      run/                      agent.sock, collector.sock, query.sock, and the daemons' output *.out

Journals, spool, outbox and sockets must be on a disk of this node. Unless CHIPLOG_DIR is on a file system that is known
to be local, they are in /var/tmp/chiplog-<uid>/<hash of CHIPLOG_DIR>. CHIPLOG_LOCAL_DIR names another directory for
them, or is `same`: CHIPLOG_DIR is on a disk of this node. When a path is too long for a socket, only the sockets move.
Without a home directory, chiplog uses /var/tmp/chiplog-<uid>/home instead.
"""

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chiplog_schemas.file_systems import LOCAL_FILE_SYSTEMS, file_system_type

SUBSTITUTE_PREFIX = "/var/tmp/chiplog-"  # a disk of this node that, unlike /tmp, survives a reboot
SOCKET_PATH_BYTES_MAX = 100  # sockaddr_un holds 107 and the final zero; libzmq needs some of them
LOCAL_DIR = "CHIPLOG_LOCAL_DIR"
GPUS_RELEASED = "gpus-released"
SAME = "same"  # its value for a CHIPLOG_DIR on a disk of this node
_log = logging.getLogger("chiplog")
_has_warned_homeless = False
_has_warned_foreign = False
_has_warned_relative = False


@dataclass(frozen=True, slots=True)
class Paths:
    """All paths and default addresses of one CHIPLOG_DIR on this host."""

    root: Path  # CHIPLOG_DIR itself
    local: Path  # the same, or its substitute on a disk of this node
    run: Path  # sockets
    former: tuple[Path, ...] = ()  # where another decision has left or leaves the content of `local`
    may_be_shared: bool = False  # whether other nodes may use `root` too

    @property
    def journals(self) -> Path:
        """Directory of all journals of this node and user."""
        return self.local / "journals"

    @property
    def owners(self) -> Path:
        """Directory in which owners of pools record that they ended well."""
        return self.local / "owners"

    @property
    def launches(self) -> Path:
        """Directory of the run IDs that launches on this node agreed on."""
        return self.local / "launches"

    @property
    def agent(self) -> Path:
        """Directory of the agent: its lock and spool."""
        return self.local / "agent"

    @property
    def agent_link(self) -> Path:
        """File with the agent's report on its link to the collector; see link_status."""
        return self.agent / "link"

    @property
    def gpus_released(self) -> Path:
        """File that exists while an operator wants the agent to leave the GPUs closed."""
        return self.agent / GPUS_RELEASED

    @property
    def outbox(self) -> Path:
        """Directory of saved files that the agent delivers, each under the SHA-256 of its content."""
        return self.local / "outbox"

    @property
    def offline_files(self) -> Path:
        """Directory of the saved files of offline runs, which `chiplog sync` delivers."""
        return self.local / "offline" / "files"

    @property
    def files(self) -> Path:
        """Directory of the files that the collector stores: ab/abcdef…, by content."""
        return self.collector / "files"

    @property
    def collector(self) -> Path:
        """Directory of the collector: its lock, log and index."""
        return self.root / "collector"

    @property
    def index(self) -> Path:
        """The DuckDB file."""
        return self.collector / "index.duckdb"

    @property
    def index_lock(self) -> Path:
        """The lock of the process that writes the DuckDB file."""
        return self.collector / "index.lock"

    @property
    def store(self) -> Path:
        """Directory of the collector's pieces on their way to a store; see chiplog_collector.store.outbox."""
        return self.collector / "store"

    @property
    def store_refused(self) -> Path:
        """The file with the PID of an index that reads a store for clients, and could not at its last look."""
        return self.store / "reader" / "refused"

    @property
    def agent_address(self) -> str:
        """Where the agent listens for ranks."""
        return f"ipc://{self.run}/agent.sock"

    @property
    def collector_address(self) -> str:
        """Where the embedded collector listens for agents."""
        return f"ipc://{self.run}/collector.sock"

    @property
    def query_address(self) -> str:
        """Where the embedded collector answers SQL."""
        return f"ipc://{self.run}/query.sock"


def resolve_root(argument: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path:
    """Return CHIPLOG_DIR: the argument, else the variable, else ~/.chiplog, made absolute.

    If ~ cannot be resolved, for example in a container with an arbitrary uid, return a private directory of this user
    and warn once. The unresolved path would be relative to the working directory.
    """
    chosen = os.fspath(argument) if argument else environ.get("CHIPLOG_DIR") or "~/.chiplog"
    expanded = os.path.expanduser(chosen)
    return _fallback_root(chosen) if expanded.startswith("~") else Path(os.path.abspath(expanded))


def own_dir(argument: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path:
    """Return CHIPLOG_DIR, or this user's default where the variable names a directory of another user.

    An agent of another user can set it, as in its agent.env. This user's journals cannot be stored there, so they go to
    the default directory, where this user's own agent finds them. One warning reports it. An argument is used as it is.
    """
    global _has_warned_foreign
    chosen = resolve_root(argument, environ)
    # safeguard: foreign-directory-unused
    if argument or not environ.get("CHIPLOG_DIR") or not (why := _foreign(chosen)):
        return chosen
    own = resolve_root(None, {name: value for name, value in environ.items() if name != "CHIPLOG_DIR"})
    if not _has_warned_foreign:
        _has_warned_foreign = True
        _log.warning("chiplog: CHIPLOG_DIR %s %s; %s is used; set CHIPLOG_DIR to one of your own", chosen, why, own)
    return own


def _foreign(directory: Path) -> str:
    """Return why this user cannot write to a directory; '' if the user can, or can create it."""
    try:
        for path in (directory, *directory.parents):
            if path.exists():
                break
        owner = os.stat(path).st_uid
    except PermissionError:
        return "cannot be entered by this user"
    except OSError:
        return ""
    if path == directory:
        return "" if owner == os.geteuid() else f"belongs to uid {owner}"
    return "" if os.access(path, os.W_OK | os.X_OK) else f"cannot be made by this user in {path}"


def _fallback_root(chosen: str) -> Path:
    global _has_warned_homeless
    # require_private checks it, as everything below that prefix.
    directory = Path(os.path.abspath(f"{SUBSTITUTE_PREFIX}{os.getuid()}/home/{chosen.partition('/')[2]}"))
    if not _has_warned_homeless:
        _has_warned_homeless = True
        _log.warning(
            "chiplog: no home directory is known for %s; %s is used; set HOME or CHIPLOG_DIR", chosen, directory
        )
    return directory


def paths_for_root(root: Path, environ: Mapping[str, str] | None = None) -> Paths:
    """Return the paths and addresses for a CHIPLOG_DIR. Creates nothing. environ: by default this process's."""
    digest = hashlib.sha256(str(root).encode()).hexdigest()[:12]
    substitute = Path(f"{SUBSTITUTE_PREFIX}{os.getuid()}") / digest
    may_be_shared = file_system_type(root) not in LOCAL_FILE_SYSTEMS  # safeguard: unknown-file-system-not-local
    named = (os.environ if environ is None else environ).get(LOCAL_DIR, "").strip()
    if named == SAME:
        may_be_shared = False
    local = substitute if may_be_shared else root
    if os.path.isabs(named):
        local = Path(os.path.abspath(named)) / f"chiplog-{os.getuid()}" / digest
    elif named and named != SAME:
        _warn_relative(named)
    run = local / "run"
    if len(f"{run}/collector.sock".encode()) > SOCKET_PATH_BYTES_MAX:
        run = substitute / "run"
    return Paths(root, local, run, tuple(path for path in (root, substitute) if path != local), may_be_shared)


def _warn_relative(named: str) -> None:
    """Warn once: a relative path would name another directory in each process."""
    global _has_warned_relative
    if not _has_warned_relative:
        _has_warned_relative = True
        _log.warning("chiplog: %s is %r, neither an absolute path nor %r; it is not used", LOCAL_DIR, named, SAME)


def ensure_private_dir(directory: Path) -> None:
    """Create a directory, and its missing parents, that only this user can enter.

    Raises OSError, and PermissionError when an existing one is not this user's or is writable by others.
    """
    if not directory.parent.exists():
        ensure_private_dir(directory.parent)
    directory.mkdir(exist_ok=True, mode=0o700)
    require_private(directory)
    for parent in directory.parents:  # everybody can write to /var/tmp, so any user may have made the directory
        if str(parent).startswith(SUBSTITUTE_PREFIX) or parent.name == f"chiplog-{os.getuid()}":
            require_private(parent)


def require_private(directory: Path) -> None:
    """Raise PermissionError, in one line, unless this user owns a directory and only this user can write to it."""
    about = os.stat(directory)
    if about.st_uid != os.geteuid():
        raise PermissionError(f"{directory} belongs to uid {about.st_uid}, not to {os.geteuid()}; chown or remove it")
    if about.st_mode & 0o022:  # safeguard: writable-directory-refused
        raise PermissionError(f"{directory} is writable by others; chmod go-w it")


def check_root(place: Paths) -> None:
    """Raise PermissionError when others can replace the content of CHIPLOG_DIR or of its substitute."""
    for directory in {place.root, place.local}:
        if directory.exists():
            require_private(directory)
