"""The settings of one run, resolved from arguments and variables that may have any value."""

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from chiplog.identity.gpus import gpu_claim, known_gpus
from chiplog.identity.identity import Identity
from chiplog.identity.process_info import host_name, node_name, owner
from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.foreign_names import is_stand_in
from chiplog.safety.text import clean_utf8, short_repr
from chiplog.torch.current_device import CurrentDevice
from chiplog_schemas._version import __version__
from chiplog_schemas.interrupts import raise_interrupt, unless_interrupt
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.limits import SAMPLE_INTERVAL_MAX_S, SAMPLE_INTERVAL_MIN_S
from chiplog_schemas.model.events import ProducerIdentity
from chiplog_schemas.paths import Paths, resolve_root
from chiplog_schemas.process.procfs import boot_id, pid_namespace, uptime_us

_DIGEST_CHARS = 8  # appended to a truncated name
_FLAG_WORDS = {True: (True, "1", "true", "yes", "on"), False: (False, "0", "false", "no", "off")}  # True is 1, too
_LINE_CHARS_MAX = 1_024  # of project, name, group and job type: the index keeps as many


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of one run, resolved by `init`."""

    identity: Identity
    places: Paths
    mode: str  # online, offline, disabled
    agent_address: str | None
    project: str | None = None
    name: str | None = None
    group: str | None = None
    job_type: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    run_given: bool = False  # the run ID was given, not only derived from a launch or a parent
    label_given: bool = False
    primary_given: bool = False
    gpu_device_ids: tuple[str, ...] | None = None
    sample_interval_s: float | None = None  # 0: no samples of the machine
    speaks_for_node: bool = False  # the other ranks of its node are not recorded
    update_finish_state: bool | None = None
    capture_console: bool = True
    records_environment: bool = True  # commit, command line, versions and variables
    launched: tuple[str, ...] = ()  # the command that this process only starts and waits for
    limits: Limits = field(default_factory=Limits)
    resumed: bool = False  # continues a run that this node knows
    unfinished_key: str = ""  # for `resume="auto"`, see unfinished_runs.py
    passed_over: str | None = None  # the run that it would have continued if no other one was named
    announcements: tuple[str, ...] = ()  # decisions that users must know, one line each
    diagnostics: tuple[Diagnostic, ...] = ()  # of bad arguments

    @property
    def places_for_children(self) -> dict[str, str | None]:
        """What decides where and whether a child records, by variable."""
        mode = "rank0" if self.speaks_for_node else self.mode
        return {
            # Not the default: a child on another node, or of another user, has its own.
            "CHIPLOG_DIR": None if self.places.root == resolve_root(None, {}) else str(self.places.root),
            "CHIPLOG_AGENT": self.agent_address,
            "CHIPLOG_MODE": mode,
            "CHIPLOG_PROJECT": self.project,
        }

    def sets_run_state(self, identity: Identity) -> bool | None:
        """Return True if the run's state follows this label's. By default: if it is the primary, None if unknown."""
        if self.update_finish_state is not None:
            return self.update_finish_state
        return None if identity.is_fallback_primary else identity.primary


def safe_name(kind: str, text: str, limit: int) -> tuple[str, str | None]:
    """Return a label or run ID without control characters and within the limit, and a message if it was changed."""
    cleaned, faults = clean_name(text, limit)
    if cleaned == text:
        return text, None
    if not cleaned:
        return "", f"{kind} {text!r:.80} is blank; one is generated"
    return cleaned, f"{kind} {text!r:.80} has {faults}; {cleaned!r:.80} is used"


def clean_name(text: str, limit: int) -> tuple[str, str]:
    """Return a label or run ID as `init` uses it, and what was wrong with it; '' if nothing was."""
    inside = text.strip()
    cleaned = "".join(c if c.isprintable() and c != "/" else "_" for c in inside)
    if len(cleaned) > limit:
        # Names with the same beginning must not become the same run: the digest distinguishes them.
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
        cleaned = f"{cleaned[: limit - _DIGEST_CHARS - 1]}-{digest}"
    is_directory = unquote(cleaned) in (".", "..")  # in an address, browsers fold these, also as %2E
    if is_directory:  # safeguard: run-id-is-no-directory
        cleaned = "_" * len(unquote(cleaned))
    faults = {
        "no characters": not inside,
        "space at its ends": inside not in ("", text),
        "a slash": "/" in inside,
        "only the name of a directory": is_directory,
        "control characters": not inside.isprintable(),
        f"{len(inside)} characters, over the limit of {limit}": len(inside) > limit,
    }
    return cleaned, ", ".join(fault for fault, is_there in faults.items() if is_there)


def one_line(kind: str, text: str) -> tuple[str, str | None]:
    """Return a display name as one line within the limit, and a message if it was changed."""
    line = "".join(c if c.isprintable() else " " for c in clean_utf8(text))[:_LINE_CHARS_MAX]
    if line == text:
        return text, None
    is_long = len(text) > _LINE_CHARS_MAX
    fault = f"{len(text)} characters, over the limit of {_LINE_CHARS_MAX}" if is_long else "control characters"
    return line, f"{kind} {text!r:.80} has {fault}; {line!r:.80} is used"


def clean_text(kind: str, value: Any) -> tuple[str | None, Diagnostic | None]:
    """Return a cleaned descriptive text of a run (None if blank), and a diagnostic if it was changed.

    Notes may have several lines; everything else is one line.
    """
    if value is None or value == "":
        return None, None
    if kind == "notes":
        return clean_utf8(str(value)), None
    line, change = one_line(kind, str(value))
    return line, None if change is None else Diagnostic("bad_name", change[:60], change)


def flag(name: str, given: Any) -> tuple[bool | None, Diagnostic | None]:
    """Return a setting that is true or false, None for its default, and what is wrong with it, if anything."""
    word = given.strip().lower() if isinstance(given, str) else given
    if word is None or (isinstance(word, str) and not word):
        return None, None
    try:
        for value, words in _FLAG_WORDS.items():
            if word in words:
                return value, None
    except unless_interrupt(Exception):  # whatever the comparison of a foreign type raises
        pass
    message = f"{name}={short_repr(given)} is neither true nor false; its default is used, so give one of"
    return None, Diagnostic("bad_argument", name, f"{message} True, False, 1, 0, yes, no, on, off")


def sample_interval(given: Any) -> tuple[float | None, Diagnostic | None]:
    """Return the seconds between samples of the machine, 0 for none, None for the agent's own, and what is wrong."""
    if given is None or given == "":
        return None, None
    try:
        seconds = float(given)
    except Exception as error:  # of a foreign type, too
        raise_interrupt(error)
        seconds = math.nan
    if seconds == 0 or SAMPLE_INTERVAL_MIN_S <= seconds <= SAMPLE_INTERVAL_MAX_S:
        return seconds, None
    limits = f"{SAMPLE_INTERVAL_MIN_S:g} to {SAMPLE_INTERVAL_MAX_S:g} s, or 0 for no samples"
    message = f"sample_interval_s={short_repr(given)} is not used; give {limits}"
    return None, Diagnostic("bad_argument", "sample_interval_s", message)


def as_strings(words: Any) -> tuple[str, ...]:
    """Turn one word or several into a tuple: tags, or the IDs of devices."""
    if words is None:
        return ()
    if isinstance(words, str) or not isinstance(words, Iterable):
        words = (words,)
    return tuple(clean_utf8(str(word)) for word in words if not is_stand_in(word))


def identity_event_fields(
    settings: RunSettings,
    identity: Identity,
    started_us: int,
    pid: int,
    device: CurrentDevice | None = None,
    *,
    is_inherited: bool = False,
) -> dict[str, Any]:
    """Return the fields of an IDENTITY event.

    identity, device: as known now, which may be more than at `init`. is_inherited: from another process.
    """
    claim = gpu_claim(
        os.environ,
        identity,
        settings.gpu_device_ids,
        device,
        is_child=is_inherited or identity.joined_existing_run,
        speaks_for_node=settings.speaks_for_node,
    )
    return ProducerIdentity(
        role="rank",
        run_id=identity.run_id,
        project=settings.project,
        name=settings.name,
        group=settings.group,
        job_type=settings.job_type,
        tags=list(settings.tags),
        notes=settings.notes,
        label=identity.label,
        primary=identity.primary,
        sets_run=settings.sets_run_state(identity),
        rank=identity.rank,
        local_rank=identity.local_rank,
        world_size=identity.world_size,
        node=node_name(),
        hostname=host_name(),
        pid=pid,
        gpus=known_gpus(claim),
        launch=identity.launch,
        restart=identity.restart,
        started_at=started_us,
        sdk=__version__,
        fallback=identity.is_fallback_primary or None,
        formerly=identity.previous_run_id,
        boot=boot_id(),
        error_file=os.environ.get("TORCHELASTIC_ERROR_FILE"),
        uptime=uptime_us(),
        owner=owner() or None,
        parent=identity.parent or None,
        resume=identity.demand or None,
        resume_launch=identity.demand_launch or None,
        pid_namespace=pid_namespace() or None,
        gpu_claim=claim,
        sample_interval_s=settings.sample_interval_s,
    ).to_map()
