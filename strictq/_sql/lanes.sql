-- name: by_key
-- lanes.find, inspect, operate and scan: id of a key's lane. Takes key. Index: the UNIQUE one on key.
SELECT id FROM lane WHERE key = ?;

-- name: get
-- lanes.get, inspect and settle: by primary key. Takes id.
SELECT id, key, last_seq, resolved, solo_to, charged_to, hold, held_at, active_at, done_token, done_kind, done_lo, done_hi, done_gaps
FROM lane WHERE id = ?;

-- name: insert
-- lanes.create_many, cooling: new lanes, many rows a statement. Takes id, key, last_seq, resolved, active_at.
INSERT INTO lane (id, key, last_seq, resolved, active_at) VALUES {{ (?, ?, ?, ?, ?) }};

-- name: delete
-- lanes: forget a lane that is empty. Takes id. Index: rowid.
DELETE FROM lane WHERE id = ?;

-- name: head
-- lanes.place: the lane's first unresolved message. Takes lane. Index: primary key.
SELECT seq, id, due FROM message WHERE lane = ? ORDER BY seq LIMIT 1;

-- name: tail
-- lanes.tail and inspect: newest seq of a lane that has messages, else NULL. Takes lane. Index: primary key.
SELECT max(seq) FROM message WHERE lane = ?;

-- name: lease
-- lanes.lease_of and inspect: by primary key. Takes lane.
SELECT lane, token, consumer, lo, hi, started, pending, leased_at, deadline, expired, ack_first, redrive, closed FROM lease WHERE lane = ?;

-- name: delete_lease
-- lanes, handout.settle_one: a lease ends. Takes lane. Index: primary key.
DELETE FROM lease WHERE lane = ?;

-- name: add_ready
-- lanes, cooling: list lanes as ready, many rows a statement. Takes position, lane, careful.
INSERT INTO ready (position, lane, careful) VALUES {{ (?, ?, ?) }};

-- name: drop_ready
-- lanes.unlist: a lane that is listed as ready. Takes lane. Index: the UNIQUE one on lane.
DELETE FROM ready WHERE lane = ?;

-- name: add_delayed
-- lanes and settle: list a lane whose head is not due. Takes lane, due.
INSERT INTO delayed (lane, due) VALUES (?, ?);

-- name: drop_delayed
-- lanes.unlist and sweeps.wake_delayed. Takes lane. Index: primary key.
DELETE FROM delayed WHERE lane = ?;

-- name: resolve
-- lanes.remove: seqs left `message`. Takes highest seq, how many, now, lane. Index: rowid.
UPDATE lane SET last_seq = max(last_seq, ?), resolved = resolved + ?, active_at = ? WHERE id = ?;

-- name: remember
-- resolution.remember: the last resolution, for a retried call. Takes token, kind, first and last seq, gaps, id. Index: rowid.
UPDATE lane SET done_token = ?, done_kind = ?, done_lo = ?, done_hi = ?, done_gaps = ? WHERE id = ?;

-- name: set_solo
-- lanes.retake and salvage: deliver one message at a time up to a seq, and look for attempts up to a seq. Takes both, lane. Index: rowid.
UPDATE lane SET solo_to = max(solo_to, ?), charged_to = max(charged_to, ?) WHERE id = ?;

-- name: set_charged
-- lanes and settle: no message behind this seq has attempts. Takes seq, lane. Index: rowid.
UPDATE lane SET charged_to = max(charged_to, ?) WHERE id = ?;

-- name: set_hold
-- lanes and operate: hold a lane, or end its hold with NULLs. Takes reason, since, lane. Index: rowid.
UPDATE lane SET hold = ?, held_at = ? WHERE id = ?;

-- name: charge
-- settle, lanes.retake: one more attempt for the started messages of a lease that ends. Takes lane, first and last seq, and what to
-- add: see retries.py. At a first failure the time is set anew, because retry_for_seconds counts from there and not from a crash.
-- Index: primary key.
UPDATE message SET attempts = attempts + ?4, first_at = CASE
    WHEN first_at IS NULL OR (?4 = 1 AND attempts & 4294967295 = attempts >> 32) THEN (SELECT leased_at FROM lease WHERE lane = ?1)
    ELSE first_at END
WHERE lane = ?1 AND seq BETWEEN ?2 AND ?3;

-- name: message
-- lanes, settle and claim: one message, its attempts as starts alone. Takes lane, seq. Index: primary key.
SELECT seq, id, sent_at, due, expires, attempts & 4294967295, headers, size_hint, prepare_seconds, process_seconds, error, output,
       first_at, body
FROM message WHERE lane = ? AND seq = ?;

-- name: delete_range
-- lanes.remove and lanes.remove_acked: messages that follow one another. Takes lane, first and last seq. Index: primary key.
DELETE FROM message WHERE lane = ? AND seq BETWEEN ? AND ?;

-- name: delete_message
-- lanes.remove and salvage: one message. Takes lane, seq. Index: primary key.
DELETE FROM message WHERE lane = ? AND seq = ?;

-- name: delete_body
-- lanes.remove, operate and check: the body of a message or dead letter that ends, if it is stored out of line.
-- Takes the arrival number. Index: rowid.
DELETE FROM body WHERE id = ?;

-- name: bury
-- lanes.bury: copy a message to the dead letters. Takes died_at, kind, reason, attempts, lane, seq.
INSERT INTO dead (lane, seq, id, sent_at, died_at, kind, reason, attempts, headers, size_hint, prepare_seconds, process_seconds, output,
    body, errors)
SELECT lane, seq, id, sent_at, ?, ?, ?, ?, headers, size_hint, prepare_seconds, process_seconds, output, body, errors
FROM message WHERE lane = ? AND seq = ?;

-- name: note_lost
-- lanes.retake and sweeps: what the attempts of an expired lease left: its end, like the other errors, with the newest ones of each
-- message. Takes error, at, how many are kept, lane, first and last seq, 1 if the attempt is not charged.
-- Index: primary key.
UPDATE message SET error = ?1, errors = json_insert(
    CASE WHEN NOT ifnull(json_valid(errors), 0) THEN '[]'
         WHEN json_array_length(errors) >= ?3 THEN json_remove(errors, '$[0]') ELSE errors END,
    '$[#]', json_array((attempts & 4294967295) + ?7, ?2, ?1, NULL))
WHERE lane = ?4 AND seq BETWEEN ?5 AND ?6;

-- name: move
-- lanes.move_aside: a keyless message to a lane of its own. Takes new lane, due, lane, seq.
INSERT INTO message (lane, seq, id, sent_at, due, expires, attempts, headers, size_hint, prepare_seconds, process_seconds, error, output, first_at, body,
    errors)
SELECT ?, 1, id, sent_at, ?, expires, attempts, headers, size_hint, prepare_seconds, process_seconds, error, output, first_at, body, errors
FROM message WHERE lane = ? AND seq = ?;

-- name: waiting_redrives
-- lanes.revive_some: dead letters that wait for the lane's lease to end: a bounded step. Takes lane, limit. Index: dead_waiting.
SELECT seq FROM dead INDEXED BY dead_waiting WHERE lane = ? AND redrive = 1 ORDER BY seq LIMIT ?;

-- name: redrive
-- lanes.revive: a dead letter becomes a message at its own seq, without attempts, delay and TTL. Takes lane, seq. Index: primary key.
INSERT INTO message (lane, seq, id, sent_at, headers, size_hint, prepare_seconds, process_seconds, output, error, body, errors)
SELECT lane, seq, id, sent_at, headers, size_hint, prepare_seconds, process_seconds, output, reason, body, errors
FROM dead WHERE lane = ? AND seq = ?;

-- name: delete_dead
-- lanes.revive, operate.purge_lane and salvage: one dead letter. Takes lane, seq. Index: primary key.
DELETE FROM dead WHERE lane = ? AND seq = ?;

-- name: unresolve
-- lanes.revive: seqs have a row in message again. Takes their number, lane. Index: rowid.
UPDATE lane SET resolved = resolved - ? WHERE id = ?;

-- name: lane_has_rows
-- lanes.end_aside and lanes.forget_idle: anything that must keep the lane alive. Takes lane. Indexes: primary keys.
SELECT EXISTS (SELECT 1 FROM message WHERE lane = ?1) OR EXISTS (SELECT 1 FROM dead WHERE lane = ?1)
    OR EXISTS (SELECT 1 FROM dedup WHERE lane = ?1) OR EXISTS (SELECT 1 FROM key_state WHERE lane = ?1)
    OR EXISTS (SELECT 1 FROM lease WHERE lane = ?1);

-- name: some_lanes
-- lanes.forget_idle: a bounded step. Takes the first lane, how many. Index: primary key.
SELECT id, last_seq, hold, active_at FROM lane WHERE id >= ? ORDER BY id LIMIT ?;
