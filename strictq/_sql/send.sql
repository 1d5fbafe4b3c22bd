-- name: remember_dedup
-- send and lanes.end_aside: an id and the message it stands for; an id whose window is over is replaced.
-- Takes lane, dedup_id, seq, id, until.
INSERT INTO dedup (lane, dedup_id, seq, id, until) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (lane, dedup_id) DO UPDATE SET seq = excluded.seq, id = excluded.id, until = excluded.until;

-- name: old_dedups
-- lanes.forget_dedups: a bounded step. Takes now, how many. Index: dedup_until.
SELECT lane, dedup_id FROM dedup WHERE until <= ? ORDER BY until LIMIT ?;

-- name: delete_dedup
-- lanes.forget_dedups: one id whose window is over. Takes lane, dedup_id. Index: primary key.
DELETE FROM dedup WHERE lane = ? AND dedup_id = ?;
