"""What a shipper is told, and how a queue is told to ship or not to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import attrs

from .. import _hints as hints
from .._errors import ConfigError, InvalidArgument, StoreCorrupt
from .._net.transport import host_and_port, require_protected
from .._store.api import Replication, ShipStatus, Storage
from .bounded import TargetThread
from .keys import read_key
from .places import REPLICAS, parse, target_of
from .target import ShipTarget

INTERVAL_SECONDS: Final = 1.0
MAX_LAG_BYTES: Final = 1 << 30
KEEP_SECONDS: Final = 86_400.0


@attrs.frozen
class ShipSettings:
    """How a queue is shipped: see `Queue.configure_replication`.

    Attributes:
        key_file: a path; "": segments have no key.
        token_file: of a replica on another host, a path; "": the target is none.
        authority: a path; "": what the system trusts vouches for the replica's certificate.
        write_once: when it was configured, the target refused to write a name that was taken.
    """

    interval_seconds: float = INTERVAL_SECONDS
    max_lag_bytes: int = MAX_LAG_BYTES
    keep_seconds: float = KEEP_SECONDS
    key_file: str = ""
    token_file: str = ""
    authority: str = ""
    write_once: bool = True

    def to_json(self) -> str:
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ShipSettings:
        """
        Raises:
            StoreCorrupt: no strictq stored it.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            known = {field.name for field in attrs.fields(cls)}
            return cls(**{name: value for name, value in values.items() if name in known})
        except (ValueError, TypeError, AttributeError, RecursionError) as e:
            raise StoreCorrupt(f"its replication settings can't be read: {e}", shard=-1, cause=e) from e


def file_path(name: str, text: str | os.PathLike[str] | None, hint: hints.Coded | None = None) -> str:
    """Return the full path of a file, by which every process that ships finds it; "" for None.

    Raises:
        InvalidArgument: it is no path.
    """
    if text is None:
        return ""
    if not isinstance(text, str | os.PathLike) or isinstance(os.fspath(text), bytes) or not os.fspath(text):
        raise InvalidArgument(f"{name} must be the path of a file, not {text!r}", hint=hint)
    return os.path.realpath(os.path.expanduser(text))


def configure(
    storage: Storage, target: str | os.PathLike[str], mode: Any, settings: ShipSettings, *, plaintext: bool = False
) -> None:
    """Ship the queue to a target from now on. See `Queue.configure_replication`."""
    if mode != "async":
        detail = "this version has no confirmed mode" if mode == "confirmed" else f"not {mode!r}"
        raise InvalidArgument(f"mode must be 'async': {detail}; nothing was changed")
    _require_reach(parse(target), settings, plaintext)
    directory = storage.directory
    if directory is None:
        raise ConfigError("a queue in memory has no files that could be shipped")
    key = read_key(settings.key_file) if settings.key_file else b""
    known = storage.replication
    history_id = os.urandom(16).hex() if known is None else known.history_id
    identity = {"format": 1, "queue_id": storage.queue_id, "history_id": history_id}
    calls = TargetThread(os.fspath(target) if isinstance(target, str | os.PathLike) else "the target")
    try:
        place, write_once = calls.call(lambda: _claimed(target, key, settings, directory, identity))
    finally:
        calls.close()
    settings = attrs.evolve(settings, write_once=write_once)
    before = known or Replication(history_id)
    storage.stop_shipping(flush=False)
    if before.target != str(place):
        ShipStatus(history_id).write(directory)
    else:
        attrs.evolve(ShipStatus.read(directory, history_id), stopped=False, error="").write(directory)
    storage.set_replication(before._replace(mode="async", target=str(place), settings=settings.to_json()))
    storage.ship()


def _require_reach(name: str, settings: ShipSettings, plaintext: bool) -> None:
    """
    Raises:
        InvalidArgument: what it takes to reach a replica is missing, or given for a target that is none.
    """
    scheme, _, rest = name.partition("://")
    if scheme not in REPLICAS:
        if settings.token_file or settings.authority or plaintext:
            raise InvalidArgument(
                "token_file, authority and plaintext are for a replica at tcp:// or tcps://; nothing was changed"
            )
        return
    if not settings.token_file:
        raise InvalidArgument(f"{name} needs token_file; nothing was changed", hint=hints.TOKEN_FILE)
    if settings.authority and scheme != "tcps":
        raise InvalidArgument("authority is for tcps://; nothing was changed")
    require_protected("a replica", host_and_port("a replica", rest)[0], tls=scheme == "tcps", plaintext=plaintext)


def _claimed(
    name: str | os.PathLike[str], key: bytes, settings: ShipSettings, queue: Path, identity: dict[str, Any]
) -> tuple[ShipTarget, bool]:
    """The target, which is this queue's from now on, and whether a name that is taken is refused there."""
    place = target_of(parse(name), key, token_file=settings.token_file, authority=settings.authority)
    if settings.key_file and place.holds(Path(settings.key_file)):
        raise InvalidArgument(f"the key file {settings.key_file} lies in the target; nothing was changed", hint=hints.KEY_FILE)
    try:
        place.prepare(queue)
        found = place.identity()
        if found is not None:
            place.require(identity, found)
        place.write_once = place.is_write_once()
        place.claim(identity)
    finally:
        place.close()
    return place, place.write_once


def detach(storage: Storage) -> bool:
    """Ship the queue no longer. Returns whether it was shipped. See `Queue.detach`."""
    known = storage.replication
    if storage.directory is None or known is None or known.mode != "async":
        return False
    storage.stop_shipping(flush=True)
    storage.set_replication(known._replace(mode="off", target=""))
    ShipStatus(known.history_id).write(storage.directory)
    return True


def require_replicated(storage: Storage) -> Replication:
    """
    Raises:
        ConfigError: the queue is not shipped anywhere.
    """
    known = storage.replication
    if known is None or known.mode != "async":
        raise ConfigError("the queue has no replica", hint=hints.CONFIGURE_AGAIN)
    return known
