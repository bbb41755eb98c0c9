"""The check before every request: host, session, origin; and the headers of every answer."""

import asyncio
import logging
from typing import Any
from urllib.parse import parse_qs

from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chiplog_page.server.access import PASSWORD_INTERVAL_S, PASSWORD_TRIES, Access
from chiplog_page.server.json_response import error_response
from chiplog_schemas.once import OnceLogger

FORM_BYTES_MAX = 4_096
FORM_S = 10.0  # for the body of the form; a browser sends it with the head
SAFE_METHODS = ("GET", "HEAD")
FRAME_ANCESTORS = "'self' http://localhost:* http://127.0.0.1:*"  # a notebook on this machine may show the page
# Nothing from elsewhere, nothing inline. A frame shows logged HTML, which has a stricter policy.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "media-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; "
    f"frame-ancestors {FRAME_ANCESTORS}"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer, browsers send `Origin: null` with a form
    (b"cross-origin-resource-policy", b"same-origin"),
)
_SIGN_IN = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>chiplog</title>
<link rel="stylesheet" href="static/style.css"></head><body class="sign-in"><main><h1>chiplog</h1>
<p>{why}</p>{form}</main></body></html>"""
_FORM = """<form method="post" action="./"><label>Password <input type="password" name="password"
autocomplete="current-password" autofocus></label>
<button>Open</button></form>"""
_USED = (
    "This address has been used, or belongs to an earlier start of chiplog ui. Open the newest address in its terminal."
)
_ALLOWING = "--allow-host or CHIPLOG_UI_HOSTS"
_log = logging.getLogger("chiplog_page")


class Gate:
    """ASGI middleware. Only the style sheet, and the form for a password, need no session.

    Args:
        app: The application behind it.
        access: Tokens and sessions.
        cookie: The name of the session's cookie. It has the port: cookies are shared by all ports of a host.
        on_token_used: Called when a token has opened a session.
        cookie_s: How long a browser keeps the cookie, in seconds; None until it is closed.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        cookie: str,
        on_token_used: Any = lambda: None,
        cookie_s: int | None = None,
    ) -> None:
        self._app = app
        self._access = access
        self._cookie = cookie
        self._on_token_used = on_token_used
        self._cookie_s = cookie_s
        self._once = OnceLogger(_log.warning, keys_max=1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message.get("headers", ())}
                added = [header for header in HEADERS if header[0] not in given]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        refused = await self._refusal(scope, receive)
        await (refused or self._app)(scope, receive, send_with_headers)

    async def _refusal(self, scope: Scope, receive: Receive) -> Response | None:
        """Return the answer to a request that may not go on, or that signs in; None for all others."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host, method, path = headers.get("host", ""), scope["method"], scope["path"]
        if not self._access.is_host(host):  # safeguard: foreign-host-refused
            return error_response(400, "refused", f"host {host!r:.200} is not allowed; allow it with {_ALLOWING}")
        origin = headers.get("origin")
        if method not in SAFE_METHODS and not self._access.is_origin(origin, host):  # safeguard: origin-checked
            other = f"this request comes from {origin!r:.200}, another site than {host!r:.200}"
            remedy = f"if a proxy there serves the page, allow its host with {_ALLOWING}"
            return error_response(403, "refused", f"{other}; {remedy}")
        is_signed_in = any(map(self._access.is_open, _cookies_of(headers.get("cookie", ""), self._cookie)))
        if path == "/" and method == "GET":
            token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if token and is_signed_in:
                return RedirectResponse("./", status_code=303)  # the token is for another browser
            if token:
                return self._sign_in(self._access.open_by_token(token), is_token=True)
        if path == "/" and method == "POST":
            peer = (scope.get("client") or ("",))[0]  # behind a proxy on this host, what X-Forwarded-For names
            if not self._access.may_try_password(peer):  # safeguard: passwords-limited
                return self._too_many(peer)
            try:
                async with asyncio.timeout(FORM_S):
                    password = await _password_of(receive)
            except TimeoutError:
                return error_response(408, "bad_request", f"the form did not arrive within {FORM_S:.0f} s")
            return self._sign_in(self._access.open_by_password(password))
        if path == "/static/style.css" or is_signed_in:  # safeguard: no-session-no-data
            return None
        if path == "/":
            way = "Sign in with the password, or open" if self._access.has_password else "Open"
            return self._form(f"{way} the address that chiplog ui prints: it has a token, which works once.")
        return error_response(401, "signed_out", "open the page with the address that chiplog ui prints")

    def _sign_in(self, session: str | None, *, is_token: bool = False) -> Response:
        if session is None:
            return self._form(_USED if is_token else "The password is wrong.")
        if is_token:
            self._on_token_used()
        response = RedirectResponse("./", status_code=303)
        # Lax: a link in a chat or a wiki opens the page. GETs change nothing, and the origin of all else is checked.
        # Without a path the cookie is for that of this address: below a prefix it reaches no other server of a hub.
        response.set_cookie(self._cookie, session, self._cookie_s, httponly=True, samesite="lax", path=None)
        return response

    def _too_many(self, peer: str) -> Response:
        tried = f"{PASSWORD_TRIES} passwords were tried in a short time from {peer or 'an unknown address'}"
        self._once.log("passwords", f"{tried}; the page now takes one every {PASSWORD_INTERVAL_S:.0f} s from there")
        response = self._form("Too many passwords were tried. Try again in a few seconds.", 429)
        response.headers["retry-after"] = f"{PASSWORD_INTERVAL_S:.0f}"
        return response

    def _form(self, why: str, status: int = 401) -> Response:
        form = _FORM if self._access.has_password else ""
        return HTMLResponse(_SIGN_IN.format(why=why, form=form), status_code=status)


def _cookies_of(header: str, name: str) -> list[str]:
    """Return the values of a cookie: several paths may have one each. Cookies of other programs may have any text."""
    pairs = [part.partition("=") for part in header.split(";")]
    return [value.strip() for found, _, value in pairs if found.strip() == name]


async def _password_of(receive: Receive) -> str:
    """Return the password of a form; empty if the form is too large or has none."""
    body = b""
    while len(body) <= FORM_BYTES_MAX:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return str(parse_qs(body.decode("utf-8", "replace")).get("password", [""])[0])
    return ""
