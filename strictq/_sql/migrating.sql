-- name: events
-- logs: the whole journal of format 2, in order. Scans it.
SELECT id, kind, at, top, count, token, deadline, before, charged, consumer, data FROM main.journal ORDER BY id;

-- name: arrivals
-- logs: every row of the inbox of format 2, without its body. Scans it.
SELECT id, key, seq, sent_at FROM main.inbox ORDER BY id;

-- name: row_of
-- logs: the id of a key's row in `lane`, and the token of its last resolution. Takes key. Index: the UNIQUE one on key.
SELECT id, done_token FROM main.lane WHERE key = ?;

-- name: counter
-- reader: the counter row, and the rows of the logs that it includes.
SELECT config_version, epoch, time_offset, last_time, last_id, last_token, last_lane, last_outbox, seq_floor, next_deadline, lanes,
       pending, dead, sends, receives, claims, empty_receives, acks, retries, redeliveries, expired, dropped, purged, ack_rate,
       ack_rate_at, inbox_top, journal_top
FROM main.counter CROSS JOIN main.counted;

-- name: meta
-- reader: the shard's identity and rare totals. Scans the table.
SELECT name, value FROM main.meta ORDER BY name;

-- name: make_arrival
-- reader: where each unresolved message is, by arrival number, in a file of this connection alone. Lane 0: in the inbox.
CREATE TEMP TABLE arrival (
    id   INTEGER PRIMARY KEY,
    lane INTEGER NOT NULL,
    seq  INTEGER NOT NULL
) STRICT;

-- name: list_cold
-- reader: all rows of `message`, sorted by SQLite. Scans it.
INSERT INTO temp.arrival SELECT id, lane, seq FROM main.message ORDER BY id;

-- name: list_hot
-- reader: an unresolved row of the inbox. Takes id, seq.
INSERT INTO temp.arrival VALUES (?, 0, ?);

-- name: messages
-- reader: unresolved messages after an arrival number, in order. Takes it, limit. Indexes: primary keys and rowids.
SELECT a.id, coalesce(l.key, i.key), a.seq, coalesce(m.sent_at, i.sent_at), m.due, coalesce(m.expires, i.expires),
       coalesce(m.headers, i.headers), coalesce(m.size_hint, i.size_hint), coalesce(m.prepare_seconds, i.prepare_seconds),
       coalesce(m.process_seconds, i.process_seconds), m.attempts, m.first_at, m.error, m.output, m.errors,
       coalesce(m.body, i.body, b.data)
FROM temp.arrival a
LEFT JOIN main.message m ON m.lane = a.lane AND m.seq = a.seq
LEFT JOIN main.lane l ON l.id = a.lane
LEFT JOIN main.inbox i ON a.lane = 0 AND i.id = a.id
LEFT JOIN main.body b ON m.body IS NULL AND i.body IS NULL AND b.id = a.id
WHERE a.id > ? ORDER BY a.id LIMIT ?;

-- name: lanes
-- reader: rows of `lane` after a key, with their places and leases. Takes it, limit. Indexes: lane's UNIQUE one on key, ready's on
-- lane, primary keys.
SELECT l.key, l.id, l.last_seq, l.hold, l.held_at, l.solo_to, l.charged_to, l.active_at, r.position, d.due,
       l.done_token, l.done_kind, l.done_lo, l.done_hi, l.done_gaps,
       e.token, e.consumer, e.lo, e.hi, e.started, e.pending, e.leased_at, e.deadline, e.expired, e.ack_first, e.closed
FROM main.lane l
LEFT JOIN main.ready r ON r.lane = l.id
LEFT JOIN main.delayed d ON d.lane = l.id
LEFT JOIN main.lease e ON e.lane = l.id
WHERE l.key > ? ORDER BY l.key LIMIT ?;

-- name: lane_messages
-- reader: the unresolved messages of a lane in the tables. Takes lane. Index: primary key.
SELECT seq, id FROM main.message WHERE lane = ? ORDER BY seq;

-- name: dead
-- reader: dead letters after one, with their bodies. Takes its lane and seq, limit. Index: primary key.
SELECT d.lane, l.key, d.seq, d.id, d.sent_at, d.died_at, d.kind, d.reason, d.attempts, d.headers, d.size_hint, d.prepare_seconds,
       d.process_seconds, d.output, d.errors, d.redrive, coalesce(d.body, b.data)
FROM main.dead d LEFT JOIN main.lane l ON l.id = d.lane LEFT JOIN main.body b ON d.body IS NULL AND b.id = d.id
WHERE (d.lane, d.seq) > (?, ?) ORDER BY d.lane, d.seq LIMIT ?;

-- name: dedup
-- reader: dedup ids after one, with the key of their lane; in the rows of lane 0, the ids of the whole queue, seq is a lane, whose key
-- is read as well. Takes lane and id, limit. Indexes: primary keys.
SELECT q.lane, q.dedup_id, l.key, q.seq, q.id, q.until
FROM main.dedup q LEFT JOIN main.lane l ON l.id = iif(q.lane = 0, q.seq, q.lane)
WHERE (q.lane, q.dedup_id) > (?, ?) ORDER BY q.lane, q.dedup_id LIMIT ?;

-- name: key_states
-- reader: states of keys after one. Takes its lane, limit. Indexes: primary keys.
SELECT s.lane, l.key, s.value FROM main.key_state s LEFT JOIN main.lane l ON l.id = s.lane
WHERE s.lane > ? ORDER BY s.lane LIMIT ?;

-- name: due_of
-- moving: the end of the delay of a copied message. Takes its arrival number. Index: rowid.
SELECT due FROM main.next_message WHERE id = ?;

-- name: add_wide_dedup
-- moving: a dedup id of the whole queue. Takes it, arrival number, end of its window, key. Its seq is in the other row of the id.
INSERT INTO main.next_dedup
SELECT x'', ?1, ifnull((SELECT seq FROM main.next_dedup WHERE key = ?4 AND dedup_id = ?1), 0), ?2, ?3, ?4;

-- name: last_token
-- moving: the newest token of a lease. Scans the lanes.
SELECT max(token) FROM main.lane;

-- name: forget_meta
-- moving: a value that `mark` has now. Takes its name. Index: primary key.
DELETE FROM main.meta WHERE name = ?;

-- name: read_counter
-- shard_identity: the counter row of formats 1 and 2.
SELECT config_version, epoch, time_offset, last_time, last_id, last_token, last_lane, last_outbox, seq_floor, next_deadline, lanes,
       pending, dead, sends, receives, claims, empty_receives, acks, retries, redeliveries, expired, dropped, purged, ack_rate, ack_rate_at
FROM counter;

-- name: epoch
-- shard_identity: the epoch of the last write of formats 1 and 2 that began one.
SELECT epoch FROM counter;

-- name: has_logs
-- shard_identity: whether the shard has format 2.
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'counted';

-- name: last_counted_time
-- shard_identity: queue time of the last write of format 1.
SELECT last_time FROM counter;

-- name: last_time
-- shard_identity: queue time of the last write of format 2. Indexes: rowids.
SELECT max(last_time, ifnull((SELECT at FROM journal ORDER BY id DESC LIMIT 1), 0),
           ifnull((SELECT sent_at FROM inbox ORDER BY id DESC LIMIT 1), 0)) FROM counter;

-- name: counted_as_issued
-- shard_identity: the newest arrival number and outbox number of format 1.
SELECT last_id, last_outbox FROM counter;

-- name: issued
-- shard_identity: the newest arrival number and outbox number of format 2. Index: rowid.
SELECT max(last_id, ifnull((SELECT max(id) FROM inbox), 0)), last_outbox FROM counter;
