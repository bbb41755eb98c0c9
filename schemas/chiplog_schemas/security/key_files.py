"""The keys of a host and the list of the keys that it admits, as files.

    CHIPLOG_KEYS, else CHIPLOG_DIR/keys          0700, of this user alone
      collector.key agent.key reader.key rank.key    0600: this host's secret key in that role
      collector.pub agent.pub …                      the public half; a client finds its server's here
      allowed/NAME.pub                               who may connect to this host's daemons

All are TOML. chiplog rejects files that other users could have written, and secrets that other users can read.
"""

import logging
import os
import re
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chiplog_schemas.atomic_file import atomic_write
from chiplog_schemas.paths import require_private
from chiplog_schemas.security.permissions import CLIENT_ROLES, Permission, Role

POLL_INTERVAL_S = 0.5  # between two reads of the allow list: a revoked key is rejected after at most this time
ALLOWED_MAX = 100_000  # files read: no cluster has more, and they would slow every read
FILE_BYTES_MAX = 16_384  # a key file has some hundred
_NAMES_MAX = 10_000  # of keys that were revoked since the start
_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NODE = re.compile(r"[^\x00-\x20\x7f]{1,128}")
_Stamp = tuple[str, int, int, int]  # of a file: name, inode, time of its last change (also of its mode), size
_log = logging.getLogger("chiplog.keys")


class KeysError(ValueError):
    """Keys that cannot be used. The text names the file and the remedy, in one line."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key of this host, with its secret half."""

    name: str
    role: str
    public: str
    secret: str


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The public half of a key."""

    name: str
    role: str
    public: str


def keys_dir(argument: str | os.PathLike[str] | None, environ: Mapping[str, str], root: Path) -> Path:
    """Return the directory of keys: the argument, else CHIPLOG_KEYS, else `keys` under CHIPLOG_DIR.

    It may not exist.
    """
    chosen = os.fspath(argument) if argument else environ.get("CHIPLOG_KEYS")  # safeguard: keys-option-wins
    return Path(os.path.abspath(os.path.expanduser(chosen))) if chosen else root / "keys"


def key_name(text: str) -> str:
    """Return a key name unchanged if it is valid: it becomes a file name. Raises KeysError."""
    if _NAME.fullmatch(text) is None:  # safeguard: key-name-checked
        raise KeysError(
            f"key name {text!r:.80} is invalid; use at most 64 letters, digits, dots, dashes and underscores"
        )
    return text


def node_pattern(text: str) -> str:
    """Return a node's name or pattern unchanged if it is valid. Raises KeysError."""
    if _NODE.fullmatch(text) is None:
        raise KeysError(f"node {text!r:.80} is invalid; write a name or a pattern such as gpu-* without spaces")
    return text


def node_name(text: str) -> str:
    """Return a node's name unchanged if it is valid. Raises KeysError: a pattern would match other nodes."""
    if _NODE.fullmatch(text) is None or any(character in "*?[" for character in text):
        raise KeysError(f"node {text!r:.80} is not a name; use up to 128 characters without spaces, *, ? and [")
    return text


def is_public_key(text: str) -> bool:
    """Return True if a text can be a public key: 40 characters of Z85 (ZeroMQ RFC 32)."""
    return _Z85.fullmatch(text) is not None


def host_key_name() -> str:
    """Return the default name of this host's keys and of its node."""
    return os.uname().nodename.split(".")[0]


class Keys:
    """One directory of keys. Nothing is cached: daemons read at start, clients at each new connection."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def pair(self, role: str) -> KeyPair | None:
        """Return this host's own key in a role, or None. Raises KeysError when the key must not be used."""
        path = self.directory / f"{role}.key"
        if not _is_there(path):
            return None
        check_directory(self.directory)
        fields = _read(path, secret=True)
        public, secret = _key(fields, "public", path), _key(fields, "secret", path)
        return KeyPair(_text(fields, "name", path), str(role), public, secret)

    def server(self, role: str) -> PublicKey | None:
        """Return the public key of the server that this host's clients connect to, or None."""
        path = self.directory / f"{role}.pub"
        if not _is_there(path):
            return None
        check_directory(self.directory)
        key = read_public(path)
        if key.role != role:
            raise KeysError(f"{path} is the key of a {key.role}; copy the {role}'s there")
        return key

    @property
    def allowed(self) -> Path:
        """The directory of the keys that may connect."""
        return self.directory / "allowed"


def read_public(path: Path) -> PublicKey:
    """Read a public key file. Raises KeysError."""
    fields = _read(path, secret=False)
    role = fields.get("role")
    if role not in tuple(Role):
        raise KeysError(
            f"{path}: role {role!r:.80} must be one of {', '.join(Role)}; make the key with chiplog keys new"
        )
    return PublicKey(key_name(_text(fields, "name", path)), role, _key(fields, "public", path))


def read_permit(path: Path) -> Permission:
    """Read an entry of the allow list, named by its file. Raises KeysError."""
    fields = _read(path, secret=False)
    roles, nodes = fields.get("roles"), fields.get("nodes")
    for name, value in (("roles", roles), ("nodes", nodes)):
        if not (isinstance(value, list) and all(isinstance(entry, str) for entry in value)):
            raise KeysError(f"{path}: {name} is {value!r:.80}, not a list of texts; allow the key again")
    assert isinstance(roles, list) and isinstance(nodes, list)
    if unknown := [role for role in roles if role not in CLIENT_ROLES]:
        raise KeysError(
            f"{path}: role {unknown[0]!r:.80} must be one of {', '.join(CLIENT_ROLES)}; allow the key again"
        )
    return Permission(
        key_name(path.stem), frozenset(roles), tuple(node_pattern(node) for node in nodes), _key(fields, "public", path)
    )


def write_pair(directory: Path, pair: KeyPair) -> tuple[Path, Path]:
    """Write the two files of a new key, .key and .pub, and return their paths. Raises FileExistsError if one exists."""
    secret, public = directory / f"{pair.role}.key", directory / f"{pair.role}.pub"
    known: dict[str, str | list[str]] = {"name": pair.name, "role": str(pair.role), "public": pair.public}
    write_toml(secret, {**known, "secret": pair.secret}, over=False)  # safeguard: key-never-overwritten
    write_toml(public, known)
    return secret, public


def write_permit(directory: Path, permit: Permission) -> Path:
    """Write an entry of the allow list, replacing one of the same name, and return its path."""
    path = directory / f"{permit.name}.pub"
    entry: dict[str, str | list[str]] = {
        "name": permit.name,
        "roles": sorted(permit.roles),
        "nodes": list(permit.nodes),
        "public": permit.public,
    }
    write_toml(path, entry | {"allowed_at": datetime.now(UTC).isoformat(timespec="seconds")})
    return path


def write_toml(path: Path, fields: Mapping[str, str | list[str]], *, over: bool = True) -> None:
    """Write texts and lists of texts as a TOML file that only this user can read: completely or not at all.

    Raises OSError, and FileExistsError when the file exists and `over` is false.
    """
    import json  # imported here: a rank imports this module and never writes a key

    # JSON strings and lists of strings are valid TOML, as long as no character is escaped as a surrogate.
    text = "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in fields.items())
    atomic_write(path, text.encode(), durable=True, replaces=over)


class AllowList:
    """The keys that may connect, from a directory that is read again when it changes.

    If it cannot be read, no key is allowed. Files that are not valid entries are skipped, with one warning.
    Thread-safe: an authenticator's handler and the loop of its daemon use it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # One thread reads at a time. With two, the one that started first could overwrite the newer list of the other,
        # and a key that was revoked in between would stay allowed.
        self._lock = threading.Lock()
        self._permits: dict[str, Permission] = {}
        self._names: dict[str, str] = {}  # of keys that were allowed once, to name them in a refusal
        self._seen: object = None
        self._read: dict[_Stamp, Permission] = {}  # files that have not changed are not read again
        self._next_poll_s = float("-inf")
        self._reported: set[str] = set()

    def find(self, public: str, now: float) -> Permission | None:
        """Return what a public key may do, or None if it is not allowed. `now`: seconds of any monotonic clock."""
        with self._lock:  # safeguard: key-list-read-under-lock
            if not now - self._next_poll_s < POLL_INTERVAL_S:
                self._next_poll_s = now
                self._reload()
            return self._permits.get(public)

    def name_of(self, public: str) -> str | None:
        """Return the name that a key has, or had here since the start."""
        with self._lock:
            return self._names.get(public)

    def _reload(self) -> None:
        try:
            if not self._directory.exists():
                seen: object = None
                found: list[_Stamp] = []
            else:
                check_directory(self._directory)
                with os.scandir(self._directory) as entries:
                    stamps = (_stamp(e) for e in entries if e.name.endswith(".pub") and e.name[0] != ".")
                    found = sorted(stamp for stamp in stamps if stamp is not None)
                seen = found
            if len(found) > ALLOWED_MAX:
                raise KeysError(f"{self._directory} holds {len(found)} keys, more than {ALLOWED_MAX}; remove some")
        except (OSError, KeysError) as error:
            self._seen, self._permits = None, {}
            self._warn_once(f"no client is admitted: {error}")
            return
        if seen == self._seen and seen is not None:  # safeguard: revocation-read-at-once
            return
        permits: dict[str, Permission] = {}
        read: dict[_Stamp, Permission] = {}
        for stamp in found:
            name = stamp[0]
            try:
                permit = read[stamp] = self._read.get(stamp) or read_permit(self._directory / name)
            except (KeysError, OSError) as error:
                self._warn_once(f"skipped: {error}")
                continue
            if permit.public in permits:
                self._warn_once(f"skipped: {name} has the key of {permits[permit.public].name}; remove one of them")
                continue
            permits[permit.public] = permit
        if len(self._names) > _NAMES_MAX:
            self._names = {}
        self._names |= {public: permit.name for public, permit in permits.items()}
        self._seen, self._permits, self._read = seen, permits, read

    def _warn_once(self, line: str) -> None:
        if line not in self._reported:
            if len(self._reported) > _NAMES_MAX:
                self._reported.clear()
            self._reported.add(line)
            _log.warning("allowed keys: %s", line)


def check_directory(directory: Path) -> None:
    """Raise KeysError unless only this user owns and can write to a directory, OSError when it does not exist."""
    if not stat.S_ISDIR(os.stat(directory).st_mode):
        raise KeysError(f"{directory} is not a directory; remove it")
    try:
        require_private(directory)
    except PermissionError as error:
        raise KeysError(str(error)) from error


def _stamp(entry: "os.DirEntry[str]") -> _Stamp | None:
    try:
        about = entry.stat()
    except FileNotFoundError:
        return None  # revoked at this moment
    return entry.name, about.st_ino, about.st_ctime_ns, about.st_size


def _is_there(path: Path) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise KeysError(f"{path} cannot be read: {error.strerror}; run this as the owner of the keys") from error
    return True


def _read(path: Path, *, secret: bool) -> dict[str, Any]:
    import tomllib  # imported here: a rank without keys imports this module and never reads one

    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            if secret and (about.st_uid != os.geteuid() or about.st_mode & 0o077):
                raise KeysError(f"{path} holds a secret that others can read or replace; chown it, chmod 600 it")
            if about.st_mode & 0o022:
                raise KeysError(f"{path} is writable by others; chmod go-w it")
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise KeysError(f"{path} has more than {FILE_BYTES_MAX} bytes, so it is not a key; remove it")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise KeysError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise KeysError(f"{path} is not valid TOML: {' '.join(str(error).split())}; make the key again") from error


def _text(fields: dict[str, Any], name: str, path: Path) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise KeysError(f"{path}: {name} is {value!r:.80}, not text; make the key again")
    return value


def _key(fields: dict[str, Any], name: str, path: Path) -> str:
    value = _text(fields, name, path)
    if not is_public_key(value):
        raise KeysError(f"{path}: {name} is not a key of 40 characters (Z85); make the key again")
    return value
