-- name: schema
-- The two logs of a shard: every message in order of arrival, and every change of state. Row 0 of each exists from the
-- start, and the newest row of each is never deleted, so a number is never used twice.
CREATE TABLE message (
    id       INTEGER PRIMARY KEY,                  -- arrival number
    key      BLOB    NOT NULL,
    seq      INTEGER NOT NULL,
    sent_at  INTEGER NOT NULL,                     -- queue time
    due      INTEGER,                              -- sent with a delay: when it ends
    expires  INTEGER,
    opts     TEXT,                                 -- headers, size_hint, estimates, dedup id; NULL: none
    body     BLOB                                  -- last: a reader of the other columns never touches overflow pages
) STRICT;
CREATE TABLE journal (
    id       INTEGER PRIMARY KEY,                  -- without a gap
    kind     INTEGER NOT NULL,
    at       INTEGER NOT NULL,                     -- queue time
    top      INTEGER NOT NULL,                     -- newest message at this time
    token    INTEGER NOT NULL,
    deadline INTEGER NOT NULL,                     -- nack, defer: when the message is due; fold: the end of the generation
    holder   TEXT,                                 -- claim: flags and consumer; else a mark of the kind
    data     BLOB                                  -- arrival numbers, 8 bytes each, the first of each lane positive; or keys
) STRICT;
INSERT INTO message VALUES (0, x'', 0, 0, NULL, NULL, NULL, NULL);
INSERT INTO journal VALUES (0, 23, 0, 0, 0, 0, NULL, NULL);

-- name: newest
-- log_rows: at the start of every transaction and look: whether anything was written that memory does not have. Rowid seeks.
SELECT (SELECT max(id) FROM journal), (SELECT max(id) FROM message);

-- name: last_time
-- shard_identity.last_time: queue time of the last write. Rowid seeks.
SELECT max((SELECT at FROM journal ORDER BY id DESC LIMIT 1), (SELECT sent_at FROM message ORDER BY id DESC LIMIT 1));

-- name: entries
-- log_rows: entries that memory does not have yet. Takes the last one that it has. Index: rowid.
SELECT id, kind, at, top, token, deadline, holder, data FROM journal WHERE id > ? ORDER BY id;

-- name: messages
-- log_rows: the same for messages. Takes the last one, and the length up to which bodies are read: a short one is on the row's
-- page, and the length of any body is known without it. Index: rowid.
SELECT id, key, seq, sent_at, due, expires, opts, iif(length(body) <= ?2, body, NULL) FROM message WHERE id > ?1 ORDER BY id;

-- name: news
-- log_rows: both, in one statement: first the entries, then the messages, each in order. Takes the last ones that memory has,
-- how many rows to read, and the length up to which bodies are read. Index: rowid.
SELECT id, kind, at, top, token, deadline, holder, data FROM journal WHERE id > ?1
UNION ALL SELECT id, key, seq, sent_at, due, expires, opts, iif(length(body) <= ?4, body, NULL) FROM message WHERE id > ?2 LIMIT ?3;

-- name: append
-- log_rows: one entry, in a transaction that has caught up. Takes every column.
INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: append_void
-- checkpoint: an entry by which every memory is built anew.
INSERT INTO journal SELECT id + 1, 24, at, (SELECT max(id) FROM message), 0, 0, NULL, x'' FROM journal ORDER BY id DESC LIMIT 1;

-- name: append_alone
-- log_rows: one entry as a transaction of its own. If the newest rows are not those that memory has, its kind is NULL, and IGNORE skips
-- the row. (INSERT … SELECT … WHERE would make a temporary table.) Rowid seeks.
INSERT OR IGNORE INTO journal VALUES (?1,
    iif((SELECT max(id) FROM journal) = ?1 - 1 AND (SELECT max(id) FROM message) = ?4, ?2, NULL), ?3, ?4, ?5, ?6, ?7, ?8);

-- name: insert
-- log_rows: messages, many rows a statement. Takes every column of each.
INSERT INTO message VALUES {{ (?, ?, ?, ?, ?, ?, ?, ?) }};

-- name: insert_alone
-- log_rows: one message as a transaction of its own, in the same way. Takes every column, and the newest entry. Rowid seeks.
INSERT OR IGNORE INTO message VALUES (?1, ?2,
    iif((SELECT max(id) FROM message) = ?1 - 1 AND (SELECT max(id) FROM journal) = ?9, ?3, NULL), ?4, ?5, ?6, ?7, ?8);

-- name: pairs
-- log_rows: temporary views, one connection's own. An INSERT into one writes two tables in a single statement, which is a
-- transaction of its own. It writes nothing if the newest rows are not those that memory has, or if the dedup id is known. An id of
-- the whole queue has two rows; without `wide`, the key of one is NULL, and IGNORE skips it.
CREATE TEMP VIEW IF NOT EXISTS deduped (id, key, seq, sent_at, due, expires, opts, body, seen, dedup_id, until, wide) AS
    SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;
CREATE TEMP TRIGGER IF NOT EXISTS send_deduped INSTEAD OF INSERT ON deduped BEGIN
    SELECT RAISE(IGNORE) WHERE (SELECT max(id) FROM message) <> NEW.id - 1 OR (SELECT max(id) FROM journal) <> NEW.seen
        OR EXISTS (SELECT 1 FROM dedup WHERE key = NEW.key AND dedup_id = NEW.dedup_id AND until > NEW.sent_at)
        OR NEW.wide AND EXISTS (SELECT 1 FROM dedup WHERE key = x'' AND dedup_id = NEW.dedup_id AND until > NEW.sent_at);
    DELETE FROM dedup WHERE (key, dedup_id) = (SELECT key, dedup_id FROM dedup WHERE until <= NEW.sent_at ORDER BY until LIMIT 1);
    DELETE FROM dedup WHERE NEW.wide
        AND (key, dedup_id) = (SELECT key, dedup_id FROM dedup WHERE until <= NEW.sent_at ORDER BY until LIMIT 1);
    INSERT OR IGNORE INTO dedup VALUES (iif(NEW.wide, x'', NULL), NEW.dedup_id, NEW.seq, NEW.id, NEW.until, NEW.key)
        ON CONFLICT (key, dedup_id) DO UPDATE SET seq = excluded.seq, id = excluded.id, until = excluded.until, of = excluded.of;
    INSERT OR REPLACE INTO dedup VALUES (NEW.key, NEW.dedup_id, NEW.seq, NEW.id, NEW.until, NULL);
    INSERT INTO message VALUES (NEW.id, NEW.key, NEW.seq, NEW.sent_at, NEW.due, NEW.expires, NEW.opts, NEW.body);
END;
CREATE TEMP VIEW IF NOT EXISTS troubled (id, kind, at, top, token, deadline, holder, data, arrival, attempts, first_at, error,
    output, errors) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;
CREATE TEMP TRIGGER IF NOT EXISTS append_troubled INSTEAD OF INSERT ON troubled BEGIN
    SELECT RAISE(IGNORE) WHERE (SELECT max(id) FROM journal) <> NEW.id - 1 OR (SELECT max(id) FROM message) <> NEW.top;
    INSERT OR REPLACE INTO trouble VALUES (NEW.arrival, NEW.attempts, NEW.first_at, NEW.error, NEW.output, NEW.errors);
    INSERT INTO journal VALUES (NEW.id, NEW.kind, NEW.at, NEW.top, NEW.token, NEW.deadline, NEW.holder, NEW.data);
END;
CREATE TEMP VIEW IF NOT EXISTS recorded (id, kind, at, top, token, deadline, holder, data, done_at, attempts, prepare, process, outcome,
    bodies, arrivals, output, leased_at, step, most, oldest) AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;
CREATE TEMP TRIGGER IF NOT EXISTS append_recorded INSTEAD OF INSERT ON recorded BEGIN
    SELECT RAISE(IGNORE) WHERE (SELECT max(id) FROM journal) <> NEW.id - 1 OR (SELECT max(id) FROM message) <> NEW.top;
    /*= keep_ended done_at attempts prepare process outcome bodies arrivals output leased_at */
    /*= forget step most oldest */
    INSERT INTO journal VALUES (NEW.id, NEW.kind, NEW.at, NEW.top, NEW.token, NEW.deadline, NEW.holder, NEW.data);
END;

-- name: insert_deduped_alone
-- log_rows: one message with a dedup id, and the id, by `pairs`. Takes every column, the newest entry, the dedup id, the end of
-- its window, and whether it is an id of the whole queue.
INSERT INTO deduped VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: append_troubled_alone
-- log_rows: one entry, and what an attempt left of a message, by `pairs`. Takes every column of the entry and of `trouble`.
INSERT INTO troubled VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: append_recorded_alone
-- log_rows: one entry that ends messages, and their records, by `pairs`. Takes every column of the entry, and what
-- `tables.keep_ended` and `history.forget` take.
INSERT INTO recorded VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: keys
-- log_rows: the keys and seqs of messages. Takes their arrival numbers. Index: rowid.
SELECT id, key, seq FROM message WHERE id IN ({{ ? }});

-- name: times
-- log_rows: when messages may be delivered, and until when. Takes their arrival numbers. Index: rowid.
SELECT id, due, expires FROM message WHERE id IN ({{ ? }}) AND (due IS NOT NULL OR expires IS NOT NULL);

-- name: sent_from
-- log_rows: the first message from an arrival number on, and when it was sent. Index: rowid.
SELECT id, sent_at FROM message WHERE id >= ? ORDER BY id LIMIT 1;

-- name: sent_at
-- log_rows: when messages were sent. Takes their arrival numbers as an array. Index: rowid.
SELECT m.id, m.sent_at FROM carray(?) c CROSS JOIN message m ON m.id = c.value;

-- name: sizes
-- log_rows: the bytes of bodies and options of messages, in the order of their arrival numbers, which it takes as an array.
-- The bodies are not read. Index: rowid.
SELECT ifnull(length(m.body), 0) + ifnull(length(m.opts), 0) FROM carray(?) c LEFT JOIN message m ON m.id = c.value;

-- name: whole
-- log_rows: messages with their bodies. Takes their arrival numbers. Index: rowid.
SELECT id, key, seq, sent_at, due, expires, opts, body FROM message WHERE id IN ({{ ? }});

-- name: whole_range
-- log_rows: the same for a range that has few others. Takes the first and the last one. Index: rowid.
SELECT id, key, seq, sent_at, due, expires, opts, body FROM message WHERE id BETWEEN ? AND ?;

-- name: last_before
-- log_rows: the newest entry below a position, and its top: where the journal may be cut. Takes the last cut, and the position.
-- Index: rowid, read from the end.
SELECT id, top FROM journal WHERE id >= ? AND id + top < ? ORDER BY id DESC LIMIT 1;

-- name: cut
-- log_rows: entries that no memory needs. Takes the last of them. Row 0 is not kept, because a newer row always follows.
DELETE FROM journal WHERE id <= ?1;

-- name: delete_range
-- log_rows: rows of resolved messages. Takes the first and the last one. The newest row stays, whatever it is. With a second
-- condition on id instead of min(), SQLite would read to the end of the table. Index: rowid.
DELETE FROM message WHERE id BETWEEN ?1 AND min(?2, (SELECT max(id) FROM message) - 1);

-- name: delete_one
-- log_rows: the same for one message.
DELETE FROM message WHERE id = ?1 AND ?1 < (SELECT max(id) FROM message);
