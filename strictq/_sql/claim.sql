-- name: outlook
-- claim.outlook: whether there is anything to claim, and when the next lease or delay ends; without the write lock.
-- Indexes: ready's primary key, delayed_due.
SELECT EXISTS (SELECT 1 FROM ready), next_deadline, (SELECT min(due) FROM delayed), epoch, config_version, 0, 0 FROM counter;

-- name: soonest
-- claim.soonest: the exact end of the next lease or delay. Scans the leases; used with the clocks of tests only, which are moved to it.
SELECT min(at) FROM (SELECT min(deadline) AS at FROM lease WHERE expired = 0 UNION ALL SELECT min(due) FROM delayed);

-- name: expired_leases
-- sweeps.expire_leases: a bounded step. Takes now, limit.
-- Scans the leases, one per lane in flight; runs only when one may have ended.
SELECT lane, ack_first FROM lease WHERE expired = 0 AND deadline <= ? LIMIT ?;

-- name: next_deadline
-- sweeps.expire_leases and check: after a step that found all ended leases. Scans the leases.
SELECT min(deadline), count(*) FROM lease WHERE expired = 0;

-- name: end_claims
-- sweeps.end_claims: leases of a worker that died. Takes now, tokens. Scans the leases.
UPDATE lease SET deadline = ?1 WHERE token IN (SELECT value FROM carray(?2)) AND expired = 0 AND deadline > ?1;

-- name: unblamed
-- sweeps.end_claims: leases of a worker that died in which a message was started beside others. In a solo lease it ran alone.
-- Takes tokens. Scans the leases.
SELECT e.lane, e.consumer, e.lo, e.started, e.leased_at FROM lease e CROSS JOIN lane l ON l.id = e.lane
WHERE e.token IN (SELECT value FROM carray(?)) AND e.started >= e.lo AND l.solo_to < e.lo;

-- name: forget_start
-- sweeps.end_claims: no start of the lease is charged. Takes how far `started` is before `lo`, lane. Index: primary key.
UPDATE lease SET started = lo - ? WHERE lane = ?;

-- name: mark_expired
-- sweeps.expire_leases: a lease is past its deadline; it stays until the lane is retaken. Takes lane. Index: primary key.
UPDATE lease SET expired = 1 WHERE lane = ?;

-- name: end_epoch
-- writer: leases of an earlier boot end with it.
-- Leases of batches have no deadline and continue. Scans the leases.
UPDATE lease SET deadline = 0 WHERE expired = 0 AND deadline < 4611686018427387904;

-- name: due_lanes
-- sweeps.wake_delayed: a bounded step. Takes now, limit. Index: delayed_due.
SELECT lane FROM delayed WHERE due <= ? ORDER BY due LIMIT ?;

-- name: failure_delays
-- sweeps.failure_delays: lanes whose head is delayed because it failed, from a lane on: a step of a walk without the write lock.
-- Takes lane, now, limit. Indexes: primary keys of delayed and message.
SELECT d.lane FROM delayed d CROSS JOIN message m
    ON m.lane = d.lane AND m.seq = (SELECT min(seq) FROM message WHERE lane = d.lane)
WHERE d.lane > ? AND d.due > ? AND d.due & 63 = 63 AND (m.attempts > 0 OR m.error IS NOT NULL) ORDER BY d.lane LIMIT ?;

-- name: soonest_failure_delay
-- sweeps.soonest_failure_delay: the lane of failure_delays that is due first. Takes now. Indexes: delayed_due, primary key of message.
SELECT d.lane FROM delayed d CROSS JOIN message m
    ON m.lane = d.lane AND m.seq = (SELECT min(seq) FROM message WHERE lane = d.lane)
WHERE d.due > ? AND d.due & 63 = 63 AND (m.attempts > 0 OR m.error IS NOT NULL) ORDER BY d.due LIMIT 1;

-- name: failure_delay_of
-- sweeps.end_failure_delays: the head of a lane, if it is delayed because it failed. Takes lane, now. Indexes: primary keys.
SELECT m.seq FROM delayed d CROSS JOIN message m
    ON m.lane = d.lane AND m.seq = (SELECT min(seq) FROM message WHERE lane = d.lane)
WHERE d.lane = ? AND d.due > ? AND d.due & 63 = 63 AND (m.attempts > 0 OR m.error IS NOT NULL);

-- name: ready_messages
-- claim: messages of the ready lanes, oldest ready head first, whole lanes. Takes the positions after which and up to which, and how many.
-- Indexes: primary keys of ready, lane and message; no sort.
SELECT r.position, r.careful, l.key, m.lane, m.seq, m.due, m.expires, m.attempts,
       m.id, m.sent_at, m.headers, m.size_hint, m.prepare_seconds, m.process_seconds, m.body
FROM ready r CROSS JOIN lane l ON l.id = r.lane CROSS JOIN message m ON m.lane = r.lane
WHERE r.position > ? AND r.position <= ? ORDER BY r.position, m.seq LIMIT ?;

-- name: ready_packed
-- packing.ready: one row a ready lane, its first messages column by column; columns as packing makes a `Piece` of them. The values of a column
-- are in the order of seqs, which SQLite does not promise: see scan.packed. Takes the positions after which and up to which, the most
-- messages of a lane, now. Indexes: primary keys of ready, lane and message; no sort.
SELECT r.position, r.careful, r.lane, l.key, (SELECT max(t.seq) FROM message t WHERE t.lane = r.lane),
       max(m.headers IS NOT NULL OR m.body IS NULL OR m.attempts > 0 OR ifnull(m.due > ?4, 0) OR ifnull(m.expires <= ?4, 0)),
       group_concat(m.seq), group_concat(m.id), group_concat(m.sent_at), group_concat(length(m.body)),
       CAST(group_concat(m.body, '') AS BLOB)
FROM ready r CROSS JOIN lane l ON l.id = r.lane CROSS JOIN message m ON m.lane = r.lane
WHERE r.position > ?1 AND r.position <= ?2
  AND m.seq < (SELECT h.seq FROM message h WHERE h.lane = r.lane ORDER BY h.seq LIMIT 1) + ?3
GROUP BY r.position ORDER BY r.position;

-- name: lane_packed
-- packing.following: the same for one lane, behind a seq. Takes lane, seq, limit, now, position. Indexes: primary keys of lane and message.
SELECT ?5, 0, l.id, l.key, (SELECT max(t.seq) FROM message t WHERE t.lane = l.id),
       max(page.headers IS NOT NULL OR page.body IS NULL OR page.attempts > 0 OR ifnull(page.due > ?4, 0) OR ifnull(page.expires <= ?4, 0)),
       group_concat(page.seq), group_concat(page.id), group_concat(page.sent_at), group_concat(length(page.body)),
       CAST(group_concat(page.body, '') AS BLOB)
FROM lane l CROSS JOIN (
    SELECT seq, id, sent_at, headers, attempts, due, expires, body FROM message WHERE lane = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3
) page
WHERE l.id = ?1;

-- name: listed
-- claim: the next ready lanes. Takes the positions after which and up to which, limit. Index: ready's primary key.
SELECT position, careful, lane FROM ready WHERE position > ? AND position <= ? ORDER BY position LIMIT ?;

-- name: lanes_packed
-- packing._whole_lanes: the first messages of these lanes, column by column in one row. The values of a column are in the order of lanes and
-- seqs, which SQLite does not promise: see scan.packed. Takes lanes, the most messages, now. Index: message's primary key.
SELECT count(*),
       max(page.headers IS NOT NULL OR page.body IS NULL OR page.attempts > 0 OR ifnull(page.due > ?3, 0) OR ifnull(page.expires <= ?3, 0)),
       group_concat(page.lane), group_concat(page.seq), group_concat(page.id), group_concat(page.sent_at),
       group_concat(length(page.body)), CAST(group_concat(page.body, '') AS BLOB), max(page.id)
FROM (
    SELECT m.lane, m.seq, m.id, m.sent_at, m.headers, m.attempts, m.due, m.expires, m.body
    FROM carray(?1) c CROSS JOIN message m ON m.lane = c.value LIMIT ?2
) page;

-- name: keys_packed
-- packing._whole_lanes: their keys, in the same order: the length of each, and all of them. Takes lanes. Index: rowid.
SELECT group_concat(length(l.key)), CAST(group_concat(l.key, '') AS BLOB) FROM carray(?) c CROSS JOIN lane l ON l.id = c.value;

-- name: ready_lanes
-- claim with per_key: the lanes alone. Takes the positions after which and up to which, limit. Index: ready's primary key.
SELECT r.position, r.lane FROM ready r WHERE r.position > ? AND r.position <= ? ORDER BY r.position LIMIT ?;

-- name: ready_of
-- claim with keys: position of one lane. Takes lane. Index: the UNIQUE one on lane.
SELECT position, careful FROM ready WHERE lane = ?;

-- name: lane_messages
-- claim and settle.more: the same columns for one lane from a seq on. Takes lane, position, careful, seq, limit.
-- Indexes: primary keys of lane and message.
SELECT ?2, ?3, l.key, m.lane, m.seq, m.due, m.expires, m.attempts,
       m.id, m.sent_at, m.headers, m.size_hint, m.prepare_seconds, m.process_seconds, m.body
FROM lane l CROSS JOIN message m ON m.lane = l.id
WHERE l.id = ?1 AND m.seq >= ?4 ORDER BY m.seq LIMIT ?5;

-- name: heads_of
-- claim with per_key: the same columns for a lane from the list. Takes position, lane, limit.
-- Indexes: primary keys of ready, lane and message.
SELECT r.position, r.careful, l.key, m.lane, m.seq, m.due, m.expires, m.attempts,
       m.id, m.sent_at, m.headers, m.size_hint, m.prepare_seconds, m.process_seconds, m.body
FROM ready r CROSS JOIN lane l ON l.id = r.lane CROSS JOIN message m ON m.lane = r.lane
WHERE r.position = ? ORDER BY m.seq LIMIT ?;

-- name: arrived_before
-- claim, bounded by arrival: lanes further back in the order whose head is old. Takes the arrival number, and how many.
-- Indexes: primary keys; one seek a ready lane.
SELECT r.position, r.careful, r.lane FROM ready r
CROSS JOIN message m ON m.lane = r.lane AND m.seq = (SELECT min(seq) FROM message WHERE lane = r.lane)
WHERE r.position > ?1 AND m.id <= ?1 ORDER BY r.position LIMIT ?2;

-- name: body_size
-- claim: bytes of a body that is stored out of line. Takes the arrival number. Index: rowid.
SELECT length(data) FROM body WHERE id = ?;

-- name: body
-- claim, inspect and scan: a body that is stored out of line. Takes the arrival number. Index: rowid.
SELECT data FROM body WHERE id = ?;

-- name: insert_lease
-- claim: lease lanes, many rows a statement. The primary key allows one lease a lane. Takes the columns in order.
INSERT INTO lease (lane, token, consumer, lo, hi, started, pending, leased_at, deadline, ack_first) VALUES {{ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) }};

-- name: insert_endless
-- claim: lease whole lanes without a deadline, many rows a statement. Takes lane, first and last seq and how many messages of each;
-- then token, consumer, now, deadline.
WITH given (lane, lo, hi, pending) AS (VALUES {{ (?, ?, ?, ?) }})
INSERT INTO lease (lane, token, consumer, lo, hi, started, pending, leased_at, deadline, ack_first)
SELECT lane, ?, ?, lo, hi, lo - 1, pending, ?, ?, 0 FROM given;

-- name: drop_position
-- claim: unlist one lane. Takes its position. Index: rowid.
DELETE FROM ready WHERE position = ?;

-- name: drop_positions
-- claim: unlist a run of lanes, all of which were claimed or moved. Takes first and last position. Index: rowid.
DELETE FROM ready WHERE position BETWEEN ? AND ?;
