"""The segments of a living replica: check them, append them to the log, confirm, apply to live/, and empty the log.

A segment is confirmed when the log has it on the disk. A thread applies it later, when its cut is
complete. Applying is idempotent, so after a kill or a power cut the log is applied again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from .._platform import files
from .._platform.clock import Clock
from .._platform.log import log
from .._store import api
from .._store.api import SHARDS_MAX
from .._values import hints
from .._values.errors import (
    Diverged,
    Fenced,
    InvalidArgument,
    ReplicaGap,
    StoreBusy,
    StoreFull,
    StrictqError,
    TargetUnavailable,
)
from .forwarding import Forwarding
from .keys import key_id
from .membership import Votes
from .newest_pages import NewestPages
from .remote import ReplicaTarget
from .replica_home import (
    LIVE,
    LOCK,
    LOGS,
    LOOKS,
    ApplyingMark,
    LastContact,
    ReplicaState,
    make,
)
from .replica_log import Logged, LogPlace, ReplicaLog
from .segment import SEGMENT_BYTES_MAX, SegmentHeader, SegmentPages, decode, hash_of
from .target import Beat, ChainHead
from .voting import NOTHING, LogPosition, Question, Vote

if TYPE_CHECKING:
    from .._store.api import PageFiles

LOCK_SECONDS: Final = 10.0
LOG_BYTES_MAX: Final = 1 << 32
"""With more bytes in the log that can't be applied, because readers hold live/ or its disk is full, segments are refused."""
APPLY_BYTES: Final = 64 << 20
"""Bytes applied at a time, while readers wait."""
COPY_BYTES: Final = 4 << 20
COPY_LOG_BYTES: Final = 1 << 30
"""With more bytes in the log, a copy of the replica ends, so that the log can drop segments."""
APPLY_PAGES: Final = 4096
"""Number of pages that are collected before they are written."""
LOOKS_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0
APPLY_SECONDS: Final = 0.05
"""Seconds that the first applicable segment waits for others, so that pages that are in several of them are written once."""
DECODED_MAX: Final = 64
DECODED_BYTES_MAX: Final = 256 << 10
"""So many segments of at most this size are kept decoded until they are applied."""
CONTACT_STEP: Final = 500_000
"""Microseconds between two records of a contact with the primary."""


class ReceivedSegments:
    """One replica, in the process that receives for it. Thread-safe.

    Args:
        home: its directory, created if it is missing.
        key: the key with which segments are hashed.
        queue_id: the id of its queue; None: the first queue that ships to it.
        promoting: the directory's lock, held by the caller together with the readers' lock. Nothing is received, received
            segments are applied, and the caller releases the lock.
        next_replica: the replica to forward to, or None.
        on_step: called with the name of each finished step, for tests that kill the process there.
    Raises:
        InvalidArgument: the directory has other contents, or is for another queue or key; nothing was changed.
        StoreBusy: another process receives for it, or promotes it.
        ReplicaGap, StoreCorrupt: its data is damaged; nothing was changed.
    """

    def __init__(
        self,
        home: Path,
        clock: Clock,
        *,
        key: bytes = b"",
        queue_id: str | None = None,
        promoting: files.Lock | None = None,
        next_replica: ReplicaTarget | None = None,
        on_step: Callable[[str], object] = lambda _step: None,
    ) -> None:
        self.home = home
        self._clock = clock
        self._key = key
        self._on_step = on_step
        make(home)
        self._promoting = promoting is not None
        self._hold = promoting or files.Lock(home / LOCK)
        if not self._promoting and not self._hold.alone(LOCK_SECONDS):
            self._hold.leave()
            raise StoreBusy(f"another process is receiving for the replica {home}, or promoting it", shard=-1)
        self._changed = threading.Condition()
        self._stop = False
        self._stopping = threading.Event()
        self._boot_id = clock.boot_id()
        self._n, self._hash = -1, ""
        self._complete: SegmentHeader | None = None
        """The last segment of the last complete cut of this history."""
        self._whole = NOTHING
        """The position of the last complete cut, of any history."""
        self._open: list[Logged] = []
        """Segments of an incomplete cut."""
        self._ready: deque[list[Logged]] = deque()
        """Complete cuts that are not applied yet."""
        self._decoded: dict[int, SegmentPages] = {}
        """The pages of some segments that are not applied yet."""
        self._applied: Logged | None = None
        self._contact: LastContact | None = None
        self.error: str | None = None
        """The error that prevents applying, or None."""
        self._log: ReplicaLog | None = None
        self._mark: ApplyingMark | None = None
        self._pages: PageFiles | None = None
        self._thread: threading.Thread | None = None
        self._votes = Votes(home)
        self._forwarding: Forwarding | None = None
        self._copying = False
        """The log drops nothing, because a copy of live/ needs it."""
        try:
            self.state = ReplicaState.read(home)
            self._require_belongs(queue_id)
            if self._promoting:
                self._load()
            elif self.state.role == "replica":
                if next_replica is not None:
                    self._note_next(str(next_replica))
                    self._forwarding = Forwarding(next_replica, self._in_log, self._forwarded, on_step)
                self._load()
                if self._forwarding is not None:
                    self._forwarding.begin()
                self._thread = threading.Thread(target=self._run, name="strictq-replica", daemon=True)
                self._thread.start()
            else:
                self._hold.leave()  # it only answers that it was promoted
        except BaseException:
            self.leave()
            raise

    def _require_belongs(self, queue_id: str | None) -> None:
        state = self.state
        if queue_id is not None and state.queue_id not in ("", queue_id):
            raise InvalidArgument(f"{self.home} is the replica of another queue; nothing was changed", hint=hints.EMPTY_TARGET)
        if queue_id is not None and not state.queue_id:
            self.state = attrs.evolve(state, queue_id=queue_id)
            self.state.write(self.home)
        if state.history_id and state.key_id != self._key_id():
            raise InvalidArgument(
                f"the segments of {self.home} were made with another key, or without one", hint=hints.KEY_OF_REPLICA
            )

    def _note_next(self, name: str) -> None:
        if self.state.forwards_to != name:
            self.state = attrs.evolve(self.state, forwards_to=name)
            self.state.write(self.home)

    def _key_id(self) -> str:
        return key_id(self._key) if self._key else ""

    # ---- loading

    def _load(self) -> None:
        """Read the log, and apply the segments that live/ may lack."""
        self._mark = ApplyingMark(self.home, self._clock)
        self._log = ReplicaLog(self.home, self._key, self.state)
        self._pages = api.page_files(self.home / LIVE)
        api.mark_replica(self.home / LIVE)
        found = self._log.load()
        state = self.state
        self._contact = LastContact.read(self.home)
        if state.applied is not None:
            self._n, self._hash, self._complete = state.applied.n, state.applied_hash, state.applied
            self._whole = LogPosition(state.applied.term, self._n, self._hash)
            self._forget_other_history()
        if self._forwarding is not None:
            own = [logged for logged in found if logged.header.history_id == state.history_id]
            if own and own[-1].header.n >= self._n:
                before = own[0].header.n - 1, own[0].header.prev
            else:  # none, or only some that were emptied with later ones
                own = []
                before = (found[-1].header.n, found[-1].hash) if found and found[-1].header.n > self._n else (self._n, self._hash)
            self._forwarding.loaded(before, own)  # segments of an earlier history are superseded
        for logged in found:
            if logged.header.n <= self._n:
                continue  # live/ has it
            if (logged.header.n != self._n + 1 or logged.header.prev != self._hash) and not logged.header.begins_base:
                raise ReplicaGap(f"segment {self._n + 1} is missing in the replica's log", self._n + 1)
            self._follow(logged)
        whole = ApplyingMark.read(self.home, self._clock)
        if self._ready or (state.applied is not None and (whole is None or whole.n < state.applied.n)):
            self._apply_before_looks()

    def _apply_before_looks(self) -> None:
        """Apply the log at the start, before any reader, because live/ may be torn."""
        looks = files.Lock(self.home / LOOKS)
        try:
            if not self._promoting and not looks.alone(LOCK_SECONDS):
                raise StoreBusy(f"another process has the replica {self.home} open for reading", shard=-1, hint=hints.CLOSE_LOOKS)
            assert self._mark is not None
            self._mark.begin()
            while self._ready:
                self._apply_cuts()
            self._mark.end(self._applied.header if self._applied is not None else self.state.applied)
        finally:
            looks.leave()

    def _follow(self, logged: Logged) -> None:
        """Extend the chain by this segment."""
        header = logged.header
        if header.first == header.n:
            self._open = []  # an abandoned cut is ignored
        self._open.append(logged)
        self._n, self._hash = header.n, logged.hash
        if not header.more:
            self._complete, self._whole = header, LogPosition(header.term, header.n, logged.hash)
            self._forget_other_history()
            self._ready.append(self._open)
            self._open = []

    def _forget_other_history(self) -> None:
        """Forget the last complete cut if it is of another history. The new history begins with the whole queue."""
        if self._complete is not None and self._complete.history_id != self.state.history_id:
            self._complete = None

    # ---- requests of a primary

    def status(self) -> dict[str, Any]:
        """Return the replica's queue, history, key, term and role."""
        with self._changed:
            voter = self._votes.look()
            elected = "" if voter is None or voter.decided is None else voter.decided.history_id
            return {"queue_id": self.state.queue_id, "history_id": self.state.history_id, "key_id": self.state.key_id,
                    "term": self.state.term, "role": self.state.role, "elected": elected}  # fmt: skip

    def head(self) -> ChainHead | None:
        """Return the end of its chain. In confirmed mode, the next replica has all segments up to it.

        Raises:
            Fenced: this replica was promoted.
            TargetUnavailable: the next replica does not confirm.
        """
        with self._changed:
            self._require_receives()
            head = None if self._n < 0 else ChainHead(self._n, self._hash, self._complete)
            next_one = self._next_to_confirm()
            if head is not None and self._forwarding is not None and self._forwarding.base_wanted:
                return head._replace(complete=None)
        if next_one is not None and head is not None:
            next_one.wait_for(head.n)
        return head

    def claim(self, queue_id: str, history_id: str, key: str) -> None:
        """Make this the replica of a queue's history, if it has none, or no segment yet. Durable on return.

        Also accepts the history of the primary elected by the members of its chain. The data of the old history stays until the
        new one is complete.

        Raises:
            Diverged: it belongs to another queue or history; nothing was changed.
            InvalidArgument: the primary's key differs; nothing was changed.
            Fenced: this replica was promoted.
        """
        with self._changed:
            self._require_receives()
            if key != self._key_id():
                raise InvalidArgument("the primary and the replica have different key files", hint=hints.KEY_OF_REPLICA)
            elected = self._is_elected(queue_id, history_id)
            if self.state.history_id and (self._n >= 0 or queue_id != self.state.queue_id) and not elected:
                self._require_history(queue_id, history_id)
                return
            if self.state.queue_id not in ("", queue_id):
                raise Diverged("the replica was created for another queue", hint=hints.EMPTY_TARGET)
            claimed = attrs.evolve(
                self.state, queue_id=queue_id, history_id=history_id, key_id=key, confirmed=False, generation=0
            )  # fmt: skip
            claimed.write(self.home)
            self.state = claimed
            self._forget_other_history()
            if self._forwarding is not None:
                self._forwarding.other_history()
        self._on_step("claimed")

    def _is_elected(self, queue_id: str, history_id: str) -> bool:
        """Return whether this other history is that of the primary elected by the members of the chain."""
        voter = self._votes.look()
        decided = None if voter is None or not voter.has_vote else voter.decided
        return (
            decided is not None
            and (decided.queue_id, decided.history_id) == (queue_id, history_id)
            and self.state.history_id != history_id
        )

    def beat(self, said: Beat) -> None:
        """Record a sign of life of the primary, with its queue time. Store durably whether its calls wait for the replica.

        In confirmed mode, the next replica has stored it, too, on return. It is the first one to learn that the mode has ended;
        until then, this replica waits for it.

        Raises:
            Diverged, Fenced: the caller is not this replica's primary.
            ReplicaGap: the next replica needs the whole queue.
            TargetUnavailable: the next replica does not confirm.
        """
        with self._changed:
            self._require_receives()
            self._require_history(said.queue_id, said.history_id)
            self._require_term(said.term)
            before = self._next_to_confirm()
            leaves = before is not None and said.generation > self.state.generation and not said.confirmed
            if not leaves:
                self._store_mode(said)
            self._note_contact(said.x)
            self._require_no_base()
            n, ticket = self._n, 0 if self._forwarding is None else self._forwarding.offer(said)
            next_one = before or self._next_to_confirm()
        if next_one is not None:
            next_one.wait_for(-1 if leaves else n, ticket)
        if leaves:
            with self._changed:
                self._store_mode(said)

    def _store_mode(self, said: Beat) -> None:
        if said.generation > self.state.generation:
            changed = attrs.evolve(self.state, confirmed=said.confirmed, generation=said.generation)
            changed.write(self.home)
            self.state = changed

    def _next_to_confirm(self) -> Forwarding | None:
        """Return the next replica if its confirmation is required, or None.

        A replica that the members of the chain have dropped is not required: then only the primary and this one are left.

        Raises:
            TargetUnavailable: this replica was started without the next one, which is still a member of the chain.
        """
        if not self.state.confirmed or (self._forwarding is None and not self.state.forwards_to):
            return None
        voter = self._votes.look()
        decided = None if voter is None or not voter.has_vote else voter.decided
        if decided is not None and voter is not None:
            others = dict(each for each in decided.members if each[0] not in (voter.id, decided.primary))
            if not others:
                return None
            if self._forwarding is None and self.state.forwards_to in others.values():
                raise TargetUnavailable(
                    f"the replica was started without forward_to, and {self.state.forwards_to} is a member of its chain",
                    self.state.forwards_to, hint=hints.FORWARD_OR_DROP,
                )  # fmt: skip
        return self._forwarding

    def _forwarded(self) -> ReplicaState:
        """Return the state for the next replica: without a history while an elected primary has not shipped here yet.

        A new next replica would otherwise adopt the superseded history, and refuse the elected primary's.
        """
        voter = self._votes.look()
        decided = None if voter is None else voter.decided
        if decided is not None and decided.history_id != self.state.history_id:
            return attrs.evolve(self.state, history_id="")
        return self.state

    def _require_no_base(self) -> None:
        if self._forwarding is not None and self._forwarding.base_wanted:
            raise ReplicaGap(f"the next replica {self._forwarding} lacks segments that this one no longer keeps", self._n + 1)

    def put(self, n: int, data: bytes) -> None:
        """Store a segment. It is on the disk on return, in confirmed mode also on the next replica's.

        Repeating the last segment does nothing.

        Raises:
            Diverged: it belongs to another queue or history, or does not follow the last segment.
            Fenced: it has an earlier term, or this replica was promoted.
            ReplicaGap: it is damaged, or an earlier segment is missing.
            SchemaMismatch: it was made by a newer strictq.
            StoreFull, StoreError: it can't be stored.
            TargetUnavailable: it is stored, but the next replica does not confirm it.
        """
        header, pages = decode(data, n, self._key)  # decode it completely: a segment that can't be applied is not confirmed
        digest = hash_of(data)
        with self._changed:
            self._require_receives()
            self._require_history(header.queue_id, header.history_id)
            self._require_term(header.term)
            if (n, digest) != (self._n, self._hash):
                self._require_follows(header)
                self._require_sound(header)
                if not header.begins_base:
                    self._require_no_base()
                assert self._log is not None
                if self._log.size > LOG_BYTES_MAX:
                    raise StoreFull(f"the replica can't apply its segments: {self.error or 'a reader has it open'}", shard=-1)
                logged = self._log.append(header, data)
                self._on_step("appended")
                if len(self._decoded) < DECODED_MAX and logged.size <= DECODED_BYTES_MAX:
                    self._decoded[n] = pages
                self._follow(logged)
                if self._forwarding is not None:
                    self._forwarding.appended(logged)
                self._changed.notify()
            self._note_contact(header.x)
            next_one = self._next_to_confirm()
        if next_one is not None:
            next_one.wait_for(n)
        self._on_step("confirmed")

    def answered(self, message: Question) -> Vote:
        """Return the voter's answer. After a vote for another primary, no segment of the current one is confirmed."""
        with self._changed:
            return self._votes.answered(message, lambda: self.position)

    @property
    def last_number(self) -> int:
        """The number of the last segment; -1: there is none."""
        return self._n

    @property
    def position(self) -> LogPosition:
        """The position of the last complete cut."""
        return self._whole

    def after(self, n: int) -> bytes:
        """Return the segments of the log after this one, as many as fit into one answer."""
        out: list[bytes] = []
        size = 0
        with self._changed:
            self._require_receives()
            with closing(ReplicaLog(self.home, self._key, self.state)) as log:
                for logged in log.load(repair=False):
                    if logged.header.n <= n:
                        continue
                    if size + logged.size > SEGMENT_BYTES_MAX or (not out and logged.header.n != n + 1):
                        break
                    out.append(log.read(logged))
                    size += logged.size
        return b"".join(out)

    @property
    def trouble(self) -> str | None:
        """The error that prevents applying or forwarding, or None."""
        return self.error or (None if self._forwarding is None else self._forwarding.error)

    def _in_log(self, place: LogPlace) -> bytes:
        log = self._log
        return b"" if log is None else log.read(place)

    def _note_contact(self, x: int) -> None:
        if self._promoting:
            return  # the segments come from another member
        before = self._contact
        boot, wall = self._clock.boot(), self._clock.wall()
        if before is not None and before.boot_id == self._boot_id:
            x = max(x, before.x)
            if 0 <= boot - before.boot < CONTACT_STEP:
                return
        self._contact = LastContact(x, boot, self._boot_id, wall)
        self._contact.write(self.home)

    def _require_receives(self) -> None:
        if self.state.role != "replica":
            raise Fenced(f"the replica was promoted, and is now in term {self.state.term}", self.state.term)
        if self._stop:
            raise StoreBusy("the replica is being promoted, or is ending", shard=-1)

    def _require_history(self, queue_id: str, history_id: str) -> None:
        if queue_id != self.state.queue_id:
            raise Diverged("the replica belongs to another queue", hint=hints.EMPTY_TARGET)
        if history_id != self.state.history_id:
            raise Diverged("the replica belongs to another history of this queue", hint=hints.EMPTY_TARGET)

    def _require_term(self, term: int) -> None:
        voter = self._votes.look()
        if voter is not None and voter.decided is not None and term < voter.decided.term:
            raise Fenced(
                f"the members of the chain are in term {voter.decided.term}, and the primary in {term}", voter.decided.term
            )
        if voter is not None and voter.accepted is not None and term < voter.accepted[1].term:
            raise StoreBusy("the members of the chain are electing another primary", shard=-1, hint=hints.FINISH_ELECTION)
        if term < self.state.term:
            raise Fenced(f"the replica is in term {self.state.term}, and the primary in {term}", self.state.term)
        if term > self.state.term:
            raised = attrs.evolve(self.state, term=term)
            raised.write(self.home)
            self.state = raised

    def _require_follows(self, header: SegmentHeader) -> None:
        """Raise unless a segment is the next one of the chain.

        Raises:
            ReplicaGap, Diverged: it is not.
        """
        n = header.n
        if n > self._n + 1 and not header.begins_base:
            raise ReplicaGap(f"segment {self._n + 1} is missing in the replica", self._n + 1)
        if n <= self._n or (n == self._n + 1 and header.prev != self._hash):
            raise Diverged(f"the replica has another segment {min(n, self._n)}: two copies of the queue ship to the same place")
        if header.first != n and not (self._open and header.first == self._open[0].header.n):
            raise ReplicaGap(f"segment {header.first}, at which the cut of segment {n} begins, is missing", header.first)
        if self._complete is None and not header.is_base:
            raise ReplicaGap("the first segments of a replica must contain the whole queue", n)

    def _require_sound(self, header: SegmentHeader) -> None:
        """Raise unless a segment's header is plausible.

        Raises:
            ReplicaGap: it names files or pages that no queue has.
        """
        known = header.shards
        sound = 0 < known <= SHARDS_MAX and header.x >= 0
        if self._complete is not None:  # shards are only added, and then the whole queue is shipped
            sound = sound and (known == self._complete.shards or (header.is_base and known > self._complete.shards))
        for part in header.parts:
            sound = sound and -1 <= part.shard < known and 0 <= part.count <= part.size < 1 << 32
        if not sound:
            raise ReplicaGap(f"segment {header.n} is damaged: its header is invalid", header.n)

    # ---- applying

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._ready and not self._stop:
                    self._changed.wait()
            if self._stopping.wait(APPLY_SECONDS):
                return
            try:
                if not self._apply_some():
                    continue
                self.error = None
                self._trim()
            except Exception as e:
                if not isinstance(e, StrictqError):
                    log.exception("the replica %s can't apply its segments", self.home)
                elif str(e) != self.error:
                    log.error("the replica %s can't apply its segments: %s", self.home, e)
                self.error = str(e)
                with self._changed:
                    if not self._stop:
                        self._changed.wait(RETRY_SECONDS)

    def _apply_some(self) -> bool:
        """Apply cuts one after another. Return False if a reader holds live/."""
        looks = files.Lock(self.home / LOOKS)
        assert self._mark is not None
        try:
            if not looks.alone(LOOKS_SECONDS):
                return False
            self._mark.begin()
            done = 0
            while self._ready and done < APPLY_BYTES:
                done += self._apply_cuts()
            assert self._applied is not None
            self._mark.end(self._applied.header)
        finally:
            looks.leave()
        self._on_step("applied")
        return True

    def _apply_cuts(self) -> int:
        """Apply consecutive cuts until they have APPLY_PAGES pages. Return the size of their segments, bytes."""
        assert self._log is not None
        assert self._pages is not None
        newest = NewestPages()
        cuts = size = 0
        for cut in list(self._ready):
            for logged in cut:
                parts = self._decoded.get(logged.header.n)
                if parts is None:
                    _, parts = decode(self._log.read(logged), logged.header.n, self._key)
                newest.add(parts)
                size += logged.size
            cuts += 1
            if newest.count >= APPLY_PAGES:
                break
        newest.write(self._pages, self._on_step)
        for _ in range(cuts):
            cut = self._ready.popleft()
            self._applied = cut[-1]
            for logged in cut:
                self._decoded.pop(logged.header.n, None)
        return size

    def _trim(self) -> None:
        """Reuse the full file of the log, once live/ has its segments on the disk."""
        assert self._log is not None
        applied = self._applied
        if applied is None:
            return
        file = self._log.droppable(applied.header.n)
        if file is not None and self._may_drop(file):
            self._store_applied(applied)
            self._drop(file, self._log.reuse)
            self._on_step("trimmed")

    def _may_drop(self, file: int) -> bool:
        """Return whether the next replica has the segments of this file, and no copy of live/ needs them."""
        assert self._log is not None
        if self._copying:
            return False
        return self._forwarding is None or self._forwarding.may_drop(self._log.last(file), self._log.size)

    def _drop(self, file: int, drop: Callable[[int], None]) -> None:
        """Drop the segments of a file, if they are not needed."""
        with self._changed:
            if not self._may_drop(file):  # a copy began meanwhile
                return
            drop(file)
            if self._forwarding is not None:
                self._forwarding.dropped(file)

    def _store_applied(self, applied: Logged) -> None:
        assert self._pages is not None
        self._pages.sync()
        self._on_step("synced")
        with self._changed:
            stored = attrs.evolve(self.state, applied=applied.header, applied_hash=applied.hash)
            stored.write(self.home)
            self.state = stored
        self._on_step("stored")

    # ---- copying

    def copy_to(self, to: Path, go_on: Callable[[], None]) -> LogPosition:
        """Copy the replica to an empty directory, and return the position of the last complete cut that the copy must have.

        live/ is applied to meanwhile, so its copy is like the files after a power cut: the copy of the log has what it lacks.

        Args:
            go_on: called before each part; may raise to end the copying.
        Raises:
            StoreBusy: the replica is being closed, or so many changes arrive that the log would become too long.
            StoreFull, StoreError: it can't be read or copied.
        """

        def step() -> None:
            go_on()
            if self._stop:
                raise StoreBusy("the replica is ending", shard=-1)
            if self._log is not None and self._log.size > COPY_LOG_BYTES:
                raise StoreBusy("too many changes arrive to copy the replica", shard=-1)

        with self._changed:
            self._require_receives()
            assert self._pages is not None
            self._copying, began, pages = True, self.state, self._pages
        try:
            (to / LIVE).mkdir(mode=0o700)
            pages.copy_to(to / LIVE, step)
            with self._changed:
                self._require_receives()
                assert self._log is not None
                places, position = self._log.places, self._whole
                state = attrs.evolve(self.state, applied=began.applied, applied_hash=began.applied_hash)
            for place in places:
                self._copy_log(place, to, step)
            state.write(to)
        finally:
            with self._changed:
                self._copying = False
        return position

    def _copy_log(self, place: LogPlace, to: Path, step: Callable[[], None]) -> None:
        with files.typed("the replica's log can't be copied"), (to / LOGS[place.file]).open("xb") as copied:
            for at in range(0, place.size, COPY_BYTES):
                step()
                copied.write(self._in_log(LogPlace(place.file, at, min(COPY_BYTES, place.size - at))))

    # ---- closing

    def close(self) -> None:
        """Accept no more segments, and release the directory. Confirmed segments stay. Closing twice does nothing."""
        with self._changed:
            if self._stop:
                return
            self._stop = True
            self._stopping.set()
            self._changed.notify_all()
        if self._forwarding is not None:
            self._forwarding.stop()
        if self._thread is not None:
            self._thread.join()
        with suppress(StrictqError, OSError):
            self.finish()
        self.leave()

    def finish(self) -> None:
        """Apply the rest, unless a reader holds live/, sync it, and empty the log.

        Raises:
            StoreError: this failed; nothing is lost.
        """
        while self._ready and self._apply_some():
            pass
        applied, log = self._applied, self._log
        if applied is None or log is None or self._mark is None or self.error is not None:
            return
        if self._promoting or log.all_upto(applied.header.n):
            self._store_applied(applied)
            self._mark.synced()
            for file in (0, 1):
                self._drop(file, log.empty)

    def leave(self) -> None:
        """Release the directory, and leave the log unchanged."""
        with self._changed:
            self._stop = True
            self._stopping.set()
        if self._forwarding is not None:
            self._forwarding.stop()
        for held in (self._pages, self._log, self._mark):
            if held is not None:
                held.close()
        self._pages = self._log = self._mark = None
        if not self._promoting:
            self._hold.leave()
