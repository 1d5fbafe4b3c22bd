"""What a living replica does with segments: check, append to its log, confirm, apply to live/, and empty the log.

A segment is confirmed when the log has it on the disk; it is applied later, by a thread, when the cut that it belongs to is all
there. Applying one twice is the same as once, so after a kill or a power cut the log is applied again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from .. import _files as files
from .. import _hints as hints
from .._clock import Clock
from .._errors import (
    Diverged,
    Fenced,
    InvalidArgument,
    ReplicaGap,
    StoreBusy,
    StoreFull,
    StrictqError,
    TargetUnavailable,
)
from .._observe import logger
from .._store import api
from .._store.api import SHARDS_MAX
from .forwarding import Beat, Forwarding
from .keys import key_id
from .membership import Votes
from .remote import ReplicaTarget
from .replica_home import (
    LIVE,
    LOCK,
    LOOKS,
    ApplyingMark,
    LastContact,
    ReplicaState,
    make,
)
from .replica_log import Logged, LogPlace, ReplicaLog
from .segment import SEGMENT_BYTES_MAX, SegmentHeader, decode, hash_of
from .target import ChainHead
from .voting import NOTHING, LogPosition, Question, Vote

if TYPE_CHECKING:
    from .._store.api import PageFiles

LOCK_SECONDS: Final = 10.0
LOG_BYTES_MAX: Final = 1 << 32
"""With more that could not be applied, because looks hold live/ or its disk is full, no segment is taken."""
APPLY_BYTES: Final = 64 << 20
"""Applied at a time, while looks wait."""
APPLY_PAGES: Final = 4096
"""Pages that are collected before they are written."""
LOOKS_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0
APPLY_SECONDS: Final = 0.05
"""So long the first segment that can be applied waits for others: pages that each of them has are written once."""
CONTACT_STEP: Final = 500_000
"""Microseconds between two notes of when the primary was heard of."""


class ReceivedSegments:
    """One replica, in the process that receives for it. Any thread may call it.

    Args:
        home: its directory; made if it is missing.
        key: what segments are hashed with.
        queue_id: the queue that it is for; None: the one that ships to it first.
        promoting: the lock of the directory, which the caller holds, and looks' too: nothing is received any more, what was
            received is applied, and the caller lets go of the lock.
        next_replica: ship on to it.
        on_step: called by name after each step, for tests that kill the process there.
    Raises:
        InvalidArgument: something else is there, or it is for another queue or key; nothing was changed.
        StoreBusy: another process receives for it, or promotes it.
        ReplicaGap, StoreCorrupt: what it has is damaged; nothing was changed.
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
            raise StoreBusy(f"another process receives for the replica {home}, or promotes it", shard=-1)
        self._changed = threading.Condition()
        self._stop = False
        self._stopping = threading.Event()
        self._boot_id = clock.boot_id()
        self._n, self._hash = -1, ""
        self._complete: SegmentHeader | None = None
        """The last segment of the last whole cut of this history."""
        self._whole = NOTHING
        """How far the last whole cut is, of whichever history."""
        self._open: list[Logged] = []
        """Segments of a cut that is not all there yet."""
        self._ready: deque[list[Logged]] = deque()
        """Cuts to apply."""
        self._applied: Logged | None = None
        self._contact: LastContact | None = None
        self.error: str | None = None
        """Why what was received can't be applied now."""
        self._log: ReplicaLog | None = None
        self._mark: ApplyingMark | None = None
        self._pages: PageFiles | None = None
        self._thread: threading.Thread | None = None
        self._votes = Votes(home)
        self._forwarding: Forwarding | None = None
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
                self._hold.leave()  # it only says that it was promoted
        except BaseException:
            self._let_go()
            raise

    def _require_belongs(self, queue_id: str | None) -> None:
        state = self.state
        if queue_id is not None and state.queue_id not in ("", queue_id):
            raise InvalidArgument(f"{self.home} is the replica of another queue; nothing was changed", hint=hints.EMPTY_TARGET)
        if queue_id is not None and not state.queue_id:
            self.state = attrs.evolve(state, queue_id=queue_id)
            self.state.write(self.home)
        if state.history_id and state.key_id != self._key_id():
            raise InvalidArgument(f"the segments of {self.home} are made with another key, or none", hint=hints.KEY_OF_REPLICA)

    def _note_next(self, name: str) -> None:
        if self.state.forwards_to != name:
            self.state = attrs.evolve(self.state, forwards_to=name)
            self.state.write(self.home)

    def _key_id(self) -> str:
        return key_id(self._key) if self._key else ""

    # ---- what is there

    def _load(self) -> None:
        """Read the log, and apply what of it live/ may not have."""
        self._mark = ApplyingMark(self.home, self._clock)
        self._log = ReplicaLog(self.home, self._key)
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
            before = (found[0].header.n - 1, found[0].header.prev) if found else (self._n, self._hash)
            self._forwarding.loaded(before, found)
        for logged in found:
            if logged.header.n <= self._n:
                continue  # the state was stored, and the log not emptied yet
            if (logged.header.n != self._n + 1 or logged.header.prev != self._hash) and not logged.header.begins_base:
                raise ReplicaGap(f"segment {self._n + 1} is missing in the replica's log", self._n + 1)
            self._follow(logged)
        whole = ApplyingMark.read(self.home, self._clock)
        if self._ready or (state.applied is not None and (whole is None or whole.n < state.applied.n)):
            self._apply_before_looks()

    def _apply_before_looks(self) -> None:
        """At the start: live/ may be torn, so no look may come first."""
        looks = files.Lock(self.home / LOOKS)
        try:
            if not self._promoting and not looks.alone(LOCK_SECONDS):
                raise StoreBusy(f"another process looks at the replica {self.home}", shard=-1, hint=hints.CLOSE_LOOKS)
            assert self._mark is not None
            self._mark.begin()
            while self._ready:
                self._apply_cuts()
            self._mark.end(self._applied.header if self._applied is not None else self.state.applied)
        finally:
            looks.leave()

    def _follow(self, logged: Logged) -> None:
        """The chain ends with this segment now."""
        header = logged.header
        if header.first == header.n:
            self._open = []  # a cut that was given up counts for nothing
        self._open.append(logged)
        self._n, self._hash = header.n, logged.hash
        if not header.more:
            self._complete, self._whole = header, LogPosition(header.term, header.n, logged.hash)
            self._forget_other_history()
            self._ready.append(self._open)
            self._open = []

    def _forget_other_history(self) -> None:
        """What it has of the history before counts for nothing in this one, which begins with all of the queue."""
        if self._complete is not None and self._complete.history_id != self.state.history_id:
            self._complete = None

    # ---- what a primary asks for

    def status(self) -> dict[str, Any]:
        """Whose it is, and its term."""
        with self._changed:
            voter = self._votes.look()
            elected = "" if voter is None or voter.decided is None else voter.decided.history_id
            return {"queue_id": self.state.queue_id, "history_id": self.state.history_id, "key_id": self.state.key_id,
                    "term": self.state.term, "role": self.state.role, "elected": elected}  # fmt: skip

    def head(self) -> ChainHead | None:
        """Where its chain ends. In confirmed mode, the next replica has all of that.

        Raises:
            Fenced: it was promoted.
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
        """Make it the replica of a queue's history, if it is nobody's, or has no segment yet. Durable on return.

        So is the history of the primary that the members of its chain have elected. What it has of the one before stays until it
        has all of the new one.

        Raises:
            Diverged: it is another queue's, or another history's; nothing was changed.
            InvalidArgument: segments are to be made with another key; nothing was changed.
            Fenced: it was promoted.
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
                raise Diverged("the replica was made for another queue", hint=hints.EMPTY_TARGET)
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
        """Is this history, which is not its own, that of the primary which the members of the chain have elected?"""
        voter = self._votes.look()
        decided = None if voter is None or not voter.has_vote else voter.decided
        return (
            decided is not None
            and (decided.queue_id, decided.history_id) == (queue_id, history_id)
            and self.state.history_id != history_id
        )

    def beat(self, queue_id: str, history_id: str, term: int, x: int, *, confirmed: bool, generation: int) -> None:
        """The primary lives, and its queue time is this. Whether its calls wait for the replica is stored durably.

        In confirmed mode, the next replica has all of that on return, too. It is the first one to know that the mode has ended:
        until then this one waits for it.

        Raises:
            Diverged, Fenced: it is not this replica's primary.
            ReplicaGap: the next replica needs all of the queue.
            TargetUnavailable: the next replica does not confirm.
        """
        said = Beat(queue_id, history_id, term, x, confirmed, generation)
        with self._changed:
            self._require_receives()
            self._require_history(queue_id, history_id)
            self._require_term(term)
            before = self._next_to_confirm()
            leaves = before is not None and generation > self.state.generation and not confirmed
            if not leaves:
                self._store_mode(said)
            self._note_contact(x)
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
        """The next replica, if what is put here is confirmed only when that has it.

        It does not count once the members of the chain have dropped it: those that are left are the primary and this one.

        Raises:
            TargetUnavailable: this one was started without it, and it is a member.
        """
        if not self.state.confirmed:
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
        """Whose segments to ship on; nobody's, while the members have elected a primary that has not shipped here yet.

        A next replica that is new would take the history before for its own.
        """
        voter = self._votes.look()
        decided = None if voter is None else voter.decided
        if decided is not None and decided.history_id != self.state.history_id:
            return attrs.evolve(self.state, history_id="")
        return self.state

    def _require_no_base(self) -> None:
        if self._forwarding is not None and self._forwarding.base_wanted:
            raise ReplicaGap(f"the next replica {self._forwarding} lacks what this one does not keep any more", self._n + 1)

    def put(self, n: int, data: bytes) -> None:
        """Take a segment; it is on the disk on return, in confirmed mode on that of the next replica, too.

        The same one twice is the same as once.

        Raises:
            Diverged: it is another queue's or history's, or does not follow what is there.
            Fenced: it is of an earlier term, or this was promoted.
            ReplicaGap: it is damaged, or one before it is missing.
            SchemaMismatch: it is of a newer strictq.
            StoreFull, StoreError: it can't be stored.
            TargetUnavailable: it is stored, and the next replica does not confirm it.
        """
        header, _ = decode(data, n, self._key)  # all of it: what can't be applied is not confirmed
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
                    raise StoreFull(f"the replica can't apply what it has: {self.error or 'a look holds it'}", shard=-1)
                logged = self._log.append(header, data)
                self._on_step("appended")
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
        """What the voter of this replica says. Behind a vote for another primary, nothing of this one is confirmed any more."""
        with self._changed:
            return self._votes.answered(message, lambda: self.position)

    @property
    def last_number(self) -> int:
        """Of the last segment; -1: there is none."""
        return self._n

    @property
    def position(self) -> LogPosition:
        """How far the last whole cut is."""
        return self._whole

    def after(self, n: int) -> bytes:
        """The segments of the log behind this one, as many as one answer may have."""
        out: list[bytes] = []
        size = 0
        with self._changed:
            self._require_receives()
            log = ReplicaLog(self.home, self._key)
            try:
                for logged in log.load(repair=False):
                    if logged.header.n <= n:
                        continue
                    if size + logged.size > SEGMENT_BYTES_MAX or (not out and logged.header.n != n + 1):
                        break
                    out.append(log.read(logged))
                    size += logged.size
            finally:
                log.close()
        return b"".join(out)

    @property
    def trouble(self) -> str | None:
        """Why what was received can't be applied, or does not arrive at the next replica; None: nothing is wrong."""
        return self.error or (None if self._forwarding is None else self._forwarding.error)

    def _in_log(self, place: LogPlace) -> bytes:
        log = self._log
        return b"" if log is None else log.read(place)

    def _note_contact(self, x: int) -> None:
        if self._promoting:
            return  # what it takes comes from another member
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
            raise Fenced(f"the replica was promoted, and is in term {self.state.term} now", self.state.term)
        if self._stop:
            raise StoreBusy("the replica is being promoted, or is ending", shard=-1)

    def _require_history(self, queue_id: str, history_id: str) -> None:
        if queue_id != self.state.queue_id:
            raise Diverged("the replica is that of another queue", hint=hints.EMPTY_TARGET)
        if history_id != self.state.history_id:
            raise Diverged("the replica is that of another history of this queue", hint=hints.EMPTY_TARGET)

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
        """
        Raises:
            ReplicaGap, Diverged: it is not the next one of the chain.
        """
        n = header.n
        if n > self._n + 1 and not header.begins_base:
            raise ReplicaGap(f"segment {self._n + 1} is missing in the replica", self._n + 1)
        if n <= self._n or (n == self._n + 1 and header.prev != self._hash):
            raise Diverged(f"the replica has another segment {min(n, self._n)}: two copies of the queue ship to the same place")
        if header.first != n and not (self._open and header.first == self._open[0].header.n):
            raise ReplicaGap(f"segment {header.first}, with which the cut of segment {n} begins, is missing", header.first)
        if self._complete is None and not header.is_base:
            raise ReplicaGap("the first segments of a replica must have all of the queue", n)

    def _require_sound(self, header: SegmentHeader) -> None:
        """
        Raises:
            ReplicaGap: it names files or pages that no queue has.
        """
        known = header.shards if self._complete is None else self._complete.shards
        sound = header.shards == known and 0 < known <= SHARDS_MAX and header.x >= 0
        for part in header.parts:
            sound = sound and -1 <= part.shard < known and 0 <= part.count <= part.size < 1 << 32
        if not sound:
            raise ReplicaGap(f"segment {header.n} is damaged: its header makes no sense", header.n)

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
                    logger().exception("the replica %s can't apply what it has", self.home)
                elif str(e) != self.error:
                    logger().error("the replica %s can't apply what it has: %s", self.home, e)
                self.error = str(e)
                with self._changed:
                    if not self._stop:
                        self._changed.wait(RETRY_SECONDS)

    def _apply_some(self) -> bool:
        """Apply cuts, one after the other. False: a look holds live/."""
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
        """Apply cuts that follow one another, until they have enough pages. Returns how many bytes their segments have."""
        assert self._log is not None
        assert self._pages is not None
        newest: dict[int, dict[int, bytes]] = {}
        sizes: dict[int, int] = {}
        cuts = count = size = 0
        for cut in list(self._ready):
            for logged in cut:
                _, parts = decode(self._log.read(logged), logged.header.n, self._key)
                for part, pages in parts:
                    newest.setdefault(part.shard, {}).update(pages)
                    sizes[part.shard] = part.size
                    count += len(pages)
                size += logged.size
            cuts += 1
            if count >= APPLY_PAGES:
                break
        for shard, images in newest.items():
            self._pages.write(shard, sizes[shard], iter(sorted(images.items())))
            self._on_step("page")
        for _ in range(cuts):
            self._applied = self._ready.popleft()[-1]
        return size

    def _trim(self) -> None:
        """Empty the file of the log that is full, once live/ has on the disk what is in it."""
        assert self._log is not None
        applied = self._applied
        if applied is None:
            return
        file = self._log.droppable(applied.header.n)
        if file is not None and self._may_empty(file):
            self._store_applied(applied)
            self._empty(file)
            self._on_step("trimmed")

    def _may_empty(self, file: int) -> bool:
        """Has the next replica what this file has?"""
        assert self._log is not None
        return self._forwarding is None or self._forwarding.may_drop(self._log.last(file), self._log.size)

    def _empty(self, file: int) -> None:
        assert self._log is not None
        with self._changed:
            self._log.empty(file)
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

    # ---- the end

    def finish(self) -> None:
        """Bring all to the disk that is applied, and empty the log.

        Raises:
            StoreError: it can't be; nothing is lost.
        """
        self._settle()

    def close(self) -> None:
        """Take no more segments, and let go of the directory; what is confirmed stays. Closing twice does nothing."""
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
        with suppress(StrictqError):
            self._settle()
        self._let_go()

    def _settle(self) -> None:
        """Apply the rest, unless a look holds live/, and leave an empty log."""
        while self._ready and self._apply_some():
            pass
        applied, log = self._applied, self._log
        if applied is None or log is None or self._mark is None or self.error is not None:
            return
        if self._promoting or log.all_upto(applied.header.n):
            self._store_applied(applied)
            self._mark.synced()
            for file in (0, 1):
                if self._may_empty(file):
                    self._empty(file)

    def leave(self) -> None:
        """Let go of the directory, and leave the log as it is."""
        self._let_go()

    def _let_go(self) -> None:
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
