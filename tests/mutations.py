"""Take each safety measure out of the code, one at a time, and see a test fail.

    python -m tests.mutations                 # all of them
    python -m tests.mutations dedup "BEGIN"   # those whose name or file contains one of these words
    python -m tests.mutations worker/ --jobs 2 # those of a room
    python -m tests.mutations --jobs 2 --list

A copy of the package and its tests is changed, and the fitting tests are run in it. The working tree is not
touched. The same tests must pass without the change. The exit code is 1 if a change survives.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 600.0
POWER = ("tests/power",)
UNSYNCED = ("tests/power/test_receiving.py",)
NOTHING = "pass"
AHEAD = ("tests/unit/test_recorded_batches_ahead.py",)
DIRECT = ("tests/store/test_direct.py",)
MIGRATING = ("tests/store/test_migrating.py",)
WALK = ("tests/store/test_lane_walk.py",)
RANGES = ("tests/store/test_ranges.py",)
SOURCE = ("tests/worker/test_source.py",)
FORWARDING = ("tests/remote/test_forwarding.py",)
RANGE_CONTENTS = "tests/store/test_range_contents.py"
SHARD_LANES = ("tests/store/test_shard_lanes.py",)
SHORT = {"STRICTQ_POWERCUT_IMAGES": "1500", "STRICTQ_FLIPS": "50", "STRICTQ_FAULT_POINTS": "60"}
"""How far the campaigns go, unless the environment says otherwise."""


@attrs.frozen
class Mutation:
    """A safety measure, and the source without it.

    Attributes:
        old: text that stands in the file exactly once.
        tests: what pytest is given; one of these must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _store(name: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(name, f"strictq/_store/{file}", old, new, tests)


def _merge(name: str, old: str, new: str) -> Mutation:
    return Mutation(name, "strictq/replication/merging_histories.py", old, new, ("tests/replication/test_merging.py",))


def _server(name: str, file: str, old: str, new: str) -> Mutation:
    others = {"deadline.py": "test_running.py", "app.py": "test_app.py", "console/sampler.py": "console/test_sampler.py"}
    tests = others.get(file, "console/test_views.py" if file.startswith("console/") else "test_guard.py")
    return Mutation(name, f"strictq/server/{file}", old, new, (f"tests/server/{tests}",))


def _chain(name: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(name, f"strictq/replication/{file}", old, new, tests or ("tests/replication/test_chain.py",))


def _remote(name: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(name, f"strictq/remote/{file}", old, new, tests or ("tests/remote/test_source.py",))


MUTATIONS = [
    # Queues behind an endpoint: what receives and settles their messages.
    _remote(
        "deadlines of remote messages count the time of a suspended machine",
        "client.py",
        "return self.clock.boot() / MICROSECONDS",
        'return float(__import__("time").monotonic())',
    ),
    _remote(
        "a remote lease begins with its request",
        "receiving.py",
        "request.began, request.began + self._settings.lease)",
        "request.began, now + self._settings.lease)",
    ),
    _remote(
        "an answer that the connection cut off is none",
        "client.py",
        "    if not whole:",
        "    if False:",
        "tests/remote/test_cut_answers.py",
    ),
    _remote(
        "an answer of a proxy says nothing of a message",
        "client.py",
        "    if not fault or (name.isdigit() and name != TOO_LARGE):",
        "    if not fault:",
        "tests/remote/test_connect.py",
    ),
    _remote(
        "a wrong clock ends no run",
        "client.py",
        " or text.startswith(SKEWED):",
        ":",
        "tests/remote/test_connect.py",
    ),
    _remote(
        "an answer that is not JSON is tried again",
        "client.py",
        "    if body and response_dict",
        "    if False and response_dict",
        "tests/remote/test_cut_answers.py",
    ),
    _remote("no handler starts in the margin of a remote lease", "delivery.py", "(self.until - self._margin)", "(self.until)"),
    _remote(
        "a source begins with single messages",
        "receiving.py",
        "self._until = now + FIRST_LEASES * self._lease + AFTER_RETURN_SECONDS",
        "self._until = now",
    ),
    _remote("a suspect runs alone", "source.py", "self._alone is None or self._alone.place == WAITING", "True"),
    _remote("a suspect waits until nothing else is held", "source.py", "not any(other.held for other in others)", "True"),
    _remote(
        "a message with half of its receives makes a source careful",
        "receiving.py",
        "self._extend(now + self._lease + AFTER_RETURN_SECONDS)",
        "pass",
    ),
    _remote(
        "a suspect that goes back is received alone",
        "receiving.py",
        "if self._suspect is not None and head.attempt + 1 >= self._suspect:",
        "if False:",
    ),
    _remote(
        "a receive without an answer is repeated under its id", "receiving.py", "self._attempts.append(request.attempt)", NOTHING
    ),
    _remote("a group whose handler runs here is parked", "source.py", " or lane.group in self._running", ""),
    _remote("an error that ends a source's thread ends the run", "source.py", "            self._crash(e)", "            pass"),
    _remote(
        "a permission that was never there ends the run",
        "source.py",
        ' or (answer.kind == "denied" and not self._endpoint.has_worked(action))',
        "",
    ),
    _remote(
        "a postponed lane is held and costs no receive",
        "source.py",
        "if seconds > RETRY_SECONDS_MAX or self._receives.stopping or held + len(rest) > self._batch:",
        "if True:",
    ),
    _remote("a delay that a handler asked for outlasts a breaker", "source.py", "if not lane.asked and (", "if ("),
    _remote("what a receive returns after the stop goes back", "source.py", "self._return(lane.deliveries, now)", NOTHING),
    _remote("a freed group is asked for while a receive waits", "source.py", "self._settlements.ask(now, ASK_SECONDS)", NOTHING),
    _remote("ten questions in vain are enough", "receiving.py", "if self._misses >= ASKS_MAX:", "if False:"),
    _remote(
        "only a long poll with nothing held proves that there is nothing",
        "receiving.py",
        "elif request.alone:",
        "else:",
    ),
    _remote("what goes back is no proof of an empty queue", "source.py", "            self._receives.proven = False\n", ""),
    _remote(
        "a handler that returned after its lease has lost it",
        "settling.py",
        "late = d.returned is not None and d.returned >= d.until",
        "late = False",
    ),
    _remote(
        "a delete without a confirmation is repeated",
        "settling.py",
        "elif not late and self._tries_again(op, failure, now):",
        "elif False:",
    ),
    _remote(
        "an entry in neither list of an answer is not confirmed",
        "settling.py",
        "failures = {str(i): NO_ANSWER for i in range(len(batch))}",
        "failures = {}",
    ),
    _remote(
        "a return waits for an extension that is under way",
        "settling.py",
        "if d.renewing is None or op.purpose != RETURN:",
        "if True:",
    ),
    _remote("an extension begins with its request", "settling.py", "began + op.seconds", "now + op.seconds"),
    _remote(
        "nothing is extended after its lease has ended",
        "settling.py",
        "op.void or (op.purpose == RENEW and self._ended(op.message, now))",
        "op.void",
    ),
    _remote(
        "nothing is extended beyond twelve hours",
        "settling.py",
        "min(self._settings.lease, math.floor(d.received + LEASE_SECONDS_MAX - now) - 1)",
        "self._settings.lease",
    ),
    _remote("the later messages of a lost one go back", "settling.py", "self.give_back(rest, now)", NOTHING),
    _remote(
        "the later messages of a lane go back first",
        "settling.py",
        "for n, d in reversed(list(enumerate(deliveries))):",
        "for n, d in enumerate(deliveries):",
    ),
    _remote(
        "a dead letter is sent once although its answer is lost",
        "source.py",
        "sha256(place.encode()).hexdigest()",
        "str(time.monotonic())",
    ),
    _remote(
        "a limit of receives below three is warned of",
        "queue.py",
        "redrive.receives_max < LIMIT_MIN",
        "False",
        "tests/remote/test_connect.py",
    ),
    _remote(
        "a password of a URL is not shown",
        "url.py",
        '"a queue\'s URL has no user and no password"',
        'f"no password: {url}"',
        "tests/remote/test_connect.py",
    ),
    # Handles, and receives that count.
    Mutation(
        "a handle of another queue is refused",
        "strictq/handle.py",
        "raise not_ours()  # tokens of different queues may be equal",
        NOTHING,
        ("tests/unit/test_handles.py",),
    ),
    Mutation(
        "a handle and its delivery in one ack are one message",
        "strictq/handle.py",
        "lease._open = -1  # a Delivery of this message, if there is one, does not learn that it is settled",
        NOTHING,
        ("tests/unit/test_handles.py",),
    ),
    _store(
        "a lease does not grow past a redriven message that waits for its end",
        "shard/settling.py",
        "rare.front or rare.waiting or rare.closed",
        "rare.front or rare.closed",
        "tests/unit/test_dead_letters.py",
    ),
    _store(
        "an extension that is not late is refused after the deadline",
        "shard/settling.py",
        "if not late and lane.grant is not None and lane.grant.deadline <= tx.now:",
        "if False:",
        "tests/unit/test_handles.py",
    ),
    _store(
        "a receive that charges all says so in its transaction",
        "shard/claiming.py",
        "store.append(kinds.START, started, token=out.token)",
        NOTHING,
        "tests/unit/test_leases.py",
    ),
    _store(
        "the first dedup id in a shard is noted for older versions",
        "shard/sending.py",
        "store.add_feature(mark.DEDUP_IDS)",
        NOTHING,
        "tests/store/test_direct.py",
    ),
    _store(
        "a row without its body is read again",
        "lane/memory.py",
        "return (*row[:M_OPTS], None, None)",
        "return (*row[:M_OPTS], None, b'')",
        "tests/unit/test_bad_input.py",
    ),
    # Who may call the server.
    _server("a rebound host name is refused", "guard.py", "hosts != 1 or host is None or not self._is_own(host)", "hosts != 1"),
    _server(
        "a page of another origin is refused",
        "guard.py",
        'if origin is not None and origin.partition(b"://")[2] != host:',
        "if False:",
    ),
    _server("a page of another site is refused", "guard.py", "if site is not None and site not in _OWN_SITES:", "if False:"),
    _server("a token is compared", "guard.py", "return hmac.compare_digest(given[7:].strip(), self._token)", "return True"),
    _server(
        "an address that others reach needs a token",
        "app.py",
        "if settings.insecure or is_loopback(settings.host):",
        "if True:",
    ),
    _server(
        "a request that does not arrive is ended",
        "deadline.py",
        "        self._timer = self.loop.call_later(self.limits.request_seconds, self._check)\n",
        "        self._timer = None\n",
    ),
    # What the console may do.
    _server(
        "an action needs the console's own page",
        "console/console.py",
        "if kind != JSON or not hmac.compare_digest(given, self._page_token.encode()):",
        "if False:",
    ),
    _server("without --allow-actions nothing is changed", "console/console.py", "if not self._actions:", "if False:"),
    _server("only what was shown is redriven", "console/actions.py", "if there != expected:", "if False:"),
    _server("sampling has a bound", "console/sampler.py", "rest = self.cost * PATIENCE", "rest = 0.0"),
    # What one statement does.
    _store(
        "lanes of a receive that was refused stand in the order again",
        "shard/claiming.py",
        "    memory.unsure = True\n    of(store).refuse()\n    memory.unsure = False\n    return False\n",
        "    return False\n",
        *DIRECT,
    ),
    _store(
        "memory is not sure while a statement commits by itself",
        "shard/shard_lanes.py",
        "        memory.unsure = True\n        try:\n            if not self.log.append_alone(entry, trouble, record):\n",
        "        try:\n            if not self.log.append_alone(entry, trouble, record):\n",
        *DIRECT,
    ),
    _store(
        "a receive that is interrupted behind its commit gives back",
        "shard/shard_file.py",
        "            attempt.committed = db.total_changes() != changes\n",
        "            pass\n",
        *DIRECT,
    ),
    _store(
        "settings that changed on the way to a statement count",
        "commit/writer.py",
        "host.settings is not settings or ",
        "",
        *DIRECT,
    ),
    _store(
        "a statement that must be synced is synced",
        "commit/writer.py",
        "            if synced and grouped and not self.syncs:\n",
        "            if False:\n",
        *DIRECT,
    ),
    _store(
        "how many statements may be unsynced",
        "commit/writer.py",
        "        return 0 <= self._unsynced_commits() < UNSYNCED_MAX\n",
        "        return True\n",
        *DIRECT,
    ),
    _store(
        "a hole in the journal of format 2 is noticed",
        "migrating/logs.py",
        "            if self._seen and i != self._seen + 1:\n",
        "            if False:\n",
        *MIGRATING,
    ),
    _store(
        "acks of format 2 that were cut are read from the lane's row",
        "migrating/logs.py",
        "                lane.done, lane.active_at = None, 0\n",
        "                pass\n",
        *MIGRATING,
    ),
    _store(
        "a lease of format 2 that was released by a deleted message is over",
        "migrating/logs.py",
        " and acked is not None and acked > lane.torn:\n",
        " and acked is None:\n",
        *MIGRATING,
    ),
    _store(
        "a forced settlement ends the lease",
        "shard/operating.py",
        "    if grant is not None and grant.deadline != NEVER and lane.holds([arrival]):\n",
        "    if False:\n",
        "tests/unit/test_operator_settles.py::test_a_held_message_is_settled_and_its_lease_ends",
    ),
    _store(
        "a value of a program's SQL is bounded",
        "commit/app_database.py",
        "bytes_max = max(VALUE_BYTES_MAX, self._body_bytes_max() + _ROW_BYTES)",
        "bytes_max = -1",
        "tests/store/test_program.py::test_a_value_of_a_programs_sql_is_bounded",
    ),
    # What reaches the disk, and when.
    _store(
        "the sync of a commit at full", "commit/connection.py", '"full" if durability == "full" else "normal"', '"normal"', *POWER
    ),
    _store(
        "the syncs of a checkpoint",
        "commit/connection.py",
        '"full" if durability == "full" else "normal"',
        '"full" if durability == "full" else "off"',
        *POWER,
    ),
    _store(
        "the sync of queue.db",
        "commit/connection.py",
        'db.pragma("synchronous", "extra")',
        'db.pragma("synchronous", "off")',
        *POWER,
    ),
    _store("the sync of a new queue's directory", "disk/layout.py", "        files.sync_directory(building)\n", "", *POWER),
    _store("the sync of a new queue's name", "disk/layout.py", "        files.sync_directory(parent)\n", "", *POWER),
    _store(
        "the sync of the origin before it forwards",
        "whole/outbox.py",
        "        origin.sync()\n        destination.drain",
        "        destination.drain",
        *POWER,
    ),
    _store(
        "the sync of the destination before the origin forgets", "whole/outbox.py", "        destination.sync()\n", "", *POWER
    ),
    _store(
        "no checkpoint on close",
        "commit/connection.py",
        "SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1",
        "SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0",
        "tests/store/test_connection.py",
    ),
    _store(
        "no checkpoints by SQLite", "commit/connection.py", "db.wal_autocheckpoint(0)", NOTHING, "tests/store/test_connection.py"
    ),
    _store(
        "distrust after a failed sync",
        "commit/writer.py",
        "            self._note(e)\n            self._distrust_connection()\n            if full",
        "            self._distrust_connection()\n            if full",
        "tests/faults/test_faults.py::test_what_is_acknowledged_after_a_failed_sync_survives_a_power_cut",
    ),
    _store(
        "a failed sync is told to other processes",
        "whole/store.py",
        "        self.waker.suspect(shard)\n",
        "",
        "tests/faults/test_faults.py::test_what_another_process_forwards_after_a_failed_sync_is_whole_after_a_power_cut",
    ),
    _store(
        "a failed sync ends with its boot",
        "disk/shared_flags.py",
        "            self._map[_SUSPECTS:_BYTES] = bytes(_BYTES - _SUSPECTS)\n",
        "",
        "tests/faults/test_faults.py::test_a_failed_sync_of_the_boot_before_is_over",
    ),
    _store(
        "a WAL that was written again is not trusted if a sync failed since",
        "disk/shared_flags.py",
        "if failure and self.suspects(shard) == failure:",
        "if failure:",
        "tests/store/test_wake.py",
    ),
    _store(
        "no token of a lease that a failed sync lost is issued again",
        "commit/checkpoint.py",
        "        db.execute(TABLES.skip_tokens, (TOKENS_SKIPPED, (1 << TOKEN_BITS) - 1))\n",
        "",
        "tests/faults/test_faults.py::test_what_a_failed_sync_lost_gives_no_token_a_second_time",
    ),
    _store(
        "commits are synced again after one that was not",
        "commit/writer.py",
        "        if self._grouped and self.syncs != (synced or ",
        "        if self._grouped and self.syncs and not (synced or ",
        *UNSYNCED,
    ),
    _store(
        "how many commits may be unsynced",
        "commit/writer.py",
        "        return 0 <= self._unsynced_commits() < UNSYNCED_MAX\n",
        "        return True\n",
        *UNSYNCED,
    ),
    _store(
        "what other processes commit on the way counts as unsynced",
        "commit/writer.py",
        "            if self._grouped and not self.syncs and not self._may_omit_sync():\n",
        "            if False:\n",
        *UNSYNCED,
    ),
    _store(
        "what a receive resolves is synced",
        "whole/receive.py",
        "    resolves = request.ack_first or request.endless\n",
        "    resolves = False\n",
        *UNSYNCED,
    ),
    _store(
        "what was there at the boot is leased with a sync",
        "shard/shard_file.py",
        "        if suspects and any(",
        "        if False and any(",
        *UNSYNCED,
    ),
    _store(
        "a power cut may tear what was not synced",
        "disk/wal_file.py",
        "    return 0 if mark is not None and mark.boot == boot else UNSYNCED_MAX\n",
        "    return 0\n",
        *UNSYNCED,
    ),
    # Who may write.
    _store(
        "BEGIN IMMEDIATE",
        "commit/writer.py",
        '(db, not self.syncs)\n        db.execute("BEGIN IMMEDIATE")',
        '(db, not self.syncs)\n        db.execute("BEGIN")',
        "tests/store/test_traps.py",
        "tests/multiprocess/test_stress.py",
    ),
    Mutation(
        "the hook before a fork",
        "strictq/_platform/fork.py",
        'if hasattr(os, "register_at_fork"):',
        "if False:",
        ("tests/multiprocess/test_fork.py",),
    ),
    _store(
        "the pid guard",
        "commit/writer.py",
        "        if self._closed or self._pid != _process.pid:",
        "        if self._closed:",
        "tests/store/test_commit.py",
    ),
    _store(
        "one kernel at a time", "whole/epoch.py", "if presence.alone(BEGIN_STEP_SECONDS):", "if True:", "tests/store/test_time.py"
    ),
    _store(
        "one caller's failure is its own",
        "commit/writer.py",
        '            tx.run("ROLLBACK TO operation")\n',
        "",
        "tests/store/test_commit.py",
    ),
    _store(
        "a configuration is seen at the next write",
        "commit/writer.py",
        "if totals.config_version != host.settings[1]:",
        "if False:",
        "tests/unit/test_config.py",
        "tests/multiprocess",
    ),
    # Tokens, leases, attempts.
    _store(
        "the token check",
        "shard/settling.py",
        "    return lane if grant is not None and grant.token == token else None\n",
        "    return lane if grant is not None else None\n",
        "tests/unit/test_leases.py",
    ),
    _store(
        "consumers that divide the shards are fenced by their leases",
        "shard/settling.py",
        "    return lane if grant is not None and grant.token == token else None\n",
        "    return lane if grant is not None else None\n",
        "tests/crash/test_sharing.py",
    ),
    _store(
        "the epoch in a token",
        "lane/memory.py",
        "return (self.mark.epoch << TOKEN_BITS) + self.last_token + 1",
        "return self.last_token + 1",
        "tests/store/test_time.py",
    ),
    _store(
        "the new epoch after a boot",
        "whole/epoch.py",
        "queue_db.raise_epoch(directory, clock.boot_id(), next_offset(directory, known, clock))",
        NOTHING,
        "tests/store/test_time.py",
    ),
    _store(
        "the boot id",
        "whole/epoch.py",
        "    while known.boot_id != boot:\n",
        "    while False:\n",
        "tests/store/test_time.py",
    ),
    _store(
        "leases end with their boot",
        "shard/shard_lanes.py",
        "            end_timed_leases(tx)\n",
        "            pass\n",
        "tests/store/test_time.py",
    ),
    _store(
        "the deadline is looked at again before a lease grows",
        "shard/settling.py",
        "        or grant.deadline <= tx.now\n",
        "",
        "tests/unit/test_leases.py",
        "tests/unit/test_odd_orders.py",
    ),
    Mutation(
        "a batch is acked whole only if all of it is in the list",
        "strictq/delivery.py",
        "        if self._elements != self._made or any(map(_STATE, self._made)):\n",
        "        if False:\n",
        ("tests/unit/test_batch.py",),
    ),
    _store(
        "a claim is acked whole only under its token",
        "shard/settling.py",
        " or (grant := lane.grant) is None or grant.token != token:\n            return None\n        window, n",
        " or lane.grant is None:\n            return None\n        window, n",
        "tests/unit/test_batch.py",
    ),
    _store(
        "a start of a message that was there at the boot is synced",
        "api.py",
        "lease(work, lambda _refused: arrivals)",
        "lease(work, lambda _refused: ())",
        "tests/power/test_joined.py",
    ),
    Mutation(
        "nothing is handed out with its lease worn",
        "strictq/_store/whole/receive.py",
        "    if not got.deadline < worn:\n",
        "    if True:\n",
        ("tests/unit/test_receive.py", "tests/unit/test_leases.py", "tests/store/test_time.py"),
    ),
    Mutation(
        "what ack_first resolved is handed over",
        "strictq/_store/whole/receive.py",
        "    if request.ack_first:\n",
        "    if False:\n",
        ("tests/unit/test_receive.py",),
    ),
    _store(
        "nothing is written outside of a transaction",
        "commit/tx.py",
        "        if not self.db.in_transaction:\n",
        "        if False:\n",
        "tests/store/test_program.py",
    ),
    Mutation(
        "a delivery is not settled inside its own transaction",
        "strictq/transaction.py",
        "                self._client.settling.require_unsettled(d)\n",
        "                pass\n",
        ("tests/unit/test_transactions.py",),
    ),
    _store(
        "whoever meets damage in a group undoes all of it",
        "commit/writer.py",
        "            if not tx.db.in_transaction or isinstance(e, _DISTRUST):\n",
        "            if not tx.db.in_transaction:\n",
        "tests/store/test_commit.py",
    ),
    _store(
        "no call fails because a checkpoint takes long",
        "commit/writer.py",
        "        return self._maintained and seconds >= BUSY_SECONDS\n",
        "        return False\n",
        "tests/store/test_upkeep.py",
    ),
    _store(
        "a hook after the commit takes nothing back",
        "commit/checkpoint.py",
        "            self._wal_grew(pages, began=pages <= before)\n        except Exception:\n",
        "            self._wal_grew(pages, began=pages <= before)\n        except ZeroDivisionError:\n",
        "tests/store/test_upkeep.py",
    ),
    _store(
        "the attempt before the handler, alone",
        "lane/live_lane.py",
        "        self.started = low if charged and n == 1 else low - 1\n",
        "        self.started = low - 1\n",
        "tests/unit/test_retries.py",
        "tests/unit/test_leases.py",
    ),
    _store(
        "a lane with attempted messages is not packed",
        "shard/columns.py",
        "        if lane.rare is not None and lane.rare.tried:\n",
        "        if False:\n",
        "tests/store/test_packing.py",
    ),
    _store(
        "the attempt before the handler, of several",
        "shard/settling.py",
        "    return held_ids(lane, [seq]) if lane.grant is not None and lane.started < seq else None\n",
        "    return None\n",
        "tests/unit/test_retries.py",
        "tests/unit/test_leases.py",
    ),
    _store(
        "one at a time after a lease ran out",
        "lane/live_lane.py",
        "                rare.solo = max(rare.solo, solo)\n",
        "                pass\n",
        "tests/unit/test_leases.py",
        "tests/unit/test_retries.py",
    ),
    _store(
        "what ran beside others is not charged when their process dies",
        "shard/expiring.py",
        "        if not single and tx.config",
        "        if False and tx.config",
        "tests/store/test_holders.py",
    ),
    _store(
        "a process that ran several messages says so for good",
        "whole/holders.py",
        "                os.pwrite(self._fd, _SEVERAL, 0)\n",
        "                pass\n",
        "tests/store/test_holders.py",
    ),
    _store(
        "a receive waits for a look that ends a dead process's leases",
        "whole/holders.py",
        "        if time.monotonic() >= until:\n            return False\n",
        "        return False\n",
        "tests/store/test_holders.py",
    ),
    Mutation(
        "a tenant's virtual time advances with its messages",
        "strictq/_store/lane/turns.py",
        "            tenant.time += n / weight\n",
        "",
        ("tests/unit/test_tenants.py",),
    ),
    Mutation(
        "a tenant's oldest lane comes first",
        "strictq/_store/shard/claiming.py",
        "            place, key = heappop(side.ready)\n",
        "            place, key = side.ready.pop()\n",
        ("tests/unit/test_tenants.py",),
    ),
    Mutation(
        "a sidelined backlog gets its share",
        "strictq/_store/lane/turns.py",
        "        return old if self.owed >= FRESH_FOR_EACH_OLD else self.fresh\n",
        "        return self.fresh\n",
        ("tests/unit/test_sidelining.py",),
    ),
    Mutation(
        "lanes at rest that a mark passes are found behind it",
        "strictq/_store/lane/turns.py",
        "            later.next = min(later.next, rest.next)\n",
        "",
        ("tests/unit/test_sidelining.py",),
    ),
    Mutation(
        "the slots of a worker are those of all of its queues",
        "strictq/worker/slot_pool.py",
        "        room -= sum(other._board.used for other in pool.shares if other is not self)\n",
        "",
        ("tests/worker/test_several.py",),
    ),
    Mutation(
        "a key gives its slot to the queue whose turn it is",
        "strictq/worker/slot_pool.py",
        "        return len(self.pool.shares) > 1 and any(other.time < self.time for other in self._waiting())\n",
        "        return False\n",
        ("tests/worker/test_several.py",),
    ),
    Mutation(
        "rates are those of all processes",
        "strictq/_store/whole/quotas.py",
        "RateFile(None if directory is None else directory / layout.RATES, clock)",
        "RateFile(None, clock)",
        ("tests/unit/test_tenants.py",),
    ),
    Mutation(
        "a claim leases no more than it takes of a rate",
        "strictq/_store/shard/permits.py",
        "            if taken < n:\n",
        "            if False:\n",
        ("tests/store/test_rates.py",),
    ),
    Mutation(
        "what a refused send took of a rate is returned",
        "strictq/_store/whole/quotas.py",
        "        except StrictqError:\n            self.rates.give(taken)\n            raise\n",
        "        except StrictqError:\n            raise\n",
        ("tests/unit/test_tenants.py",),
    ),
    Mutation(
        "a slot is free once its lease ends sooner, as after the death of a worker",
        "strictq/_store/lane/tenant_counts.py",
        "                if grant.deadline < held.get(key, 0):\n",
        "                if False:\n",
        ("tests/unit/test_limits.py",),
    ),
    Mutation(
        "a slot is free once its lease is settled",
        "strictq/_store/lane/turns.py",
        "        if tenant.blocked:\n            self._unblock(tenant)\n",
        "",
        ("tests/unit/test_limits.py",),
    ),
    Mutation(
        "a free slot wakes consumers of other processes",
        "strictq/_store/lane/order.py",
        "rules.of(tenant).concurrency is not None and self.may_have_ready\n",
        "rules.of(tenant).concurrency is not None and False\n",
        ("tests/multiprocess/test_limits.py",),
    ),
    Mutation(
        "tenants without messages wait for the present time once turns begin again",
        "strictq/_store/lane/turns.py",
        "            other.turn = None\n",
        "            pass\n",
        ("tests/unit/test_tenants.py",),
    ),
    Mutation(
        "tenants take turns once a claim leaves messages",
        "strictq/_store/shard/claiming.py",
        "self._memory.sole_tenant is None and self._first_listed() < NEVER",
        "False",
        ("tests/unit/test_tenants.py",),
    ),
    Mutation(
        "the depths of tenants are stored with the mark",
        "strictq/_store/shard/folding.py",
        "            tenant_depths.store(self._db, memory.counts)\n",
        "            memory.counts.forget_depths(())\n",
        ("tests/store/test_tenant_depths.py",),
    ),
    Mutation(
        "a shard's new feature is in its file at once",
        "strictq/_store/shard/shard_lanes.py",
        '        self.folder.store_mark(memory.seen + 1)\n        self.append(kinds.NOTE, (), data=b"")\n\n    def rest',
        "\n    def rest",
        SHARD_LANES,
    ),
    _store(
        "a shard that a range leaves creates no lane of it",
        "lane/ranges.py",
        "self.owns(hashed) and not (self.leaving is not None and self.leaving.has(hashed))",
        "self.owns(hashed)",
        *RANGES,
    ),
    _store(
        "a key without a lane asks who may create it",
        "shard/loading.py",
        "        if memory.ranges is not None and self.unknown == ASKED:",
        "        if False:",
        *RANGES,
    ),
    _store(
        "tokens of a shard are above those of the lanes that arrive",
        "shard/moving.py",
        "    memory.last_token = max(memory.last_token, last_token)",
        "    pass",
        *RANGES,
    ),
    _store(
        "new lanes begin above those that the other shard has forgotten",
        "shard/moving.py",
        "    tail = max(memory.floor, floor)",
        "    tail = memory.floor",
        *RANGES,
    ),
    _store(
        "a lane leaves at rest",
        "shard/moving.py",
        "    store.rest()\n    there = store",
        "    there = store",
        *RANGES,
    ),
    _store(
        "a parcel arrives only in the shard of its move",
        "shard/moving.py",
        "    if arriving is None or arriving.move != move:\n        return False",
        "    pass",
        *RANGES,
    ),
    _store(
        "a dead worker's token ends no lease that another shard issued",
        "shard/expiring.py",
        "wanted.get(_issuer(lane, store.shard), none)",
        "tokens",
        *RANGES,
    ),
    _store(
        "lanes that leave are on the disk before they arrive",
        "whole/moving.py",
        "            origin.sync()\n            if not target.drain",
        "            if not target.drain",
        *POWER,
    ),
    _store(
        "lanes that have arrived are on the disk before they are forgotten",
        "whole/moving.py",
        "        target.sync()  # until here",
        "        pass  # until here",
        *POWER,
    ),
    _store(
        "messages on their way are in no report",
        "shard/shard_lanes.py",
        " or i in self._left",
        "",
        *RANGES,
    ),
    Mutation(
        "a cut that names a new shard has it",
        "strictq/_store/shipping/capture.py",
        "                if not self._add_tails():\n",
        "                if True:\n",
        ("tests/replication/test_moving_ranges.py",),
    ),
    Mutation(
        "a replica accepts a new shard only with the whole queue",
        "strictq/replication/received.py",
        "(header.is_base and known > self._complete.shards)",
        "known > self._complete.shards",
        ("tests/replication/test_received.py",),
    ),
    _store(
        "a send that has arrived does not arrive where its key goes",
        "shard/moving.py",
        "    note_sends(tx, json.loads(sends) if sends else {})\n",
        "",
        RANGE_CONTENTS,
    ),
    _store(
        "a send that has arrived does not arrive where its forgotten key goes",
        "whole/moving.py",
        "                steps.note_sends(tx, sends)\n",
        "",
        RANGE_CONTENTS,
    ),
    _store(
        "a cancelled move is continued before the one that brings everything back",
        "whole/moving.py",
        "max(leaving, key=lambda one: one[1].cancelled, default=None)",
        "next(iter(leaving), None)",
        *RANGES,
    ),
    _store(
        "a verb over all keys visits a shard again in which lanes have arrived",
        "whole/moving.py",
        "            yield shard\n        carry_all(store.shards)\n",
        "            yield shard\n        return\n",
        *RANGES,
    ),
    _store(
        "nothing leaves with a move that was cancelled",
        "shard/moving.py",
        "memory.ranges is None or memory.ranges.leaving != passage or ",
        "",
        *RANGES,
    ),
    _store(
        "no send overtakes one that waits in the outbox",
        "whole/transaction.py",
        "            if to == number and not waits:",
        "            if to == number:",
        *RANGES,
    ),
    _store(
        "a parcel that no one brought is carried by whoever misses its lane",
        "whole/routing.py",
        "            if not moving.carry_key(origin, shard, error.passage, error.key, forwards=origin is forwards):",
        "            if False:",
        *RANGES,
    ),
    _store(
        "a key without a lane takes its rows and its state along",
        "whole/moving.py",
        "    if origin.read(lambda db: steps.is_loose(db, origin.number, key)):",
        "    if False:",
        RANGE_CONTENTS,
    ),
    _store(
        "nothing leaves a shard whose move was cancelled",
        "whole/routing.py",
        "            if error.passage.cancelled:",
        "            if False:",
        *RANGES,
    ),
    _store(
        "a key does not get its lane elsewhere once its move was cancelled",
        "whole/moving.py",
        "        if not left:\n            return False\n    carry",
        "        if not left:\n            pass\n    carry",
        *RANGES,
    ),
    _store(
        "a look at a key that is new gives it no lane where another shard may have one",
        "whole/reports.py",
        "        with lanes.loader.giving(EMPTY):",
        "        with lanes.loader.giving(1):",
        *RANGES,
    ),
    _store(
        "a reader finds what a key without a lane has in the shard that keeps it",
        "whole/routing.py",
        "                    return look(has, True)",
        "                    return look(shard, True)",
        *RANGES,
    ),
    _store(
        "no range leaves a shard with a parcel that would hide later ones",
        "whole/moving.py",
        "        if stranded := arrived_nowhere(store.shards, source):",
        "        if stranded := []:",
        *RANGES,
    ),
    _store(
        "states and rows of keys without lanes move",
        "whole/moving.py",
        "            self._bring_loose(source, target, passage, done)",
        "            pass",
        RANGE_CONTENTS,
    ),
    _store(
        "a row that arrives can't meet one of the same key",
        "tables/app_rows.py",
        "        if is_unique and not any(matches):",
        "        if False:",
        RANGE_CONTENTS,
    ),
    Mutation(
        "a table is read by the exact values of its key column",
        "strictq/_sql/__init__.py",
        " COLLATE BINARY AND typeof({key}) = typeof(?1)",
        "",
        (RANGE_CONTENTS,),
    ),
    _store(
        "a table without a key column stops a move",
        "shard/moving.py",
        "    tables = app_tables(tx.db, store.shard)\n    store.rest()",
        "    tables = app_rows.keyed(tx.db, store.shard)[0]\n    store.rest()",
        RANGE_CONTENTS,
    ),
    _store(
        "a receipt names the shard where the message is",
        "whole/store.py",
        "moved.update((items[i][0], at.number) for i in some)",
        NOTHING,
        RANGE_CONTENTS,
    ),
    _store(
        "a keyless message that may have moved is not called resolved",
        "shard/moving.py",
        "        set_ranges(tx, attrs.evolve(memory.ranges, keyless_upto=memory.top))\n",
        "        pass\n",
        RANGE_CONTENTS,
    ),
    _store(
        "outputs are looked up in every shard that had the key",
        "whole/reports.py",
        "        if ended and said is None:",
        "        if False:",
        RANGE_CONTENTS,
    ),
    _store(
        "a table's reader notices that lanes have left",
        "bulk/scan.py",
        "        if moving.departed(db) != self.departed:",
        "        if False:",
        RANGE_CONTENTS,
    ),
    _store(
        "a table is planned anew if lanes moved between its shards",
        "bulk/bulk.py",
        "            if self._departed() == before:",
        "            if True:",
        RANGE_CONTENTS,
    ),
    _store(
        "a writer divides its batch by what the shards own now",
        "whole/moving.py",
        "                    store.note_owner(lo, hi, shard.number)",
        "                    pass",
        RANGE_CONTENTS,
    ),
    _store(
        "a range moves until no batch of a named consumer has a lane of it, in whatever step it was passed",
        "whole/moving.py",
        "            waits += left.waits\n",
        "            waits = left.waits\n",
        *RANGES,
    ),
    _store(
        "new batches of named consumers leave a moving range alone",
        "shard/recorded_batches.py",
        "    if ranges is not None and ranges.leaving is not None:",
        "    if False:",
        RANGE_CONTENTS,
    ),
    _store(
        "an object opens the shards that keys went to before it routes to them",
        "whole/routing.py",
        "        newest = max([number, *(to for _, _, to in error.left)])",
        "        newest = number",
        RANGE_CONTENTS,
    ),
    _store(
        "an object that has not heard of a move receives its keys",
        "whole/receive.py",
        "                        store.has_moved = moved = True  #",
        "                        pass  #",
        RANGE_CONTENTS,
    ),
    _store(
        "a shard that never owned a key is asked for it at most once",
        "whole/receive.py",
        "                    if e.shard != NOWHERE:",
        "                    if True:",
        "tests/store/test_range_walk.py",
    ),
    _store(
        "a waiting send may take a key without a lane along",
        "shard/moving.py",
        "    if not forwards and tx.run",
        "    if tx.run",
        RANGE_CONTENTS,
    ),
    _store(
        "consumers divide the shards that own ranges",
        "whole/moving.py",
        "if _is_in_use(shard)]",
        "if True]",
        RANGE_CONTENTS,
    ),
    _store(
        "a look over all shards includes those that another process added",
        "whole/routing.py",
        "                self.keep_up(shard.view(_config_version))",
        "                pass",
        RANGE_CONTENTS,
    ),
    Mutation(
        "a suspect waits until nothing else runs",
        "strictq/worker/schedule.py",
        "self.suspects and self.still and ",
        "self.suspects and ",
        ("tests/worker/test_suspects.py",),
    ),
    Mutation(
        "nothing starts beside a suspect",
        "strictq/worker/schedule.py",
        "        self._held_back = self.paused\n",
        "        self._held_back = bool(self.suspects)\n",
        ("tests/worker/test_suspects.py",),
    ),
    Mutation(
        "no other worker of the process runs a handler beside a suspect",
        "strictq/worker/suspects.py",
        "                if not other.still:\n",
        "                if False:\n",
        ("tests/worker/test_suspects.py",),
    ),
    Mutation(
        "a lane waits for the confirmation of its ack, and leaves its slot meanwhile",
        "strictq/worker/schedule.py",
        "        if not self._waits(lane) and lane.jobs:\n",
        "        if lane.jobs:\n",
        SOURCE,
    ),
    Mutation(
        "a lane that waits for a confirmation delays no prepare of another lane",
        "strictq/worker/forecast.py",
        "            self._consider(islice(lane.jobs, DEPTH_MAX), now, now, later)\n        ends",
        "            ends.append(self._consider(islice(lane.jobs, DEPTH_MAX), now, now, later))\n        ends",
        SOURCE,
    ),
    Mutation(
        "nothing more of a lane starts after a lost message",
        "strictq/worker/state.py",
        "self.board.lose_from(job) if job in lane.jobs else self.board.drop(lane)",
        "[]",
        SOURCE,
    ),
    Mutation(
        "the buffer holds lanes for the round trip",
        "strictq/worker/prefetch.py",
        "round(slots * (1 + self._source.round_trip / mean))",
        "slots",
        SOURCE,
    ),
    Mutation(
        "an error that ends a thread of a source ends the run",
        "strictq/worker/loop.py",
        "source.open(self.state.wake, self.state.crash,",
        "source.open(self.state.wake, lambda e: None,",
        SOURCE,
    ),
    Mutation(
        "a stopped worker takes the outcomes that come while its source closes",
        "strictq/worker/settling.py",
        "        if self._later:\n            self._confirm(self._source.completed())\n",
        "        pass\n",
        SOURCE,
    ),
    Mutation(
        "a handler's process ends with its worker",
        "strictq/worker/processes.py",
        "        parent.join()\n",
        "        return\n",
        ("tests/store/test_holders.py",),
    ),
    # What is resolved once.
    _store(
        "an ack resolves what is there",
        "shard/settling.py",
        "    return None if 0 in ids else ids\n",
        "    return [i for i in ids if i]\n",
        "tests/unit/test_leases.py",
        "tests/unit/test_odd_orders.py",
        "tests/unit/test_receive.py",
    ),
    _store(
        "dedup ids",
        "shard/sending.py",
        "    return None if known is None else (known[0], known[1], key)\n",
        "    return None\n",
        "tests/unit/test_dedup.py",
    ),
    _store(
        "the high-water mark of what arrived",
        "whole/outbox.py",
        "        if i > high:",
        "        if True:",
        "tests/store/test_outbox.py",
    ),
    _store(
        "a held lane is not listed",
        "lane/memory.py",
        "            if rare.hold is not None:\n                lane.unlist()\n",
        "            if False:\n                lane.unlist()\n",
        "tests/unit/test_hold.py",
    ),
    # Named consumers, and batches written as a whole.
    _store(
        "the epoch of a named consumer",
        "shard/recorded_batches.py",
        "    if row is None or row[0] != epoch:\n",
        "    if row is None:\n",
        "tests/unit/test_recorded_batches_holders.py",
        "tests/property/test_recorded_batches.py",
    ),
    _store(
        "leases of recorded batches outlive a boot",
        "shard/expiring.py",
        "        timed = [lane for lane in some if lane.grant is not None and lane.grant.deadline < NEVER]\n",
        "        timed = [lane for lane in some if lane.grant is not None]\n",
        "tests/unit/test_recorded_batches_again.py",
        "tests/property/test_recorded_batches.py",
    ),
    Mutation(
        "a holder that was fenced gives out nothing that it recorded ahead",
        "strictq/spark/_recorded_batches.py",
        "        if not self._recorded.is_held(self.name, self.epoch):\n",
        "        if False:\n",
        AHEAD,
    ),
    Mutation(
        "closing undoes a batch that no call returned",
        "strictq/spark/_recorded_batches.py",
        "                    self._recorded.withdraw(self.name, self.epoch, n)\n",
        "                    pass\n",
        AHEAD,
    ),
    Mutation(
        "closing undoes no batch that a call returned",
        "strictq/spark/_recorded_batches.py",
        "        self._returned = max(self._returned, following)\n",
        "",
        AHEAD,
    ),
    Mutation(
        "a thread whose start was interrupted records nothing",
        "strictq/spark/_recorded_batches.py",
        "            if self._given_up:\n                return\n",
        "",
        AHEAD,
    ),
    _store(
        "undoing a batch sets the newest number of a shard to a part that it has",
        "shard/recorded_batches.py",
        "    tx.run(RECORDED_BATCHES.set_back_last, (name,))\n",
        "    tx.run(RECORDED_BATCHES.set_last, (n - 1, name))\n",
        *AHEAD,
    ),
    Mutation(
        "closing undoes no batch of an earlier holder",
        "strictq/spark/_recorded_batches.py",
        "            self._returned = max(k.last for k in self._known.values())\n",
        "",
        ("tests/unit/test_recorded_batches_again.py", *AHEAD),
    ),
    _store(
        "a redrive that waits for a batch's lease is put back when the batch is undone",
        "lane/live_lane.py",
        "                for seq, i in waiting:\n                    self.revive(seq, i)\n",
        "                pass\n",
        *AHEAD,
    ),
    _store(
        "only the holder undoes a batch",
        "shard/recorded_batches.py",
        "    require(tx, name, epoch)\n    token",
        "    token",
        *AHEAD,
    ),
    _store(
        "a batch that is undone leaves no blocks",
        "shard/recorded_batches.py",
        "    _delete(tx, name, n)\n    tx.run(RECORDED_BATCHES.set_back_last",
        "    tx.run(RECORDED_BATCHES.set_back_last",
        *AHEAD,
    ),
    Mutation(
        "a consumer has one holder",
        "strictq/_store/whole/consumers.py",
        "files.named(self._directory, CONSUMER, name)",
        'files.named(self._directory, CONSUMER, f"{time.monotonic_ns()}")',
        ("tests/unit/test_recorded_batches_holders.py",),
    ),
    _store(
        "what a batch has written already",
        "bulk/applied.py",
        "    if known is None:\n        require_fits",
        "    if True:\n        require_fits",
        "tests/store/test_applied.py",
        "tests/store/test_staging.py",
    ),
    Mutation(
        "what a half written batch lacks is in the files of its repetition",
        "strictq/spark/_apply.py",
        " and _content(place, files) == content:",
        ":",
        ("tests/spark/test_staged.py",),
    ),
    _store(
        "a job id of another query",
        "bulk/applied.py",
        "    if stored is not None and token.is_job and stored[:2] != origin[:2]:\n",
        "    if False:\n",
        "tests/store/test_applied.py",
    ),
    _store(
        "a second write of a stream's batch",
        "bulk/applied.py",
        "    if stored == origin:\n",
        "    if False:\n",
        "tests/store/test_applied.py",
    ),
    _store(
        "the execution that repeats a stream's batch",
        "bulk/applied.py",
        "        )\n    _store_origin(tx, token, origin)\n",
        "        )\n",
        "tests/store/test_applied.py",
    ),
    Mutation(
        "a fleet's batch that its round lacks",
        "strictq/spark/fleet.py",
        "            held.withdraw_newest()\n",
        "",
        ("tests/spark/test_fleet.py",),
    ),
    Mutation(
        "a queue that another one replaced under its query",
        "strictq/spark/source.py",
        "        if not self.is_in_place():\n",
        "        if False:\n",
        ("tests/spark/test_reader.py",),
    ),
    Mutation(
        "an ack of a batch that was never received",
        "strictq/spark/_recorded_batches.py",
        "        if not 0 <= upto <= last:\n",
        "        if False:\n",
        ("tests/unit/test_recorded_batches.py",),
    ),
    Mutation(
        "an older version's batch of an earlier query",
        "strictq/spark/_apply.py",
        "    if origin.batch == 0 or name == token.writer or name[-1].isdigit():\n        return False\n",
        "",
        ("tests/spark/test_foreach_batch.py",),
    ),
    _store(
        "a part of a batch is put once",
        "bulk/applied.py",
        '    if parts > part:\n        return\n    assert parts == part, "the parts of a batch come in order"\n',
        "",
        "tests/store/test_applied.py",
        "tests/store/test_staging.py",
    ),
    _store(
        "a batch is whole when its shards are synced",
        "bulk/bulk.py",
        "            if other != home:\n                self._shard(other).sync()\n",
        "            pass\n",
        "tests/power/test_batches.py",
    ),
    _store(
        "the sync of a batch's decision",
        "bulk/bulk.py",
        "origin))\n        shard.sync()\n",
        "origin))\n",
        "tests/power/test_batches.py",
    ),
    _store(
        "the sync of staged files",
        "bulk/staging.py",
        "                    os.fsync(fd)\n",
        "                    pass\n",
        "tests/power/test_batches.py",
    ),
    _store(
        "a record of each finished message",
        "shard/settling.py",
        "            ending.keep(tx, ids, end, leased_at)\n",
        "            pass\n",
        "tests/unit/test_history.py",
    ),
    # A full disk.
    _store(
        "the reserve is given up",
        "whole/store.py",
        "            self.reserve.give_up()\n",
        "            pass\n",
        "tests/store/test_disk_full.py",
    ),
    _store(
        "sends wait for the reserve",
        "whole/store.py",
        "if self.reserve is not None and self.waker.short_of_space and not self._has_reserve():",
        "if False:",
        "tests/store/test_disk_full.py",
    ),
    _store(
        "a worker makes room for its file",
        "whole/consumers.py",
        "            self._store.make_room()\n",
        "            pass\n",
        "tests/store/test_disk_full.py",
    ),
    # Damage, and what was made by hand.
    _store(
        "the checksums of pages",
        "commit/connection.py",
        "flags=flags, vfs=checksums.vfs(), statementcachesize",
        "flags=flags, statementcachesize",
        "tests/faults/test_corruption.py",
    ),
    _store(
        "checksums are required",
        "disk/formats.py",
        "        checksums.require(db, shard)\n",
        "        pass\n",
        "tests/store/test_checksums.py",
        "tests/faults/test_corruption.py",
    ),
    _store(
        "the default VFS is put back",
        "disk/checksums.py",
        "        apsw.set_default_vfs(default)\n",
        "",
        "tests/store/test_checksums.py",
    ),
    _store(
        "the mark of a WAL",
        "disk/wal_file.py",
        "        if mark is not None and mark.salts == header.salts and frames < mark.frames:",
        "        if False:",
        "tests/faults/test_corruption.py",
        "tests/store/test_wal.py",
    ),
    _store(
        "commits with successors behind a WAL's end",
        "disk/wal_file.py",
        "        while unsynced is not None and wal.goes_on_after(frames, header, unsynced):",
        "        while False:",
        "tests/store/test_wal.py",
    ),
    _store(
        "the schema is strictq's",
        "disk/formats.py",
        "            require_schema(db, kind, shard, version, unfinished=older)\n",
        "            pass\n",
        "tests/faults/test_hostile.py",
    ),
    _store(
        "a file may be migrated while it is verified",
        "disk/formats.py",
        '            if db.pragma("user_version") == stored:\n                raise\n',
        "            raise\n",
        "tests/store/test_migrate.py",
    ),
    _store(
        "links are refused",
        "commit/connection.py",
        "            found = os.lstat(file)",
        "            found = os.stat(file)",
        "tests/faults/test_hostile.py",
        "tests/unit/test_bad_input.py",
    ),
    _store(
        "a shard is the one that the topology says",
        "catalog/shard_identity.py",
        '        if found != expected:\n            raise StoreCorrupt(f"{part.file} has',
        '        if False:\n            raise StoreCorrupt(f"{part.file} has',
        "tests/store/test_topology.py",
    ),
    # Speed that a promise rests on.
    _store(
        "plans do not follow values",
        "commit/connection.py",
        "db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)",
        "db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 0)",
        "tests/store/test_plans.py",
        "tests/store/test_connection.py",
        "tests/store/test_traps.py",
    ),
    # What an outage, a crash or another program must not do.
    _store(
        "a torn tail is dropped after a boot",
        "commit/checkpoint.py",
        "                layout.cut_wal(self._path, end)\n",
        "                pass\n",
        "tests/power/test_torn_tail.py",
    ),
    _store(
        "a commit whose sync failed is dropped from the WAL",
        "commit/checkpoint.py",
        "                layout.cut_wal(self._path, max(end, wal_file.HEADER_BYTES))\n",
        "",
        "tests/faults/test_faults.py",
    ),
    _store(
        "a flipped bit of a page is not taken for one of its frame's numbers",
        "disk/wal_file.py",
        '                if bit // 8 % 4 != (3 if header.order == "<" else 0):',
        "                if True:",
        "tests/store/test_wal.py",
    ),
    _store(
        "a queue of an older format is refused",
        "disk/formats.py",
        "    if version < least and not older:",
        "    if False:",
        "tests/store/test_migrate.py",
    ),
    _store(
        "a migration needs the queue alone",
        "disk/locks.py",
        "        if not presence.alone(ALONE_SECONDS if seconds is None else seconds):\n",
        "        if False:\n",
        "tests/store/test_migrate.py",
    ),
    _store(
        "queue.db is migrated first",
        "whole/upgrade.py",
        "        queue_db.bring_up(directory, found.format)\n        on_progress(1, found.files)\n"
        "        _bring_up_shards(directory, clock, presence, on_progress, on_messages)\n",
        "        on_progress(1, found.files)\n        _bring_up_shards(directory, clock, presence, on_progress, on_messages)\n"
        "        queue_db.bring_up(directory, found.format)\n",
        "tests/store/test_migrate.py",
    ),
    _store(
        "the newest pages of the logs show a foreign checkpoint, too",
        "disk/foreign.py",
        "for (root,) in roots]",
        "for (root,) in roots[:1]]",
        "tests/store/test_foreign.py",
    ),
    _store(
        "the last process empties the WAL",
        "commit/checkpoint.py",
        "                        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)\n",
        "                        pass\n",
        "tests/store/test_foreign.py",
    ),
    _store(
        "a flipped bit is no foreign page",
        "disk/foreign.py",
        "            if found:\n",
        "            if False:\n",
        "tests/store/test_foreign.py",
    ),
    Mutation(
        "failures are given up after their time only",
        "strictq/_values/retries.py",
        " and failing >= config.retry_for_seconds * SECOND",
        "",
        ("tests/unit/test_give_up.py",),
    ),
    Mutation(
        "crashes count alone",
        "strictq/_values/retries.py",
        "    if crashes >= limit:\n        return True\n",
        "",
        ("tests/unit/test_give_up.py",),
    ),
    _store(
        "a write beside the open transaction is refused",
        "whole/store.py",
        "open_transaction.get() is not None:\n            OpenTransaction.require_none(self)\n",
        "False:\n            pass\n",
        "tests/unit/test_inside_transactions.py",
    ),
    _store(
        "a range that moved is not written",
        "commit/writer.py",
        "                self._require_range(db)\n",
        "",
        "tests/store/test_topology.py",
    ),
    Mutation(
        "hard links are refused",
        "strictq/_platform/files.py",
        "    if writing and found.st_nlink > 1:\n",
        "    if False:\n",
        ("tests/store/test_own_files.py",),
    ),
    Mutation(
        "what a job ran is repeated by its handler only",
        "strictq/worker/dispatch.py",
        "        repeatable = job._tx is None\n",
        "        repeatable = True\n",
        ("tests/worker/test_effects.py",),
    ),
    Mutation(
        "a list of parameters is copied when it is recorded",
        "strictq/_client/effects.py",
        "params.copy() if isinstance(params, list | dict) else params",
        "params",
        ("tests/unit/test_effects.py",),
    ),
    Mutation(
        "one key alone does not open the breaker",
        "strictq/worker/breaker.py",
        " and len(self.failures) > 1",
        "",
        ("tests/worker/test_breaker.py",),
    ),
    Mutation(
        "the outage of one group does not stop the others",
        "strictq/worker/breaker.py",
        "silent = now - self._succeeded_at >= seconds",
        "silent = True",
        ("tests/worker/test_breaker.py",),
    ),
    Mutation(
        "messages of an open group do not start",
        "strictq/worker/breaker.py",
        "        return circuit.state == OPEN or circuit.probe is not job._lane\n",
        "        return False\n",
        ("tests/worker/test_breaker.py",),
    ),
    Mutation(
        "a type without a handler waits for a worker that has one",
        "strictq/app.py",
        "raise Reject(reason) if self._unknown is None else self._unknown.defer(type, reason)",
        "raise Reject(reason)",
        ("tests/unit/test_app.py",),
    ),
    Mutation(
        "an old token settles nothing in an adopted copy",
        "strictq/_store/whole/copies.py",
        "shard.run(end_every_timed)",
        "shard.run(lambda _tx: None)",
        ("tests/replication/test_backup.py",),
    ),
    Mutation(
        "a single statement claims nothing of a paused queue",
        "strictq/_store/shard/claiming.py",
        "    if config.paused:\n",
        "    if False:\n",
        ("tests/unit/test_pause.py",),
    ),
    Mutation(
        "a relay deletes only the rows that it sent",
        "strictq/relaying.py",
        'f"DELETE FROM {table} WHERE id = {place}"',
        'f"DELETE FROM {table} WHERE id <= {place}"',
        ("tests/unit/test_relay.py",),
    ),
    Mutation(
        "an exception of a handler survives its process pool",
        "strictq/_values/errors.py",
        "return copyreg.__newobj__, (type(self), *self.args), self.__dict__",
        "return super().__reduce__()",
        ("tests/unit/test_errors.py",),
    ),
    Mutation(
        "a log handler that raises ends no run",
        "strictq/_platform/log.py",
        "        except Exception:\n            _complain()\n\n    def _log",
        "        except ZeroDivisionError:\n            _complain()\n\n    def _log",
        ("tests/worker/test_misbehaving.py",),
    ),
    Mutation(
        "GeneratorExit of an async handler is its failure",
        "strictq/worker/tasks.py",
        "        return _is_closed()\n",
        "        return True\n",
        ("tests/worker/test_misbehaving.py",),
    ),
    Mutation(
        "a handle belongs to its queue",
        "strictq/handle.py",
        "        if short != queue_id[:16]:\n",
        "        if False:\n",
        ("tests/unit/test_handles.py",),
    ),
    # Replication: every restored state is one that the queue had, and nothing at the target is overwritten.
    _store(
        "a cut ends at its point in time",
        "shipping/capture.py",
        "partial(tail.advance, x)",
        'partial(lambda t: (__import__("time").sleep(0.005), t.advance(None)), tail)',
        "tests/replication/test_cuts.py",
    ),
    _store(
        "commits of a WAL that was truncated since are noticed",
        "shipping/tail.py",
        "            if not known and newest != position.time:\n",
        "            if False:\n",
        "tests/store/test_shipping.py",
    ),
    _store(
        "a truncated WAL is not followed",
        "shipping/tail.py",
        "behind[8:16] not in (known[_SALTS], header[_SALTS])",
        "behind[8:16] != known[_SALTS]",
        "tests/store/test_shipping.py",
    ),
    _store(
        "a WAL that does not continue the captured one is refused",
        "shipping/tail.py",
        "        return is_older or (",
        "        return True or (",
        "tests/store/test_shipping.py",
    ),
    _store(
        "a WAL is pinned while it is shipped",
        "shipping/tail.py",
        "        if self._pinned is not None:\n"
        '            self._readers[self._pinned].execute("ROLLBACK")\n'
        "        self._pinned = new\n",
        '        self._readers[new].execute("ROLLBACK")\n',
        "tests/replication/test_keeper.py::test_somebody_else_who_checkpoints_all_the_time",
        "tests/store/test_shipping.py",
    ),
    _store(
        "what a seal captured is kept until it is confirmed",
        "shipping/tail.py",
        "        self._carried |= {page: self._image(number) for page, number in self._changed.items()}\n",
        "",
        "tests/replication/test_shipper.py",
    ),
    _store(
        "a shard goes on only where its WAL has the same history",
        "shipping/tail.py",
        " and self._frame_header(position.frames) == position.last:\n                self._done",
        ":\n                self._done",
        "tests/store/test_shipping.py",
    ),
    _store(
        "an older copy is told from its replica",
        "shipping/tail.py",
        "            if newest < position.time:\n",
        "            if False:\n",
        "tests/replication/test_shipper.py",
    ),
    _store(
        "restored pages get checksums",
        "shipping/rebuild.py",
        "apsw.VFSFile(checksums.VFS,",
        'apsw.VFSFile("",',
        "tests/replication/test_restoring.py",
    ),
    _store(
        "a restored queue's tokens are above its original's",
        "shipping/rebuild.py",
        "(known.epoch // EPOCH_STEP + 1) * EPOCH_STEP",
        "known.epoch",
        "tests/replication/test_restoring.py",
    ),
    # Confirmed mode.
    _store(
        "a write waits for the replica",
        "shard/shard_file.py",
        "            if confirming.active:\n                confirming.wait()\n        except Exception",
        "        except Exception",
        "tests/replication/test_confirmed.py",
    ),
    _store(
        "a transaction with SQL waits for the replica",
        "shard/shard_file.py",
        "        alone.commit()\n        self.confirm()\n",
        "        alone.commit()\n",
        "tests/replication/test_confirmed.py",
    ),
    _store(
        "a receive waits for the replica",
        "whole/receive.py",
        "            confirming.wait()\n        except",
        "            pass\n        except",
        "tests/replication/test_confirmed.py",
    ),
    _store(
        "a receive that is not confirmed gives its leases back",
        "whole/receive.py",
        "            with confirming.later():\n                _give_back(brought)\n",
        "",
        "tests/replication/test_confirmed.py",
    ),
    _store(
        "a repeated transaction waits for the replica",
        "whole/transaction.py",
        "            self.shard.confirm()\n            return self.thrown_away(changes)\n",
        "            return self.thrown_away(changes)\n",
        "tests/replication/test_confirmed.py",
    ),
    _store(
        "a call waits for a round that began after its commit",
        "shipping/confirming.py",
        "self._slots[_BEGUN] + 1 if",
        "self._slots[_BEGUN] if",
        "tests/replication/test_confirmed.py",
    ),
    _store(
        "rounds of another target, history, term or boot say nothing",
        "shipping/confirming.py",
        "return self._slots[_TAG] == self._tag and self._slots[_ENDED] >= number",
        "return self._slots[_ENDED] >= number",
        "tests/store/test_confirming.py",
    ),
    _store(
        "what can't be confirmed is refused before it is written",
        "whole/store.py",
        "            self.confirming.require_answers()\n",
        "            pass\n",
        "tests/replication/test_confirmed.py",
    ),
    _store(
        "a queue whose replica was promoted refuses every write",
        "shard/shard_file.py",
        "            confirming.require()\n        result",
        "            pass\n        result",
        "tests/replication/test_confirmed.py",
    ),
    _store(
        "a process that learns of confirmed mode in a write waits behind it",
        "whole/settings.py",
        "            self.confirming.adopt(known.replication, rounds)\n",
        "",
        "tests/replication/test_confirmed.py",
    ),
    _store(
        "an interrupted call ends its transaction before it releases the shard",
        "commit/writer.py",
        '                db.execute("ROLLBACK")\n            reads =',
        "                pass\n            reads =",
        "tests/store/test_interrupts.py",
    ),
    _store(
        "an interrupted call ends its reads",
        "commit/writer.py",
        "        if reads:\n            self._distrust_connection()\n",
        "",
        "tests/store/test_interrupts.py",
    ),
    _store(
        "a transaction that was interrupted as it was entered is not open",
        "commit/tx.py",
        "        self.is_open = False\n        open_transaction",
        "        self.is_open = True\n        open_transaction",
        "tests/store/test_every_interrupt.py",
    ),
    Mutation(
        "an interrupt cannot skip the end of a transaction",
        "strictq/_platform/leaving.py",
        "            end()\n        finally:\n            end()  # an interrupt can end the first call before its first step\n",
        "            pass\n        finally:\n            pass\n",
        ("tests/store/test_interrupts.py",),
    ),
    _store(
        "a program's exception is no damage",
        "commit/connection.py",
        "        if not is_of_sqlite(error):\n            return error\n",
        "",
        "tests/store/test_interrupts.py",
    ),
    _store(
        "a program's exception in a COMMIT leaves its outcome unknown",
        "commit/writer.py",
        "            if isinstance(e, Exception):\n                raise after_commit(e, self._shard)",
        "            if False:\n                raise after_commit(e, self._shard)",
        "tests/store/test_every_interrupt.py::test_a_programs_exception_in_a_commit_is_the_cause_of_an_unknown_outcome",
    ),
    _store(
        "a check that finds lost messages deletes nothing",
        "shard/checking.py",
        "fix = None if self.doubtful else _note(i)",
        "fix = _note(i)",
        "tests/store/test_check.py",
    ),
    _store(
        "a redriven message is found by those who know that older ones are resolved",
        "shard/shard_lanes.py",
        "(memory.rebuilds, memory.redrives)",
        "(memory.rebuilds, 0)",
        "tests/store/test_looks.py",
    ),
    _store(
        "a step that fails after others were committed does not say that nothing was changed",
        "whole/operating.py",
        "if not begun or",
        "if True or",
        "tests/faults/test_after_commit.py",
    ),
    _store(
        "a receive whose sync fails returns its leases",
        "whole/receive.py",
        "                    _give_back([each for each in brought if each[0] is shard])  # a failed sync follows a COMMIT\n",
        "",
        "tests/store/test_commit.py",
    ),
    Mutation(
        "a round ends when the target has all that it saw",
        "strictq/replication/keeper.py",
        "        shipped = self._shipper.round()\n",
        "        if self._rounds is not None:\n            self._rounds.end()\n        shipped = self._shipper.round()\n",
        ("tests/replication/test_confirmed.py",),
    ),
    Mutation(
        "a promotion in confirmed mode is stored by the old primary",
        "strictq/replication/keeper.py",
        '            storage.replicating.set(self._replication._replace(mode="fenced"))\n',
        "            pass\n",
        ("tests/replication/test_confirmed.py",),
    ),
    Mutation(
        "a replica learns that calls do not wait for it any more",
        "strictq/replication/settings.py",
        '    if known.mode == "confirmed" and not force:\n        _leave_confirmed(storage, known)\n',
        "",
        ("tests/replication/test_confirmed.py",),
    ),
    Mutation(
        "what a late shipper says of the mode changes nothing",
        "strictq/replication/received.py",
        "        if said.generation > self.state.generation:\n",
        "        if said.confirmed != self.state.confirmed:\n",
        ("tests/replication/test_confirmed.py",),
    ),
    Mutation(
        "retention looks for restores that run",
        "strictq/replication/segment_files.py",
        "min([n, *self._restores(names)])",
        "n",
        ("tests/replication/test_target.py",),
    ),
    _store(
        "the first open after a boot ends the leases of the one before",
        "whole/store.py",
        "                    shard.run(lambda _tx: None, 0.0)\n",
        "                    pass\n",
        "tests/unit/test_leases.py",
    ),
    Mutation(
        "a shipper that starts looks for missing segments",
        "strictq/replication/segment_files.py",
        "None if complete is None else _hole(numbers, complete.base, last)",
        "None",
        ("tests/replication/test_shipper.py",),
    ),
    Mutation(
        "a shipper notices that the newest segments are gone",
        "strictq/replication/shipper.py",
        "found.n + 1 if found.n < end - 1 else ",
        "",
        ("tests/replication/test_shipper.py",),
    ),
    Mutation(
        "segments are read again",
        "strictq/replication/shipper.py",
        "            self._verify(history_id, self._next)\n",
        "            self._next += 1\n",
        ("tests/replication/test_shipper.py",),
    ),
    Mutation(
        "a promoted copy of a replica has the last segment that was received",
        "strictq/replication/proving.py",
        "if (state.applied.n, state.applied_hash) != (whole.n, whole.hash):",
        "if False:",
        ("tests/replication/test_proving.py",),
    ),
    Mutation(
        "a promoted copy of a replica is checked",
        "strictq/replication/proving.py",
        "problems = self._checking.reports.check(fix=False)",
        "problems: list[object] = []",
        ("tests/replication/test_proving.py",),
    ),
    Mutation(
        "the log keeps what a copy of live/ lacks",
        "strictq/replication/received.py",
        "        if self._copying:\n            return False\n",
        "",
        ("tests/replication/test_proving.py",),
    ),
    Mutation(
        "the whole queue follows a gap",
        "strictq/replication/shipper.py",
        "            if self.heals:\n                self._begin_with_base(head)\n",
        "",
        ("tests/replication/test_shipper.py",),
    ),
    Mutation(
        "a missing segment loses the states that need it",
        "strictq/replication/restoring.py",
        "            yield Point(hole, base, x, wall, lost)\n",
        "            base, lost = 0, None\n",
        ("tests/replication/test_restoring.py",),
    ),
    Mutation(
        "the newest state is not replaced by an older one",
        "strictq/replication/restoring.py",
        "    if point.lost is not None:\n",
        "    if point.lost is not None and (point := [*points(target)][-1]) is None:\n",
        ("tests/replication/test_restoring.py",),
    ),
    Mutation(
        "a segment follows the one before",
        "strictq/replication/restoring.py",
        "header.prev != before",
        "False",
        ("tests/replication/test_restoring.py",),
    ),
    Mutation(
        "a segment is what was written",
        "strictq/replication/segment.py",
        "    if not compare_digest(digest(data[:-HASH_BYTES], key), data[-HASH_BYTES:]):\n",
        "    if False:\n",
        ("tests/replication/test_segment.py",),
    ),
    Mutation(
        "another copy of a queue does not replace its replica",
        "strictq/replication/shipper.py",
        "self._progress.last_attempt(head.n) != head.hash",
        "False",
        ("tests/replication/test_shipper.py",),
    ),
    Mutation(
        "a segment's name is written once",
        "strictq/replication/segment_files.py",
        "            if taken and self.read(name, len(data) + 1) != data:\n",
        "            if False:\n",
        ("tests/replication/test_target.py",),
    ),
    Mutation(
        "a put to an object store is conditional",
        "strictq/replication/objects.py",
        ', mode="create")',
        ")",
        ("tests/replication/test_objects.py",),
    ),
    Mutation(
        "where a store ignores the condition, names are looked for first",
        "strictq/replication/segment_files.py",
        "(not self.write_once and self.exists(name)) or ",
        "",
        ("tests/replication/test_objects.py",),
    ),
    Mutation(
        "segments are verified with the key",
        "strictq/replication/segment.py",
        "digest(data[:-HASH_BYTES], key), data",
        "digest(data[:-HASH_BYTES]), data",
        ("tests/replication/test_keys.py",),
    ),
    Mutation(
        "a target that hangs is not waited for while WALs grow",
        "strictq/replication/keeper.py",
        "        if self._shipper.behind_bytes() > self._settings.max_lag_bytes:\n",
        "        if False:\n",
        ("tests/replication/test_bounded.py",),
    ),
    Mutation(
        "nobody ships while a call of the one before hangs",
        "strictq/replication/keeper.py",
        "        if self._calls.hangs:\n",
        "        if False:\n",
        ("tests/replication/test_bounded.py",),
    ),
    Mutation(
        "no WAL is kept when shipping has stopped",
        "strictq/replication/keeper.py",
        "        return StoppedShipping(storage, replication)\n",
        "        return None\n",
        ("tests/replication/test_bounded.py",),
    ),
    Mutation(
        "a process that lacks the key lets go of the lock",
        "strictq/replication/keeper.py",
        "            self._rest_seconds = BACKOFF_MAX_SECONDS\n            return None\n",
        "            self._rest_seconds = BACKOFF_MAX_SECONDS\n",
        ("tests/replication/test_bounded.py",),
    ),
    Mutation(
        "a segment is synced before it has its name",
        "strictq/replication/directory.py",
        "            os.fsync(fd)\n",
        "            pass\n",
        ("tests/power/test_replica.py::test_what_was_shipped_survives_a_power_cut_of_the_target",),
    ),
    Mutation(
        "a segment's name is synced",
        "strictq/replication/directory.py",
        "            files.sync_directory(self.path)  # even if the name exists: its writer may have died before the sync\n",
        "",
        ("tests/power/test_replica.py::test_what_was_shipped_survives_a_power_cut_of_the_target",),
    ),
    # Living replicas: what was confirmed is there, nothing foreign is taken, and one of two histories goes on.
    Mutation(
        "a segment is on the disk before it is confirmed",
        "strictq/replication/replica_log.py",
        "            files.sync_data(fd)\n",
        "            pass\n",
        ("tests/power/test_living_replica.py::test_what_a_replica_confirmed_survives_a_power_cut",),
    ),
    Mutation(
        "live/ is on the disk before the log is emptied",
        "strictq/replication/received.py",
        "        self._pages.sync()\n",
        "",
        ("tests/power/test_living_replica.py::test_what_a_replica_confirmed_survives_a_power_cut",),
    ),
    Mutation(
        "that live/ was synced is taken back before it is written to",
        "strictq/replication/replica_home.py",
        "            os.fsync(self._fd)\n            self._sure = True\n",
        "            self._sure = True\n",
        ("tests/power/test_living_replica.py::test_what_a_replica_confirmed_survives_a_power_cut",),
    ),
    Mutation(
        "a replica takes no segment of an earlier term",
        "strictq/replication/received.py",
        "        if term < self.state.term:\n",
        "        if False:\n",
        ("tests/replication/test_received.py",),
    ),
    Mutation(
        "a replica takes nothing once it was promoted",
        "strictq/replication/received.py",
        '        if self.state.role != "replica":\n            raise Fenced',
        "        if False:\n            raise Fenced",
        ("tests/replication/test_promoting.py",),
    ),
    Mutation(
        "a replica takes segments of its own queue and history",
        "strictq/replication/received.py",
        "            self._require_history(header.queue_id, header.history_id)\n",
        "",
        ("tests/replication/test_received.py",),
    ),
    Mutation(
        "a replica takes only what follows",
        "strictq/replication/received.py",
        "                self._require_follows(header)\n",
        "",
        ("tests/replication/test_received.py",),
    ),
    Mutation(
        "a replica takes shards that there are",
        "strictq/replication/received.py",
        "                self._require_sound(header)\n",
        "",
        ("tests/replication/test_received.py",),
    ),
    Mutation(
        "the former content of a file of the log is not taken for newer segments",
        "strictq/replication/replica_log.py",
        "            if out and header.n <= out[-1].header.n:\n",
        "            if False:\n",
        ("tests/replication/test_replica_log.py",),
    ),
    Mutation(
        "an answer to an interrupted request is not taken for the next one's",
        "strictq/_net/frames.py",
        "            self._reset()  # the answer",
        "            pass  # the answer",
        ("tests/net/test_frames.py",),
    ),
    Mutation(
        "a damaged segment that was confirmed is not cut off",
        "strictq/replication/replica_log.py",
        "                if n > max(self._last):\n                    return True\n",
        "",
        ("tests/replication/test_received.py",),
    ),
    Mutation(
        "nothing is applied while somebody looks",
        "strictq/replication/received.py",
        "            if not looks.alone(LOOKS_SECONDS):\n",
        "            if False:\n",
        ("tests/replication/test_received.py",),
    ),
    Mutation(
        "a living replica is not opened for writing",
        "strictq/_store/disk/layout.py",
        "    if REPLICA_MARK in entries and not replica:\n",
        "    if False:\n",
        ("tests/replication/test_replica.py::test_everything_can_be_looked_at_and_nothing_written",),
    ),
    Mutation(
        "a replica is not promoted while its primary lives",
        "strictq/replication/promoting.py",
        "    if found.alive and not force:\n",
        "    if False:\n",
        ("tests/replication/test_promoting.py::test_a_primary_that_was_heard_of_may_live",),
    ),
    Mutation(
        "a promotion raises the term before all else",
        "strictq/replication/promoting.py",
        '            state.write(home)\n            on_step("fenced")\n',
        '            on_step("fenced")\n',
        ("tests/replication/test_promoting.py::test_a_promotion_that_is_killed_is_finished_by_the_next",),
    ),
    _store(
        "leases of a lost primary end by their deadlines",
        "shard/shard_lanes.py",
        "        if not keeps_leases:\n",
        "        if True:\n",
        "tests/replication/test_promoting.py::test_leases_of_the_primary_end_by_their_deadlines",
    ),
    Mutation(
        "token and messages do not cross a network unencrypted",
        "strictq/_net/transport.py",
        '    if tls or plaintext or host == "localhost":\n',
        "    if True:\n",
        ("tests/replication/test_replica.py::test_a_network_is_not_shown_tokens_without_plaintext",),
    ),
    # Merging, adopting, chains and votes. A name has one of these words, so that they can be run by it.
    _merge(
        "merge: sends arrive once",
        "        later = [each for each in sends if each.number > arrived]\n",
        "        later = list(sends)\n",
    ),
    _merge(
        "merge: the new queue goes on from the old one's history",
        "fork.history_id == known.history_id and len",
        "len",
    ),
    _merge(
        "merge: the queues are the same one",
        "    if left.queue_id != right.queue_id:\n",
        "    if False:\n",
    ),
    _merge(
        "merge: the old queue is out of service",
        "    with api.held_alone(source), opened(",
        "    with opened(",
    ),
    _merge(
        "merge: only what was there at the fork is resolved",
        "if m.id <= behind and m.id not in unresolved",
        "if m.id not in unresolved",
    ),
    _merge(
        "merge: what this one resolves counts as processed once",
        "        self._note(shard, kept)\n        return kept\n",
        "        return kept\n",
    ),
    _merge(
        "merge: what lies in outboxes comes first",
        "                    self.right.transactions.forward(shard)  #",
        "                    pass  #",
    ),
    _store(
        "merge: a consumer keeps what it holds",
        "shard/merging_histories.py",
        "        if i in held:\n",
        "        if False:\n",
        "tests/replication/test_merging.py",
    ),
    _store(
        "adopt: an open queue is not adopted",
        "disk/locks.py",
        "        if not presence.alone(ALONE_SECONDS if seconds is None else seconds):\n",
        "        if False:\n",
        "tests/replication/test_adopting.py",
    ),
    _store(
        "adopt: tokens are above the original's",
        "whole/copies.py",
        "    queue_db.set_epoch(directory, epoch_behind(known))\n",
        "",
        "tests/replication/test_adopting.py",
    ),
    _store(
        "adopt: a copy is another history",
        "whole/copies.py",
        "Replication(history_id, 1 if before is None",
        "Replication(history_id if before is None else before.history_id, 1 if before is None",
        "tests/replication/test_adopting.py",
    ),
    _chain(
        "adopt: a queue that nothing replaced is not moved aside",
        "adopting.py",
        "    if known is None:\n        raise InvalidArgument(",
        "    if False:\n        raise InvalidArgument(",
        "tests/replication/test_adopting.py",
    ),
    _chain(
        "adopt: a replica that goes on is not moved aside",
        "adopting.py",
        '        if state.role != "promoted":\n            return None',
        "        if False:\n            return None",
        "tests/replication/test_adopting.py",
    ),
    _chain(
        "chain: a segment waits for the next replica",
        "received.py",
        "            next_one.wait_for(n)\n        self._on_step",
        "            pass\n        self._on_step",
    ),
    _chain(
        "chain: where a shipper goes on, the next replica has all before",
        "received.py",
        "            next_one.wait_for(head.n)\n",
        "            pass\n",
        "tests/replication/test_chain.py::test_what_is_there_already_waits_for_the_next_replica",
    ),
    _chain(
        "chain: a beat waits for the next replica",
        "received.py",
        "            next_one.wait_for(-1 if leaves else n, ticket)\n",
        "            pass\n",
        "tests/replication/test_chain.py::test_the_next_replica_knows_first_that_calls_do_not_wait",
    ),
    _chain(
        "chain: the next replica leaves confirmed mode first",
        "received.py",
        "            if not leaves:\n                self._store_mode(said)\n",
        "            self._store_mode(said)\n",
        "tests/replication/test_chain.py::test_the_next_replica_knows_first_that_calls_do_not_wait",
    ),
    _chain(
        "chain: a middle without its next replica confirms nothing",
        "received.py",
        "            if self._forwarding is None and self.state.forwards_to in others.values():\n",
        "            if False:\n",
        "tests/replication/test_chain.py::test_a_middle_that_lost_its_next_replica_confirms_nothing",
    ),
    _chain(
        "chain: the log is kept until the next replica has it",
        "received.py",
        "return self._forwarding is None or self._forwarding.may_drop(self._log.last(file), self._log.size)",
        "return True",
        "tests/replication/test_chain.py::test_a_next_replica_that_was_away_gets_the_rest_of_the_log",
    ),
    _chain(
        "chain: a superseded history is not shipped on",
        "received.py",
        "        if decided is not None and decided.history_id != self.state.history_id:\n            return attrs",
        "        if False:\n            return attrs",
        "tests/replication/test_chain.py::test_a_new_end_behind_a_survivor_follows_the_elected_primary",
    ),
    _chain(
        "chain: a next replica that has more is not written to",
        "forwarding.py",
        "        if n > self._end[0]:\n",
        "        if False:\n",
        "tests/replication/test_chain.py::test_a_next_replica_of_another_chain_is_not_written_to",
    ),
    _chain(
        "chain: a next replica with another segment is not written to",
        "forwarding.py",
        "        if known.get(n, digest) != digest:\n",
        "        if False:\n",
        "tests/replication/test_chain.py::test_a_next_replica_of_another_chain_is_not_written_to",
    ),
    _chain(
        "chain: nothing is confirmed in an earlier term than the members'",
        "received.py",
        "voter.decided is not None and term < voter.decided.term:",
        "False:",
        "tests/replication/test_chain.py::test_behind_a_vote_the_old_primary_confirms_nothing",
    ),
    _chain(
        "chain: nothing is confirmed to the old primary behind a vote",
        "received.py",
        "voter.accepted is not None and term < voter.accepted[1].term:",
        "False:",
        "tests/replication/test_chain.py::test_behind_a_vote_the_old_primary_confirms_nothing",
    ),
    _chain(
        "chain: a member that was dropped does not follow the elected primary",
        "received.py",
        "None if voter is None or not voter.has_vote else voter.decided\n        return (",
        "None if voter is None else voter.decided\n        return (",
        "tests/replication/test_chain.py::test_a_member_that_was_dropped_does_not_follow",
    ),
    _chain(
        "chain: the log of the elected host has what others have",
        "electing.py",
        "            round = _caught_up(round, reach, position, fetch)\n",
        "            round = attrs.evolve(round, ahead=None)\n",
        "tests/replication/test_chain.py::test_the_elected_host_fetches_what_it_lacks",
    ),
    _chain(
        "vote: a promise is kept",
        "voting.py",
        "    if state.promised is not None and ballot < state.promised:\n",
        "    if False:\n",
        "tests/replication/test_voting.py",
    ),
    _chain(
        "vote: one that is no member has none",
        "voting.py",
        "state.decided != message.decided or not state.has_vote:",
        "state.decided != message.decided:",
        "tests/replication/test_voting.py",
    ),
    _chain(
        "vote: it is for the version after the newest one",
        "voting.py",
        " or state.decided != message.decided or not",
        " or not",
        "tests/replication/test_voting.py",
    ),
    _chain(
        "vote: a value is for the next version",
        "voting.py",
        "value is None or value.version != message.decided.version + 1 or",
        "value is None or",
        "tests/replication/test_voting.py",
    ),
    _chain(
        "vote: one that lost its directory learns nothing",
        "voting.py",
        "attrs.evolve(state, decided=decided) if state.id in decided.ids else state",
        "attrs.evolve(state, decided=decided)",
        "tests/replication/test_voting.py",
    ),
    _chain(
        "vote: an older membership is not learned",
        "voting.py",
        " or decided.version <= state.decided.version:",
        ":",
        "tests/replication/test_voting.py",
    ),
    _chain(
        "vote: what may be decided already is proposed again",
        "voting.py",
        "        value = self.wanted if self.voted_before is None else self.voted_before[1]\n",
        "        value = self.wanted\n",
        "tests/replication/test_voting.py",
    ),
    _chain(
        "vote: a majority of the members decides",
        "voting.py",
        "return len(self.members) // 2 + 1",
        "return max(len(self.members) // 2, 1)",
        "tests/replication/test_voting.py",
    ),
    _chain(
        "vote: a log that is behind does not win",
        "voting.py",
        "self.mine is not None and said.position.beyond(self.mine) and",
        "False and",
        "tests/replication/test_voting.py",
    ),
    _chain(
        "vote: it is stored before it is answered",
        "membership.py",
        "                self.store(said.state)\n",
        "                pass\n",
        "tests/replication/test_chain.py::test_behind_a_vote_the_old_primary_confirms_nothing",
    ),
    _chain(
        "vote: it is on the disk before it is answered",
        "membership.py",
        "            files.replace_durably(",
        "            files.replace(",
        "tests/power/test_votes.py",
    ),
    _store(
        "one lane: an entry that a lane's row includes has no effect",
        "shard/loading.py",
        "            if lane.lsn < entry[0]:",
        "            if True:",
        *WALK,
    ),
    _store(
        "one lane: a memory that lacks cut rows begins anew",
        "shard/shard_lanes.py",
        "        if len(entries) != seen - memory.seen or",
        "        if False and",
        *WALK,
        *SHARD_LANES,
    ),
    _store(
        "one lane: an entry stays until the rows of its messages may be deleted",
        "lane/memory.py",
        "        return min(limit, next((position for position, _ in self.gone if position > deleted), limit))",
        "        return limit",
        *WALK,
    ),
    _store(
        "one lane: a memory that is behind does not refuse",
        "shard/settling.py",
        "            return None  # memory may be behind, so only a transaction refuses\n",
        "            raise lost(store, batch)\n",
        *WALK,
        *SHARD_LANES,
    ),
    _store(
        "one lane: nothing lists a lane that a plan has taken",
        "lane/live_lane.py",
        "        if self.listed > 0:",
        "        if True:",
        *WALK,
    ),
    _store(
        "one lane: an evicted lane is found at rest",
        "lane/turns.py",
        '        self.after = min(self.after, (value, b""))',
        "        pass",
        *WALK,
    ),
    Mutation(
        "one lane: a single statement writes nothing if another process wrote",
        "strictq/_sql/log.sql",
        "iif((SELECT max(id) FROM journal) = ?1 - 1 AND (SELECT max(id) FROM message) = ?4, ?2, NULL)",
        "iif(?4 IS NOT NULL, ?2, NULL)",
        (*WALK, *SHARD_LANES),
    ),
    _store(
        "one lane: the rollback of an operation takes back what it did before it was refused",
        "shard/shard_lanes.py",
        "        if not self._is_refusal(error) or position != self.commits:",
        "        if not self._is_refusal(error):",
        *SHARD_LANES,
    ),
    _store(
        "one lane: an entry finds a message in the lane that it was parked from later",
        "lane/live_lane.py",
        "            return ids[at] == arrival",
        "            return False",
        *SHARD_LANES,
    ),
    _store(
        "one lane: each process finds the same first unresolved message",
        "lane/live_lane.py",
        "        if not ids and self.holes and self.deep and not self.held:",
        "        if False:",
        *SHARD_LANES,
    ),
    _store(
        "one lane: a row says where its lane is listed",
        "shard/folding.py",
        "        self._loader.place_all()",
        "        pass",
        *WALK,
    ),
    _store(
        "one lane: a parked message keeps its TTL",
        "lane/memory.py",
        "                lane.expires = expires\n            self.loaded += 1",
        "                pass\n            self.loaded += 1",
        *WALK,
        *SHARD_LANES,
    ),
    _store(
        "one lane: the last rows of a bucket are deleted",
        "tables/gone.py",
        "            deleted |= bits & ~newest\n",
        "",
        *SHARD_LANES,
    ),
    # The forwarder.
    Mutation(
        "a forwarded message is recognised by its content, not by its position alone",
        "strictq/remote/mapping.py",
        "    return hashlib.sha256(place.encode() + body).hexdigest()\n",
        "    return hashlib.sha256(place.rpartition('/')[0].rpartition('/')[0].encode()).hexdigest()\n",
        FORWARDING,
    ),
    Mutation(
        "the key of a received message is that of its group",
        "strictq/remote/mapping.py",
        "    if group is not None and group != group_of(raw):\n",
        "    if not raw:\n",
        ("tests/remote/test_mapping.py",),
    ),
    Mutation(
        "no text has the group of another key",
        "strictq/remote/mapping.py",
        'if text is not None and _ID.fullmatch(text) and not text.startswith("~"):',
        "if text is not None and _ID.fullmatch(text):",
        ("tests/remote/test_mapping.py",),
    ),
    Mutation(
        "a request has one message of a key, unless the endpoint keeps prefixes",
        "strictq/forwarding.py",
        "self._per_key or (BATCH_MAX if link.endpoint.keeps_prefixes else 1)",
        "self._per_key or BATCH_MAX",
        FORWARDING,
    ),
    Mutation(
        "an outage charges no attempt",
        "strictq/forwarding.py",
        "        jobs[0].fail(Defer(seconds, why))\n",
        "        jobs[0].fail(why)\n",
        FORWARDING,
    ),
    Mutation(
        "a message whose forwarder died is in doubt",
        "strictq/forwarding.py",
        "    return job.attempt > 1 or job._delivery._is_suspect\n",
        "    return False\n",
        FORWARDING,
    ),
    Mutation(
        "a request without an answer leaves a doubt",
        "strictq/forwarding.py",
        "    return isinstance(outcome, CallFailure) and outcome.sent\n",
        "    return False\n",
        FORWARDING,
    ),
    Mutation(
        "a doubt of an earlier boot marks at once",
        "strictq/forwarding.py",
        " or doubt.boot != self._boot)",
        ")",
        FORWARDING,
    ),
    Mutation(
        "a forwarder checks its lease before each request",
        "strictq/forwarding.py",
        "not job.cancelled and lease.expires_in < seconds",
        "not seconds",
        FORWARDING,
    ),
    Mutation(
        "nothing overtakes a message that was not sent",
        "strictq/remote/sending.py",
        "            if lane not in lanes or lanes[lane][0] != n:\n",
        "            if lane not in lanes:\n",
        ("tests/remote/test_sending.py",),
    ),
]


def mutated(mutation: Mutation) -> str:
    """The file without the measure.

    Raises:
        LookupError: the text is not there, or more than once.
    """
    text = (ROOT / mutation.file).read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        raise LookupError(f"{mutation.name}: {mutation.file} has its text {text.count(mutation.old)} times")
    return text.replace(mutation.old, mutation.new)


def _copy(place: Path) -> Path:
    tree = place / "tree"
    tree.mkdir()
    for name in ("strictq", "tests", "benchmarks"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tree / name)
    return tree


def _run(tree: Path, tests: Sequence[str]) -> tuple[bool, str]:
    """Do these tests pass, and if not, which one failed first?"""
    environment = {**SHORT, **os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", *tests]
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return False, "it hung"
    if process.returncode == 0:
        return True, ""
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return False, failed[0] if failed else f"pytest ended with {process.returncode}: {output.strip().splitlines()[-1:]}"


class _Bench:
    """Runs mutations in copies of the tree, and remembers which tests pass without any."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._sound: dict[tuple[str, ...], tuple[bool, str]] = {}
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, ...], threading.Lock] = {}

    def judge(self, mutation: Mutation) -> tuple[str, str, float]:
        """Caught, survived or unsound; by which test; and how long it took, seconds."""
        started = time.monotonic()
        passed, why = self._unchanged(mutation.tests)
        if not passed:
            return "unsound", f"fails without the change: {why}", time.monotonic() - started
        with tempfile.TemporaryDirectory(dir=self._place) as place:
            tree = _copy(Path(place))
            (tree / mutation.file).write_text(mutated(mutation), encoding="utf-8")
            passed, why = _run(tree, mutation.tests)
        return ("survived" if passed else "caught"), why, time.monotonic() - started

    def _unchanged(self, tests: tuple[str, ...]) -> tuple[bool, str]:
        with self._lock:
            lock = self._locks.setdefault(tests, threading.Lock())
        with lock:
            if tests not in self._sound:
                with tempfile.TemporaryDirectory(dir=self._place) as place:
                    self._sound[tests] = _run(_copy(Path(place)), tests)
            return self._sound[tests]


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all were caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only those whose name or file contains one of these")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print their names, and run nothing")
    options = parser.parse_args(arguments)
    chosen = [m for m in MUTATIONS if not options.words or any(word in m.name or word in m.file for word in options.words)]
    if options.list:
        print(*[m.name for m in chosen], sep="\n")
        return 0
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="strictq-mutations-") as place, ThreadPoolExecutor(options.jobs) as pool:
        bench = _Bench(Path(place))
        for mutation, (verdict, why, seconds) in zip(chosen, pool.map(bench.judge, chosen), strict=True):
            counts[verdict] = counts.get(verdict, 0) + 1
            print(f"{verdict:9} {seconds:5.0f} s  {mutation.name}: {why or 'no test failed'}", flush=True)
    print(", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))
    return int(counts.get("caught", 0) != len(chosen))


if __name__ == "__main__":
    sys.exit(main())
