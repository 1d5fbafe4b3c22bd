"""The kinds of targets, and their names. A new kind is one module, and one entry of KINDS."""

from __future__ import annotations

import os
import re
from typing import Final

from .._net.transport import host_and_port, require_protected
from .._values import hints
from .._values.errors import InvalidArgument
from .directory import DirectoryTarget
from .objects import ObjectTarget
from .remote import ReplicaTarget
from .segment_files import SegmentFiles
from .target import ShipTarget, TargetOptions

KINDS: Final[dict[str, type[ShipTarget]]] = {
    "file": DirectoryTarget,
    "s3": ObjectTarget,
    "tcp": ReplicaTarget,
    "tcps": ReplicaTarget,
}
"""Every kind of target, by the scheme of its names."""
REPLICAS: Final = frozenset(scheme for scheme, kind in KINDS.items() if not kind.keeps_segments)
"""Schemes of living replicas."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


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
    # A path without a scheme may begin with two slashes, and has no host.
    path = f"//{name}" if name.startswith("/") else name
    scheme, rest = (found[1].lower(), name[found.end() :]) if found else ("file", path)
    if not rest or "\0" in rest:
        raise InvalidArgument("a target must not be empty or contain NUL characters", hint=hints.TARGET_IS)
    if scheme not in KINDS:
        raise InvalidArgument(f"strictq does not support targets of the kind {scheme!r}", hint=hints.TARGET_IS)
    return KINDS[scheme].parsed(scheme, rest)


def target_of(name: str, key: bytes = b"", *, write_once: bool = True, token_file: str = "", authority: str = "") -> ShipTarget:
    """Return the target with this full name. Does no I/O.

    Args:
        token_file, authority: for a replica on another host.
    """
    return KINDS[name.partition(":")[0]].named(name, key, TargetOptions(write_once, token_file, authority))


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
    full = parse(name)
    scheme, _, rest = full.partition("://")
    if scheme not in REPLICAS:
        raise InvalidArgument(f"{name!r} is not a replica on another host", hint=hints.REPLICA_IS)
    require_protected("a replica", host_and_port("a replica", rest)[0], tls=scheme == "tcps", plaintext=plaintext)
    if authority is not None and scheme != "tcps":
        raise InvalidArgument("authority requires tcps://")
    files = TargetOptions(token_file=os.fspath(token_file), authority="" if authority is None else os.fspath(authority))
    return ReplicaTarget.named(full, key, files)


def files_of(name: str, key: bytes = b"") -> SegmentFiles:
    """Return the target with this full name, which keeps segments. Does no I/O.

    Raises:
        InvalidArgument: it is a living replica, which keeps none.
    """
    target = target_of(name, key)
    if not isinstance(target, SegmentFiles):
        raise InvalidArgument(
            f"{name} is a replica on another host, which keeps no segments to restore from", hint=hints.NOT_TO_RESTORE
        )
    return target
