-- name: end_whole_lease
-- settle.ack_whole and advance: a live lease whose messages are all acked at once. Takes lane, token, lo, hi, pending. Index: primary key.
DELETE FROM lease WHERE lane = ? AND token = ? AND lo = ? AND hi = ? AND pending = ? AND expired = 0 AND redrive = 0 AND ack_first = 0;

-- name: finish_lane
-- lanes.remove_acked: takes highest seq, how many, now, token, lowest, highest, lane. Index: rowid.
UPDATE lane SET last_seq = max(last_seq, ?), resolved = resolved + ?, active_at = ?,
    done_token = ?, done_kind = 'ack', done_lo = ?, done_hi = ?, done_gaps = NULL WHERE id = ?;

-- name: next_heads
-- settle.ack: the new heads of lanes, which are given as an array: lane, seq, id, due, whether it is held, and its solo range.
-- A lane without a row is empty. Indexes: primary keys; one seek a lane.
SELECT m.lane, m.seq, m.id, m.due, l.hold IS NOT NULL, l.solo_to
FROM carray(?) c CROSS JOIN lane l ON l.id = c.value
CROSS JOIN message m ON m.lane = l.id AND m.seq = (SELECT min(seq) FROM message WHERE lane = l.id);

-- name: rows_between
-- settle and handout: the unresolved seqs of a lease, and where their bodies are stored. Takes lane, first and last seq. Index: primary key.
SELECT seq, id, body IS NULL, attempts FROM message WHERE lane = ? AND seq BETWEEN ? AND ? ORDER BY seq;

-- name: set_started
-- settle: handlers were started up to this seq; never moves back. Takes seq, lane. Index: primary key.
UPDATE lease SET started = max(started, ?) WHERE lane = ?;

-- name: start_many
-- advance: takes seq, lane, token, seq, seq. Index: primary key.
UPDATE lease SET started = max(started, ?) WHERE lane = ? AND token = ? AND lo <= ? AND hi >= ? AND ack_first = 0;

-- name: end_head
-- advance: a message of a continuing lease is done, and the next one starts. Takes that one's seq (or its own), lane,
-- token, seq, seq. Index: primary key.
UPDATE lease SET pending = pending - 1, started = max(started, ?)
WHERE lane = ? AND token = ? AND lo <= ? AND hi >= ? AND pending > 1 AND ack_first = 0;

-- name: set_deadline
-- settle.extend: set the lease's deadline; it is not expired. Takes deadline, lane. Index: primary key.
UPDATE lease SET deadline = ?, expired = 0 WHERE lane = ?;

-- name: shrink
-- settle.shrink and check.fix: fewer unresolved messages. Takes their number, lane. Index: primary key.
UPDATE lease SET pending = ? WHERE lane = ?;

-- name: close
-- settle: the end of a lease was released: fewer messages, a new last seq, and no further growth. Takes pending, last seq, lane.
-- Index: primary key.
UPDATE lease SET pending = ?1, hi = ?2, started = min(started, ?2), closed = 1 WHERE lane = ?3;

-- name: grow
-- settle.more: the lease covers later messages, too. Takes last seq, their number, lane. Index: primary key.
UPDATE lease SET hi = ?, pending = pending + ? WHERE lane = ?;

-- name: earlier
-- settle.more: whether an unresolved message before it is not held by the lease. Takes lane, seq. Index: primary key.
SELECT EXISTS (SELECT 1 FROM message WHERE lane = ? AND seq < ?);

-- name: key_state
-- settle.key_state: by lane. Takes lane. Index: primary key.
SELECT value FROM key_state WHERE lane = ?;

-- name: set_key_state
-- settle.set_key_state. Takes lane, value.
INSERT INTO key_state (lane, value) VALUES (?, ?) ON CONFLICT (lane) DO UPDATE SET value = excluded.value;

-- name: delete_key_state
-- settle.set_key_state: None was set. Takes lane. Index: primary key.
DELETE FROM key_state WHERE lane = ?;
