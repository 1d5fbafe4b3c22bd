-- name: finish_lane
-- lanes.remove_acked: takes highest seq, how many, now, token, lowest, highest, lane. Index: rowid.
UPDATE lane SET last_seq = max(last_seq, ?), resolved = resolved + ?, active_at = ?,
    done_token = ?, done_kind = 'ack', done_lo = ?, done_hi = ?, done_gaps = NULL WHERE id = ?;
