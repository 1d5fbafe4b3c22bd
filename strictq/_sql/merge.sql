-- Statements of a merge, an operator's command: a statement that names no index reads whole tables.

-- name: listed
-- merging.listed: every unresolved message, and every dead letter: id, key, seq, whether it is one.
SELECT m.id, l.key, m.seq, 0 FROM message m CROSS JOIN lane l ON l.id = m.lane
UNION ALL SELECT d.id, l.key, d.seq, 1 FROM dead d CROSS JOIN lane l ON l.id = d.lane;

-- name: message
-- merging.sends: an unresolved message as a row of outbox.waiting. Takes key, seq. Indexes: the UNIQUE one on key, primary keys.
SELECT m.id, l.key, m.sent_at, m.due, m.expires, NULL, m.headers, m.size_hint, m.prepare_seconds, m.process_seconds,
       ifnull(m.body, (SELECT data FROM body WHERE id = m.id))
FROM lane l CROSS JOIN message m ON m.lane = l.id AND m.seq = ?2 WHERE l.key = ?1;

-- name: dedup_ids
-- merging.dedup_ids: the dedup ids of messages that arrived after a number. Takes it.
SELECT id, dedup_id FROM dedup WHERE id > ?;

-- name: outbox
-- merging.on_the_way: sends to another shard behind a number. Takes destination, number, limit. Index: primary key.
SELECT id, key, sent_at, due, expires, dedup_id, headers, size_hint, prepare_seconds, process_seconds, body
FROM outbox WHERE destination = ? AND id > ? ORDER BY id LIMIT ?;

-- name: dead_letter
-- merging.resolve: one dead letter: id, and whether its body is stored out of line. Takes lane, seq. Index: primary key.
SELECT id, body IS NULL FROM dead WHERE lane = ? AND seq = ?;

-- name: key_states
-- merging.key_states: every key's state, for keys that have one.
SELECT l.key, s.value FROM key_state s CROSS JOIN lane l ON l.id = s.lane;

-- name: lane_key_states
-- merging.key_states: the same for a shard of format 3.
SELECT key, value FROM key_state;

-- name: dead_ids
-- merging.listed: every dead letter of a shard of format 3.
SELECT id FROM dead;

-- name: app_tables
-- merging.app_rows: the program's own tables. Scans the schema.
SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'app\_%' ESCAPE '\' ORDER BY name;
