-- Reports on shards of format 3, checks of them, and what they forget. Nothing here changes what lanes hold.

-- name: dead_with
-- checking and looking: the lane of a dead letter, which may be parked. Takes its arrival number. Index: dead_id.
SELECT key FROM dead WHERE id = ?;

-- name: dead_letter
-- looking: one dead letter. Takes key and seq. Index: dead_seq.
SELECT id, reason FROM dead WHERE key = ? AND seq = ?;

-- name: dead_count
-- looking: how many a lane has. Takes its key. Index: primary key.
SELECT count(*) FROM dead WHERE key = ?;

-- name: dead_letters
-- looking.dead_letters: of the whole shard, with their messages. Takes limit. Index: primary key of dead, rowids.
SELECT 0, d.key, d.seq, d.id, m.body, m.opts, d.kind, d.reason, ifnull(t.attempts, 0), m.sent_at, d.died_at, t.errors, t.output
FROM dead d CROSS JOIN message m ON m.id = d.id LEFT JOIN trouble t ON t.id = d.id ORDER BY d.key, d.id LIMIT ?;

-- name: dead_letters_of
-- looking.dead_letters: of one lane. Takes key and limit. Index: primary key of dead, rowids.
SELECT 0, d.key, d.seq, d.id, m.body, m.opts, d.kind, d.reason, ifnull(t.attempts, 0), m.sent_at, d.died_at, t.errors, t.output
FROM dead d CROSS JOIN message m ON m.id = d.id LEFT JOIN trouble t ON t.id = d.id WHERE d.key = ? ORDER BY d.id LIMIT ?;

-- name: leased_lanes
-- counting: lanes that were leased when their rows were written. Index: lane_leased.
SELECT key FROM lane INDEXED BY lane_leased WHERE token IS NOT NULL;

-- name: delayed_lanes
-- counting: the same for delayed lanes. Index: lane_due.
SELECT key FROM lane INDEXED BY lane_due WHERE due IS NOT NULL;

-- name: held_lanes
-- counting: the same for held lanes. Index: lane_held.
SELECT key FROM lane INDEXED BY lane_held WHERE held_at IS NOT NULL;

-- name: retried_lanes
-- counting: ready lanes at rest whose place is not that of an arrival. Takes how many to examine, and a mask. Index: lane_ready.
SELECT key FROM (SELECT position, key FROM lane INDEXED BY lane_ready WHERE position IS NOT NULL ORDER BY position LIMIT ?)
WHERE position & ? <> 0;

-- name: lanes_with_messages
-- counting: lanes that had messages when their rows were written. Takes the last key that was read, and how many. Index: primary key.
SELECT key FROM lane WHERE key > ? AND (first <= tail OR opts IS NOT NULL) ORDER BY key LIMIT ?;

-- name: sent_at
-- counting: when a message was sent. Takes its arrival number. Index: rowid.
SELECT sent_at FROM message WHERE id = ?;
