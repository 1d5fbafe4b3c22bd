-- name: bounds
-- history: the oldest and the newest record. Two seeks.
SELECT (SELECT min(n) FROM history), (SELECT max(n) FROM history);

-- name: issued
-- history.issued: the last number ever given to a record, even a removed one. Reads one row of SQLite's own table.
SELECT seq FROM sqlite_sequence WHERE name = 'history';

-- name: forget
-- ending: a bounded step of the oldest records: those that are not among the newest to keep, or ended before the time. Takes how many
-- to look at, how many to keep, and the time. If the oldest one stays, it looks at no other. `log.pairs` runs it, too.
-- Index: primary key.
DELETE FROM history
WHERE n < (SELECT n + ?1 FROM history
           WHERE n = (SELECT min(n) FROM history) AND (n <= (SELECT max(n) FROM history) - ?2 OR done_at < ?3))
    AND (n <= (SELECT max(n) FROM history) - ?2 OR done_at < ?3);

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
