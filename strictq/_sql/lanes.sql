-- name: by_key
-- lanes.find: id of a key's lane. Index: the UNIQUE one on key.
SELECT id FROM lane WHERE key = ?;

-- name: get
-- lanes.get: by primary key.
SELECT id, key, last_seq, resolved, solo_to, charged_to, hold, held_at, active_at, done_token, done_kind, done_lo, done_hi, done_gaps
FROM lane WHERE id = ?;

-- name: insert
INSERT INTO lane (id, key, last_seq, resolved, active_at) VALUES {{ (?, ?, ?, ?, ?) }};

-- name: delete
DELETE FROM lane WHERE id = ?;

-- name: head
-- lanes.place: the lane's first unresolved message. Index: primary key.
SELECT seq, id, due FROM message WHERE lane = ? ORDER BY seq LIMIT 1;

-- name: tail
-- Newest seq of a lane that has messages, else NULL. Index: primary key.
SELECT max(seq) FROM message WHERE lane = ?;

-- name: lease
-- lanes.lease_of: by primary key.
SELECT lane, token, consumer, lo, hi, started, pending, leased_at, deadline, expired, ack_first, redrive, closed FROM lease WHERE lane = ?;

-- name: delete_lease
DELETE FROM lease WHERE lane = ?;

-- name: add_ready
INSERT INTO ready (position, lane, careful) VALUES {{ (?, ?, ?) }};

-- name: drop_ready
-- Index: the UNIQUE one on lane.
DELETE FROM ready WHERE lane = ?;

-- name: add_delayed
INSERT INTO delayed (lane, due) VALUES (?, ?);

-- name: drop_delayed
DELETE FROM delayed WHERE lane = ?;

-- name: resolve
-- lanes.remove: seqs left `message`. Takes highest seq, how many, now, lane.
UPDATE lane SET last_seq = max(last_seq, ?), resolved = resolved + ?, active_at = ? WHERE id = ?;

-- name: remember
-- lanes.remember: the last resolution, for a retried call.
UPDATE lane SET done_token = ?, done_kind = ?, done_lo = ?, done_hi = ?, done_gaps = ? WHERE id = ?;

-- name: set_solo
UPDATE lane SET solo_to = max(solo_to, ?), charged_to = max(charged_to, ?) WHERE id = ?;

-- name: set_charged
UPDATE lane SET charged_to = max(charged_to, ?) WHERE id = ?;

-- name: set_hold
UPDATE lane SET hold = ?, held_at = ? WHERE id = ?;

-- name: charge
-- lanes.charge: one more attempt for the started messages of a lease that ends.
UPDATE message SET attempts = attempts + 1, first_at = ifnull(first_at, (SELECT leased_at FROM lease WHERE lane = ?1))
WHERE lane = ?1 AND seq BETWEEN ?2 AND ?3;

-- name: reset_attempts
UPDATE message SET attempts = 0 WHERE lane = ? AND seq <= ? AND attempts > 0;

-- name: end_retry_delays
UPDATE message SET due = NULL WHERE lane = ? AND seq <= ? AND attempts > 0;

-- name: clear_charges
UPDATE lane SET charged_to = 0, solo_to = 0 WHERE id = ?;

-- name: message
SELECT seq, id, sent_at, due, expires, attempts, headers, size_hint, prepare_seconds, process_seconds, error, output, body
FROM message WHERE lane = ? AND seq = ?;

-- name: delete_message
DELETE FROM message WHERE lane = ? AND seq = ?;

-- name: delete_body
DELETE FROM body WHERE id = ?;

-- name: bury
-- lanes.bury: copy a message to the dead letters. Takes died_at, kind, reason, attempts, lane, seq.
INSERT INTO dead (lane, seq, id, sent_at, died_at, kind, reason, attempts, headers, size_hint, prepare_seconds, process_seconds, output, body)
SELECT lane, seq, id, sent_at, ?, ?, ?, ?, headers, size_hint, prepare_seconds, process_seconds, output, body
FROM message WHERE lane = ? AND seq = ?;

-- name: set_due
-- A retry's delay and error. Takes due, error, output (kept where NULL is given), lane, seq.
UPDATE message SET due = ?, error = ifnull(?, error), output = ifnull(?, output) WHERE lane = ? AND seq = ?;

-- name: set_output
UPDATE message SET output = ? WHERE lane = ? AND seq = ?;

-- name: move
-- lanes.move_aside: a keyless message to a lane of its own. Takes new lane, due, lane, seq.
INSERT INTO message (lane, seq, id, sent_at, due, expires, attempts, headers, size_hint, prepare_seconds, process_seconds, error, output, first_at, body)
SELECT ?, 1, id, sent_at, ?, expires, attempts, headers, size_hint, prepare_seconds, process_seconds, error, output, first_at, body
FROM message WHERE lane = ? AND seq = ?;

-- name: waiting_redrives
-- Dead letters that wait for the lane's lease to end: a bounded step. Index: dead_waiting.
SELECT seq FROM dead INDEXED BY dead_waiting WHERE lane = ? AND redrive = 1 ORDER BY seq LIMIT ?;

-- name: redrive
INSERT INTO message (lane, seq, id, sent_at, headers, size_hint, prepare_seconds, process_seconds, output, error, body)
SELECT lane, seq, id, sent_at, headers, size_hint, prepare_seconds, process_seconds, output, reason, body
FROM dead WHERE lane = ? AND seq = ?;

-- name: delete_dead
DELETE FROM dead WHERE lane = ? AND seq = ?;

-- name: unresolve
UPDATE lane SET resolved = resolved - ? WHERE id = ?;

-- name: lane_has_rows
-- lanes.forgettable: anything that must keep the lane alive.
SELECT EXISTS (SELECT 1 FROM message WHERE lane = ?1) OR EXISTS (SELECT 1 FROM dead WHERE lane = ?1)
    OR EXISTS (SELECT 1 FROM dedup WHERE lane = ?1) OR EXISTS (SELECT 1 FROM key_state WHERE lane = ?1)
    OR EXISTS (SELECT 1 FROM lease WHERE lane = ?1);

-- name: some_lanes
-- lanes.forget_idle: a bounded step from a random place. Index: primary key.
SELECT id, last_seq, hold, active_at FROM lane WHERE id >= ? ORDER BY id LIMIT 8;
