"""`chiplog ui`: the page, in a browser."""

import asyncio
import contextlib
import ipaddress
import os
import threading
from typing import TYPE_CHECKING

import click

from chiplog.cli.options import may_start, source_options

if TYPE_CHECKING:
    from chiplog.page.server import PageServer

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
@click.option("--until-stdin-ends", "ends_with_stdin", is_flag=True, hidden=True)
@source_options
def ui(
    port: int,
    host: str,
    opens: bool,
    hosts: tuple[str, ...],
    ends_with_stdin: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """Look at runs in the browser, live: curves, ranks, console, events, files, SQL.

    Prints an address with a token. A token opens the page once; then the next address is printed. A browser stays
    signed in for 30 days, or until the command ends. From another machine use
    `ssh -L 8642:127.0.0.1:8642 THIS_MACHINE`.

    For several people set CHIPLOG_UI_PASSWORD, and use a proxy with TLS: beyond loopback the connection is not
    encrypted. Allow the proxy's host with --allow-host.
    """
    if dir_ and url:
        raise click.UsageError(f"--dir {dir_} and --url {url} exclude each other; give one of them")
    from chiplog.page.access import Access, hosts_of_environment
    from chiplog.page.server import PageServer, hub_proxy
    from chiplog.page.source import Source
    from chiplog.query.client import NoDataError
    from chiplog.query.result import QueryError

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
    try:
        server = PageServer(source, access, host, port, proxy, on_token_used=_print_next)
    except OSError as error:
        raise click.ClickException(
            f"the page cannot listen on {host}:{port}: {error.strerror or error}; choose another by --port or --host"
        ) from error
    address = server.new_address()
    click.echo(f"chiplog page: {address}")
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


def _print_next(address: str) -> None:
    with contextlib.suppress(OSError):  # the reader of the first line may have gone, such as `head -1`
        click.echo(f"opened; the next address: {address}")


def _stop_after_stdin(server: "PageServer") -> None:
    while os.read(0, 4096):
        pass
    server.stop()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
