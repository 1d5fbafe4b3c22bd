-- name: lanes_by_key
-- send: for each key the lane, the tail of its sequence, and whether a first message must list it as ready or delayed.
-- Takes the keys. Indexes: lane's UNIQUE one on key, message's and lease's primary keys.
SELECT l.key, l.id,
       ifnull((SELECT max(m.seq) FROM message m WHERE m.lane = l.id), 0), l.last_seq,
       l.hold IS NULL AND NOT EXISTS (SELECT 1 FROM lease e WHERE e.lane = l.id)
FROM lane l WHERE l.key IN ({{ ? }});

-- name: insert_plain
-- send: messages without options, in lane order. Takes the columns in order.
INSERT INTO message (lane, seq, id, sent_at, expires, body) VALUES {{ (?, ?, ?, ?, ?, ?) }};

-- name: insert_full
-- send: a message with options. Takes lane, seq, id, sent_at, due, expires, headers, size_hint, prepare_seconds, process_seconds, body.
INSERT INTO message (lane, seq, id, sent_at, due, expires, headers, size_hint, prepare_seconds, process_seconds, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_body
-- send and insert: a body that is stored out of line. Takes the arrival number, data.
INSERT INTO body (id, data) VALUES (?, ?);

-- name: find_dedup
-- send: whether this id was sent within its window. Takes lane, dedup_id, now. Index: primary key.
SELECT seq, id FROM dedup WHERE lane = ? AND dedup_id = ? AND until > ?;

-- name: find_dedup_anywhere
-- send with dedup_scope "queue": the message that an id stands for, whatever its key. Takes dedup_id, now. Indexes: primary keys.
SELECT d.seq, d.id, l.key FROM dedup q JOIN dedup d ON d.lane = q.seq AND d.dedup_id = q.dedup_id JOIN lane l ON l.id = d.lane
WHERE q.lane = 0 AND q.dedup_id = ? AND d.until > ?;

-- name: remember_dedup
-- send and lanes.end_aside: an id and the message it stands for; an id whose window is over is replaced.
-- Takes lane, dedup_id, seq, id, until.
INSERT INTO dedup (lane, dedup_id, seq, id, until) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (lane, dedup_id) DO UPDATE SET seq = excluded.seq, id = excluded.id, until = excluded.until;

-- name: old_dedups
-- lanes.forget_dedups: a bounded step. Takes now, how many. Index: dedup_until.
SELECT lane, dedup_id FROM dedup WHERE until <= ? ORDER BY until LIMIT ?;

-- name: next_dedup
-- forget: when the first window ends. Index: dedup_until.
SELECT min(until) FROM dedup;

-- name: delete_dedup
-- lanes.forget_dedups: one id whose window is over. Takes lane, dedup_id. Index: primary key.
DELETE FROM dedup WHERE lane = ? AND dedup_id = ?;
