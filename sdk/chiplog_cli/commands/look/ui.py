"""`chiplog ui`: the page, in a browser."""

import asyncio
import contextlib
import ipaddress
import os
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from chiplog_cli.options import may_start, source_options
from chiplog_schemas.atomic_file import atomic_write
from chiplog_schemas.paths import ensure_private_dir, paths_for_root, resolve_root

if TYPE_CHECKING:
    from chiplog_page.web_server import PageServer

_CONNECT_S = 2.0  # the page is on this host
PASSWORD_VARIABLE = "CHIPLOG_UI_PASSWORD"


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=8642, show_default=True, help="Port; 0 for a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser of this machine.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Host in the browser's address, as of a proxy; may be repeated. Default: CHIPLOG_UI_HOSTS.",
)
@click.option(
    "--address",
    "prints_address",
    is_flag=True,
    help="Print an address of the page of `chiplog collector --ui`, and exit.",
)
@click.option("--until-stdin-ends", "ends_with_stdin", is_flag=True, hidden=True)
@click.option("--of-collector", "is_of_collector", is_flag=True, hidden=True)
@source_options
def ui(
    port: int,
    host: str,
    opens: bool,
    hosts: tuple[str, ...],
    prints_address: bool,
    ends_with_stdin: bool,
    is_of_collector: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """Look at runs in the browser, live: curves, ranks, console, events, files, SQL.

    Prints an address with a token. A token opens the page once; then the next address is printed. A browser stays
    signed in for 30 days, or until the command ends. From another machine use
    `ssh -L 8642:127.0.0.1:8642 THIS_MACHINE`.

    For several people set CHIPLOG_UI_PASSWORD, and use a proxy with TLS: beyond loopback the connection is not
    encrypted. Allow the proxy's host with --allow-host.

    A collector that is started with --ui serves the page itself. `chiplog ui --address` prints an address of it to a
    user who may read its directory.
    """
    if prints_address:
        _print_address_of_collector(dir_)
        return
    if dir_ and url:
        raise click.UsageError(f"--dir {dir_} and --url {url} exclude each other; give one of them")
    from chiplog_client.client import NoDataError
    from chiplog_client.results.result import QueryError
    from chiplog_page.server.access import Access, hosts_of_environment
    from chiplog_page.server.source import Source
    from chiplog_page.web_server import PageServer, hub_proxy

    hosts = hosts or hosts_of_environment()
    if wrong := next((name for name in hosts if "/" in name), ""):
        raise click.UsageError(f"{wrong!r} is not the name of a host; leave out the scheme and the path")
    password = os.environ.get(PASSWORD_VARIABLE) or None
    proxy = hub_proxy() if _is_loopback(host) else None  # other machines reach the port itself
    source = Source(url, dir_, may_start=may_start())
    try:
        asyncio.run(source.try_once())
    except NoDataError:
        pass  # the page says what to run, and shows the first run as soon as it is there
    except QueryError as error:
        raise click.ClickException(error.message) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    access = Access(hosts, password)
    addresses = _Addresses(dir_, is_kept=is_of_collector)
    try:
        server = PageServer(source, access, host, port, proxy, on_token_used=addresses.print_next)
    except OSError as error:
        raise click.ClickException(
            f"the page cannot listen on {host}:{port}: {error.strerror or error}; choose another by --port or --host"
        ) from error
    address = server.new_address()
    addresses.print_first(address)
    if proxy:
        click.echo("open it after the host name of JupyterHub, whose server needs jupyter-server-proxy", err=True)
    if not _is_loopback(host):
        click.echo(
            f"{host} is reachable from other machines: the page opens only by this address"
            + (", or by the password" if password else f"; set {PASSWORD_VARIABLE} for a password"),
            err=True,
        )
    if opens and not proxy:  # of a hub it is only a path
        click.launch(address)
    if ends_with_stdin:  # of a collector
        threading.Thread(target=_stop_after_stdin, args=(server,), daemon=True).start()
    server.serve()


class _Addresses:
    """Prints the addresses of the page. is_kept: in a file, for `chiplog ui --address`; then no log has a token."""

    def __init__(self, dir_: str | None, *, is_kept: bool) -> None:
        self._dir = dir_
        self._file = _address_file(dir_) if is_kept else None
        self._is_private = is_kept and not sys.stdout.isatty()

    def print_first(self, address: str) -> None:
        self._keep(address)
        if self._is_private:
            command = f"chiplog ui --address --dir {self._dir}"
            click.echo(f"chiplog page: {address.partition('?')[0]}; {command} prints an address that opens it")
        else:
            click.echo(f"chiplog page: {address}")

    def print_next(self, address: str) -> None:
        self._keep(address)
        with contextlib.suppress(OSError):  # the reader of the first line may have gone, such as `head -1`
            if not self._is_private:
                click.echo(f"opened; the next address: {address}")

    def _keep(self, address: str) -> None:
        if self._file is not None:
            ensure_private_dir(self._file.parent)
            atomic_write(self._file, address.encode())


def _address_file(dir_: str | None) -> Path:
    """Return the file with the next address of the page that a collector serves. Only its user can read it."""
    return paths_for_root(resolve_root(dir_, os.environ)).run / "page"


def _print_address_of_collector(dir_: str | None) -> None:
    file = _address_file(dir_)
    try:
        address = file.read_text(encoding="utf-8")
        where = urlsplit(address)
        socket.create_connection((where.hostname or "", where.port or 0), timeout=_CONNECT_S).close()
    except FileNotFoundError:
        raise click.UsageError(
            f"no collector serves a page from {file.parent.parent}; start it with chiplog collector --ui 8642"
        ) from None
    except OSError as error:
        raise click.ClickException(
            f"the page of {file.parent.parent} does not answer: {error.strerror or error}"
        ) from None
    click.echo(address)


def _stop_after_stdin(server: "PageServer") -> None:
    while os.read(0, 4096):
        pass
    server.stop()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
