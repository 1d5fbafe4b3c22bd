-- name: lane
-- salvage: rows as they were read.
INSERT INTO lane VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: message
INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: body
INSERT INTO body VALUES (?, ?);

-- name: dead
INSERT INTO dead VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: dedup
INSERT INTO dedup VALUES (?, ?, ?, ?, ?);

-- name: key_state
INSERT INTO key_state VALUES (?, ?);

-- name: outbox
INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: inlet
INSERT INTO inlet VALUES (?, ?);

-- name: history
INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: applied
INSERT INTO applied VALUES (?, ?, ?, ?, ?, ?);

-- name: consumer
INSERT INTO consumer VALUES (?, ?, ?, ?, ?);

-- name: handout
INSERT INTO handout VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: handout_block
INSERT INTO handout_block VALUES (?, ?, ?, ?, ?, ?);

-- name: handout_rejected
INSERT INTO handout_rejected VALUES (?, ?, ?);

-- name: lease
-- salvage: of hand-outs only.
INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: handouts_unknown
-- salvage: consumers without a row, and the last of their hand-outs.
SELECT consumer, max(n) FROM handout WHERE consumer NOT IN (SELECT name FROM consumer) GROUP BY consumer;

-- name: handouts_of
SELECT n, state FROM handout WHERE consumer = ?;

-- name: handouts_beyond
-- salvage: hand-outs that fit to nothing that their consumer's row says.
SELECT h.consumer, h.n FROM handout h JOIN consumer c ON c.name = h.consumer
WHERE h.n > c.last OR h.n <= c.floor OR (h.state = 'open') <> (h.n > c.acked);

-- name: handouts_short
-- salvage: open hand-outs that lack messages.
SELECT DISTINCT h.consumer, h.n FROM handout h JOIN lease e ON e.token = h.token AND e.deadline = 4611686018427387904
WHERE h.state = 'open' AND e.pending <> (SELECT count(*) FROM message m WHERE m.lane = e.lane AND m.seq BETWEEN e.lo AND e.hi);

-- name: empty_handout
UPDATE handout SET messages = 0 WHERE consumer = ? AND n = ?;

-- name: drop_blocks
-- salvage: of what was released, or of nothing.
DELETE FROM handout_block WHERE (consumer, n) NOT IN (SELECT consumer, n FROM handout WHERE state <> 'released');

-- name: drop_rejected
DELETE FROM handout_rejected WHERE (consumer, n) NOT IN (SELECT consumer, n FROM handout WHERE state <> 'released');

-- name: drop_leases
DELETE FROM lease WHERE (consumer, token) NOT IN (SELECT consumer, token FROM handout WHERE state = 'open');

-- name: held_lanes
SELECT lane FROM lease;

-- name: bodiless
-- salvage: messages and dead letters whose body could not be saved. Reads all of them.
SELECT 'message', m.lane, m.seq FROM message m WHERE m.body IS NULL AND NOT EXISTS (SELECT 1 FROM body b WHERE b.id = m.id)
UNION ALL
SELECT 'dead', d.lane, d.seq FROM dead d WHERE d.body IS NULL AND NOT EXISTS (SELECT 1 FROM body b WHERE b.id = d.id);

-- name: drop_message
DELETE FROM message WHERE lane = ? AND seq = ?;

-- name: drop_dead
DELETE FROM dead WHERE lane = ? AND seq = ?;

-- name: lane_counts
-- salvage: lane, its messages, the newest of these.
SELECT l.id, count(m.seq), ifnull(max(m.seq), 0) FROM lane l LEFT JOIN message m ON m.lane = l.id GROUP BY l.id;

-- name: set_counts
UPDATE lane SET last_seq = ?, resolved = ? WHERE id = ?;

-- name: roots
-- salvage: in a new shard, where each table begins; a shard's own tables are always laid out in this order.
SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0;

-- name: columns
-- salvage: of a table of the program's; hidden: 2 and 3 are generated columns.
SELECT hidden, pk FROM pragma_table_xinfo(?) ORDER BY cid;

-- name: without_rowid
SELECT wr FROM pragma_table_list(?) WHERE schema = 'main';
