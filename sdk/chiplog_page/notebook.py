"""The page in a notebook: a server in this process, and a frame that shows it."""

import html
import os
from urllib.parse import quote

from chiplog_page.server.access import Access, hosts_of_environment
from chiplog_page.server.source import Source
from chiplog_page.web_server import PageServer, hub_proxy

__all__ = ["Page", "ui"]

HEIGHT_MIN, HEIGHT_MAX = 200, 10_000  # pixels
# By process, address, directory and proxy.
_servers: dict[tuple[int, str | None, str | None, str | None], PageServer] = {}


class Page:
    """The page of a server in this process; returned by `ui`. A notebook shows it as a frame."""

    def __init__(self, server: PageServer, run: str | None, height: int) -> None:
        self._server = server
        self._fragment = f"#/run/{quote(run, safe='')}/curves" if run else ""
        self._height = height

    @property
    def address(self) -> str:
        """A new address, which opens the page once; behind a proxy, its part after the name of the host."""
        return self._server.new_address() + self._fragment

    def _repr_html_(self) -> str:
        # Without a proxy, the notebook is usually at localhost. A frame from another name would get no cookie.
        framed = html.escape(self.address.replace("//127.0.0.1:", "//localhost:", 1))
        return (
            f'<iframe src="{framed}" width="100%" height="{self._height}" style="border: 0"></iframe>'
            f'<a href="{html.escape(self.address)}" target="_blank">Open the page of chiplog in a tab</a>'
        )

    def __repr__(self) -> str:
        return f"the page of chiplog, for one browser: {self.address}"


def ui(
    run: str | None = None,
    *,
    url: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    height: int = 800,
    proxy: str | None = None,
) -> Page:
    """Serve the page from this process until it ends, and return it: a notebook shows it.

    Args:
        run: A run ID to show; None for the table of runs.
        url: The collector's address, as of `connect`.
        dir: A CHIPLOG_DIR.
        height: Of the frame in a notebook, in pixels, 200 to 10,000.
        proxy: Path of a proxy for the ports of this machine, such as "/proxy" of jupyter-server-proxy. Where the
            browser is on another machine, the frame needs one. Default: in JupyterHub `/user/NAME/proxy`, else
            none; "" for none there, too.

    Returns:
        The page. Its `address` opens it in a browser.

    Raises:
        OSError: No port is free.
        ValueError: `height` is out of bounds, or both `url` and `dir` are given.

    Examples:
        >>> chiplog.ui("gpt-1")
    """
    if not HEIGHT_MIN <= height <= HEIGHT_MAX:
        raise ValueError(f"height={height} is not within {HEIGHT_MIN} and {HEIGHT_MAX}")
    if url is not None and dir is not None:
        raise ValueError(f"both url={url!r} and dir={os.fspath(dir)!r} are given; give one of them")
    directory = None if dir is None else os.fspath(dir)
    proxy = hub_proxy() if proxy is None else proxy or None
    place = (os.getpid(), url, directory, proxy)
    if place not in _servers:
        _servers[place] = PageServer(Source(url, directory), Access(hosts_of_environment()), port=0, proxy=proxy)
        _servers[place].start()
    return Page(_servers[place], run, height)
