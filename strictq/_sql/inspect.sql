-- name: lane_of
SELECT id FROM lane WHERE key = ?;

-- name: lane
SELECT id, key, last_seq, resolved, solo_to, charged_to, hold, held_at, active_at, done_token, done_kind, done_lo, done_hi, done_gaps
FROM lane WHERE id = ?;

-- name: lease
SELECT lane, token, consumer, lo, hi, started, pending, leased_at, deadline, expired, ack_first, redrive, closed FROM lease WHERE lane = ?;

-- name: delayed
SELECT due FROM delayed WHERE lane = ?;

-- name: tail
SELECT max(seq) FROM message WHERE lane = ?;

-- name: peek
-- Index: primary key.
SELECT m.seq, m.id, ifnull(m.body, b.data), m.headers, m.attempts, m.sent_at, m.due, m.expires, m.error
FROM message m LEFT JOIN body b ON m.body IS NULL AND b.id = m.id WHERE m.lane = ? ORDER BY m.seq LIMIT ?;

-- name: message
SELECT attempts, due, error, output FROM message WHERE lane = ? AND seq = ?;

-- name: dead
SELECT attempts, reason, output FROM dead WHERE lane = ? AND seq = ?;

-- name: dead_count
SELECT count(*) FROM dead WHERE lane = ?;

-- name: in_flight
-- stats: messages of leases that run. Takes now.
SELECT ifnull(sum(pending), 0) FROM lease WHERE expired = 0 AND deadline > ?;

-- name: in_delayed
-- stats: messages of lanes whose head is not due. Takes now. One seek a delayed lane.
SELECT ifnull(sum(max(ifnull((SELECT max(m.seq) FROM message m WHERE m.lane = l.id), 0), l.last_seq) - l.resolved), 0)
FROM delayed d INDEXED BY delayed_due CROSS JOIN lane l ON l.id = d.lane WHERE d.due > ?;

-- name: in_held
-- stats: messages of held lanes that no running lease has. Takes now. Index: lane_held.
SELECT ifnull(sum(max(ifnull((SELECT max(m.seq) FROM message m WHERE m.lane = l.id), 0), l.last_seq) - l.resolved
    - ifnull((SELECT e.pending FROM lease e WHERE e.lane = l.id AND e.expired = 0 AND e.deadline > ?), 0)), 0)
FROM lane l INDEXED BY lane_held WHERE l.hold IS NOT NULL;

-- name: outbox
SELECT count(*) FROM outbox;

-- name: oldest_ready
-- stats: when the oldest heads of ready lanes were sent, and their attempts; bounded.
SELECT min(m.sent_at), min(CASE WHEN m.attempts = 0 THEN m.sent_at END)
FROM (SELECT lane FROM ready ORDER BY position LIMIT ?) r
CROSS JOIN message m ON m.lane = r.lane AND m.seq = (SELECT seq FROM message WHERE lane = r.lane ORDER BY seq LIMIT 1);

-- name: oldest_over
-- waiting: the same for lanes whose lease ran out; bounded. Takes now.
SELECT min(m.sent_at)
FROM (SELECT lane FROM lease WHERE expired = 1 OR deadline <= ? LIMIT ?) r
CROSS JOIN message m ON m.lane = r.lane AND m.seq = (SELECT seq FROM message WHERE lane = r.lane ORDER BY seq LIMIT 1);

-- name: oldest_leased
SELECT min(m.sent_at), NULL
FROM (SELECT lane FROM lease LIMIT ?) r
CROSS JOIN message m ON m.lane = r.lane AND m.seq = (SELECT seq FROM message WHERE lane = r.lane ORDER BY seq LIMIT 1);

-- name: oldest_delayed
SELECT min(m.sent_at), min(CASE WHEN m.attempts = 0 THEN m.sent_at END)
FROM (SELECT lane FROM delayed ORDER BY due LIMIT ?) r
CROSS JOIN message m ON m.lane = r.lane AND m.seq = (SELECT seq FROM message WHERE lane = r.lane ORDER BY seq LIMIT 1);

-- name: oldest_held
SELECT min(m.sent_at), min(CASE WHEN m.attempts = 0 THEN m.sent_at END)
FROM (SELECT id AS lane FROM lane INDEXED BY lane_held WHERE hold IS NOT NULL LIMIT ?) r
CROSS JOIN message m ON m.lane = r.lane AND m.seq = (SELECT seq FROM message WHERE lane = r.lane ORDER BY seq LIMIT 1);

-- name: next_lane
-- top_keys: a walk over the lanes that have messages, one seek each. Index: primary key of message.
SELECT lane FROM message WHERE lane > ? ORDER BY lane LIMIT 1;

-- name: depth_and_age
-- top_keys: depth and oldest message of one lane, two seeks.
SELECT max(ifnull((SELECT max(m.seq) FROM message m WHERE m.lane = l.id), 0), l.last_seq) - l.resolved,
       (SELECT m.sent_at FROM message m WHERE m.lane = l.id ORDER BY m.seq LIMIT 1)
FROM lane l WHERE l.id = ?;

-- name: key_state
SELECT s.value FROM lane l CROSS JOIN key_state s ON s.lane = l.id WHERE l.key = ?;
