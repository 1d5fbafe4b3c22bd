-- What salvage reads and writes in a new shard, beside the rows that it copies. A statement that names no index reads whole tables.

-- name: roots
-- reading: in a new shard, where each table begins; a shard's own tables are always laid out in this order.
SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0;

-- name: some_messages
-- filling: messages in order of arrival. Takes the last one that was read, and how many. Index: rowid.
SELECT id, key, seq, due, expires FROM message WHERE id > ? ORDER BY id LIMIT ?;

-- name: by_key
-- filling: the messages of each lane.
SELECT key, seq, id FROM message WHERE id > 0 ORDER BY key, seq;

-- name: drop_message
-- filling: a message that is resolved. Takes its arrival number. Index: rowid.
DELETE FROM message WHERE id = ?;

-- name: dead_ids
-- filling: the messages that are dead letters.
SELECT id FROM dead;

-- name: dead_without_message
-- filling: dead letters whose messages are lost.
SELECT key, id, seq FROM dead WHERE id NOT IN (SELECT id FROM message);

-- name: attempts
-- filling: how often messages were attempted.
SELECT id, attempts FROM trouble WHERE attempts > 0;

-- name: drop_trouble
-- filling: what attempts left of messages that do not exist any more.
DELETE FROM trouble WHERE id NOT IN (SELECT id FROM message);

-- name: add_consumer
-- filling.settle_recorded_batches: a consumer whose row is lost. Takes its name, and its newest batch twice.
INSERT INTO consumer VALUES (?, 0, ?, ?, 0);

-- name: add_released
-- filling.settle_recorded_batches: a batch whose row is lost. Takes consumer, n.
INSERT INTO handout VALUES (?, ?, 'released', 0, 0, 0, 0);

-- name: recorded_batches_unknown
-- filling.settle_recorded_batches: consumers without a row, and the last of their batches.
SELECT consumer, max(n) FROM handout WHERE consumer NOT IN (SELECT name FROM consumer) GROUP BY consumer;

-- name: recorded_batches_of
-- filling.settle_recorded_batches: every batch of a consumer. Index: primary key.
SELECT n, state FROM handout WHERE consumer = ?;

-- name: recorded_batches_beyond
-- filling.settle_recorded_batches: batches that are inconsistent with their consumer's row.
SELECT h.consumer, h.n FROM handout h JOIN consumer c ON c.name = h.consumer
WHERE h.n > c.last OR h.n <= c.floor OR (h.state = 'open') <> (h.n > c.acked);

-- name: empty_recorded_batch
-- filling: a released batch has no messages. Takes consumer, n. Index: primary key.
UPDATE handout SET messages = 0 WHERE consumer = ? AND n = ?;

-- name: drop_blocks
-- filling.settle_recorded_batches: delete blocks of released batches, and blocks without a batch. Reads all.
DELETE FROM handout_block WHERE (consumer, n) NOT IN (SELECT consumer, n FROM handout WHERE state <> 'released');

-- name: drop_rejected
-- filling.settle_recorded_batches: delete rejected messages of batches that can no longer be read. Reads all.
DELETE FROM handout_rejected WHERE (consumer, n) NOT IN (SELECT consumer, n FROM handout WHERE state <> 'released');

-- name: columns
-- salvage: columns of one of the program's own tables; hidden: 2 and 3 are generated columns.
SELECT hidden, pk FROM pragma_table_xinfo(?) ORDER BY cid;

-- name: without_rowid
-- salvage: whether a program's table has rowids to keep. Takes its name.
SELECT wr FROM pragma_table_list(?) WHERE schema = 'main';
