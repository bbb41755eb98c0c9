"""Tokens, sessions, passwords, hosts and origins."""

import pytest

from chiplog_page.server.access import PASSWORD_TRIES, PEERS_MAX, SESSION_S, TOKENS_MAX, Access
from tests.support.safeguard import proves


@proves("token-opens-once", "an address with a token opens one session and no second one")
def test_a_token_opens_one_session() -> None:
    access = Access()
    token = access.new_token()
    session = access.open_by_token(token)
    assert session is not None and access.is_open(session)
    assert access.open_by_token(token) is None
    assert access.open_by_token("") is None
    assert not access.is_open("") and not access.is_open(token)


def test_a_session_ends_after_a_month() -> None:
    now = [0.0]
    access = Access(now=lambda: now[0])
    session = access.open_by_token(access.new_token())
    assert session is not None
    now[0] = SESSION_S
    assert access.is_open(session)
    now[0] = SESSION_S + 1
    assert not access.is_open(session)
    assert access.open_by_token(access.new_token()) is not None, "the expired session is forgotten"
    assert session not in access._sessions


def test_of_many_unused_tokens_the_oldest_are_forgotten() -> None:
    access = Access()
    tokens = [access.new_token() for _ in range(TOKENS_MAX + 1)]
    assert access.open_by_token(tokens[0]) is None
    assert access.open_by_token(tokens[1]) is not None


def test_a_password_opens_sessions_if_there_is_one() -> None:
    assert Access().open_by_password("") is None
    access = Access(password="sésame")
    assert access.has_password
    assert access.open_by_password("sesame") is None
    sessions = {access.open_by_password("sésame"), access.open_by_password("sésame")}
    assert len(sessions) == 2 and None not in sessions


@pytest.mark.parametrize(
    ("header", "is_ours"),
    [
        ("127.0.0.1:8642", True),
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("[::1]:8642", True),
        ("hub.example:443", True),
        ("evil.example:8642", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.5:8642", True),
        ("[2001:db8::2]:8642", True),
        ("10.0.0.5.evil.example:8642", False),
        ("[evil.example]:8642", False),
        ("", False),
    ],
)
def test_only_known_names_are_this_server(header: str, is_ours: bool) -> None:
    assert Access(["Hub.example"]).is_host(header) is is_ours


def test_an_allowed_name_may_have_a_port() -> None:
    assert Access(["hub.example:8443"]).is_host("hub.example:443")


@pytest.mark.parametrize(
    ("origin", "host", "is_ours"),
    [
        (None, "localhost:8642", True),
        ("http://localhost:8642", "localhost:8642", True),
        ("https://other.example", "other.example", True),  # behind a proxy with TLS that keeps Host
        ("https://Hub.example", "127.0.0.1:8642", True),  # … that sends the name of its connection as Host
        ("https://hub.example:8443", "page", True),
        ("https://hub.example.evil.example", "127.0.0.1:8642", False),
        ("https://evil.example", "hub.example", False),
        ("http://localhost:9999", "localhost:8642", False),
        ("http://127.0.0.1:9999", "127.0.0.1:8642", False),
        ("null", "localhost:8642", False),
        ("null", "", False),
    ],
)
def test_a_change_comes_from_the_page_itself_or_from_a_program(origin: str | None, host: str, is_ours: bool) -> None:
    access = Access(["hub.example"])
    access.allow_host("evil.example")  # the name of this machine, not of a proxy
    assert access.is_origin(origin, host) is is_ours


def test_behind_a_proxy_of_an_unknown_name_any_is_allowed_but_not_beside_given_ones() -> None:
    unknown, known = Access(), Access(["hub.example"])
    for access in (unknown, known):
        access.allow_any_host()
    assert (unknown.is_host("any.example"), known.is_host("any.example")) == (True, False)


def test_an_address_of_ipv6_can_be_given() -> None:
    assert Access(["fd00::5"]).is_origin("http://[fd00::5]:8642", "127.0.0.1:8642")


@proves(
    "passwords-limited-per-peer",
    "who guesses passwords does not lock out the others",
    new="return self._tries.setdefault('', TokenBucket(now, 0, PASSWORD_TRIES)).allow(now)",
)
def test_passwords_are_counted_per_peer_and_the_memory_of_peers_is_bounded() -> None:
    access = Access(password="right", now=lambda: 0.0)
    for _ in range(PASSWORD_TRIES):
        assert access.may_try_password("192.0.2.1")
    assert not access.may_try_password("192.0.2.1")
    assert access.may_try_password("192.0.2.2")
    for number in range(PASSWORD_TRIES):
        assert access.may_try_password(f"2001:db8::{number:x}")
    assert not access.may_try_password("2001:db8::ffff"), "one host has all addresses of its network"
    assert access.may_try_password("2001:db8:0:1::1")
    for number in range(PEERS_MAX):
        access.may_try_password(f"10.0.{number >> 8}.{number & 255}")
    assert len(access._tries) == PEERS_MAX
