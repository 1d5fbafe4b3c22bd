-- name: held
-- operating: held lanes at rest, in the order of keys. Takes the last key that was read, and how many. Index: lane_held.
SELECT key FROM lane INDEXED BY lane_held WHERE held_at IS NOT NULL AND key > ? ORDER BY key LIMIT ?;

-- name: with_messages
-- operating: lanes at rest, and whether they have messages or rare state. Takes the last key that was read, and how many.
-- Index: primary key.
SELECT key, first <= tail OR opts IS NOT NULL FROM lane WHERE key > ? ORDER BY key LIMIT ?;

-- name: leased_by
-- expiring: lanes at rest that these tokens lease. Takes the tokens. Reads the leases at rest.
SELECT key FROM lane INDEXED BY lane_leased WHERE token IS NOT NULL AND token IN (SELECT value FROM carray(?));

-- name: failure_delays
-- operating: lanes at rest whose heads wait because they failed, in the order of their ends. Takes due and key of the last one that
-- was read, and how many. Index: lane_due.
SELECT due, key FROM lane INDEXED BY lane_due WHERE due IS NOT NULL AND (due, key) > (?1, ?2) AND due & 63 = 63
ORDER BY due, key LIMIT ?3;

-- name: dead_after
-- dead: dead letters of the whole shard. Takes key and arrival number of the last one that was read, and how many. Index: primary key.
SELECT key, id, seq, reason FROM dead WHERE (key, id) > (?, ?) ORDER BY key, id LIMIT ?;

-- name: dead_of
-- dead: dead letters of a lane, in the order of their seqs. Takes its key, and how many. Index: primary key.
SELECT key, id, seq, reason FROM dead WHERE key = ? ORDER BY id LIMIT ?;

-- name: dead_with
-- dead: those of a lane with these seqs. Takes its key, and the seqs. Index: primary key; reads the dead letters of the lane.
SELECT key, id, seq, reason FROM dead WHERE key = ? AND seq IN (SELECT value FROM carray(?)) ORDER BY id;

-- name: dedups_after
-- dedup: ids of the whole shard. Takes key and id of the last one that was read, and how many. Index: primary key.
SELECT key, dedup_id FROM dedup WHERE (key, dedup_id) > (?, ?) ORDER BY key, dedup_id LIMIT ?;

-- name: dedups_of
-- dedup: ids of a lane. Takes its key, and how many. Index: primary key.
SELECT key, dedup_id FROM dedup WHERE key = ? ORDER BY dedup_id LIMIT ?;

-- name: drop_wide_dedup
-- dedup: the entry of an id in those of the whole queue, if it is of this lane. Takes id, and the lane's key. Index: primary key.
DELETE FROM dedup WHERE key = x'' AND dedup_id = ? AND of = ?;
