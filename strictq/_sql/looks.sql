-- Reports on shards, checks of them, and what they forget. Nothing here changes what lanes hold.

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
SELECT d.key, d.seq, d.id, m.body, m.opts, d.kind, d.reason, ifnull(t.attempts, 0), m.sent_at, d.died_at, t.errors, t.output
FROM dead d CROSS JOIN message m ON m.id = d.id LEFT JOIN trouble t ON t.id = d.id ORDER BY d.key, d.id LIMIT ?;

-- name: dead_letters_of
-- looking.dead_letters: of one lane. Takes key and limit. Index: primary key of dead, rowids.
SELECT d.key, d.seq, d.id, m.body, m.opts, d.kind, d.reason, ifnull(t.attempts, 0), m.sent_at, d.died_at, t.errors, t.output
FROM dead d CROSS JOIN message m ON m.id = d.id LEFT JOIN trouble t ON t.id = d.id WHERE d.key = ? ORDER BY d.id LIMIT ?;

-- name: dead_letter_of
-- looking.dead_letter: one of them. Takes key and seq. Index: dead_seq, rowids.
SELECT d.key, d.seq, d.id, m.body, m.opts, d.kind, d.reason, ifnull(t.attempts, 0), m.sent_at, d.died_at, t.errors, t.output
FROM dead d CROSS JOIN message m ON m.id = d.id LEFT JOIN trouble t ON t.id = d.id WHERE d.key = ? AND d.seq = ?;

-- name: dead_reasons
-- looking.dead_reasons: those of the whole shard, without their messages. Takes limit. Index: primary key of dead.
SELECT key, seq, kind, reason, died_at FROM dead ORDER BY key, id LIMIT ?;

-- name: leased_lanes
-- counting: lanes that were leased when their rows were written, until later than a time, which it takes. Index: lane_leased.
SELECT key FROM lane INDEXED BY lane_leased WHERE token IS NOT NULL AND deadline > ?;

-- name: lanes_apart
-- counting: lanes that were leased or delayed when their rows were written, until later than a time, which it takes, and those that
-- were held. Indexes: lane_leased, lane_due, lane_held.
SELECT key FROM lane INDEXED BY lane_leased WHERE token IS NOT NULL AND deadline > ?1
UNION ALL SELECT key FROM lane INDEXED BY lane_due WHERE due IS NOT NULL AND due > ?1
UNION ALL SELECT key FROM lane INDEXED BY lane_held WHERE held_at IS NOT NULL;

-- name: lanes_with_messages
-- counting: lanes that had messages when their rows were written. Takes the last key that was read, and how many. Index: primary key.
SELECT key FROM lane WHERE key > ? AND (first <= tail OR opts IS NOT NULL) ORDER BY key LIMIT ?;

-- name: sent_at
-- counting: when a message was sent. Takes its arrival number. Index: rowid.
SELECT sent_at FROM message WHERE id = ?;

-- name: all_messages
-- checking: messages in order of arrival, without bodies. Takes the last one that was read, and how many. Index: rowid.
SELECT id, key, seq, opts, due, expires, body IS NOT NULL FROM message WHERE id > ? ORDER BY id LIMIT ?;

-- name: messages_between
-- checking and filling: which of some arrival numbers have rows. Takes the first and the last one. Index: rowid.
SELECT id FROM message WHERE id BETWEEN ? AND ?;

-- name: dead_between
-- checking: the dead letters among them. Index: dead_id.
SELECT id FROM dead WHERE id BETWEEN ? AND ?;

-- name: dead_rows
-- checking: every dead letter, and key and seq of its message. Scans dead; rowids.
SELECT d.key, d.seq, d.id, m.key, m.seq FROM dead d LEFT JOIN message m ON m.id = d.id;

-- name: all_dead
-- checking and filling: how many there are. Scans dead_id.
SELECT count(*) FROM dead;

-- name: all_gone
-- checking: every bucket. Scans gone.
SELECT bucket, bits FROM gone;

-- name: parts_of_none
-- checking: parts of ids whose lane has no row. Scans pending; primary key.
SELECT DISTINCT key FROM pending p WHERE NOT EXISTS (SELECT 1 FROM lane l WHERE l.key = p.key);

-- name: drop_parts_of_none
-- checking.fix: the same, of one lane. Takes its key. Index: primary keys.
DELETE FROM pending WHERE key = ?1 AND NOT EXISTS (SELECT 1 FROM lane WHERE key = ?1);

-- name: trouble_of_none
-- checking: what attempts left of messages that do not exist, or that is impossible. Scans trouble; rowids.
SELECT t.id, t.attempts FROM trouble t WHERE t.attempts < 0 OR NOT EXISTS (SELECT 1 FROM message m WHERE m.id = t.id);

-- name: drop_trouble_of
-- checking.fix: the same, of one message. Takes its arrival number. Index: rowids.
DELETE FROM trouble WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM message WHERE id = ?1);

-- name: dedup_over_top
-- checking: dedup ids of messages that were never sent. Takes the newest arrival number. Scans dedup.
SELECT key, dedup_id FROM dedup WHERE id > ?;

-- name: other_keys
-- checking: the keys of dedup ids and of states. Ids of the whole queue have an empty one. Scans both tables.
SELECT DISTINCT 'dedup id', key FROM dedup WHERE key <> x'' UNION ALL SELECT 'key state', key FROM key_state;

-- name: newest_outbox
-- checking: the newest send to another shard that has not arrived. Scans outbox.
SELECT ifnull(max(id), 0) FROM outbox;

-- name: recorded_batches
-- checking: every batch, and how many of its messages were rejected. Scans handout; primary key.
SELECT h.consumer, h.n, h.state, h.token, h.messages,
       (SELECT count(*) FROM handout_rejected r WHERE r.consumer = h.consumer AND r.n = h.n) FROM handout h;

-- name: idle_lanes
-- forgetting: some lanes, and whether they became empty before a time. Takes the last key that was read, how many, the time.
-- Index: primary key.
SELECT key, tail > 0 AND first > tail AND active_at <= ?3 AND token IS NULL AND opts IS NULL FROM lane WHERE key > ?1 ORDER BY key
LIMIT ?2;

-- name: ended_lanes
-- forgetting: the same for lanes of parked keyless messages. Index: primary key, the range of keyless lanes.
SELECT key, first > tail AND active_at <= ?3 AND token IS NULL AND opts IS NULL FROM lane
WHERE key > ?1 AND key < x'6f' AND instr(key, x'21') ORDER BY key LIMIT ?2;

-- name: oldest_entry
-- forgetting: when the oldest entry was written that is not cut. Takes the last cut. Index: rowid.
SELECT at FROM journal WHERE id > ? ORDER BY id LIMIT 1;

-- name: kept
-- reporting.stats: sends to other shards that have not arrived, and the bytes of the batches that named consumers keep. One row for each.
SELECT (SELECT count(*) FROM outbox), (SELECT ifnull(sum(bytes), 0) FROM handout);
