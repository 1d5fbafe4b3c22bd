"""Parse the names of targets, and create the targets."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from .. import _hints as hints
from .._errors import InvalidArgument
from .._files import real_path
from .._net.transport import address, host_and_port, require_protected
from .directory import DirectoryTarget
from .objects import ObjectTarget
from .remote import ReplicaTarget
from .segment_files import SegmentFiles
from .target import ShipTarget

REPLICAS: Final = ("tcp", "tcps")
"""Schemes of living replicas, without and with TLS."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ODD: Final = ("", ".", "..")


def parse(text: str | os.PathLike[str]) -> str:
    """Return the full name of a target: "file:/path", "s3://bucket/prefix" or "tcps://host:port".

    A path without a scheme is a file: target.

    Raises:
        InvalidArgument: the text is not a valid name.
    """
    if not isinstance(text, str | os.PathLike) or isinstance(os.fspath(text), bytes):
        raise InvalidArgument(f"a target must be a str or a path, not {type(text).__name__}")
    name = os.fspath(text)
    found = _SCHEME.match(name)
    scheme = found[1].lower() if found else "file"
    rest = name[found.end() :] if found else name
    if not rest or "\0" in rest:
        raise InvalidArgument("a target must not be empty or contain NUL characters", hint=hints.TARGET_IS)
    if scheme == "s3":
        return f"s3://{_objects(rest)}"
    if scheme in REPLICAS:
        if not rest.startswith("//"):
            raise InvalidArgument(f"{name!r} has no host", hint=hints.TARGET_IS)
        host, port = host_and_port("a replica", rest[2:])
        if not port:
            raise InvalidArgument(f"{name!r} has no port", hint=hints.TARGET_IS)
        return f"{scheme}://{address(host, port)}"
    if scheme != "file":
        raise InvalidArgument(f"strictq does not support targets of the kind {scheme!r}", hint=hints.TARGET_IS)
    return f"file:{_directory(rest if found is None else _without_host(rest))}"


def target_of(name: str, key: bytes = b"", *, write_once: bool = True, token_file: str = "", authority: str = "") -> ShipTarget:
    """Return the target with this full name. Does no I/O.

    Args:
        token_file, authority: for a replica on another host.
    """
    scheme, _, rest = name.partition(":")
    if scheme in REPLICAS:
        host, port = host_and_port("a replica", rest[2:])
        return ReplicaTarget(scheme, host, port, key, token_file=token_file, authority=authority)
    return files_of(name, key, write_once=write_once)


def replica_at(
    name: str,
    *,
    token_file: str | os.PathLike[str],
    authority: str | os.PathLike[str] | None = None,
    key: bytes = b"",
    plaintext: bool = False,
) -> ReplicaTarget:
    """Return the living replica with this name, "tcps://HOST:PORT" or "tcp://HOST:PORT". Does no I/O.

    Raises:
        InvalidArgument: the name or another argument is invalid.
    """
    scheme, _, rest = parse(name).partition("://")
    if scheme not in REPLICAS:
        raise InvalidArgument(f"{name!r} is not a replica on another host", hint=hints.REPLICA_IS)
    host, port = host_and_port("a replica", rest)
    require_protected("a replica", host, tls=scheme == "tcps", plaintext=plaintext)
    if authority is not None and scheme != "tcps":
        raise InvalidArgument("authority requires tcps://")
    return ReplicaTarget(
        scheme, host, port, key, token_file=os.fspath(token_file), authority="" if authority is None else os.fspath(authority)
    )


def files_of(name: str, key: bytes = b"", *, write_once: bool = True) -> SegmentFiles:
    """Return the target with this full name, which keeps segments. Does no I/O.

    Raises:
        InvalidArgument: it is a living replica, which keeps none.
    """
    scheme, _, rest = name.partition(":")
    if scheme in REPLICAS:
        raise InvalidArgument(
            f"{name} is a replica on another host, which keeps no segments to restore from", hint=hints.NOT_TO_RESTORE
        )
    if scheme == "s3":
        return ObjectTarget(rest.removeprefix("//"), key, write_once=write_once)
    return DirectoryTarget(Path(rest), key)


def _without_host(rest: str) -> str:
    if not rest.startswith("//"):
        return rest
    host, _, path = rest[2:].partition("/")
    if host not in ("", "localhost"):
        raise InvalidArgument(f"a file: target is on this machine, not on {host!r}", hint=hints.TARGET_IS)
    return f"/{path}"


def _directory(path: str) -> str:
    return real_path(os.path.expanduser(path))


def _objects(rest: str) -> str:
    """Return bucket and prefix."""
    if "@" in rest:
        raise InvalidArgument("the name of a target must not contain credentials", hint=hints.STORE_CREDENTIALS)
    bucket, *parts = rest.removeprefix("//").rstrip("/").split("/")
    if not rest.startswith("//") or not _BUCKET.fullmatch(bucket):
        raise InvalidArgument(f"s3:{rest} has no bucket", hint=hints.TARGET_IS)
    if any(part in _ODD or not part.isprintable() or set(part) & set("*?[#") for part in parts):
        raise InvalidArgument(f"s3:{rest}: a prefix must not have empty parts, '.', '..' or any of *?[#", hint=hints.TARGET_IS)
    return "/".join((bucket, *parts))
