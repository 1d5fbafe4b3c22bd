-- The floor of measurements: what is left of a queue when everything that makes it one is taken away. See strictq/bench/floor.py.

-- name: page_size
PRAGMA page_size = 4096;

-- name: wal
PRAGMA journal_mode = wal;

-- name: full
PRAGMA synchronous = full;

-- name: process
PRAGMA synchronous = normal;

-- name: cache
PRAGMA cache_size = -65536;

-- name: schema
CREATE TABLE message (id INTEGER PRIMARY KEY AUTOINCREMENT, lane INT, seq INT, sent_at INT, body BLOB);

-- name: insert
INSERT INTO message (lane, seq, sent_at, body) VALUES (?, ?, ?, ?);

-- name: read
SELECT id, lane, seq, sent_at, body FROM message WHERE id > ? AND id <= ? ORDER BY id;

-- name: delete
DELETE FROM message WHERE id > ? AND id <= ?;

-- name: empty
DELETE FROM message;

-- name: checkpoint
PRAGMA wal_checkpoint(restart);

-- name: begin
BEGIN IMMEDIATE;

-- name: commit
COMMIT;
