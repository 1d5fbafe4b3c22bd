-- The rules of check(), which is run by hand: a statement that names no index reads whole tables.

-- name: integrity
-- check, salvage and queue_db.audit: SQLite's own findings, 20 at most; one row 'ok' if there are none.
PRAGMA integrity_check(20);

-- name: outbox_nowhere
-- checking, rule outbox: sends to a shard that does not exist. Takes the number of shards.
SELECT destination, id FROM outbox WHERE destination NOT BETWEEN 0 AND ?1 - 1;

-- name: inlets
-- check, rule inlet: the last arrivals from other shards, to compare with their sends.
SELECT origin, high_water FROM inlet;

-- name: recorded_batch_consumers
-- checking, rule recorded_batch: a batch that is inconsistent with its consumer's row.
SELECT h.consumer, h.n, h.state, c.last, c.acked, c.floor FROM handout h LEFT JOIN consumer c ON c.name = h.consumer
WHERE c.name IS NULL OR h.n > c.last OR h.n <= c.floor OR (h.state = 'open') <> (h.n > c.acked);

-- name: recorded_batch_blocks
-- checking and filling, rule recorded_batch: the counts in a batch's row, and those of its blocks.
SELECT h.consumer, h.n, h.state, h.messages, h.bytes, count(b.part), ifnull(sum(b.messages), 0), ifnull(sum(length(b.data)), 0),
       ifnull(max(b.part), -1) FROM handout h LEFT JOIN handout_block b ON b.consumer = h.consumer AND b.n = h.n
GROUP BY h.consumer, h.n;

-- name: recorded_batch_orphans
-- checking, rule recorded_batch: blocks and rejected messages without a batch.
SELECT 'block', consumer, n FROM handout_block b
WHERE NOT EXISTS (SELECT 1 FROM handout h WHERE h.consumer = b.consumer AND h.n = b.n)
UNION SELECT 'rejected message', consumer, n FROM handout_rejected r
WHERE NOT EXISTS (SELECT 1 FROM handout h WHERE h.consumer = r.consumer AND h.n = r.n);
