"""`chiplog keys`: this host's keys, and the keys that may connect to its daemons."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import zmq

from chiplog_cli.output import FORMATS, Output, output_options
from chiplog_cli.tables.tables import plain_cell
from chiplog_cli.tables.writers import Rows, write_result
from chiplog_schemas.paths import ensure_private_dir, resolve_root
from chiplog_schemas.security.key_files import (
    KeyPair,
    Keys,
    KeysError,
    PublicKey,
    check_directory,
    host_key_name,
    is_public_key,
    key_name,
    keys_dir,
    node_pattern,
    read_permit,
    read_public,
    write_pair,
    write_permit,
)
from chiplog_schemas.security.permissions import CLIENT_ROLES, Permission, Role

if TYPE_CHECKING:
    from chiplog_cli.tables.fitted_table import Sheet

_COLUMNS = ("name", "is", "roles", "nodes", "public", "file")
_NEXT = {
    Role.COLLECTOR: "copy it to each agent and reader, into their directory of keys",
    Role.AGENT: "copy it to the collector's host, and there: chiplog keys allow {file}",
    Role.READER: "copy it to the collector's host, and there: chiplog keys allow {file}",
    Role.RANK: "copy it to the agent's host, and there: chiplog keys allow {file}",
}


@click.group()
@click.option("--dir", "directory", metavar="DIR", help="In place of CHIPLOG_DIR (default ~/.chiplog).")
@click.option("--keys", "keys_directory", metavar="DIR", help="In place of CHIPLOG_KEYS (default CHIPLOG_DIR/keys).")
@click.pass_context
def keys(context: click.Context, directory: str | None, keys_directory: str | None) -> None:
    """Create keys for TCP between hosts, and control which keys may connect here.

    `new` creates the key of this host in a role. `allow`, `revoke` and `list` concern the daemons of this host: run
    them as the daemons' user. A running daemon applies a change within a second.
    """
    context.obj = Keys(keys_dir(keys_directory, os.environ, resolve_root(directory, os.environ)))


@keys.command()
@click.argument("role", type=click.Choice([str(role) for role in Role if role is not Role.ADMIN]))
@click.option("--name", metavar="NAME", help="Of the key; an agent's is the node that it may speak for.")
@click.pass_obj
def new(own: Keys, role: str, name: str | None) -> None:
    """Create this host's key for a collector, an agent, a reader (SQL), or ranks that use an agent over TCP."""
    try:
        suffix = f"-{role}" if role in (Role.READER, Role.RANK) else ""  # distinct from the agent's
        chosen = key_name(name if name is not None else f"{host_key_name()[:50]}{suffix}")
        _prepare(own.directory)
        public, secret = zmq.curve_keypair()
        path, public_path = write_pair(own.directory, KeyPair(chosen, role, public.decode(), secret.decode()))
    except FileExistsError as error:
        path = own.directory / f"{role}.key"
        raise click.UsageError(f"{path} exists already; remove it first to replace its key") from error
    except KeysError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"{path} (secret: it stays here)")
    click.echo(public_path)
    click.echo(f"next: {_NEXT[Role(role)].format(file=public_path.name)}", err=True)


# A key may begin with a hyphen, and have an h: it must not be read as -h.
@keys.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@click.argument("key", metavar="FILE.pub|PUBLICKEY")
@click.option("--name", metavar="NAME", help="On the list; default: the name in the file.")
@click.option("--role", "roles", multiple=True, type=click.Choice([str(role) for role in CLIENT_ROLES]))
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="That it may speak for; * and ? are wildcards.")
@click.pass_obj
def allow(own: Keys, key: str, name: str | None, roles: tuple[str, ...], nodes: tuple[str, ...]) -> None:
    """Allow a key to connect to the daemons of this host, in the role of its file or of --role."""
    try:
        given = _given(key, name, roles)
        chosen = key_name(name or given.name)
        allowed_roles = frozenset(roles or [given.role])
        if Role.COLLECTOR in allowed_roles:  # safeguard: collector-key-not-allowed
            raise KeysError(f"{key} is a collector's key, which connects nowhere; copy it to {own.directory} instead")
        if Role.ADMIN in allowed_roles and Role.READER not in allowed_roles:
            raise KeysError("role admin is in addition to reader; give --role reader --role admin")
        if not nodes and Role.AGENT in allowed_roles:  # safeguard: agent-key-names-node
            nodes = (given.name,)
        if listed := next((node for node in nodes if "," in node), None):
            raise KeysError(f"node {listed!r:.80} is several names; write --node once for each")
        permit = Permission(chosen, allowed_roles, tuple(node_pattern(node) for node in nodes), given.public)
        _prepare(own.directory)
        _prepare(own.allowed)
        for other in _permits(own):
            if other.name == chosen and other.public != given.public:  # safeguard: one-key-per-name
                remedy = (
                    f"give this one another --name, or chiplog keys revoke {chosen} if that key is not used any more"
                )
                raise KeysError(f"{chosen} is allowed with another key; {remedy}")
            if other.name != chosen and other.public == given.public:  # safeguard: one-name-per-key
                raise KeysError(f"this key is allowed as {other.name}; chiplog keys revoke {other.name} first")
        path = write_permit(own.allowed, permit)
    except KeysError as error:
        raise click.UsageError(str(error)) from error
    about = f", for {', '.join(permit.nodes)}" if permit.nodes else ""
    click.echo(f"{chosen} may connect as {', '.join(sorted(allowed_roles))}{about} ({path})")


@keys.command()
@click.argument("name")
@click.pass_obj
def revoke(own: Keys, name: str) -> None:
    """Revoke a key. Its open connections are refused within a second."""
    try:
        path = own.allowed / f"{key_name(name)}.pub"
        path.unlink()  # safeguard: revoked-key-removed
    except FileNotFoundError as error:
        raise click.UsageError(f"key {name!r} is not allowed here; chiplog keys list shows the allowed keys") from error
    except KeysError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"{name} may not connect any more")


@keys.command("list")
@output_options(*FORMATS)
@click.pass_obj
def list_(own: Keys, output: Output) -> None:
    """List this host's keys, the servers that it knows, and the keys that may connect."""
    rows = [*_own_rows(own), *_allowed_rows(own)]
    if not rows:
        click.echo(f"no keys in {own.directory}", err=True)
        if output.form == "table":
            return

    def sheets() -> "Iterator[Sheet]":
        from chiplog_cli.tables.fitted_table import Column, Sheet

        sheet = Sheet(Column(name, is_whole=name == "public") for name in _COLUMNS)
        for row in rows:
            texts = (", ".join(value) if isinstance(value, list) else str(value) for value in row)
            sheet.add(*map(plain_cell, texts))  # safeguard: key-shown-as-text
        yield sheet

    write_result(Rows(_COLUMNS, rows), output, sheets=sheets)


def _given(key: str, name: str | None, roles: tuple[str, ...]) -> PublicKey:
    """Return the given key: from a file, or written out, which needs a name and a role."""
    if Path(key).is_file():
        return read_public(Path(key))
    if not is_public_key(key):
        raise KeysError(f"{key!r:.80} is neither a file nor a public key of 40 characters; give the .pub of the other")
    if name is None or not roles:
        raise KeysError(f"key {key} has neither name nor role; give --name and --role")
    return PublicKey(name, roles[0], key)


def _prepare(directory: Path) -> None:
    ensure_private_dir(directory)
    check_directory(directory)


def _permits(own: Keys) -> list[Permission]:
    """Return the readable entries of the list."""
    found = []
    for path in sorted(own.allowed.glob("[!.]*.pub")):
        try:
            found.append(read_permit(path))
        except KeysError as error:
            click.echo(f"chiplog keys: skipped: {error}", err=True)
    return found


def _own_rows(own: Keys) -> list[list[object]]:
    rows: list[list[object]] = []
    for role in Role:
        for path, what in ((own.directory / f"{role}.key", "own"), (own.directory / f"{role}.pub", "server")):
            if not path.exists() or (what == "server" and rows and rows[-1][5] == str(path.with_suffix(".key"))):
                continue
            try:
                key = own.pair(role) if what == "own" else own.server(role)
            except KeysError as error:
                click.echo(f"chiplog keys: skipped: {error}", err=True)
                continue
            if key is not None:
                rows.append([key.name, what, [str(role)], [], key.public, str(path)])  # safeguard: list-shows-no-secret
    return rows


def _allowed_rows(own: Keys) -> list[list[object]]:
    return [
        [p.name, "allowed", sorted(p.roles), list(p.nodes), p.public, str(own.allowed / f"{p.name}.pub")]
        for p in _permits(own)
    ]
