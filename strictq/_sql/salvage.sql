-- The writes of salvage into a new queue, and its queries there. A statement that names no index reads whole tables.

-- name: lane
-- salvage: rows as they were read.
INSERT INTO lane VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: message
-- salvage.save: a message as it was.
INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: body
-- salvage.save: a body that is stored out of line.
INSERT INTO body VALUES (?, ?);

-- name: dead
-- salvage.save: a dead letter as it was.
INSERT INTO dead VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: dedup
-- salvage.save: a dedup id.
INSERT INTO dedup VALUES (?, ?, ?, ?, ?);

-- name: key_state
-- salvage.save: a key's state.
INSERT INTO key_state VALUES (?, ?);

-- name: outbox
-- salvage: a send to another shard that has not arrived.
INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: inlet
-- salvage.save: the last arrival from an origin.
INSERT INTO inlet VALUES (?, ?);

-- name: history
-- salvage.save: a record of a finished message.
INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: applied
-- salvage.save: a batch of a writer.
INSERT INTO applied VALUES (?, ?, ?, ?, ?, ?);

-- name: consumer
-- handouts.copy: a named consumer.
INSERT INTO consumer VALUES (?, ?, ?, ?, ?);

-- name: handout
-- handouts.copy: a batch.
INSERT INTO handout VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: handout_rejected
-- handouts.copy: a message to leave out.
INSERT INTO handout_rejected VALUES (?, ?, ?);

-- name: lease
-- handouts.copy: a lease of a batch.
INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: handouts_unknown
-- handouts.settle: consumers without a row, and the last of their batches.
SELECT consumer, max(n) FROM handout WHERE consumer NOT IN (SELECT name FROM consumer) GROUP BY consumer;

-- name: handouts_of
-- handouts.settle: every batch of a consumer. Index: primary key.
SELECT n, state FROM handout WHERE consumer = ?;

-- name: handouts_beyond
-- handouts.settle: batches that are inconsistent with their consumer's row.
SELECT h.consumer, h.n FROM handout h JOIN consumer c ON c.name = h.consumer
WHERE h.n > c.last OR h.n <= c.floor OR (h.state = 'open') <> (h.n > c.acked);

-- name: handouts_short
-- handouts.settle: open batches with missing messages.
SELECT DISTINCT h.consumer, h.n FROM handout h JOIN lease e ON e.token = h.token AND e.deadline = 4611686018427387904
WHERE h.state = 'open' AND e.pending <> (SELECT count(*) FROM message m WHERE m.lane = e.lane AND m.seq BETWEEN e.lo AND e.hi);

-- name: empty_handout
-- handouts: a released batch has no messages. Takes consumer, n. Index: primary key.
UPDATE handout SET messages = 0 WHERE consumer = ? AND n = ?;

-- name: drop_blocks
-- handouts.settle: delete blocks of released batches, and blocks without a batch. Reads all.
DELETE FROM handout_block WHERE (consumer, n) NOT IN (SELECT consumer, n FROM handout WHERE state <> 'released');

-- name: drop_rejected
-- handouts.settle: delete rejected messages of batches that can no longer be read. Reads all.
DELETE FROM handout_rejected WHERE (consumer, n) NOT IN (SELECT consumer, n FROM handout WHERE state <> 'released');

-- name: drop_leases
-- handouts.settle: delete leases of batches that are not open. Reads all.
DELETE FROM lease WHERE (consumer, token) NOT IN (SELECT consumer, token FROM handout WHERE state = 'open');

-- name: held_lanes
-- handouts.settle: lanes that stay leased.
SELECT lane FROM lease;

-- name: lane_counts
-- salvage: lane, its messages, the newest of these.
SELECT l.id, count(m.seq), ifnull(max(m.seq), 0) FROM lane l LEFT JOIN message m ON m.lane = l.id GROUP BY l.id;

-- name: set_counts
-- salvage: set a lane's counts to those of its saved messages. Takes last_seq, resolved, lane. Index: rowid.
UPDATE lane SET last_seq = ?, resolved = ? WHERE id = ?;

-- name: roots
-- salvage: in a new shard, where each table begins; a shard's own tables are always laid out in this order.
SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0;

-- name: columns
-- salvage: columns of one of the program's own tables; hidden: 2 and 3 are generated columns.
SELECT hidden, pk FROM pragma_table_xinfo(?) ORDER BY cid;

-- name: without_rowid
-- salvage: whether a program's table has rowids to keep. Takes its name.
SELECT wr FROM pragma_table_list(?) WHERE schema = 'main';
