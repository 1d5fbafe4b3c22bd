-- name: schema
-- queue.db, format 1: identity, layout and settings of the queue. Rollback journal, synchronous EXTRA; opened, read and closed.
CREATE TABLE queue (
    one              INTEGER PRIMARY KEY CHECK (one = 1),
    queue_id         TEXT    NOT NULL,
    created_at       INTEGER NOT NULL,             -- microseconds since 1970
    durability       TEXT    NOT NULL CHECK (durability IN ('full', 'process')),
    config           TEXT    NOT NULL,             -- JSON object, every field of QueueConfig
    config_version   INTEGER NOT NULL,
    epoch            INTEGER NOT NULL,             -- raised at the first open after each boot
    boot_id          TEXT    NOT NULL,             -- of the boot in which the epoch was raised
    time_offset      INTEGER NOT NULL              -- queue time = boot clock + this, microseconds
) STRICT;
CREATE TABLE topology (
    shard   INTEGER PRIMARY KEY,
    file    TEXT NOT NULL UNIQUE,
    hash_lo TEXT NOT NULL,                         -- 16 hex digits, first hash of the range
    hash_hi TEXT NOT NULL                          -- 16 hex digits, last hash of the range
) STRICT;
CREATE TABLE app_schema (
    id  INTEGER PRIMARY KEY,
    sql TEXT NOT NULL UNIQUE                       -- given to app_schema(), run once in every shard, in this order
) STRICT;
CREATE TABLE estimate (
    stage TEXT PRIMARY KEY,                        -- of a worker: "prepare" or "process"
    model TEXT NOT NULL                            -- JSON object: what it learned of durations
) STRICT;

-- name: insert_queue
-- queue_db.build: the one row of a new queue, at version 1 and epoch 1.
-- Takes queue_id, created_at, durability, config, boot_id, time_offset.
INSERT INTO queue VALUES (1, ?, ?, ?, ?, 1, 1, ?, ?);

-- name: insert_topology
-- queue_db.build: one row a shard. Takes shard, file, hash_lo, hash_hi.
INSERT INTO topology VALUES (?, ?, ?, ?);

-- name: raise_version
-- queue_db.add_shard: the version that every write compares, so that each process reads queue.db again. The table has one row.
UPDATE queue SET config_version = config_version + 1;

-- name: read_queue
-- queue_db.read: the queue's row.
SELECT queue_id, durability, config, config_version, epoch, boot_id, time_offset FROM queue;

-- name: read_topology
-- queue_db.read: the ranges, in the order of the shards' numbers. Index: primary key.
SELECT shard, file, hash_lo, hash_hi FROM topology ORDER BY shard;

-- name: read_app_schema
-- queue_db.app_schema: the texts with a larger id, in the order in which shards run them. Takes id. Index: primary key.
SELECT id, sql FROM app_schema WHERE id > ? ORDER BY id;

-- name: add_app_schema
-- queue_db.add_app_schema: record a text; a known one keeps its position. Takes the text.
INSERT INTO app_schema (sql) VALUES (?) ON CONFLICT (sql) DO NOTHING;

-- name: raise_epoch
-- queue_db.raise_epoch: the first open for writing after a boot. Takes boot_id, time_offset.
UPDATE queue SET epoch = epoch + 1, boot_id = ?, time_offset = ?;

-- name: begin_at_epoch
-- queue_db.begin_at_epoch: in a new queue that continues a damaged one. Takes epoch.
UPDATE queue SET epoch = ?;

-- name: set_config
-- queue_db.set_config: compare and set.
-- Takes config, expected version; returns the new version, or no row if another process changed it first. The table has one row.
UPDATE queue SET config = ?, config_version = config_version + 1 WHERE config_version = ? RETURNING config_version;

-- name: read_estimates
-- queue_db.estimates: the cost models that workers learned, by stage. Index: primary key.
SELECT stage, model FROM estimate ORDER BY stage;

-- name: set_estimate
-- queue_db.set_estimates: keep one stage's model. Takes stage, model.
INSERT INTO estimate VALUES (?, ?) ON CONFLICT (stage) DO UPDATE SET model = excluded.model;

-- name: reset_estimates
-- queue_db.set_estimates: forget every stage.
DELETE FROM estimate;
