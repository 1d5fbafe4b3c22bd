-- Statements of a merge, an operator's command: a statement that names no index reads whole tables.

-- name: dedup_ids
-- merging_histories.dedup_ids: the dedup ids of messages that arrived after a number. Takes it.
SELECT id, dedup_id FROM dedup WHERE id > ?;

-- name: outbox
-- merging_histories.on_the_way: sends to another shard behind a number. Takes destination, number, limit. Index: primary key.
SELECT id, key, sent_at, due, expires, dedup_id, headers, size_hint, prepare_seconds, process_seconds, body
FROM outbox WHERE destination = ? AND id > ? ORDER BY id LIMIT ?;

-- name: key_states
-- merging_histories.key_states: every key's state, for keys that have one.
SELECT key, value FROM key_state;

-- name: dead_letters
-- merging_histories.listed: every dead letter.
SELECT key, id, seq FROM dead;
