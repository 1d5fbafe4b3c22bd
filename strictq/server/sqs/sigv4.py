"""Check AWS Signature Version 4 of a request: the form with the header Authorization."""

from __future__ import annotations

import hashlib
import hmac
import time
from calendar import timegm
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote_plus

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SKEW_SECONDS: Final = 900
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_UNRESERVED: Final = "-_.~"


class NotSigned(Exception):
    """The request is not signed, or its signature is wrong. The text is the code of the error."""


def _mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


@lru_cache(256)
def _signing_key(secret: str, date: str, region: str, service: str) -> bytes:
    """Return the key of one day. Deriving it takes as long as the rest of the check."""
    return _mac(_mac(_mac(_mac(b"AWS4" + secret.encode(), date), region), service), "aws4_request")


def verify(
    method: str,
    path: str,
    query: str,
    headers: Iterable[tuple[bytes, bytes]],
    body: bytes,
    secrets: Mapping[str, str],
    now: float | None = None,
) -> str:
    """Return the id of the access key that signed a request.

    Args:
        path: as on the wire, still quoted.
        query: as on the wire, without the question mark.
        headers: names in lower case.
        secrets: secret by access key id.
        now: seconds since 1970; None: the time.
    Raises:
        NotSigned: MissingAuthenticationToken, InvalidClientTokenId, IncompleteSignature, RequestExpired or SignatureDoesNotMatch.
    """
    given: dict[str, list[str]] = {}
    for name, value in headers:
        given.setdefault(name.decode("latin-1"), []).append(" ".join(value.decode("latin-1").split()))
    kind, _, rest = given.get("authorization", [""])[0].partition(" ")
    if kind != ALGORITHM:
        raise NotSigned("MissingAuthenticationToken")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    try:
        access, date, region, service, end = parts["Credential"].split("/")
        signed = parts["SignedHeaders"].split(";")
        signature = parts["Signature"]
        stamp = given["x-amz-date"][0]
        at = timegm(time.strptime(stamp, _STAMP))
    except (KeyError, ValueError):
        raise NotSigned("IncompleteSignature") from None
    secret = secrets.get(access)
    if secret is None:
        raise NotSigned("InvalidClientTokenId")
    required = {"host", *(name for name in given if name.startswith("x-amz-"))}  # an action that is not signed could be changed
    if not required.issubset(signed) or end != "aws4_request" or not stamp.startswith(date):
        raise NotSigned("IncompleteSignature")
    if abs((time.time() if now is None else now) - at) > SKEW_SECONDS:
        raise NotSigned("RequestExpired")
    canonical = "\n".join((
        method,
        quote(path or "/", safe="/%" + _UNRESERVED),
        _canonical_query(query),
        "".join(f"{name}:{','.join(given.get(name, ()))}\n" for name in signed),
        ";".join(signed),
        hashlib.sha256(body).hexdigest(),
    ))  # fmt: skip
    text = f"{ALGORITHM}\n{stamp}\n{date}/{region}/{service}/{end}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    if not hmac.compare_digest(_mac(_signing_key(secret, date, region, service), text).hex().encode(), signature.encode()):
        raise NotSigned("SignatureDoesNotMatch")
    return access


def _canonical_query(query: str) -> str:
    pairs = (part.partition("=") for part in query.split("&") if part)
    return "&".join(sorted(f"{_requoted(name)}={_requoted(value)}" for name, _, value in pairs))


def _requoted(text: str) -> str:
    return quote(unquote_plus(text), safe=_UNRESERVED)
