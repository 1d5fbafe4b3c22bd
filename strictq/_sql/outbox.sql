-- name: insert
-- outbox.put: a send to another shard, in the transaction that makes it. Takes the columns in order.
INSERT INTO outbox (destination, id, key, sent_at, due, expires, dedup_id, headers, size_hint, prepare_seconds, process_seconds, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: any
-- outbox.waits: whether there is a row. Primary key seek.
SELECT 1 FROM outbox LIMIT 1;

-- name: destinations
-- outbox.destinations: the shards with pending sends. Skips along the primary key.
SELECT DISTINCT destination FROM outbox ORDER BY destination;

-- name: waiting
-- outbox.waiting: the oldest of one destination. Takes destination, limit. Index: primary key.
SELECT id, key, sent_at, due, expires, dedup_id, headers, size_hint, prepare_seconds, process_seconds, body
FROM outbox WHERE destination = ? ORDER BY id LIMIT ?;

-- name: in_order
-- outbox.in_order: the oldest of all destinations. Takes limit. Reads the table: sends wait for moments.
SELECT destination, id, key, sent_at, due, expires, dedup_id, headers, size_hint, prepare_seconds, process_seconds, body
FROM outbox ORDER BY id LIMIT ?;

-- name: delete
-- outbox.forget: sends that the destination has durably. Takes destination, last id. Index: primary key.
DELETE FROM outbox WHERE destination = ? AND id <= ?;

-- name: high_water
-- outbox.arrive: the last id that arrived from an origin. Takes its incarnation. Index: primary key.
SELECT high_water FROM inlet WHERE origin = ?;

-- name: arrived
-- moving: which sends of which shards have arrived.
SELECT origin, high_water FROM inlet WHERE origin NOT GLOB '*:lanes';

-- name: raise_high_water
-- moving: the same, of a shard that lanes came from. Takes the name and the number of the send.
INSERT INTO inlet (origin, high_water) VALUES (?, ?)
ON CONFLICT (origin) DO UPDATE SET high_water = max(high_water, excluded.high_water);

-- name: set_high_water
-- outbox.arrive: record it in the transaction of the arriving messages. Takes incarnation, id.
INSERT INTO inlet (origin, high_water) VALUES (?, ?) ON CONFLICT (origin) DO UPDATE SET high_water = excluded.high_water;
