-- Bulk reads of a shard.

-- name: depths
-- scan: rows of lanes in the order of keys, each with about as many messages as it has. Takes the last key that was read, and
-- how many. Index: primary key.
SELECT key, max(tail - first + 1, ids IS NOT NULL) FROM lane WHERE key > ? ORDER BY key LIMIT ?;

-- name: dead_depths
-- scan: lanes with dead letters, in the order of keys, and how many each has. Takes the last key that was read, and how many.
-- Index: primary key.
SELECT key, count(*) FROM dead WHERE key > ? GROUP BY key ORDER BY key LIMIT ?;

-- name: keys
-- scan: lanes at rest, in the order of keys. Takes a key, whether to begin with it (1) or behind it, the key behind the last one,
-- and how many. Index: primary key.
SELECT key FROM lane WHERE key >= ?1 AND (?2 OR key > ?1) AND key < ?3 ORDER BY key LIMIT ?4;

-- name: packed
-- scan: one row, the messages of a step column by column; what is not wanted is NULL. `headed` is not 0 if one may have headers.
-- A column's values are in the order of the arrival numbers, which it takes as an array. Index: rowid.
SELECT count(m.id), /*?headers*/ count(nullif(instr(m.opts, '{'), 0)) /*?*/ AS headed, group_concat(m.seq), /*?id*/ group_concat(m.id) /*?*/,
       /*?sent_at*/ group_concat(m.sent_at) /*?*/, /*?body*/ group_concat(length(m.body)) /*?*/,
       /*?body*/ CAST(group_concat(m.body, '') AS BLOB) /*?*/
FROM carray(?) c CROSS JOIN message m ON m.id = c.value;

-- name: dead
-- scan: dead letters in the order of keys and arrivals: key, arrival number, seq, sent_at, opts, body, attempts, kind, reason and
-- time of death. Takes the last key and arrival number that were read, the key behind the last one, the newest arrival, limit.
-- Indexes: primary key of dead, rowids.
SELECT d.key, d.id, d.seq, m.sent_at, m.opts, m.body, ifnull(t.attempts, 0), d.kind, d.reason, d.died_at
FROM dead d CROSS JOIN message m ON m.id = d.id LEFT JOIN trouble t ON t.id = d.id
WHERE (d.key, d.id) > (?1, ?2) AND d.key < ?3 AND d.id <= ?4 ORDER BY d.key, d.id LIMIT ?5;
