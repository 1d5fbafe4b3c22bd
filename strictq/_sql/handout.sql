-- name: schema
-- The batches of named consumers; every shard has its part. docs/explanation/storage.md describes the tables for other programs.
CREATE TABLE consumer (
    name  TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,                        -- raised by whoever takes the consumer over
    last  INTEGER NOT NULL,                        -- the newest hand-out that this shard has a part of
    acked INTEGER NOT NULL,                        -- up to here hand-outs are acked or released
    floor INTEGER NOT NULL,                        -- up to here they are no longer kept
    CHECK (floor <= acked)
) STRICT, WITHOUT ROWID;

-- This shard's part of a batch. Its leases have its token and no deadline (2^62).
CREATE TABLE handout (
    consumer TEXT    NOT NULL,
    n        INTEGER NOT NULL,                     -- 1, 2, 3 ... over all shards of the queue
    state    TEXT    NOT NULL CHECK (state IN ('open', 'acked', 'released')),
    token    INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    bytes    INTEGER NOT NULL,                     -- of its blocks
    made_at  INTEGER NOT NULL,
    PRIMARY KEY (consumer, n)
) STRICT, WITHOUT ROWID;
CREATE INDEX handout_open ON handout (consumer, n) WHERE state = 'open';

-- The messages of a batch, as the consumer's encoder packed them; never changed.
CREATE TABLE handout_block (
    consumer TEXT    NOT NULL,
    n        INTEGER NOT NULL,
    part     INTEGER NOT NULL,                     -- 0, 1, 2 ... in order
    messages INTEGER NOT NULL,
    fresh    INTEGER NOT NULL,                     -- 1: it begins with a lane that no earlier block of the part has
    data     BLOB    NOT NULL,
    PRIMARY KEY (consumer, n, part)
) STRICT;

-- Messages to leave out when a batch is read, by arrival number, because they were dead-lettered from it.
CREATE TABLE handout_rejected (
    consumer TEXT    NOT NULL,
    n        INTEGER NOT NULL,
    id       INTEGER NOT NULL,
    PRIMARY KEY (consumer, n, id)
) STRICT, WITHOUT ROWID;

-- name: consumer
-- handout.require, handout.look: by primary key. Takes name.
SELECT epoch, last, acked, floor FROM consumer WHERE name = ?;

-- name: consumers
-- handout.standings and handouts: every named consumer. Index: primary key.
SELECT name, epoch, last, acked, floor FROM consumer ORDER BY name;

-- name: add_consumer
-- handout.take_over: the row of a consumer that has none in this shard. Takes name.
INSERT INTO consumer VALUES (?, 0, 0, 0, 0) ON CONFLICT (name) DO NOTHING;

-- name: set_epoch
-- handout.take_over: fence the previous holder. Takes epoch, name. Index: primary key.
UPDATE consumer SET epoch = ? WHERE name = ?;

-- name: set_last
-- handout.record: this shard has a part of batch n. Takes n, name. Index: primary key.
UPDATE consumer SET last = ? WHERE name = ?;

-- name: set_back_last
-- handout.withdraw: the newest part is undone; this shard may have none of the batch before it. Takes name. Index: primary key of handout.
UPDATE consumer SET last = max(acked, ifnull((SELECT max(n) FROM handout WHERE consumer = ?1), 0)) WHERE name = ?1;

-- name: set_acked
-- handout.ack, handout.release and handouts: batches up to n are settled; never moves back. Takes n, name. Index: primary key.
UPDATE consumer SET acked = max(acked, ?) WHERE name = ?;

-- name: set_floor
-- handout.prune: batches up to n are no longer kept; never moves back. Takes n, name. Index: primary key.
UPDATE consumer SET floor = max(floor, ?) WHERE name = ?;

-- name: open_handouts
-- handout.ack, handout.release: unresolved batches, oldest first. Takes consumer, n. Index: handout_open.
SELECT n, token FROM handout INDEXED BY handout_open WHERE consumer = ? AND n <= ? AND state = 'open' ORDER BY n;

-- name: open_messages
-- handout.pending_behind: messages of batches up to n that are not resolved, counted as they were delivered. Takes consumer, n.
-- Index: handout_open.
SELECT ifnull(sum(messages), 0) FROM handout INDEXED BY handout_open WHERE consumer = ? AND n <= ? AND state = 'open';

-- name: open_messages_behind
-- handout.recorded_behind: messages of batches after n that are not resolved, counted as they were delivered. Takes consumer, n.
-- Index: handout_open.
SELECT ifnull(sum(messages), 0) FROM handout INDEXED BY handout_open WHERE consumer = ? AND n > ? AND state = 'open';

-- name: open_since
-- handout.standings: when the oldest open batch was made. Takes consumer. Index: handout_open.
SELECT min(made_at) FROM handout INDEXED BY handout_open WHERE consumer = ? AND state = 'open';

-- name: kept
-- handout.standings: one row per kept batch. Takes consumer. Index: primary key.
SELECT n, bytes FROM handout WHERE consumer = ? AND state <> 'released';

-- name: bytes_total
-- inspect.stats: one row per kept batch.
SELECT ifnull(sum(bytes), 0) FROM handout;

-- name: in_flight
-- handout.standings: unresolved messages of one batch. Takes token. Index: lease_handout.
SELECT ifnull(sum(pending), 0) FROM main.lease INDEXED BY lease_handout WHERE token = ? AND deadline = 4611686018427387904;

-- name: unresolved_messages
-- handout.standings: messages of open batches, without those that were settled one by one. In a shard of format 3, where no index
-- counts leases. Takes consumer. Indexes: handout_open, primary key of handout_rejected.
SELECT ifnull(sum(h.messages - (SELECT count(*) FROM handout_rejected r WHERE r.consumer = h.consumer AND r.n = h.n)), 0)
FROM handout h INDEXED BY handout_open WHERE h.consumer = ? AND h.state = 'open';

-- name: oldest
-- handout.standings: when the oldest heads of one batch's lanes were sent; bounded. Takes token, how many lanes.
-- Indexes: lease_handout, primary key.
SELECT min(m.sent_at)
FROM (SELECT lane FROM main.lease INDEXED BY lease_handout WHERE token = ? AND deadline = 4611686018427387904 LIMIT ?) r
CROSS JOIN main.message m ON m.lane = r.lane AND m.seq = (SELECT seq FROM main.message WHERE lane = r.lane ORDER BY seq LIMIT 1);

-- name: insert_handout
-- handout.record: an open batch. Takes consumer, n, token, messages, bytes, made_at.
INSERT INTO handout (consumer, n, state, token, messages, bytes, made_at) VALUES (?, ?, 'open', ?, ?, ?, ?);

-- name: state
-- handout.parts: state of a batch, which decides whether it can be read. Takes consumer, n. Index: primary key.
SELECT state FROM handout WHERE consumer = ? AND n = ?;

-- name: handout_of
-- handout.settle_one and inspect.explain: the batch that holds a lease. Takes consumer, token. Index: handout_open.
SELECT n FROM handout INDEXED BY handout_open WHERE consumer = ? AND state = 'open' AND token = ?;

-- name: resolve
-- handout.ack: mark a batch as acked; its blocks stay until they are pruned. Takes consumer, n. Index: primary key.
UPDATE handout SET state = 'acked' WHERE consumer = ? AND n = ?;

-- name: give_up
-- handout.release and handouts: mark a batch as released. Takes consumer, n. Index: primary key.
UPDATE handout SET state = 'released', bytes = 0 WHERE consumer = ? AND n = ?;

-- name: released
-- handout.finish_release: released batches, some of whose leases may remain. Takes consumer. Index: primary key.
SELECT n, token FROM handout WHERE consumer = ? AND state = 'released' ORDER BY n;

-- name: some_leases
-- handout.finish_release: leases to end, in a bounded step. Takes token, limit. Index: lease_handout.
SELECT lane FROM main.lease INDEXED BY lease_handout WHERE token = ? AND deadline = 4611686018427387904 LIMIT ?;

-- name: unlike_leases
-- handout.withdraw: leases of lanes that need more than to be listed again. Takes token. Index: lease_handout.
SELECT lane FROM main.lease INDEXED BY lease_handout
WHERE token = ? AND deadline = 4611686018427387904 AND (redrive OR expired);

-- name: leases
-- handout.ack: the leases of a batch. Takes token. Indexes: lease_handout, primary key of lane.
SELECT e.lane, l.key, e.lo, e.hi, e.pending, e.redrive
FROM main.lease e INDEXED BY lease_handout CROSS JOIN lane l ON l.id = e.lane
WHERE e.token = ? AND e.deadline = 4611686018427387904;

-- name: sum_of_leases
-- handout.ack: how many leases a batch has, their messages, and how many leases need a look at each message, or are of a keyless
-- message in a lane of its own, which ends with it; and the first and the last of their lanes. A shard without keyless lanes
-- reads no lane: CASE, because AND evaluates both sides. Takes token.
-- Indexes: lease_handout, key and primary key of lane.
SELECT count(*), ifnull(sum(e.pending), 0), min(e.lane), max(e.lane),
       ifnull(sum(e.hi - e.lo + 1 <> e.pending OR e.redrive OR e.expired
           OR CASE WHEN EXISTS (SELECT 1 FROM lane WHERE key >= x'6e' AND key < x'6f')
              THEN EXISTS (SELECT 1 FROM lane l WHERE l.id = e.lane AND l.key >= x'6e' AND l.key < x'6f' AND instr(l.key, x'21'))
              ELSE 0 END), 0)
FROM main.lease e INDEXED BY lease_handout
WHERE e.token = ? AND e.deadline = 4611686018427387904;

-- name: count_between
-- handout.ack: messages of a range of lanes, counted up to a limit. Takes first and last lane, limit. Index: primary key.
SELECT count(*) FROM (SELECT 1 FROM message WHERE lane BETWEEN ? AND ? LIMIT ?);

-- name: delete_between
-- handout.ack: all messages of a range of lanes. Takes first and last lane. Index: primary key.
DELETE FROM message WHERE lane BETWEEN ? AND ?;

-- name: delete_single
-- handout.ack: the same if each lease of the batch has one message, which its lease names. Takes token.
-- Indexes: lease_handout, primary key of message.
DELETE FROM message WHERE (lane, seq) IN (
    SELECT lane, lo FROM main.lease INDEXED BY lease_handout WHERE token = ? AND deadline = 4611686018427387904
);

-- name: delete_messages
-- handout.ack: all messages that a batch holds. Takes token. Indexes: lease_handout, primary key of message.
DELETE FROM message WHERE (lane, seq) IN (
    SELECT m.lane, m.seq
    FROM main.lease e INDEXED BY lease_handout CROSS JOIN message m ON m.lane = e.lane AND m.seq BETWEEN e.lo AND e.hi
    WHERE e.token = ? AND e.deadline = 4611686018427387904
);

-- name: finish_lanes
-- handout.ack: settle.finish_lane for all lanes that a batch holds. Takes token, now. Indexes: lease_handout, rowid.
UPDATE lane SET last_seq = max(last_seq, e.hi), resolved = resolved + e.pending, active_at = ?2,
    done_token = ?1, done_kind = 'ack', done_lo = e.lo, done_hi = e.hi, done_gaps = NULL
FROM main.lease e INDEXED BY lease_handout WHERE e.token = ?1 AND e.deadline = 4611686018427387904 AND lane.id = e.lane;

-- name: next_heads
-- handout.ack, handout.withdraw: the new heads of the lanes that a batch holds; columns as in settle.next_heads. Takes token.
-- Indexes: lease_handout, primary keys; one seek a lane.
SELECT m.lane, m.seq, m.id, m.due, l.hold IS NOT NULL, l.solo_to
FROM main.lease e INDEXED BY lease_handout
CROSS JOIN message m ON m.lane = e.lane AND m.seq = (SELECT min(seq) FROM message WHERE lane = e.lane)
CROSS JOIN lane l ON l.id = e.lane
WHERE e.token = ? AND e.deadline = 4611686018427387904;

-- name: delete_leases
-- handout.ack, handout.withdraw: all leases of a batch. Takes token. Index: lease_handout.
DELETE FROM lease INDEXED BY lease_handout WHERE token = ? AND deadline = 4611686018427387904;

-- name: any_apart
-- handout.ack: whether any body is stored out of line. By primary key.
SELECT EXISTS (SELECT 1 FROM body WHERE id > 0);

-- name: apart
-- handout.ack: the bodies of a batch that are stored out of line. Takes token. Indexes: lease_handout, primary key of message.
SELECT e.lane, m.id FROM main.lease e INDEXED BY lease_handout CROSS JOIN message m ON m.lane = e.lane AND m.seq BETWEEN e.lo AND e.hi
WHERE e.token = ? AND e.deadline = 4611686018427387904 AND m.body IS NULL;

-- name: insert_block
-- handout.record and handouts: one block. Takes consumer, n, part, messages, fresh, data.
INSERT INTO handout_block VALUES (?, ?, ?, ?, ?, ?);

-- name: parts
-- handout.parts: by primary key; the blocks themselves are not read. Takes consumer, n.
SELECT part, messages, length(data), fresh FROM handout_block WHERE consumer = ? AND n = ? ORDER BY part;

-- name: block
-- handout.block: one block, in one seek. Takes consumer, n, part. Index: primary key.
SELECT data FROM handout_block WHERE consumer = ? AND n = ? AND part = ?;

-- name: add_rejected
-- handout: leave a message out when the batch is read. Takes consumer, n, arrival number.
INSERT INTO handout_rejected VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: rejected
-- handout.rejected: arrival numbers to leave out. Takes consumer, n. Index: primary key.
SELECT id FROM handout_rejected WHERE consumer = ? AND n = ? ORDER BY id;

-- name: too_old
-- handout.prune: a bounded step of the oldest that need not be kept. Takes consumer, n, limit. Index: primary key.
SELECT n FROM handout WHERE consumer = ? AND n <= ? AND state <> 'open' ORDER BY n LIMIT ?;

-- name: delete_handout
-- handout.prune. Takes consumer, n. Index: primary key.
DELETE FROM handout WHERE consumer = ? AND n = ?;

-- name: delete_blocks
-- handout.prune and release: all blocks of a batch. Takes consumer, n. Index: primary key.
DELETE FROM handout_block WHERE consumer = ? AND n = ?;

-- name: delete_rejected
-- handout.prune. Takes consumer, n. Index: primary key.
DELETE FROM handout_rejected WHERE consumer = ? AND n = ?;
