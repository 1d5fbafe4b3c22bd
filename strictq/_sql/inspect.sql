-- name: delayed
-- inspect: when the lane's head is due. Takes lane. Index: primary key.
SELECT due FROM delayed WHERE lane = ?;

-- name: peek
-- inspect: the first messages of a lane from a seq on. Takes lane, seq, limit. Index: primary key.
SELECT m.seq, m.id, ifnull(m.body, b.data), m.headers, m.attempts & 4294967295, m.sent_at, m.due, m.expires, m.error,
       m.attempts >> 32, m.first_at
FROM message m LEFT JOIN body b ON m.body IS NULL AND b.id = m.id WHERE m.lane = ? AND m.seq >= ? ORDER BY m.seq
LIMIT ?;

-- name: next_message
-- inspect: the first message of a lane from a seq on: seq, id. Takes lane, seq. Index: primary key.
SELECT seq, id FROM message WHERE lane = ? AND seq >= ? ORDER BY seq LIMIT 1;

-- name: next_dead
-- inspect.find_keyless: the same of dead letters. Takes lane, seq. Index: primary key.
SELECT seq, id FROM dead WHERE lane = ? AND seq >= ? ORDER BY seq LIMIT 1;

-- name: next_keyless
-- inspect.find_keyless: the next key of a lane for keyless messages behind a key. Takes the key. Index: the UNIQUE one on key.
SELECT key FROM lane WHERE key > ? AND key < x'6f' ORDER BY key LIMIT 1;

-- name: heads
-- inspect.peek_oldest: lane, seq and id of heads, of the first ?1 lanes of each state. Indexes: as of oldest.
SELECT r.lane, m.seq, m.id
FROM (
    SELECT lane FROM (SELECT lane FROM ready ORDER BY position LIMIT ?1)
    UNION ALL SELECT lane FROM (SELECT lane FROM lease LIMIT ?1)
    UNION ALL SELECT lane FROM (SELECT lane FROM delayed ORDER BY due LIMIT ?1)
    UNION ALL SELECT lane FROM (SELECT id AS lane FROM main.lane INDEXED BY lane_held WHERE hold IS NOT NULL LIMIT ?1)
) r CROSS JOIN message m ON m.lane = r.lane AND m.seq = (SELECT seq FROM message WHERE lane = r.lane ORDER BY seq LIMIT 1);

-- name: message
-- inspect.status: one unresolved message. Takes lane, seq. Index: primary key.
SELECT attempts & 4294967295, due, error, output, errors FROM message WHERE lane = ? AND seq = ?;

-- name: errors
-- inspect.errors: the errors of an unresolved message's attempts, by stored key. Takes key, seq. Index: lane's unique key, primary key.
SELECT m.errors FROM lane l CROSS JOIN message m ON m.lane = l.id AND m.seq = ?2 WHERE l.key = ?1;

-- name: dead
-- inspect.status: one dead letter. Takes lane, seq. Index: primary key.
SELECT attempts, reason, output, errors FROM dead WHERE lane = ? AND seq = ?;

-- name: dead_count
-- inspect.explain: dead letters of a lane. Takes lane. Index: primary key.
SELECT count(*) FROM dead WHERE lane = ?;

-- name: in_flight
-- inspect.stats and inspect.waiting: messages of leases that run. Takes now. Scans the leases.
SELECT ifnull(sum(pending), 0) FROM lease WHERE expired = 0 AND deadline > ?;

-- name: in_delayed
-- inspect.stats and inspect.waiting: messages of lanes whose head is not due. No such lane is hot. Takes now. One seek a delayed lane.
SELECT ifnull(sum(max(ifnull((SELECT max(m.seq) FROM main.message m WHERE m.lane = l.id), 0), l.last_seq) - l.resolved), 0)
FROM delayed d INDEXED BY delayed_due CROSS JOIN main.lane l ON l.id = d.lane WHERE d.due > ?;

-- name: in_held
-- inspect.stats and inspect.waiting: messages of held lanes that no running lease holds. No held lane is hot. Takes now. Index: lane_held.
SELECT ifnull(sum(max(ifnull((SELECT max(m.seq) FROM main.message m WHERE m.lane = l.id), 0), l.last_seq) - l.resolved
    - ifnull((SELECT e.pending FROM main.lease e WHERE e.lane = l.id AND e.expired = 0 AND e.deadline > ?), 0)), 0)
FROM main.lane l INDEXED BY lane_held WHERE l.hold IS NOT NULL;

-- name: outbox
-- inspect.stats: sends to other shards that have not arrived.
SELECT count(*) FROM outbox;

-- name: oldest
-- inspect.stats: when the oldest head of a lane was sent, and the oldest message without an attempt. Examines the first ?1 lanes of each
-- state. Without an attempt is the head, or else the first message behind all that was charged or started: one seek more. LIMIT -1
-- keeps a join out of the aggregate: SQLite would otherwise copy every message where `message` is a view.
-- Indexes: primary keys, delayed_due, lane_held.
SELECT min(sent_at), min(CASE
    WHEN attempts = 0 AND started < seq THEN sent_at
    ELSE (SELECT n.sent_at FROM message n WHERE n.lane = h.lane AND n.seq = h.following)
    END)
FROM (
    SELECT m.lane, m.seq, m.sent_at, m.attempts, r.started,
           (SELECT seq FROM message WHERE lane = r.lane AND seq > r.started AND seq > r.charged ORDER BY seq LIMIT 1) AS following
    FROM (
        SELECT lane, ifnull((SELECT e.started FROM lease e WHERE e.lane = s.lane), 0) AS started,
               (SELECT l.charged_to FROM lane l WHERE l.id = s.lane) AS charged
        FROM (
            SELECT lane FROM (SELECT lane, position FROM ready ORDER BY position LIMIT ?1)
            UNION ALL SELECT lane FROM (SELECT lane FROM lease LIMIT ?1)
            UNION ALL SELECT lane FROM (SELECT lane FROM delayed ORDER BY due LIMIT ?1)
            UNION ALL SELECT lane FROM (SELECT id AS lane FROM main.lane INDEXED BY lane_held WHERE hold IS NOT NULL LIMIT ?1)
        ) s LIMIT -1
    ) r CROSS JOIN message m ON m.lane = r.lane AND m.seq = (SELECT seq FROM message WHERE lane = r.lane ORDER BY seq LIMIT 1)
    LIMIT -1
) h;

-- name: oldest_ready
-- inspect.waiting: when the oldest head of a ready lane was sent; bounded. Takes how many lanes. LIMIT -1: as in `oldest`.
-- Indexes: primary keys.
SELECT min(sent_at) FROM (
    SELECT m.sent_at
    FROM (SELECT lane, position FROM ready ORDER BY position LIMIT ?) r
    CROSS JOIN message m ON m.lane = r.lane AND m.seq = (SELECT seq FROM message WHERE lane = r.lane ORDER BY seq LIMIT 1)
    LIMIT -1
);

-- name: oldest_over
-- inspect.waiting: the same for lanes whose lease ran out; bounded. Takes now. Scans the leases, up to so many.
SELECT min(sent_at) FROM (
    SELECT m.sent_at
    FROM (SELECT lane FROM lease WHERE expired = 1 OR deadline <= ? LIMIT ?) r
    CROSS JOIN message m ON m.lane = r.lane AND m.seq = (SELECT seq FROM message WHERE lane = r.lane ORDER BY seq LIMIT 1)
    LIMIT -1
);

-- name: next_lane
-- inspect.top_keys and operate.next_lane: a walk over the lanes that have messages, one seek each. Takes the lane before.
-- Index: primary key of message.
SELECT lane FROM message WHERE lane > ? ORDER BY lane LIMIT 1;

-- name: depth_and_age
-- inspect.top_keys: depth and oldest message of one lane, two seeks. Takes lane.
SELECT max(ifnull((SELECT seq FROM message WHERE lane = l.id ORDER BY seq DESC LIMIT 1), 0), l.last_seq) - l.resolved,
       (SELECT m.sent_at FROM message m
        WHERE m.lane = ?1 AND m.seq = (SELECT seq FROM message WHERE lane = ?1 ORDER BY seq LIMIT 1))
FROM lane l WHERE l.id = ?1;

-- name: key_state
-- inspect.key_state: by stored key. Takes key. Index: lane's unique key, primary key.
SELECT s.value FROM lane l CROSS JOIN key_state s ON s.lane = l.id WHERE l.key = ?;
