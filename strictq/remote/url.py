"""URLs of queues behind an endpoint: which ones `connect` accepts, and what they name."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from .._values import hints
from .._values.errors import InvalidArgument

_AMAZON: Final = re.compile(
    r"(?:[a-z0-9-]+\.)?sqs(?:-fips)?\.(?P<region>[a-z]{2}(?:-[a-z0-9]+)+)\.(?:vpce\.)?(?:amazonaws\.com(?:\.cn)?|api\.aws)"
)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|(?=.{1,80}\Z)[A-Za-z0-9_-]{1,75}\.fifo")
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_SHOWN: Final = 80


@attrs.frozen
class QueueUrl:
    """What a URL names.

    Attributes:
        text: the URL, as it was given.
        endpoint: scheme, host and port of the requests.
        name: the queue's name.
        region: of Amazon; None: the endpoint has none, or the SDK's configuration knows it.
        queue_url: the URL that SQS calls the queue by; None: the endpoint is asked for it.
    """

    text: str
    endpoint: str
    name: str
    region: str | None = None
    queue_url: str | None = None

    @property
    def is_fifo(self) -> bool:
        """Whether its name is that of a FIFO queue."""
        return self.name.endswith(".fifo")


def is_url(text: object) -> bool:
    """Return whether a queue is named by a URL, right or wrong, and not by a directory."""
    return isinstance(text, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def parse(url: Any) -> QueueUrl:
    """Return what a URL names.

    Raises:
        InvalidArgument: it names no queue behind an endpoint, or contains a password.
    """
    if not isinstance(url, str):
        raise InvalidArgument(f"url must be a str, not {type(url).__name__}", hint=hints.QUEUE_URL)
    if not is_url(url):
        raise InvalidArgument(f"{url[:_SHOWN]!r} is not the URL of a queue", hint=hints.OPEN_DIRECTORY)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise _wrong(url, str(e)) from None
    if parts.username is not None or parts.password is not None:
        # The URL is not in the message: it would be logged with the password.
        raise InvalidArgument("a queue's URL has no user and no password", hint=hints.CREDENTIALS_CHAIN)
    if parts.query or parts.fragment or not host or not url.isascii() or not url.isprintable():
        raise _wrong(url, "it has a host and a path only")
    place = parts.netloc.lower()
    is_own = parts.scheme in ("sqs+http", "sqs+https")
    amazon = _AMAZON.fullmatch(host)
    if not is_own and (parts.scheme != "https" or amazon is None or port not in (None, 443)):
        raise _wrong(url, "it is neither Amazon's nor that of another endpoint")
    folders = parts.path.removeprefix("/").split("/")
    if len(folders) != 2 or not _NAME.fullmatch(folders[1]):
        raise _wrong(url, "its path does not end with the name of a queue")
    if amazon is None or is_own:
        if folders[0] != "queue" and not _ACCOUNT.fullmatch(folders[0]):
            raise _wrong(url, "its path is /queue/NAME")
        return QueueUrl(url, f"{parts.scheme.removeprefix('sqs+')}://{place}", folders[1])
    if not _ACCOUNT.fullmatch(folders[0]):
        raise _wrong(url, "its path is /ACCOUNT/NAME")
    return QueueUrl(url, f"https://{host}", folders[1], amazon["region"], f"https://{host}/{folders[0]}/{folders[1]}")


def _wrong(url: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{url[:_SHOWN]!r} is not the URL of a queue: {why}", hint=hints.QUEUE_URL)
