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
