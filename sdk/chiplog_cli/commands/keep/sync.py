"""`chiplog sync`: deliver journals that were recorded offline or brought here from another machine.

A journal is linked or copied into the node's own journals, where the agent adopts it like that of any dead rank. A
saved file is put into the outbox, which the agent delivers. The original stays, is recorded as delivered (delivered.py)
and skipped from then on. A second delivery has no effect: (producer, seq) decides what is new, and content is stored
once.
"""

import os
import shutil
import time
from pathlib import Path

import click

from chiplog_client import daemons
from chiplog_client.delivered import is_delivered, mark
from chiplog_schemas.atomic_file import link_or_copy
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.process.recording_dir import recording_dir
from chiplog_schemas.storage.content_files import list_contents
from chiplog_schemas.storage.journal_dir import LOCK_NAME, list_journals
from chiplog_schemas.storage.segment_format import list_segments

_POLL_INTERVAL_S = 0.1


@click.command()
@click.argument("source", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--dir", "directory", metavar="DIR", help="Deliver to this CHIPLOG_DIR (default ~/.chiplog).")
@click.option("--delete", is_flag=True, help="Delete each journal and file once it is delivered.")
@click.option("--again", is_flag=True, help="Also deliver what was delivered there before.")
@click.option("--timeout-s", type=click.FloatRange(min=0), default=600.0, show_default=True)
def sync(source: Path | None, directory: str | None, delete: bool, again: bool, timeout_s: float) -> None:
    """Deliver the journals of this node's runs with mode="offline", or those in DIR, which came from elsewhere."""
    where = paths_for_root(recording_dir(directory))
    sources = [where.local / "offline", where.root / "offline"]
    if source is not None:
        sources = [source, source / "journals", source / "offline"]
    source = sources[0]
    found = list({path.name: (producer, path) for at in sources for producer, path in list_journals(at)}.values())
    if list_segments(source / "agent" / "spool") and source != where.local:
        click.echo(f"{source}/agent/spool holds blocks too; deliver them with: chiplog agent --dir {source}", err=True)
    files = list({path.name: path for at in sources for path in list_contents(at / "files")}.values())
    if source != where.local:
        files += list_contents(source / "outbox")
    if not found and not files:
        if not source.is_dir():
            raise click.UsageError(f"directory '{source}' does not exist; name one that holds journals")
        click.echo(f"no journals in {source}")
        return
    before: list[Path] = []
    if not again:  # safeguard: delivered-journal-left-out
        before = [path for path in (*(path for _, path in found), *files) if is_delivered(path, where.root)]
        found = [(producer, path) for producer, path in found if path not in before]
        files = [path for path in files if path not in before]
    if before:
        left = "" if found or files else "nothing is left to deliver: "
        click.echo(f"{left}{len(before)} journals and files in {source} were delivered before (--again repeats it)")
    if delete:
        _delete(before, where)
    _sync_files(files, where, delete=delete)
    _sync_journals(found, where, timeout_s, delete=delete)


def _start_agent(where: Paths) -> None:
    if not daemons.daemon_pid(where, daemons.AGENT):
        daemons.start(where, daemons.AGENT, ["--embedded"])


def _mark(paths: list[Path], where: Paths) -> None:
    try:
        mark([path for path in paths if path.parent != where.journals], where.root)
    except OSError as error:
        click.echo(f"cannot record what was delivered: {error}; the next sync delivers it again", err=True)


def _delete(paths: list[Path], where: Paths) -> None:
    for path in paths:
        if path.is_dir() and path.parent != where.journals:
            shutil.rmtree(path)
        elif not path.is_dir():
            path.unlink()


def _sync_journals(found: list[tuple[bytes, Path]], where: Paths, timeout_s: float, *, delete: bool) -> None:
    """Hand journals to the agent, and wait until it has delivered them."""
    if not found:
        return
    dead = [path for _, path in found if not lock_holder_pid(path / LOCK_NAME)]
    if len(dead) < len(found):
        click.echo(f"{len(found) - len(dead)} journals are still being written and are skipped", err=True)
    try:
        ensure_private_dir(where.journals)
        _start_agent(where)
        waiting = {path: _stage_journal(path, where) for path in dead}
    except OSError as error:
        raise click.ClickException(f"journals cannot be handed over: {error}") from error
    delivered = _wait(waiting, timeout_s)
    if delete:
        _delete(delivered, where)
    else:
        _mark(delivered, where)
    click.echo(f"{len(delivered)} of {len(found)} journals delivered to the agent of {where.root}")
    if len(delivered) < len(dead):
        raise click.ClickException(
            f"{len(dead) - len(delivered)} journals are not delivered after {timeout_s:g} s; see chiplog status"
        )


def _sync_files(files: list[Path], where: Paths, *, delete: bool) -> None:
    """Put saved files into the outbox, from which the agent delivers them."""
    if not files:
        return
    try:
        ensure_private_dir(where.outbox)
        for path in files:
            _stage_file(path, where.outbox)
        _start_agent(where)
        if delete:
            _delete(files, where)
        else:
            _mark(files, where)
    except OSError as error:
        raise click.ClickException(f"files cannot be handed over: {error}") from error
    click.echo(f"{len(files)} saved files handed to the agent of {where.root}; see file_stored in events")


def _stage_file(path: Path, outbox: Path) -> None:
    """Put content into an outbox, under its name only once it is complete."""
    link_or_copy(path, outbox / path.name)


def _stage_journal(path: Path, where: Paths) -> Path:
    """Put a journal into the agent's directory, under a name that the agent ignores until the journal is complete."""
    target = where.journals / path.name
    if path.parent == where.journals or target.exists():
        return target
    making = where.journals / f".new-{path.name}"
    shutil.rmtree(making, ignore_errors=True)
    try:
        making.mkdir(mode=0o700)
        for entry in path.iterdir():
            if entry.name == LOCK_NAME:
                (making / LOCK_NAME).touch(0o600)
                continue
            try:
                os.link(entry, making / entry.name)
            except OSError:  # another file system, or one without links
                shutil.copyfile(entry, making / entry.name)
        os.rename(making, target)
    except OSError:
        # safeguard: half-copy-removed
        shutil.rmtree(making, ignore_errors=True)  # half a copy must not keep a full disk full
        raise
    return target


def _wait(waiting: dict[Path, Path], timeout_s: float) -> list[Path]:
    """Wait until the agent has removed the staged journals: their content is then synced in its spool."""
    from rich.console import Console
    from rich.progress import Progress

    deadline = time.monotonic() + timeout_s
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("delivering journals", total=len(waiting))
        while True:
            delivered = [path for path, target in waiting.items() if not target.exists()]
            progress.update(task, completed=len(delivered))
            if len(delivered) == len(waiting) or time.monotonic() > deadline:
                return delivered
            time.sleep(_POLL_INTERVAL_S)
