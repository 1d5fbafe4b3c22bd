-- The floor of measurements: the same work on a plain table, without the features of a queue. See strictq/bench/floor.py.

-- name: page_size
-- floor: the page size of strictq's files.
PRAGMA page_size = 4096;

-- name: wal
-- floor: WAL mode. Returns a row, which must be read before the next statement runs.
PRAGMA journal_mode = wal;

-- name: full
-- floor: the setting of durability 'full'.
PRAGMA synchronous = full;

-- name: process
-- floor: the setting of durability 'process'.
PRAGMA synchronous = normal;

-- name: cache
-- floor: 64 MiB of page cache.
PRAGMA cache_size = -65536;

-- name: schema
-- floor: the plainest table that can hold the same messages. AUTOINCREMENT would write a second page with each commit.
CREATE TABLE message (id INTEGER PRIMARY KEY, lane INT, seq INT, sent_at INT, body BLOB);

-- name: insert
-- floor: append one message.
INSERT INTO message (lane, seq, sent_at, body) VALUES (?, ?, ?, ?);

-- name: read
-- floor: one batch. Takes the ids before its first and of its last message. Index: rowid.
SELECT id, lane, seq, sent_at, body FROM message WHERE id > ? AND id <= ? ORDER BY id;

-- name: delete
-- floor: one batch, as it was read. Index: rowid.
DELETE FROM message WHERE id > ? AND id <= ?;

-- name: empty
-- floor: start a round with an empty table. Takes the id of the row that stays. Index: rowid.
DELETE FROM message WHERE id > ?;

-- name: checkpoint
-- floor: between rounds, so that no round pays for the previous one.
PRAGMA wal_checkpoint(restart);

-- name: begin
-- floor: one transaction a batch.
BEGIN IMMEDIATE;

-- name: commit
-- floor: the end of that transaction.
COMMIT;
