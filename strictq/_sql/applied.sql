-- name: schema
-- The batches of writers of whole batches (a Spark query or job), so that none is written twice. Each batch has one row in every shard
-- that it reached. The row in the writer's home shard also describes the batch and records whether it is complete. If a stream wrote it
-- in foreachBatch, the home shard has a second row, whose `writer` is 'by <length of the writer> <writer> <query> <execution>', and
-- whose `batch` is that of the query. Older versions ignore such rows.
CREATE TABLE applied (
    writer TEXT    NOT NULL,
    batch  INTEGER NOT NULL,
    parts  INTEGER NOT NULL CHECK (parts >= 0),    -- transactions of the batch that are committed in this shard
    rows   INTEGER,                                -- in the home shard: messages of the whole batch
    files  TEXT,                                   -- in the home shard, until the batch is whole: JSON, what it consists of
    until  INTEGER,                                -- queue time after which a job may be forgotten; of a query the newest batches are kept
    PRIMARY KEY (writer, batch)
) STRICT, WITHOUT ROWID;
CREATE INDEX applied_until ON applied (until) WHERE until IS NOT NULL;
CREATE INDEX applied_open ON applied (writer) WHERE files IS NOT NULL;

-- name: find
-- applied: one batch. Takes writer, batch. Index: primary key.
SELECT parts, rows, files FROM applied WHERE writer = ? AND batch = ?;

-- name: newest
-- applied: the newest batch of a writer. Takes writer. Index: primary key.
SELECT max(batch) FROM applied WHERE writer = ?;

-- name: decide
-- applied.decide and applied.put_whole: record a batch as decided, before its first part. Takes writer, batch, rows, files, until.
INSERT INTO applied (writer, batch, parts, rows, files, until) VALUES (?, ?, 0, ?, ?, ?);

-- name: advance
-- applied.put: this shard has one more part. Takes writer, batch, parts, until.
INSERT INTO applied (writer, batch, parts, until) VALUES (?, ?, ?, ?) ON CONFLICT (writer, batch) DO UPDATE SET parts = excluded.parts;

-- name: origin
-- applied: which batch of a stream wrote the newest batch of a writer. Takes 'by <length> <writer> ' twice. Index: primary key.
SELECT writer, batch FROM applied WHERE writer > ? AND writer < ? || char(1114111);

-- name: set_files
-- applied.finish and applied.use: the files of a batch; NULL: it is complete. Takes files, writer, batch. Index: primary key.
UPDATE applied SET files = ? WHERE writer = ? AND batch = ?;

-- name: forget_batches
-- applied: batches that are no longer kept. Takes writer, last batch to forget. Index: primary key.
DELETE FROM applied WHERE writer = ? AND batch <= ? AND files IS NULL;

-- name: outlived
-- applied: a bounded step of forgetting. Takes now. Index: applied_until.
SELECT writer, batch FROM applied WHERE until <= ? AND files IS NULL ORDER BY until LIMIT 8;

-- name: delete
-- applied: forget one batch. Takes writer, batch. Index: primary key.
DELETE FROM applied WHERE writer = ? AND batch = ?;

-- name: open_batches
-- applied: batches that are decided and not complete yet. Index: applied_open.
SELECT writer, batch FROM applied WHERE files IS NOT NULL ORDER BY writer, batch;
