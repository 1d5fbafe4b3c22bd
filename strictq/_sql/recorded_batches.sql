-- name: schema
-- The batches of named consumers; every shard has its part. docs/explanation/storage.md describes the tables for other programs.
CREATE TABLE consumer (
    name  TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,                        -- raised by whoever takes the consumer over
    last  INTEGER NOT NULL,                        -- the newest recorded batch that this shard has a part of
    acked INTEGER NOT NULL,                        -- up to here recorded batches are acked or released
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
-- recorded_batches.require, recorded_batches.look: by primary key. Takes name.
SELECT epoch, last, acked, floor FROM consumer WHERE name = ?;

-- name: consumers
-- recorded_batches.standings and recorded_batches: every named consumer. Index: primary key.
SELECT name, epoch, last, acked, floor FROM consumer ORDER BY name;

-- name: add_consumer
-- recorded_batches.take_over: the row of a consumer that has none in this shard. Takes name.
INSERT INTO consumer VALUES (?, 0, 0, 0, 0) ON CONFLICT (name) DO NOTHING;

-- name: set_epoch
-- recorded_batches.take_over: fence the previous holder. Takes epoch, name. Index: primary key.
UPDATE consumer SET epoch = ? WHERE name = ?;

-- name: set_last
-- recorded_batches.record: this shard has a part of batch n. Takes n, name. Index: primary key.
UPDATE consumer SET last = ? WHERE name = ?;

-- name: set_back_last
-- recorded_batches.withdraw: the newest part is undone; this shard may have none of the batch before it. Takes name. Index: primary key of handout.
UPDATE consumer SET last = max(acked, ifnull((SELECT max(n) FROM handout WHERE consumer = ?1), 0)) WHERE name = ?1;

-- name: set_acked
-- recorded_batches.ack, recorded_batches.release and recorded_batches: batches up to n are settled; never moves back. Takes n, name. Index: primary key.
UPDATE consumer SET acked = max(acked, ?) WHERE name = ?;

-- name: set_floor
-- recorded_batches.prune: batches up to n are no longer kept; never moves back. Takes n, name. Index: primary key.
UPDATE consumer SET floor = max(floor, ?) WHERE name = ?;

-- name: open_batches
-- recorded_batches.ack, recorded_batches.release: unresolved batches, oldest first. Takes consumer, n. Index: handout_open.
SELECT n, token FROM handout INDEXED BY handout_open WHERE consumer = ? AND n <= ? AND state = 'open' ORDER BY n;

-- name: open_messages
-- recorded_batches.pending_behind: messages of batches up to n that are not resolved, counted as they were delivered. Takes consumer, n.
-- Index: handout_open.
SELECT ifnull(sum(messages), 0) FROM handout INDEXED BY handout_open WHERE consumer = ? AND n <= ? AND state = 'open';

-- name: open_messages_behind
-- recorded_batches.recorded_behind: messages of batches after n that are not resolved, counted as they were delivered. Takes consumer, n.
-- Index: handout_open.
SELECT ifnull(sum(messages), 0) FROM handout INDEXED BY handout_open WHERE consumer = ? AND n > ? AND state = 'open';

-- name: open_since
-- recorded_batches.standings: when the oldest open batch was made. Takes consumer. Index: handout_open.
SELECT min(made_at) FROM handout INDEXED BY handout_open WHERE consumer = ? AND state = 'open';

-- name: kept
-- recorded_batches.standings: one row per kept batch. Takes consumer. Index: primary key.
SELECT n, bytes FROM handout WHERE consumer = ? AND state <> 'released';

-- name: unresolved_messages
-- recorded_batches.standings: messages of open batches, without those that were settled one by one. Takes consumer. Indexes: handout_open, primary key of handout_rejected.
SELECT ifnull(sum(h.messages - (SELECT count(*) FROM handout_rejected r WHERE r.consumer = h.consumer AND r.n = h.n)), 0)
FROM handout h INDEXED BY handout_open WHERE h.consumer = ? AND h.state = 'open';

-- name: insert_batch
-- recorded_batches.record: an open batch. Takes consumer, n, token, messages, bytes, made_at.
INSERT INTO handout (consumer, n, state, token, messages, bytes, made_at) VALUES (?, ?, 'open', ?, ?, ?, ?);

-- name: state
-- recorded_batches.parts: state of a batch, which decides whether it can be read. Takes consumer, n. Index: primary key.
SELECT state FROM handout WHERE consumer = ? AND n = ?;

-- name: batch_of
-- operating and inspect: the batch that holds a lease. Takes consumer, token. Index: handout_open.
SELECT n FROM handout INDEXED BY handout_open WHERE consumer = ? AND state = 'open' AND token = ?;

-- name: resolve
-- recorded_batches.ack: mark a batch as acked; its blocks stay until they are pruned. Takes consumer, n. Index: primary key.
UPDATE handout SET state = 'acked' WHERE consumer = ? AND n = ?;

-- name: give_up
-- recorded_batches.release and recorded_batches: mark a batch as released. Takes consumer, n. Index: primary key.
UPDATE handout SET state = 'released', bytes = 0 WHERE consumer = ? AND n = ?;

-- name: released
-- recorded_batches.finish_release: released batches, some of whose leases may remain. Takes consumer. Index: primary key.
SELECT n, token FROM handout WHERE consumer = ? AND state = 'released' ORDER BY n;

-- name: insert_block
-- recorded_batches.record and recorded_batches: one block. Takes consumer, n, part, messages, fresh, data.
INSERT INTO handout_block VALUES (?, ?, ?, ?, ?, ?);

-- name: parts
-- recorded_batches.parts: by primary key; the blocks themselves are not read. Takes consumer, n.
SELECT part, messages, fresh FROM handout_block WHERE consumer = ? AND n = ? ORDER BY part;

-- name: block
-- recorded_batches.block: one block, in one seek. Takes consumer, n, part. Index: primary key.
SELECT data FROM handout_block WHERE consumer = ? AND n = ? AND part = ?;

-- name: add_rejected
-- operating: leave a message out when the batch is read. Takes consumer, n, arrival number.
INSERT INTO handout_rejected VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: rejected
-- recorded_batches.rejected: arrival numbers to leave out. Takes consumer, n. Index: primary key.
SELECT id FROM handout_rejected WHERE consumer = ? AND n = ? ORDER BY id;

-- name: too_old
-- recorded_batches.prune: a bounded step of the oldest that need not be kept. Takes consumer, n, limit. Index: primary key.
SELECT n FROM handout WHERE consumer = ? AND n <= ? AND state <> 'open' ORDER BY n LIMIT ?;

-- name: delete_batch
-- recorded_batches.prune. Takes consumer, n. Index: primary key.
DELETE FROM handout WHERE consumer = ? AND n = ?;

-- name: delete_blocks
-- recorded_batches.prune and release: all blocks of a batch. Takes consumer, n. Index: primary key.
DELETE FROM handout_block WHERE consumer = ? AND n = ?;

-- name: delete_rejected
-- recorded_batches.prune. Takes consumer, n. Index: primary key.
DELETE FROM handout_rejected WHERE consumer = ? AND n = ?;
