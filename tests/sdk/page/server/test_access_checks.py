"""Requests without a session, from other sites, for other hosts; and the headers of every answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_page.server.access import PASSWORD_INTERVAL_S, PASSWORD_TRIES, Access
from chiplog_page.server.source import Source
from chiplog_page.web_server import PageServer
from tests.support.marks import everyday
from tests.support.page_client import PageClient, serving
from tests.support.ports import free_ports
from tests.support.safeguard import proves


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    with serving(tmp_path_factory.mktemp("locked"), hosts=("hub.example",), password="<b>&") as client:
        yield client


@proves("no-session-no-data", "without a session there is no data", condition=True)
@pytest.mark.parametrize(
    "path", ["/api/runs", "/api/live", "/static/js/main.js", "/api/", "/nothing", "/static/../../app.py"]
)
def test_without_a_session_there_is_nothing_but_the_form(locked: PageClient, path: str) -> None:
    answer = locked.ask(path)
    assert answer.status == 401
    assert answer.json["error"]["kind"] == "signed_out"
    assert locked.ask(path, Cookie=f"chiplog-{locked.server.port}=guess").status == 401
    assert locked.ask(path, Cookie='chiplog-1=;;="').status == 401
    form = locked.ask("/")
    assert form.status == 401
    assert b'type="password"' in form.body
    assert locked.ask("/static/style.css").status == 200


def test_a_token_works_once_and_the_next_address_is_announced(locked: PageClient, tmp_path: Path) -> None:
    address = locked.server.new_address()
    path = address[address.index("/?") :]
    first = locked.ask(path)
    assert (first.status, first.headers["location"]) == (303, "./"), "relative: it may be behind a path prefix"
    attributes = {part.strip() for part in first.headers["set-cookie"].split(";")}
    assert {"HttpOnly", "SameSite=lax"} <= attributes
    assert "Max-Age" not in first.headers["set-cookie"], "the next server has another free port, and cookie"
    assert locked.used[-1].startswith(f"http://127.0.0.1:{locked.server.port}/?token=")
    second = locked.ask(path)
    assert second.status == 401 and b"has been used" in second.body and "set-cookie" not in second.headers


def test_at_a_port_that_was_chosen_a_browser_stays_signed_in_for_30_days(tmp_path: Path) -> None:
    with serving(tmp_path, port=free_ports(1)) as client:
        address = client.server.new_address()
        first = client.ask(address[address.index("/?") :])
    assert "Max-Age=2592000" in first.headers["set-cookie"]


def test_a_browser_that_is_signed_in_opens_any_address_and_uses_no_token(reader: PageClient) -> None:
    address = reader.server.new_address()
    n_used = len(reader.used)
    for path in (address[address.index("/?") :], "/?token=used"):
        answer = reader.ask(path)
        assert (answer.status, answer.headers["location"]) == (303, "./")
        assert "set-cookie" not in answer.headers
    assert len(reader.used) == n_used
    other = PageClient(reader.server, reader.access)
    assert "set-cookie" in other.ask(address[address.index("/?") :]).headers, "the token still works"


def test_a_password_opens_the_page(locked: PageClient) -> None:
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    assert locked.ask("/", "POST", b"password=wrong", **form).status == 401
    assert locked.ask("/", "POST", b"password=" + b"x" * 10_000, **form).status == 401
    opened = locked.ask("/", "POST", b"password=%3Cb%3E%26", **form)
    assert opened.status == 303 and "set-cookie" in opened.headers


@proves("passwords-limited", "a program that guesses passwords gets one try in 5 s", condition=False)
def test_after_many_passwords_one_is_taken_every_few_seconds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    access = Access(password="right", now=lambda: now[0])
    server = PageServer(Source(dir=str(tmp_path), may_start=False), access)
    server.start()
    client = PageClient(server, access)
    try:
        tried = [client.ask("/", "POST", b"password=wrong").status for _ in range(PASSWORD_TRIES + 2)]
        assert tried == [401] * PASSWORD_TRIES + [429] * 2
        refused = client.ask("/", "POST", b"password=right")
        assert (refused.status, refused.headers["retry-after"], b"Try again" in refused.body) == (429, "5", True)
        assert client.sign_in().ask("/static/style.css").status == 200, "an address with a token still opens the page"
        now[0] += PASSWORD_INTERVAL_S
        assert client.ask("/", "POST", b"password=right").status == 303
        assert client.ask("/", "POST", b"password=right").status == 429
        other = {"X_Forwarded_For": "192.0.2.7"}  # as a proxy on this machine names its clients
        assert client.ask("/", "POST", b"password=right", **other).status == 303, "another peer is not locked out"
    finally:
        server.close()
    assert [record.getMessage() for record in caplog.records if record.name == "chiplog_page"] == [
        "20 passwords were tried in a short time from 127.0.0.1; the page now takes one every 5 s from there"
    ]


@pytest.mark.parametrize(
    "other", everyday(2, ['x={"a":1}', "x=a b", 'x="', "x", "=", "", ";", "x=[1,2]", "x=\xe9", "chiplog-{port}=old"])
)
def test_odd_cookies_of_other_programs_on_this_host_do_not_end_a_session(reader: PageClient, other: str) -> None:
    other = other.format(port=reader.server.port) if "{port}" in other else other
    for cookies in (f"{other}; {reader.cookie}", f"{reader.cookie}; {other}", f"{other};{reader.cookie};y=1"):
        assert reader.ask("/api/info", Cookie=cookies).status == 200
    assert reader.ask("/api/info", Cookie=other).status == 401


@proves("foreign-host-refused", "a page of another site that resolves to this machine reads nothing", condition=False)
def test_another_host_is_refused_also_with_a_session(reader: PageClient, locked: PageClient) -> None:
    for path in ("/", "/api/runs", "/static/style.css"):
        answer = reader.ask(path, Host="evil.example")
        assert answer.status == 400
        assert answer.json["error"]["message"] == (
            "host 'evil.example' is not allowed; allow it with --allow-host or CHIPLOG_UI_HOSTS"
        )
    assert locked.ask("/static/style.css", Host="hub.example:443").status == 200


@pytest.mark.parametrize("host", ["hub.example", "127.0.0.1:8642"])
def test_behind_a_proxy_with_tls_the_password_opens_the_page(locked: PageClient, host: str) -> None:
    """Caddy and Traefik keep Host. nginx sends that of `proxy_pass`."""
    sent = {"Host": host, "X_Forwarded_Proto": "https", "X_Forwarded_For": "192.0.2.7"}
    assert b'type="password"' in locked.ask("/", **sent).body
    opened = locked.ask("/", "POST", b"password=%3Cb%3E%26", Origin="https://hub.example", **sent)
    assert opened.status == 303, opened
    cookie = opened.headers["set-cookie"].partition(";")[0]
    changed = {"Origin": "https://hub.example", "Cookie": cookie, **sent}
    assert locked.ask("/api/views/mine", "DELETE", **changed).json["error"]["kind"] == "no_data", "past the gate"
    refused = locked.ask("/api/views/mine", "DELETE", **{**changed, "Origin": "https://evil.example"})
    assert (refused.status, refused.json["error"]["kind"]) == (403, "refused")
    assert refused.json["error"]["message"] == (
        f"this request comes from 'https://evil.example', another site than '{host}'; "
        "if a proxy there serves the page, allow its host with --allow-host or CHIPLOG_UI_HOSTS"
    )


@proves("origin-checked", "a page of another site changes nothing", condition=False)
def test_a_change_from_another_site_is_refused(reader: PageClient) -> None:
    body = {"query": "SELECT 1 AS n"}
    assert reader.ask("/api/sql", "POST", body, Origin="http://evil.example").status == 403
    assert reader.ask("/api/runs/healthy", "DELETE", Origin="null").status == 403
    assert reader.ask("/api/sql", "POST", body, Origin=f"http://127.0.0.1:{reader.server.port}").json["rows"] == [[1]]


def test_every_answer_forbids_foreign_and_inline_code(reader: PageClient, locked: PageClient) -> None:
    for answer in (
        reader.ask("/"),
        reader.ask("/api/runs"),
        reader.ask("/nothing"),
        locked.ask("/"),
        locked.ask("/api/x"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"]
)
def test_no_path_leads_out_of_the_static_files(reader: PageClient, path: str) -> None:
    assert reader.ask(path).status == 404


@pytest.mark.parametrize(
    "path", ["../../../etc/passwd", "%2e%2e/%2e%2e/config.toml", "/etc/passwd", "..%2f..%2fcollector%2fhost", "a%00b"]
)
def test_no_path_of_a_saved_file_leads_to_another_file(reader: PageClient, path: str) -> None:
    answer = reader.ask(f"/api/runs/healthy/files/{path}")
    assert answer.status == 404 and answer.json["error"]["kind"] == "not_found"


def test_headers_of_a_proxy_do_not_replace_the_host_nor_a_session(reader: PageClient, locked: PageClient) -> None:
    forged = {"X_Forwarded_Host": "127.0.0.1", "X_Forwarded_For": "127.0.0.1", "Forwarded": "host=127.0.0.1"}
    assert reader.ask("/api/runs", Host="evil.example", **forged).status == 400
    assert locked.ask("/api/runs", **forged).status == 401
    token = locked.server.new_address().partition("?")[2]
    assert locked.ask(f"/api/runs?{token}").status == 401, "a token opens the page, and nothing else"
