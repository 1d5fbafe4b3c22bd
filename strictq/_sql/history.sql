-- name: keep
-- history.keep: a record of each message of a range that is about to leave `message`. Takes now, attempts that the rows do not
-- count yet, seconds of prepare and of process (NULL: unknown), outcome, whether bodies are kept, lane, first and last seq, and what
-- the handler printed (NULL: keep what is stored).
-- The first attempt is that of an earlier lease, else the start of the handler that just ended, else the time of delivery.
-- Indexes: primary keys.
INSERT INTO history (key, seq, arrival, sent_at, first_at, done_at, attempts, prepare_seconds, process_seconds, size, size_hint, outcome, body,
    errors, output)
SELECT l.key, m.seq, m.id, m.sent_at,
       CASE WHEN m.first_at IS NOT NULL THEN m.first_at
            WHEN ?2 = 0 THEN NULL
            WHEN ?4 IS NOT NULL THEN max(?1 - CAST(?4 * 1000000 AS INTEGER), m.sent_at)
            ELSE (SELECT leased_at FROM lease WHERE lane = m.lane) END,
       ?1, (m.attempts & 4294967295) + ?2, ?3, ?4, length(ifnull(m.body, b.data)), m.size_hint, ?5,
       CASE WHEN ?6 THEN ifnull(m.body, b.data) END, m.errors, ifnull(?10, m.output)
FROM message m CROSS JOIN lane l ON l.id = m.lane LEFT JOIN body b ON m.body IS NULL AND b.id = m.id
WHERE m.lane = ?7 AND m.seq BETWEEN ?8 AND ?9 ORDER BY m.seq;

-- name: bounds
-- history: the oldest and the newest record. Two seeks.
SELECT (SELECT min(n) FROM history), (SELECT max(n) FROM history);

-- name: issued
-- history.issued: the last number ever given to a record, even a removed one. Reads one row of SQLite's own table.
SELECT seq FROM sqlite_sequence WHERE name = 'history';

-- name: done_at
-- history: when the record with this number ended. Takes the number. Index: primary key.
SELECT done_at FROM history WHERE n = ?;

-- name: forget
-- history: a bounded step of the oldest records up to the first number: those that are not among the newest to keep
-- (up to the second number) or ended before the time. Index: primary key.
DELETE FROM history WHERE n <= ?1 AND (n <= ?2 OR done_at < ?3);

-- name: page
-- history.page: records in the order in which they were written, from a number on. Takes the number, limit. Index: primary key.
SELECT n, key, seq, arrival, sent_at, first_at, done_at, attempts, prepare_seconds, process_seconds, size, size_hint, outcome, errors, output,
       body
FROM history WHERE n > ? ORDER BY n LIMIT ?;

-- name: page_of
-- history.page: the same for one key. Takes the number, key, limit. Reads all records from the number on.
SELECT n, key, seq, arrival, sent_at, first_at, done_at, attempts, prepare_seconds, process_seconds, size, size_hint, outcome, errors, output,
       body
FROM history WHERE n > ? AND key = ? ORDER BY n LIMIT ?;

-- name: delete_step
-- history.purge_step: a bounded step of everything up to a number. Takes the number, limit. Index: primary key.
DELETE FROM history WHERE n IN (SELECT n FROM history WHERE n <= ? ORDER BY n LIMIT ?);

-- name: delete_of
-- history.purge_step: the records of one key in a range of numbers, which bounds the step. Takes first, last, key.
-- Index: primary key.
DELETE FROM history WHERE n BETWEEN ? AND ? AND key = ?;
