"""Pickle a run, so that another process logs into the same run under its own label."""

import os
import secrets
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from chiplog.identity.identity import Identity
from chiplog.identity.process_info import host_name
from chiplog.recording.run.run import Run
from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.text import short_repr
from chiplog.settings import RunSettings
from chiplog.values.config import to_plain
from chiplog_schemas.limits import NAME_CHARS_MAX
from chiplog_schemas.paths import paths_for_root, resolve_root

# By token: each run that this process sent or received. A pickle that comes back yields the run itself.
_known: "weakref.WeakValueDictionary[str, Run]" = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class RunPickle:
    """The content of a pickle. settings: without config, with the identity as known when the run was pickled."""

    token: str
    host: str
    settings: RunSettings
    config: Mapping[str, Any]
    finished: bool


def to_pickle(run: Run) -> RunPickle:
    """Return what another process needs. Never raises: the config is pickled as its plain values."""
    token = next((token for token, known in list(_known.items()) if known is run), None)
    if token is None:
        token = secrets.token_hex(8)
        _known[token] = run
    entries = {key if isinstance(key, str) else short_repr(key): value for key, value in list(run.config.items())}
    config = {key: to_plain("config", value, _ignore) for key, value in entries.items()}
    settings = replace(run._settings, identity=run._membership.identity, config={})
    return RunPickle(token, host_name(), settings, config, run._finished)


def _ignore(_: Diagnostic) -> None:
    """Ignore a diagnostic: the run reported it when the value was set."""


def find_local(ticket: RunPickle) -> Run | None:
    """Return the run of this process for a ticket: created here, inherited by fork, or unpickled before."""
    return _known.get(ticket.token)


def from_pickle(ticket: RunPickle, environ: Mapping[str, str]) -> Run:
    """Create the run for a ticket from another process. Its first `log()` opens it."""
    given, is_here = ticket.settings, ticket.host == host_name()
    where = given.places if is_here else paths_for_root(resolve_root(_root_elsewhere(given, environ), environ))
    settings = replace(
        given,
        identity=_identity_of(given.identity, is_here),
        places=where,
        label_given=True,
        update_finish_state=None,
        capture_console=False,
    )
    run = Run(settings, opens=False)
    run.config._merge_remote(ticket.config)
    run._finished = ticket.finished
    _known[ticket.token] = run
    return run


def _identity_of(sender: Identity, is_here: bool) -> Identity:
    """Return an identity with a new label from the sender's; on another node with the host, as PIDs may be equal."""
    own = str(os.getpid()) if is_here else f"{host_name()}-{os.getpid()}"
    label = f"{sender.label[: NAME_CHARS_MAX - len(own) - 1]}.{own}"[:NAME_CHARS_MAX]
    known = Identity(sender.run_id, label, sender.launch, primary=False, run_id_is_final=True, joined_existing_run=True)
    return replace(known, demand=sender.demand, demand_launch=sender.demand_launch)


def _root_elsewhere(settings: RunSettings, environ: Mapping[str, str]) -> str | None:
    """Return the root for another node; None if that node has its own CHIPLOG_DIR."""
    return None if environ.get("CHIPLOG_DIR") else str(settings.places.root)
