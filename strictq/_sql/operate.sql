-- name: dead_letters
-- operate: of the whole shard. Takes limit. Index: primary key of dead.
SELECT d.lane, l.key, d.seq, d.id, ifnull(d.body, b.data), d.headers, d.kind, d.reason, d.attempts, d.sent_at, d.died_at,
       d.errors, d.output
FROM dead d CROSS JOIN lane l ON l.id = d.lane LEFT JOIN body b ON d.body IS NULL AND b.id = d.id
ORDER BY d.lane, d.seq LIMIT ?;

-- name: dead_letters_of
-- operate.dead_letters: of one lane, in order of seq. Takes lane, limit. Index: primary key.
SELECT d.lane, l.key, d.seq, d.id, ifnull(d.body, b.data), d.headers, d.kind, d.reason, d.attempts, d.sent_at, d.died_at,
       d.errors, d.output
FROM dead d CROSS JOIN lane l ON l.id = d.lane LEFT JOIN body b ON d.body IS NULL AND b.id = d.id
WHERE d.lane = ? ORDER BY d.seq LIMIT ?;

-- name: dead_of
-- operate.redrive: dead letters of a lane that are not marked for redrive yet. Takes lane, limit. Index: primary key.
SELECT seq FROM dead WHERE lane = ? AND redrive = 0 ORDER BY seq LIMIT ?;

-- name: is_dead
-- operate.redrive: whether there is such a dead letter, and whether it waits already. Takes lane, seq. Index: primary key.
SELECT redrive FROM dead WHERE lane = ? AND seq = ?;

-- name: lanes_with_dead
-- operate.lanes_with_dead and operate.next_dead_lane: a walk over lanes in bounded steps. Takes the lane before, limit.
-- Index: primary key of dead.
SELECT DISTINCT lane FROM dead WHERE lane > ? ORDER BY lane LIMIT ?;

-- name: forget_redrives
-- operate: a lease for whose end no dead letter waits any more. Takes lane. Index: dead_waiting.
UPDATE lease SET redrive = 0
WHERE lane = ?1 AND redrive = 1 AND NOT EXISTS (SELECT 1 FROM dead INDEXED BY dead_waiting WHERE lane = ?1 AND redrive = 1);

-- name: wait_redrive
-- operate.redrive: mark it to be redriven when the lane's lease ends. Takes lane, seq. Index: primary key.
UPDATE dead SET redrive = 1 WHERE lane = ? AND seq = ?;

-- name: lease_waits
-- operate.redrive: mark the lease as having redrives at its end. Takes lane. Index: primary key.
UPDATE lease SET redrive = 1 WHERE lane = ?;

-- name: dead_rows
-- operate.purge_dead: a bounded step. Takes lane, limit. Index: primary key.
SELECT seq, id, body IS NULL FROM dead WHERE lane = ? ORDER BY seq LIMIT ?;

-- name: waiting_rows
-- operate.purge_lane: dead letters to be redriven at the end of their lane's lease: a bounded step. Takes lane, limit.
-- Index: dead_waiting.
SELECT seq, id, body IS NULL FROM dead INDEXED BY dead_waiting WHERE lane = ? AND redrive = 1 ORDER BY seq LIMIT ?;

-- name: next_waiting_lane
-- operate.next_waiting_lane: the next lane with such dead letters. Takes the lane before. Index: dead_waiting.
SELECT lane FROM dead INDEXED BY dead_waiting WHERE redrive = 1 AND lane > ? ORDER BY lane LIMIT 1;

-- name: delete_dead_to
-- operate.purge_dead: the step just read. Takes lane, last seq. Index: primary key.
DELETE FROM dead WHERE lane = ? AND seq <= ?;

-- name: messages_outside
-- operate.purge_lane: a bounded step of a lane's messages that its lease (lo to hi) does not hold. Takes lane, lo, hi, limit.
-- Index: primary key.
SELECT seq, id, body IS NULL FROM message WHERE lane = ?1 AND seq NOT BETWEEN ?2 AND ?3 ORDER BY seq LIMIT ?4;

-- name: delete_dedup_of
-- operate.purge_lane: a bounded step. Takes lane, limit. Index: primary key.
DELETE FROM dedup WHERE lane = ?1 AND dedup_id IN (SELECT dedup_id FROM dedup WHERE lane = ?1 LIMIT ?2);

-- name: next_dedup_lane
-- operate: the next lane that has dedup ids, in one seek. Takes the lane before. Index: primary key.
SELECT lane FROM dedup WHERE lane > ? ORDER BY lane LIMIT 1;

-- name: held_lanes
-- operate.release_keyless: held lanes of keyless messages. Index: lane_held.
SELECT id, key FROM lane WHERE hold IS NOT NULL;
