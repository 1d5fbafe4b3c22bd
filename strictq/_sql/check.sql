-- The rules of check(), which is run by hand: a statement that names no index reads whole tables.

-- name: integrity
-- check, salvage and catalog.damage: SQLite's own findings, 20 at most; one row 'ok' if there are none.
PRAGMA integrity_check(20);

-- name: lane_keys
-- check: every lane, to compare its key with the shard's hash range.
SELECT id, key FROM lane;

-- name: seq_over_tail
-- check, rule lane_counts: last_seq and resolved agree with the rows. (message rows + resolved = tail)
SELECT l.id, l.last_seq, l.resolved, count(m.seq), ifnull(max(m.seq), 0), ifnull(min(m.seq), 0)
FROM lane l LEFT JOIN message m ON m.lane = l.id GROUP BY l.id
HAVING count(m.seq) + l.resolved <> max(ifnull(max(m.seq), 0), l.last_seq) OR l.resolved < 0 OR l.last_seq < 0;

-- name: dead_over_tail
-- check, rule dead_seq: a dead letter's seq was issued and is not also in the lane.
SELECT d.lane, d.seq FROM dead d LEFT JOIN lane l ON l.id = d.lane LEFT JOIN message m ON m.lane = d.lane AND m.seq = d.seq
WHERE l.id IS NULL OR m.seq IS NOT NULL OR d.seq > l.last_seq;

-- name: orphans
-- check, rule orphan: rows of a lane that does not exist.
SELECT 'message', lane FROM message WHERE lane NOT IN (SELECT id FROM lane)
UNION SELECT 'ready', lane FROM ready WHERE lane NOT IN (SELECT id FROM lane)
UNION SELECT 'delayed', lane FROM delayed WHERE lane NOT IN (SELECT id FROM lane)
UNION SELECT 'lease', lane FROM lease WHERE lane NOT IN (SELECT id FROM lane)
UNION SELECT 'dedup', lane FROM dedup WHERE lane > 0 AND lane NOT IN (SELECT id FROM lane)
UNION SELECT 'key_state', lane FROM key_state WHERE lane NOT IN (SELECT id FROM lane);

-- name: body_missing
-- check and salvage, rule body: a row without an inline body has one out of line.
SELECT 'message', m.lane, m.seq FROM message m WHERE m.body IS NULL AND NOT EXISTS (SELECT 1 FROM body b WHERE b.id = m.id)
UNION ALL
SELECT 'dead', d.lane, d.seq FROM dead d WHERE d.body IS NULL AND NOT EXISTS (SELECT 1 FROM body b WHERE b.id = d.id);

-- name: body_unused
-- check, rule body_unused: bodies that no message has.
SELECT id FROM body WHERE id NOT IN (SELECT id FROM message WHERE body IS NULL UNION ALL SELECT id FROM dead WHERE body IS NULL);

-- name: lane_places
-- check, rule place: head, due time, hold, lease and listings of every lane.
SELECT l.id, h.seq, h.due, CASE WHEN l.hold IS NOT NULL THEN 1 END, e.expired, e.ack_first, r.position, r.careful, d.due, l.solo_to
FROM lane l
LEFT JOIN message h ON h.lane = l.id AND h.seq = (SELECT seq FROM message WHERE lane = l.id ORDER BY seq LIMIT 1)
LEFT JOIN lease e ON e.lane = l.id LEFT JOIN ready r ON r.lane = l.id LEFT JOIN delayed d ON d.lane = l.id;

-- name: lease_counts
-- check, rule lease: the messages that a lease counts, and those in its range.
SELECT e.lane, e.pending, count(m.seq), e.lo, e.hi, e.started, e.token, e.ack_first,
       max((SELECT l.last_seq FROM lane l WHERE l.id = e.lane), ifnull((SELECT max(t.seq) FROM message t WHERE t.lane = e.lane), 0))
FROM lease e LEFT JOIN message m ON m.lane = e.lane AND m.seq BETWEEN e.lo AND e.hi GROUP BY e.lane;

-- name: lease_skips
-- check, rule lease_order: an unresolved message before a lease that the lease does not hold.
SELECT e.lane, m.seq FROM lease e CROSS JOIN message m ON m.lane = e.lane AND m.seq < e.lo WHERE e.ack_first = 0;

-- name: twice_arrived
-- check, rule arrival: an arrival number that two messages share.
SELECT id FROM message GROUP BY id HAVING count(*) > 1;

-- name: maxima
-- check and salvage, rule counter: the values that the counter row must have reached.
SELECT (SELECT ifnull(max(id), 0) FROM message), (SELECT ifnull(max(id), 0) FROM dead), (SELECT ifnull(max(position), 0) FROM ready),
       (SELECT ifnull(max(id), 0) FROM lane), (SELECT ifnull(max(token), 0) FROM lease), (SELECT ifnull(max(id), 0) FROM outbox),
       (SELECT ifnull(max(done_token), 0) FROM lane);

-- name: totals
-- check and salvage, rule counter: the rows that it counts.
SELECT (SELECT count(*) FROM message), (SELECT count(*) FROM dead), (SELECT count(*) FROM lane);

-- name: leased_rows
-- check.fix: how many unresolved messages a lease has. Takes lane. Index: primary keys.
SELECT count(*) FROM lease e CROSS JOIN message m ON m.lane = e.lane AND m.seq BETWEEN e.lo AND e.hi WHERE e.lane = ?;

-- name: redrive_stuck
-- check.fix, in its transaction: whether this dead letter still waits for a lease that does not exist. Takes lane, seq. Indexes: primary keys.
SELECT EXISTS (SELECT 1 FROM dead WHERE lane = ?1 AND seq = ?2 AND redrive = 1)
    AND NOT EXISTS (SELECT 1 FROM lease WHERE lane = ?1 AND redrive = 1);

-- name: outbox_nowhere
-- check, rule outbox: sends to a shard that does not exist. Takes the number of shards.
SELECT destination, id FROM outbox WHERE destination NOT BETWEEN 0 AND ?1 - 1;

-- name: inlets
-- check, rule inlet: the last arrivals from other shards, to compare with their sends.
SELECT origin, high_water FROM inlet;

-- name: bad_types
-- check, rule value: values that no send can have written.
SELECT lane, seq FROM message WHERE attempts < 0 OR (headers IS NOT NULL AND NOT json_valid(headers))
    OR (due IS NOT NULL AND due < 0) OR (expires IS NOT NULL AND expires < 0);

-- name: holds
-- check: every reason for a hold, as the bytes that are stored. Index: lane_held.
SELECT id, CAST(hold AS BLOB) FROM lane WHERE hold IS NOT NULL;

-- name: dedup_over_tail
-- check, rule dedup: a dedup id remembers a seq that was never issued.
SELECT d.lane, d.dedup_id FROM dedup d JOIN lane l ON l.id = d.lane
WHERE d.id > (SELECT last_id FROM counter);

-- name: redrive_flags
-- check, rule redrive: a dead letter that waits for a lease that does not exist.
SELECT d.lane, d.seq FROM dead d WHERE d.redrive = 1 AND NOT EXISTS (SELECT 1 FROM lease e WHERE e.lane = d.lane AND e.redrive = 1)
    AND NOT EXISTS (SELECT 1 FROM ready r WHERE r.lane = d.lane AND r.careful = 1)
    AND NOT EXISTS (SELECT 1 FROM delayed l WHERE l.lane = d.lane)
    AND NOT EXISTS (SELECT 1 FROM lane h WHERE h.id = d.lane AND h.hold IS NOT NULL);

-- name: handout_consumers
-- check, rule handout: a batch that is inconsistent with its consumer's row.
SELECT h.consumer, h.n, h.state, c.last, c.acked, c.floor FROM handout h LEFT JOIN consumer c ON c.name = h.consumer
WHERE c.name IS NULL OR h.n > c.last OR h.n <= c.floor OR (h.state = 'open') <> (h.n > c.acked);

-- name: handout_blocks
-- check and handouts, rule handout: the counts in a batch's row, and those of its blocks.
SELECT h.consumer, h.n, h.state, h.messages, h.bytes, count(b.part), ifnull(sum(b.messages), 0), ifnull(sum(length(b.data)), 0),
       ifnull(max(b.part), -1) FROM handout h LEFT JOIN handout_block b ON b.consumer = h.consumer AND b.n = h.n
GROUP BY h.consumer, h.n;

-- name: handout_leases
-- check and handouts, rule handout: unresolved and rejected messages of an open batch, which must add up to its messages.
SELECT h.consumer, h.n, h.messages,
       (SELECT ifnull(sum(e.pending), 0) FROM lease e WHERE e.token = h.token AND e.deadline = 4611686018427387904),
       (SELECT count(*) FROM handout_rejected r WHERE r.consumer = h.consumer AND r.n = h.n)
FROM handout h WHERE h.state = 'open';

-- name: handout_orphans
-- check, rule handout: blocks and rejected messages without a batch.
SELECT 'block', consumer, n FROM handout_block b
WHERE NOT EXISTS (SELECT 1 FROM handout h WHERE h.consumer = b.consumer AND h.n = b.n)
UNION SELECT 'rejected message', consumer, n FROM handout_rejected r
WHERE NOT EXISTS (SELECT 1 FROM handout h WHERE h.consumer = r.consumer AND h.n = r.n);

-- name: lease_endless
-- check, rule handout: a lease without a deadline that belongs to no open batch. 'released': its release was not finished.
SELECT e.lane, e.consumer, (SELECT h.state FROM handout h WHERE h.consumer = e.consumer AND h.token = e.token)
FROM lease e WHERE e.deadline = 4611686018427387904
    AND NOT EXISTS (SELECT 1 FROM handout h WHERE h.consumer = e.consumer AND h.token = e.token AND h.state = 'open');
