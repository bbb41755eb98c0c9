"""`chiplog.Artifact`: what it is made of, before it is logged; its version and files, once the collector knows it."""

import io
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec
from urllib.parse import urlsplit

from chiplog.media.encoding.captured import report_once, report_unknown_arguments
from chiplog.safety import foreign_names
from chiplog.safety.diagnostics import error_text
from chiplog.safety.text import clean_utf8, short_repr
from chiplog.settings import clean_name
from chiplog.values.artifact_value import LATEST, ArtifactEntry, ArtifactError, ArtifactPlace, ArtifactValue
from chiplog.values.media_value import Content, MediaValue
from chiplog_schemas.interrupts import handlers_held, unless_interrupt
from chiplog_schemas.limits import NAME_CHARS_MAX

if TYPE_CHECKING:
    from chiplog.artifacts.reads import Version

_OF_TRANSFER = ("policy", "skip_cache")  # arguments of W&B about its way to a server, which libraries pass
_PROBLEMS_MAX = 100  # kept until the artifact is logged
_P = ParamSpec("_P")


def _kept(method: "Callable[Concatenate[Artifact, _P], None]") -> "Callable[Concatenate[Artifact, _P], None]":
    """Make a method keep what it raises as a problem, which `run.log_artifact` reports."""

    @wraps(method)
    def wrapper(self: "Artifact", *given: _P.args, **named: _P.kwargs) -> None:
        try:
            method(self, *given, **named)
        except unless_interrupt(Exception) as error:
            value = next(iter((*given, *named.values())), "")
            self._note_problem(f"{method.__name__}({short_repr(value)}) failed: {error_text(error)}")

    return wrapper  # type: ignore[return-value]  # callers give self by name or by place


class Artifact(ArtifactValue):
    """A named set of files with versions. What adds to it never raises; `run.log_artifact` reports what was wrong.

    Args:
        name: At most 128 characters, without slashes and colons.
        type: A word, such as model or dataset.
        description: A text.
        metadata: Plain values by name.

    Examples:
        >>> artifact = chiplog.Artifact("model", type="model", metadata={"epoch": 3})
        >>> artifact.add_file("checkpoints/last.pt")
        >>> run.log_artifact(artifact, aliases=["best"])

    """

    def __init__(
        self,
        name: str,
        type: str = "unspecified",
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *more: Any,
        **unknown: Any,
    ) -> None:
        report_unknown_arguments("Artifact", more, unknown)
        self._problems: list[str] = []
        self._entries: list[ArtifactEntry] = []
        self._directory: str | None = None
        self._place: ArtifactPlace | None = None
        self._digest: bytes | None = None
        self._version: Version | None = None
        self._of_project = ""
        self._known_aliases: list[str] = []
        self.aliases: list[str] = []
        self.name = self._clean("name", name) or "unnamed"
        self.type = clean_utf8(str(type))[:NAME_CHARS_MAX]
        self.description = "" if description is None else clean_utf8(str(description))
        self.metadata = dict(metadata) if isinstance(metadata, dict) else metadata or {}

    @classmethod
    def from_any(cls, given: Any, name: str | None, type: str | None, run_id: str) -> "Artifact":
        """Return an artifact unchanged, or make one from a file, a directory or a URI."""
        if isinstance(given, Artifact):
            return given
        try:
            path = os.fsdecode(given)
        except unless_interrupt(TypeError):
            artifact = cls(name or "unnamed", type or "unspecified")
            artifact._note_problem(f"is made of {short_repr(given)}, which is not a path or an Artifact")
            return artifact
        last = os.path.basename(path.rstrip("/")) or "files"
        artifact = cls(name or f"run-{run_id}-{last}", type or "unspecified")
        if "://" in path:
            artifact.add_reference(path)
        elif os.path.isdir(path):
            artifact.add_dir(path)
        else:
            artifact.add_file(path)
        return artifact

    def __getattr__(self, name: str) -> Any:
        """Return an object that does nothing for a name of W&B's artifacts, and say so once. For unknown names."""
        if name not in foreign_names.ARTIFACT_NAMES:
            raise AttributeError(f"'Artifact' object has no attribute {name!r}")
        report_once(foreign_names.unavailable("artifact", name))
        return foreign_names.NoOp()

    def is_draft(self) -> bool:
        """Return True until the artifact is logged."""
        return self._digest is None

    def finalize(self) -> None:
        """Do nothing: what is added after `log_artifact` goes into its next version."""

    # -- what it is made of --

    @_kept
    def add_file(self, local_path: str | os.PathLike[str], name: str | None = None, *more: Any, **unknown: Any) -> None:
        """Add a file. It is copied when the artifact is logged; one in the temporary directory may be gone by then.

        Args:
            local_path: The file.
            name: Name in the artifact. Default: the last part of the path.
        """
        _report_unknown("add_file", more, unknown)
        source = os.fsdecode(local_path)
        staged = self._staged(os.path.abspath(source))
        self._entries.append(ArtifactEntry(name or os.path.basename(source), source=staged, given=source))

    @_kept
    def add_dir(self, local_path: str | os.PathLike[str], name: str | None = None, *more: Any, **unknown: Any) -> None:
        """Add all files of a directory. They are copied when the artifact is logged.

        Args:
            local_path: The directory.
            name: Directory in the artifact that they go into. Default: its root.
        """
        _report_unknown("add_dir", more, unknown)
        self._entries.append(ArtifactEntry(name or "", source=os.path.abspath(os.fsdecode(local_path))))

    @_kept
    def add_reference(
        self, uri: str | os.PathLike[str], name: str | None = None, checksum: bool = True, *more: Any, **unknown: Any
    ) -> None:
        """Add a file or directory by its address. Its content stays where it is.

        Args:
            uri: A URI such as s3://bucket/key, or a path. No network is used.
            name: Name in the artifact. Default: the last part of the address.
            checksum: Whether a file of this machine is hashed, so that a download can verify it.
        """
        report_unknown_arguments("add_reference", more, unknown)
        text = os.fsdecode(uri)
        uri_text = text if "://" in text else Path(os.path.abspath(text)).as_uri()
        last = urlsplit(uri_text).path.rstrip("/").rsplit("/", 1)[-1] or "reference"
        from chiplog.artifacts.references import entries_of_reference

        for entry in entries_of_reference(clean_utf8(uri_text), name or last, checksum, self._note_problem):
            self._entries.append(entry)

    @_kept
    def add(self, obj: Any, name: str, *more: Any, **unknown: Any) -> None:
        """Add an image, a table or other media as a file.

        Args:
            obj: A value as `log` takes it: chiplog.Table, chiplog.Image …
            name: Name in the artifact. Masks of an image and images in cells of a table go below `NAME.parts/`.
        """
        report_unknown_arguments("add", more, unknown)
        if not isinstance(obj, MediaValue):
            raise TypeError(f"it takes media such as chiplog.Table, not {short_repr(obj)}; use add_file() for a file")
        self._add_content(obj.to_content(), name)

    def _add_content(self, content: Content, name: str) -> None:
        for number, (part, inner) in enumerate(content.parts):
            self._add_content(inner, f"{name}.parts/{part}/{number}")
        self._entries.append(ArtifactEntry(name, data=content.data))

    @contextmanager
    def new_file(self, name: str, mode: str = "w", encoding: str | None = None) -> Iterator[Any]:
        """Return a context manager that opens a new file of the artifact.

        Args:
            name: Name in the artifact.
            mode: w for text, wb for bytes.
            encoding: Of a text.

        Examples:
            >>> with artifact.new_file("classes.txt") as file:
            ...     file.write("cat")

        """
        try:
            path = os.path.join(self._new_directory(), "file")
            file: Any = open(path, mode.replace("x", "w"), encoding=encoding)  # noqa: SIM115  # closed below
        except unless_interrupt(OSError, ValueError) as error:
            self._note_problem(f"new_file({name!r:.80}) failed: {error_text(error)}")
            yield io.BytesIO() if "b" in str(mode) else io.StringIO()
            return
        with file:
            yield file
        self._entries.append(ArtifactEntry(name, source=path))

    def _staged(self, source: str) -> str:
        """Return a link to a file of the temporary directory, which may be gone when the artifact is logged."""
        if not os.path.realpath(source).startswith(os.path.realpath(tempfile.gettempdir()) + os.sep):
            return source
        try:
            link = os.path.join(self._new_directory(), os.path.basename(source))
            os.link(os.path.realpath(source), link)
        except unless_interrupt(OSError):  # it is not there, or on another file system
            return source
        return link

    def _new_directory(self) -> str:
        """Return a new directory that goes with this object."""
        if self._directory is None:
            self._directory = tempfile.mkdtemp(prefix="chiplog-artifact-")
            weakref.finalize(self, _remove, self._directory, os.getpid())
        return tempfile.mkdtemp(dir=self._directory)

    # -- its version --

    @property
    def digest(self) -> str | None:
        """The SHA-256 of the manifest, in hex digits; None until the artifact is logged."""
        return None if self._digest is None else self._digest.hex()

    @property
    def version(self) -> str | None:
        """The version, such as v3; None until `wait` has returned."""
        return None if self._version is None else f"v{self._version.version}"

    @property
    def project(self) -> str | None:
        """The project that it was logged in; None until then."""
        return None if self._place is None else self._of_project

    def wait(self, timeout: float | None = None) -> "Artifact":
        """Wait until the collector knows the version of a logged artifact.

        Args:
            timeout: In seconds. Default: CHIPLOG_ARTIFACT_WAIT_S, 30.

        Returns:
            The artifact.

        Raises:
            ArtifactError: It was not logged, or the collector does not answer.
        """
        self._read(timeout)
        return self

    def download(self, root: str | os.PathLike[str] | None = None, timeout: float | None = None) -> str:
        """Write the files below a directory, each verified by its SHA-256.

        Args:
            root: The directory. Default: `artifacts/NAME:vN` below the working directory.
            timeout: In seconds, for files that the collector does not have yet. Default: CHIPLOG_ARTIFACT_WAIT_S, 30.

        Returns:
            The directory.

        Raises:
            ArtifactError: The artifact or one of its files cannot be read or written.
        """
        found = self._read(timeout)
        name = self.name if found is None else f"{found.name}:v{found.version}"
        directory = Path("artifacts") / name if root is None else Path(os.fsdecode(root))
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArtifactError(f"{directory} cannot be created: {error.strerror}") from error
        if found is not None:
            from chiplog.artifacts import reads

            reads.download(self._known_place(), found, directory, self._wait_s(timeout))
        return str(directory)

    def get_path(self, name: str) -> "ArtifactFile":
        """Return a file of the version by its name in the artifact.

        Args:
            name: Name in the artifact.

        Returns:
            The file, with `path`, `size`, `digest`, `ref` and `download(root)`.

        Raises:
            ArtifactError: The version has no such file, or cannot be read.
        """
        for file in self.files():
            if file.path == name:
                return file
        raise ArtifactError(f"artifact {self.name!r} has no file {name!r:.200}")

    get_entry = get_path  # W&B's

    def files(self) -> "list[ArtifactFile]":
        """Return the files of the version, by name.

        Raises:
            ArtifactError: The version cannot be read.
        """
        found = self._read(None)
        return [
            ArtifactFile(self, file.path, file.size, file.sha256.hex() if file.sha256 else None, file.reference or None)
            for file in (() if found is None else found.files)
        ]

    def get(self, name: str) -> bytes:
        """Return the content of a file of the version.

        Args:
            name: Name in the artifact.

        Raises:
            ArtifactError: The version has no such file, or it cannot be read.
        """
        path, found = self.get_path(name).path, self._read(None)
        from chiplog.artifacts import reads

        assert found is not None
        return reads.read(self._known_place(), found, path, self._wait_s(None))

    @_kept
    def save(self) -> None:
        """Record the aliases that were added to or removed from `aliases` since the artifact was logged or read."""
        if self._place is None or self._digest is None:
            self._note_problem("save() does nothing before log_artifact(); log it first")
            return
        wanted = self.take_aliases(None)
        for alias in {*wanted} ^ {*self._known_aliases}:
            if alias != LATEST:
                self._place.emit_alias(self._of_project, self.name, self._digest, alias, int(alias in wanted))
        self._known_aliases = wanted

    def __repr__(self) -> str:
        return f"<chiplog artifact {self.name}:{self.version or 'not known yet'}>"

    # -- for the run --

    def entries(self) -> list[ArtifactEntry]:
        """Return what it is made of."""
        return list(self._entries)

    def take_problems(self) -> list[str]:
        """Return what could not be added since the last call, one line each."""
        problems, self._problems = self._problems, []
        return problems

    def take_aliases(self, more: Any) -> list[str]:
        """Return the aliases that its version gets. more: those of the call."""
        given = [more] if isinstance(more, str) else list(more or ()) if isinstance(more, list | tuple | set) else []
        cleaned = [self._clean("alias", alias) for alias in [*self.aliases, *given]]
        for alias in cleaned:
            if _is_number(alias):
                self._note_problem(f"cannot have the alias {alias!r}: it is the name of a version")
        self.aliases = [alias for alias in dict.fromkeys(cleaned) if alias and not _is_number(alias)]
        return list(self.aliases)

    def note_logged(self, place: ArtifactPlace, digest: bytes) -> None:
        """Note that it was logged with this digest of its manifest; empty by a disabled run."""
        self._place, self._of_project, self._digest, self._version = place, place.project, digest or None, None
        self._known_aliases = list(self.aliases)

    def note_found(self, place: ArtifactPlace, version: "Version") -> None:
        """Note which version this is."""
        self._place, self._of_project = place, version.project
        self._digest, self._version = bytes.fromhex(version.digest), version
        self.name, self.type, self.description = version.name, version.type, version.description
        self.metadata, self.aliases = version.metadata, list(version.aliases)
        self._known_aliases = list(version.aliases)

    def _read(self, timeout: float | None) -> "Version | None":
        """Return the version as the collector knows it; None if the run is disabled."""
        place = self._known_place()
        if place.mode == "disabled":
            return None
        if self._version is None:
            if place.mode == "offline":
                raise ArtifactError(f"artifact {self.name!r} is of an offline run; chiplog sync delivers it")
            from chiplog.artifacts import reads

            assert self._digest is not None
            wait_s = self._wait_s(timeout)
            self._version = reads.find_by_digest(place, self._of_project, self.name, self._digest, wait_s)
        return self._version

    def _known_place(self) -> ArtifactPlace:
        if self._place is None:
            raise ArtifactError(f"artifact {self.name!r} was not logged; call run.log_artifact() first")
        return self._place

    def _wait_s(self, timeout: float | None) -> float:
        return self._known_place().wait_s if timeout is None else max(0.0, float(timeout))

    def _clean(self, what: str, text: Any) -> str:
        """Return a name or an alias without slashes and colons, within the limit."""
        try:
            given = clean_utf8(str(text))
        except unless_interrupt(Exception):  # a foreign object may raise anything
            given = ""
        cleaned, faults = clean_name(given.replace(":", "_"), NAME_CHARS_MAX)
        faults = ", ".join([*filter(None, [faults]), *(["a colon"] if ":" in given else [])])
        if faults:
            used = f"{cleaned or 'unnamed'!r:.80} is used" if cleaned or what == "name" else "it is left out"
            self._note_problem(f"{what} {given!r:.80} has {faults}; {used}")
        return cleaned

    def _note_problem(self, problem: str) -> None:
        if len(self._problems) < _PROBLEMS_MAX:
            self._problems.append(clean_utf8(problem))


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A file of a version. digest: SHA-256 in hex digits. ref: the URI of a reference."""

    artifact: Artifact
    path: str
    size: int
    digest: str | None
    ref: str | None

    def download(self, root: str | os.PathLike[str] | None = None) -> str:
        """Write the file below a directory, and return its path there. Raises ArtifactError."""
        from chiplog.artifacts import reads

        artifact = self.artifact
        found, place = artifact._read(None), artifact._known_place()
        assert found is not None
        directory = Path("artifacts") / f"{found.name}:v{found.version}" if root is None else Path(os.fsdecode(root))
        reads.download_file(place, found, self.path, directory / self.path, artifact._wait_s(None))
        return str(directory / self.path)


def used_artifact(place: ArtifactPlace, text: str, type: str | None, timeout_s: float | None) -> Artifact:
    """Return the artifact that a name means: "name:alias", "name:v3" or "project/name:alias". Raises ArtifactError."""
    artifact, found = Artifact("unnamed"), None
    project, name, wanted = parse_name(text, place.project)
    artifact.name = name
    if place.mode == "offline":
        raise ArtifactError(f"an offline run cannot read artifact {text!r:.200}; use mode online")
    if place.mode != "disabled":
        from chiplog.artifacts import reads

        wait_s = place.wait_s if timeout_s is None else max(0.0, float(timeout_s))
        found = reads.find_by_name(place, project, name, wanted, wait_s)
        if type is not None and type != found.type:
            raise ArtifactError(f"artifact {found} is of type {found.type!r}, not {type!r:.80}")
        artifact.note_found(place, found)
    else:
        artifact.note_logged(place, b"")
    return artifact


def parse_name(text: Any, project: str) -> tuple[str, str, str]:
    """Return project, name and alias of "project/name:alias". The last slash separates, for projects hold slashes."""
    if not isinstance(text, str) or not text.strip("/: "):
        raise ArtifactError(f"an artifact is named as 'name:latest', not {short_repr(text)}")
    before, slash, last = text.rpartition("/")
    name, _, alias = last.partition(":")
    return (before if slash else project), name, alias or LATEST


def _is_number(alias: str) -> bool:
    return alias[:1] == "v" and alias[1:].isdecimal()


def _report_unknown(call: str, more: tuple[Any, ...], unknown: Mapping[str, Any]) -> None:
    report_unknown_arguments(call, more, {name: value for name, value in unknown.items() if name not in _OF_TRANSFER})


def _remove(directory: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has copies of its parent's artifacts
        with handlers_held():  # rmtree would ignore what a signal handler raises
            shutil.rmtree(directory, ignore_errors=True)
