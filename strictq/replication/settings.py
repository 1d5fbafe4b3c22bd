"""The settings of a shipper, and the configuration of a queue's replication."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal, get_args

import attrs

from .._net.transport import host_and_port, require_protected
from .._store.api import Replication, ShipStatus, Storage
from .._values import hints
from .._values.errors import ConfigError, Fenced, InvalidArgument, StoreCorrupt, TargetUnavailable
from .bounded import TargetThread
from .keys import read_key
from .members import is_dropped
from .places import REPLICAS, parse, target_of
from .replica_home import given_path
from .target import TARGET_FORMAT, Beat, ShipTarget

Mode = Literal["async", "confirmed"]
INTERVAL_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 10.0
MAX_LAG_BYTES: Final = 1 << 30
KEEP_SECONDS: Final = 86_400.0
VERIFY_SECONDS: Final = 86_400.0


@attrs.frozen
class ShipSettings:
    """The settings of shipping: see `Queue.configure_replication`.

    Attributes:
        key_file: the path; "": segments have no key.
        token_file: the path, for a replica on another host; "": the target is not one.
        authority: the path; "": the replica's certificate is verified with the system's trusted CAs.
        write_once: whether the target refused to overwrite a name when it was configured.
        timeout_seconds: in confirmed mode, seconds that a call waits.
        verify_seconds: the time in which every segment since the newest base is read again once.
        generation: incremented by each change, so that a replica can ignore outdated settings that arrive late.
    """

    interval_seconds: float = INTERVAL_SECONDS
    max_lag_bytes: int = MAX_LAG_BYTES
    keep_seconds: float = KEEP_SECONDS
    key_file: str = ""
    token_file: str = ""
    authority: str = ""
    write_once: bool = True
    timeout_seconds: float = TIMEOUT_SECONDS
    verify_seconds: float = VERIFY_SECONDS
    generation: int = 0

    def to_json(self) -> str:
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ShipSettings:
        """Read the stored form.

        Raises:
            StoreCorrupt: it is malformed.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            known = {field.name for field in attrs.fields(cls)}
            return cls(**{name: value for name, value in values.items() if name in known})
        except (ValueError, TypeError, AttributeError, RecursionError) as e:
            raise StoreCorrupt(f"its replication settings can't be read: {e}", shard=-1, cause=e) from e


def file_path(name: str, text: str | os.PathLike[str] | None, hint: hints.Coded | None = None) -> str:
    """Return the full path of a file, valid for every process that ships; "" for None.

    Raises:
        InvalidArgument: the argument is not a path.
    """
    if text is None:
        return ""
    return str(given_path(text, f"{name} must be the path of a file", hint))


def configure(
    storage: Storage, target: str | os.PathLike[str], mode: Mode, settings: ShipSettings, *, plaintext: bool = False
) -> None:
    """Ship the queue to a target from now on. See `Queue.configure_replication`."""
    if mode not in get_args(Mode):
        raise InvalidArgument(f"mode must be 'async' or 'confirmed', not {mode!r}; nothing was changed")
    _require_reach(parse(target), settings, plaintext)
    directory = storage.directory
    if directory is None:
        raise ConfigError("a queue in memory has no files that could be shipped")
    key = read_key(settings.key_file) if settings.key_file else b""
    storage.refresh_settings()
    known = storage.replicating.known
    if known is not None and known.mode == "fenced":
        raise Fenced("the replica of this queue was promoted; nothing was changed", known.term + 1, hint=hints.UNFENCE)
    history_id = os.urandom(16).hex() if known is None else known.history_id
    identity = {"format": TARGET_FORMAT, "queue_id": storage.queue_id, "history_id": history_id}
    with closing(TargetThread(os.fspath(target) if isinstance(target, str | os.PathLike) else "the target")) as calls:
        place, write_once = calls.call(lambda: _claimed(target, key, settings, directory, identity))
    if mode == "confirmed" and not write_once:
        raise InvalidArgument(
            f"{place} lets two writers write the same name, so it can't confirm; nothing was changed", hint=hints.CONFIRMS_NOT
        )
    before = known or Replication(history_id)
    settings = attrs.evolve(settings, write_once=write_once, generation=_next_generation(before))
    if before.mode == "confirmed" and (mode != "confirmed" or before.target != str(place)):
        _leave_confirmed(storage, before)
    storage.replicating.stop(flush=False)
    if before.target != str(place):
        ShipStatus(history_id).write(directory)
    else:
        attrs.evolve(ShipStatus.read(directory, history_id), stopped=False, error="").write(directory)
    storage.replicating.set(before._replace(mode=mode, target=str(place), settings=settings.to_json()))
    storage.replicating.ship()


def _require_reach(name: str, settings: ShipSettings, plaintext: bool) -> None:
    """Validate the arguments for a replica on another host.

    Raises:
        InvalidArgument: one is missing, or is passed for another kind of target.
    """
    scheme, _, rest = name.partition("://")
    if scheme not in REPLICAS:
        if settings.token_file or settings.authority or plaintext:
            raise InvalidArgument(
                "token_file, authority and plaintext require a replica at tcp:// or tcps://; nothing was changed"
            )
        return
    if not settings.token_file:
        raise InvalidArgument(f"{name} needs token_file; nothing was changed", hint=hints.TOKEN_FILE)
    if settings.authority and scheme != "tcps":
        raise InvalidArgument("authority requires tcps://; nothing was changed")
    require_protected("a replica", host_and_port("a replica", rest)[0], tls=scheme == "tcps", plaintext=plaintext)


def _claimed(
    name: str | os.PathLike[str], key: bytes, settings: ShipSettings, queue: Path, identity: dict[str, Any]
) -> tuple[ShipTarget, bool]:
    """Claim the target for this queue. Return it, and whether it refuses to overwrite names."""
    with closing(target_of(parse(name), key, token_file=settings.token_file, authority=settings.authority)) as place:
        if settings.key_file and place.holds(Path(settings.key_file)):
            why = f"the key file {settings.key_file} is inside the target; nothing was changed"
            raise InvalidArgument(why, hint=hints.KEY_FILE)
        place.prepare(queue)
        found = place.identity()
        if found is not None:
            place.require(identity, found)
        place.write_once = place.is_write_once()
        place.claim(identity)
    return place, place.write_once


def detach(storage: Storage, *, force: bool) -> bool:
    """Stop shipping the queue. Return whether it was shipped or fenced. See `Queue.detach`."""
    storage.refresh_settings()
    known = storage.replicating.known
    if storage.directory is None or known is None or not (known.ships or known.mode == "fenced"):
        return False
    if known.mode == "fenced" and not force:
        raise Fenced("the replica of this queue was promoted; nothing was changed", known.term + 1, hint=hints.UNFENCE)
    if known.mode == "confirmed" and not force:
        _leave_confirmed(storage, known)
    storage.replicating.stop(flush=True)
    settings = attrs.evolve(ShipSettings.from_json(known.settings), generation=_next_generation(known))
    storage.replicating.set(known._replace(mode="off", target="", settings=settings.to_json()))
    ShipStatus(known.history_id).write(storage.directory)
    return True


def _next_generation(known: Replication) -> int:
    return ShipSettings.from_json(known.settings).generation + 1


def _leave_confirmed(storage: Storage, known: Replication) -> None:
    """Make the replica store that calls no longer wait for it. Otherwise its promotion would claim changes that it lacks.

    Raises:
        TargetUnavailable: it can't be reached; nothing was changed.
    """
    settings = ShipSettings.from_json(known.settings)
    key = read_key(settings.key_file) if settings.key_file else b""
    calls = TargetThread(known.target)

    def tell() -> None:
        with closing(target_of(known.target, key, token_file=settings.token_file, authority=settings.authority)) as place:
            place.beat(Beat(storage.queue_id, known.history_id, known.term, 0, False, _next_generation(known)))

    try:
        calls.call(tell)
    except TargetUnavailable as e:
        if storage.directory is not None and is_dropped(storage.directory, known.target):
            return  # it can't be promoted, so it need not know
        raise TargetUnavailable(
            f"{known.target} could not be notified that calls no longer wait for it; nothing was changed", known.target,
            hint=hints.LEAVE_CONFIRMED,
        ) from e  # fmt: skip
    finally:
        calls.close()
