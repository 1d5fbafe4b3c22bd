-- name: schema
-- In queue.db, from the first time that the queue is replicated: its history and the target that it ships to.
CREATE TABLE replication (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    history_id TEXT    NOT NULL,                   -- a restored queue has another one
    term       INTEGER NOT NULL,                   -- of this history, which segments carry
    mode       TEXT    NOT NULL                    -- fenced: the replica was promoted; waiting: restored, and not put in service yet
               CHECK (mode IN ('off', 'async', 'confirmed', 'fenced', 'waiting')),
    target     TEXT    NOT NULL,                   -- '': none
    settings   TEXT    NOT NULL,                   -- JSON object
    floor_time INTEGER NOT NULL                    -- queue time of the cut that the queue was restored from; time goes on behind it
) STRICT;
-- The histories that this one continues, oldest first, with the position at which it left each.
CREATE TABLE fork (
    history_id TEXT    PRIMARY KEY,
    term       INTEGER NOT NULL,
    at         INTEGER NOT NULL,                   -- queue time of the cut
    shards     TEXT    NOT NULL                    -- JSON array: of each shard [the last arrival number, the last one of its outbox]
) STRICT, WITHOUT ROWID;

-- name: has_table
-- queue_db.set_replication: whether the queue was ever replicated. Scans the schema.
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'replication';

-- name: read
-- queue_db.read: the one row. Index: primary key.
SELECT history_id, term, mode, target, settings, floor_time FROM replication WHERE one = 1;

-- name: write
-- queue_db.set_replication: the one row. Takes every column after `one`.
INSERT INTO replication VALUES (1, ?, ?, ?, ?, ?, ?)
ON CONFLICT (one) DO UPDATE SET history_id = excluded.history_id, term = excluded.term, mode = excluded.mode,
    target = excluded.target, settings = excluded.settings, floor_time = excluded.floor_time;

-- name: raise_version
-- queue_db.set_replication: raise the version that every write compares, so that each process reads the settings again.
-- Returns the new version. The table has one row.
UPDATE queue SET config_version = config_version + 1 RETURNING config_version;

-- name: restored
-- queue_db.set_epoch: in a queue that continues another queue's state. Takes epoch, boot_id.
UPDATE queue SET epoch = ?, boot_id = ?;

-- name: promoted
-- rebuild.Rebuild: in a living replica's queue.db that becomes a queue in this boot. Takes epoch, boot_id, time_offset. One row.
UPDATE queue SET epoch = ?, boot_id = ?, time_offset = ?;

-- name: forks
-- queue_db.forks: all of them.
SELECT history_id, term, at, shards FROM fork;

-- name: add_fork
-- queue_db.set_replication: with the new history. Takes the columns in order.
INSERT INTO fork VALUES (?, ?, ?, ?) ON CONFLICT (history_id) DO NOTHING;
