"""Who may use the page: one-time tokens, sessions, a password, and the names by which the server is called."""

import hmac
import ipaddress
import os
import secrets
import time
from collections.abc import Callable, Iterable

from chiplog_schemas.rate_limit import TokenBucket

HOSTS_VARIABLE = "CHIPLOG_UI_HOSTS"
TOKENS_MAX = 1_000  # unused ones: a notebook makes one for each cell that it shows
SESSION_S = 30 * 86_400.0
PASSWORD_TRIES = 20  # at once: a team signs in after a restart
PASSWORD_INTERVAL_S = 5.0  # of further tries, or 17,280 guesses a day
PEERS_MAX = 1_000  # whose tries are counted; the longest silent one is forgotten
_IPV6_NETWORK_BITS = 64  # what a provider gives to one customer at least (RFC 6177)


def hosts_of_environment() -> tuple[str, ...]:
    """Return the names in CHIPLOG_UI_HOSTS, separated by commas or spaces."""
    return tuple(os.environ.get(HOSTS_VARIABLE, "").replace(",", " ").split())


class Access:
    """Tokens that open a session once, and the sessions that are open.

    Args:
        hosts: Names by which browsers may call the server, or a proxy that serves it, beside localhost and IP
            addresses. The server refuses all others: a foreign page whose name resolves to this machine cannot read
            this one (DNS rebinding).
        password: Opens a session any number of times; None for tokens only.
        now: A clock in seconds.
    """

    def __init__(
        self, hosts: Iterable[str] = (), password: str | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._given = {_name_of(host) for host in hosts}
        self._hosts = {"localhost", *self._given}
        self._password = password
        self._now = now
        self._is_any_host = False
        self._tokens: dict[str, None] = {}
        self._sessions: dict[str, float] = {}
        self._tries: dict[str, TokenBucket] = {}  # by peer, the newest last

    @property
    def has_password(self) -> bool:
        """Return True if a password opens a session."""
        return self._password is not None

    def allow_host(self, name: str) -> None:
        """Allow a name by which browsers may call the server."""
        self._hosts.add(name.lower())

    def allow_any_host(self) -> None:
        """Allow all names, unless some were given: behind a proxy of an unknown name the session alone decides."""
        self._is_any_host = not self._given

    def new_token(self) -> str:
        """Return a token that opens one session."""
        token = secrets.token_urlsafe(24)
        self._tokens[token] = None
        while len(self._tokens) > TOKENS_MAX:
            del self._tokens[next(iter(self._tokens))]
        return token

    def open_by_token(self, token: str) -> str | None:
        """Return a new session, and forget the token; None if it is unknown or used."""
        if token not in self._tokens:
            return None
        del self._tokens[token]  # safeguard: token-opens-once
        return self._open()

    def may_try_password(self, peer: str) -> bool:
        """Return True if a peer may try a password now, and count it, right or wrong.

        Args:
            peer: Its IP address. Addresses of one IPv6 network count together: a host has many.
        """
        network, now = _network_of(peer), self._now()
        tries = self._tries.pop(network, None) or TokenBucket(now, 1 / PASSWORD_INTERVAL_S, PASSWORD_TRIES)
        self._tries[network] = tries
        while len(self._tries) > PEERS_MAX:
            del self._tries[next(iter(self._tries))]
        return tries.allow(now)  # safeguard: passwords-limited-per-peer

    def open_by_password(self, password: str) -> str | None:
        """Return a new session; None if the password is wrong or there is none."""
        if self._password is None or not hmac.compare_digest(password.encode(), self._password.encode()):
            return None
        return self._open()

    def is_open(self, session: str) -> bool:
        """Return True for a session that has been opened and has not expired."""
        return self._sessions.get(session, -1.0) >= self._now()

    def is_host(self, header: str) -> bool:
        """Return True if a request's Host header names this server; the port does not count."""
        host = _name_of(header)
        return self._is_any_host or host in self._hosts or _is_address(host)

    def is_origin(self, origin: str | None, host: str) -> bool:
        """Return True if a request that changes something comes from the page itself; no Origin is a program.

        Behind a proxy the scheme differs, so only host and port are compared. A proxy may replace Host by the name of
        its connection to this server: then the origin has one of the names given, on any port, as cookies are for all.
        """
        sent = "" if origin is None else origin.partition("://")[2].lower()
        return origin is None or (sent != "" and (sent == host.lower() or _name_of(sent) in self._given))

    def _open(self) -> str:
        now = self._now()
        self._sessions = {session: until for session, until in self._sessions.items() if until >= now}
        session = secrets.token_urlsafe(24)
        self._sessions[session] = now + SESSION_S
        return session


def _name_of(host: str) -> str:
    """Return a host without its port, in lower case, and an IPv6 address without brackets."""
    host = host.lower()
    if _is_address(host):
        return host
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _network_of(peer: str) -> str:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    return str(ipaddress.ip_network((address, _IPV6_NETWORK_BITS), strict=False)) if address.version == 6 else peer


def _is_address(host: str) -> bool:
    """Return True for an IP address: the browser has connected to it, and to no name of another site."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
