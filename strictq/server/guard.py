"""Who may call the server: hosts, origins, the token, and the size of a request.

A browser sends requests to a server on loopback on behalf of any page that it shows. Neither a form nor a GET needs the server's
consent before it is sent, and a page whose host name is made to resolve to 127.0.0.1 later is even of the same origin. So the
guard refuses pages of other origins, and host names that an attacker could make resolve to this address.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from http.cookies import CookieError, SimpleCookie
from typing import Final

from .parts import (
    BODY_BYTES_MAX,
    HEADERS_BYTES_MAX,
    Headers,
    Receive,
    Scope,
    Send,
    ServerSettings,
    body_of,
    fields_of,
    header,
    respond,
)

SIGN_IN: Final = "/sign-in"
_HOST: Final = re.compile(rb"(?:\[([0-9A-Fa-f:.]{2,45})\]|([0-9A-Za-z_-][0-9A-Za-z._-]{0,252}))(?::[0-9]{0,5})?")
"""An address of version 6 in brackets, or another address or a name; and a port. Answers contain it, in URLs of queues."""
_OWN_SITES: Final = frozenset((b"none", b"same-origin"))
_PAGE_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"same-origin"),  # with "no-referrer", browsers send the form with the origin "null"
    (b"x-content-type-options", b"nosniff"),
)
_FORM: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>strictq: sign in</title><form method="post" action="%s"><p>%s
<p><label>Token <input type="password" name="token" autocomplete="current-password" required autofocus></label>
<button>Sign in</button></form></html>
"""


class Refused(Exception):
    """A request is not for this server.

    Attributes:
        status: the status code of the answer.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach a server at this address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class RequestGuard:
    """Checks the headers of requests by the settings of one server."""

    def __init__(self, settings: ServerSettings) -> None:
        self._hosts = {name.lower().encode() for name in settings.host_names}
        self._origins = {origin.encode().rstrip(b"/") for origin in settings.allow_origins}
        self._token = None if settings.token is None else settings.token.encode()
        # Another value than the token, so that a stolen cookie does not reveal it. Its name is made from the token, too, because
        # browsers send the cookies of one host to all of its ports.
        made = "" if self._token is None else hmac.digest(self._token, b"strictq cookie", "sha256").hex()
        self._cookie_name, self._cookie = f"strictq_{made[:8]}", made[8:]
        self._known: dict[bytes, bool] = {}

    @property
    def signs_in(self) -> bool:
        """Whether a token is needed."""
        return self._token is not None

    def check(self, scope: Scope) -> Headers:
        """Check the host, the origin and the sizes. Return headers to add to the answer.

        Raises:
            Refused: the request must not be served.
        """
        size = 0
        host = origin = site = length = None
        hosts = 0
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            if name == b"host":
                host, hosts = value, hosts + 1
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"content-length":
                length = value
        if size > HEADERS_BYTES_MAX:
            raise Refused(431, f"the headers have more than {HEADERS_BYTES_MAX:,} bytes")
        if hosts != 1 or host is None or not self._is_own(host):
            raise Refused(403, "this host name is not allowed; see --host-name")
        if length is not None and length.isdigit() and int(length) > BODY_BYTES_MAX:
            raise Refused(413, f"the body has more than {BODY_BYTES_MAX:,} bytes")
        if origin is not None and origin in self._origins:
            return ((b"access-control-allow-origin", origin), (b"vary", b"origin"))
        if origin is not None and origin.partition(b"://")[2] != host:
            raise Refused(403, "pages of this origin are not allowed; see --allow-origin")
        if site is not None and site not in _OWN_SITES:
            raise Refused(403, "pages of other sites are not allowed; see --allow-origin")
        return ()

    def _is_own(self, host: bytes) -> bool:
        known = self._known.get(host)
        if known is None:
            known = self._is_own_name(host)
            if len(self._known) < 100:  # a stranger could send any number of names
                self._known[host] = known
        return known

    def _is_own_name(self, host: bytes) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found[1] or found[2]).decode().lower().rstrip(".")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            # Nobody can register a name of one label, such as that of a container.
            return "." not in name or name.endswith(".localhost") or name.encode() in self._hosts
        return True  # an address is not looked up, so that no name server can redirect it

    def preflight(self, scope: Scope, allowed: Headers) -> Headers | None:
        """Return the headers that answer a browser's question before a request of an allowed origin; None: it is none."""
        method = header(scope, b"access-control-request-method")
        if scope["method"] != "OPTIONS" or method is None or not allowed:
            return None
        wanted = header(scope, b"access-control-request-headers") or b""
        return (
            *allowed, (b"access-control-allow-methods", method), (b"access-control-allow-headers", wanted),
            (b"access-control-max-age", b"600"),
        )  # fmt: skip

    def knows(self, scope: Scope) -> bool:
        """Return whether the caller presents the token, in the header Authorization or as a cookie, or needs none."""
        if self._token is None:
            return True
        given = header(scope, b"authorization")
        if given is not None and given[:7].lower() == b"bearer ":
            return hmac.compare_digest(given[7:].strip(), self._token)
        for name, value in scope["headers"]:
            if name == b"cookie" and hmac.compare_digest(_cookie(value, self._cookie_name).encode(), self._cookie.encode()):
                return True
        return False

    async def ask(self, scope: Scope, send: Send, *, why: str = "A token is needed.") -> None:
        """Refuse a request without the token. A browser gets a form."""
        if (scope["method"] == "POST" and scope["path"] != SIGN_IN) or b"text/html" not in (header(scope, b"accept") or b""):
            await respond(send, 403, b"a token is needed: Authorization: Bearer TOKEN\n")
            return
        action = scope.get("root_path", "") + SIGN_IN
        await respond(send, 403, (_FORM % (action, why)).encode(), b"text/html; charset=utf-8", _PAGE_HEADERS)

    async def sign_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the form: exchange the token for a cookie."""
        body = await body_of(receive)
        if body is None:
            return
        given = fields_of(body).get("token", "") if scope["method"] == "POST" else ""
        if self._token is None or not hmac.compare_digest(given.encode(), self._token):
            await self.ask(scope, send, why="This is not the token." if given else "A token is needed.")
            return
        cookie = f"{self._cookie_name}={self._cookie}; Path=/; HttpOnly; SameSite=Strict".encode()
        home = (scope.get("root_path", "") + "/").encode()
        await respond(send, 303, b"", headers=((b"location", home), (b"set-cookie", cookie), *_PAGE_HEADERS))


def _cookie(text: bytes, name: str) -> str:
    try:
        found = SimpleCookie(text.decode("latin-1")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value
