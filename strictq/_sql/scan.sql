-- name: lanes_to
-- scan.plan: lanes that have messages, and how many, in order. Takes the lane after which, and how many lanes. Indexes: primary keys.
SELECT l.id, max(ifnull((SELECT seq FROM message WHERE lane = l.id ORDER BY seq DESC LIMIT 1), 0), l.last_seq) - l.resolved
FROM lane l WHERE l.id > ? ORDER BY l.id LIMIT ?;

-- name: keyless
-- scan.plan: the lanes for keyless messages, without those for a single one. Index: the UNIQUE one on key.
SELECT id FROM lane WHERE key >= x'6e' AND key < x'6f' AND instr(key, x'21') = 0;

-- name: messages
-- scan.pending: columns as a claim has them; a bounded step. Takes lane, seq, last lane, newest arrival, limit. Index: primary key.
SELECT NULL, 0, l.key, m.lane, m.seq, m.due, m.expires, m.attempts & 4294967295, m.id, m.sent_at, m.headers, m.size_hint, m.prepare_seconds,
       m.process_seconds, m.body
FROM message m CROSS JOIN lane l ON l.id = m.lane
WHERE (m.lane, m.seq) > (?1, ?2) AND m.lane <= ?3 AND m.id <= ?4 ORDER BY m.lane, m.seq LIMIT ?5;

-- name: packed
-- scan.columns: one row, a bounded step's messages column by column; what is not wanted is NULL. `headed` and `tried` are not 0 if
-- a message does not fit, because it has headers or attempts; if a body is stored out of line, there are fewer lengths. A column's values
-- are in the order of the rows; the reader makes sure that this is lane, seq, because SQLite promises it with an ORDER BY in each
-- aggregate alone, which sorts (0.2 µs a row and column). What can be counted later is not counted here: it costs 5 % a column.
-- Takes lane, seq, last lane, newest arrival, limit. Index: primary key.
SELECT /*?headers*/ count(headers) /*?*/ AS headed, /*?attempts*/ max(attempts) /*?*/ AS tried, group_concat(lane), group_concat(seq),
       /*?id*/ group_concat(id) /*?*/, /*?sent_at*/ group_concat(sent_at) /*?*/, /*?body*/ group_concat(length(body)) /*?*/,
       /*?body*/ CAST(group_concat(body, '') AS BLOB) /*?*/
FROM (
    SELECT m.lane, m.seq, m.id, m.sent_at, m.attempts, m.headers, m.body
    FROM message m WHERE (m.lane, m.seq) > (?1, ?2) AND m.lane <= ?3 AND m.id <= ?4 ORDER BY m.lane, m.seq LIMIT ?5
);

-- name: deep
-- scan.columns: the same for deep lanes, one row per lane: a bounded number of its seqs from the start of the step. The rows need not name
-- the lane of each message, and SQLite need not copy the values. The values of a column are in the order of seqs: `message` has its
-- primary key and no other access path. Takes lane, seq, last lane, newest arrival, how many seqs. Indexes: primary keys; no sort.
SELECT l.id, /*?key*/ l.key /*?*/, count(*), min(m.seq), (SELECT max(t.seq) FROM message t WHERE t.lane = l.id),
       /*?headers*/ count(m.headers) /*?*/, /*?attempts*/ max(m.attempts) /*?*/,
       /*?seq*/ group_concat(m.seq) /*?*/, /*?id*/ group_concat(m.id) /*?*/, /*?sent_at*/ group_concat(m.sent_at) /*?*/,
       /*?body*/ group_concat(length(m.body)) /*?*/, /*?body*/ CAST(group_concat(m.body, '') AS BLOB) /*?*/
FROM lane l CROSS JOIN message m ON m.lane = l.id
WHERE l.id >= ?1 AND l.id <= ?3 AND m.id <= ?4 AND m.seq > CASE l.id WHEN ?1 THEN ?2 ELSE 0 END
  AND m.seq < ?5 + (
    SELECT h.seq FROM message h WHERE h.lane = l.id AND h.seq > CASE l.id WHEN ?1 THEN ?2 ELSE 0 END ORDER BY h.seq LIMIT 1
  )
GROUP BY l.id ORDER BY l.id;

-- name: set_aside
-- scan: messages that left a lane for one of their own since the plan. Takes the first key, the first key behind,
-- the newest lane of the plan, and between which arrivals. Indexes: the UNIQUE one on key, primary key of message.
SELECT NULL, 0, l.key, m.lane, m.seq, m.due, m.expires, m.attempts & 4294967295, m.id, m.sent_at, m.headers, m.size_hint, m.prepare_seconds,
       m.process_seconds, m.body
FROM lane l CROSS JOIN message m ON m.lane = l.id
WHERE l.key > ? AND l.key < ? AND l.id > ? AND m.id > ? AND m.id <= ?;

-- name: key
-- scan: the key of a lane, by primary key. Takes id.
SELECT key FROM lane WHERE id = ?;

-- name: dead
-- scan.dead: the same columns, then kind, reason and time of death. Index: primary key of dead.
SELECT NULL, 0, l.key, d.lane, d.seq, NULL, NULL, d.attempts, d.id, d.sent_at, d.headers, d.size_hint, d.prepare_seconds,
       d.process_seconds, d.body, d.kind, d.reason, d.died_at
FROM dead d CROSS JOIN lane l ON l.id = d.lane
WHERE (d.lane, d.seq) > (?1, ?2) AND d.lane <= ?3 AND d.id <= ?4 ORDER BY d.lane, d.seq LIMIT ?5;
