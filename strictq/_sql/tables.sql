-- name: schema
-- Lanes at rest, and what else a shard has. docs/explanation/storage.md describes how they are read with the logs.
CREATE TABLE lane (
    key       BLOB    PRIMARY KEY,
    lsn       INTEGER NOT NULL,                    -- entries up to this one are included
    tail      INTEGER NOT NULL,                    -- messages up to this seq are included
    first     INTEGER NOT NULL,                    -- lowest unresolved seq; tail + 1: none
    position  INTEGER,                             -- place in the order; NULL: not ready
    due       INTEGER,                             -- of the first message
    expires   INTEGER,                             -- before this time no message of it expires
    token     INTEGER, deadline INTEGER,           -- its lease
    held      INTEGER,                             -- positions from `first`
    started   INTEGER,                             -- last seq whose handler was started
    holder    TEXT,                                -- leased at, first seq, flags and consumer
    held_at   INTEGER,                             -- since when it is held; the reason is in opts
    active_at INTEGER NOT NULL DEFAULT 0,          -- when a message last left it
    opts      TEXT,                                -- rare state, JSON
    done      TEXT,                                -- last resolution, JSON: token, kind, lowest and highest seq, seqs left out
    ids_from  INTEGER, ids BLOB                    -- arrival numbers of the seqs from ids_from on, 8 bytes each; 0: resolved
) STRICT, WITHOUT ROWID;
CREATE TABLE pending (                             -- older parts of the ids of deep lanes
    key       BLOB    NOT NULL,
    first     INTEGER NOT NULL,                    -- seq of the first one
    ids       BLOB    NOT NULL,                    -- of consecutive seqs
    PRIMARY KEY (key, first)
) STRICT, WITHOUT ROWID;
CREATE INDEX lane_ready ON lane (position) WHERE position IS NOT NULL;
CREATE INDEX lane_due ON lane (due) WHERE due IS NOT NULL;
CREATE INDEX lane_leased ON lane (deadline) WHERE token IS NOT NULL;
CREATE INDEX lane_held ON lane (key) WHERE held_at IS NOT NULL;
CREATE INDEX lane_endless ON lane (token) WHERE deadline = 4611686018427387904;  -- of recorded batches
CREATE TABLE trouble (                             -- of messages that failed
    id        INTEGER PRIMARY KEY,
    attempts  INTEGER NOT NULL,
    first_at  INTEGER,                             -- first handed out to a handler, once that attempt has ended
    error     TEXT,
    output    TEXT,
    errors    TEXT
) STRICT;
CREATE TABLE gone (                                -- resolved messages whose rows still exist
    bucket    INTEGER PRIMARY KEY,                 -- arrival number / 128
    bits      BLOB    NOT NULL,                    -- 128 bits
    deleted   BLOB    NOT NULL                     -- the same, of those whose rows were deleted
) STRICT;
CREATE TABLE dead (
    key       BLOB    NOT NULL,
    id        INTEGER NOT NULL,                    -- its row of `message` stays
    seq       INTEGER NOT NULL,
    died_at   INTEGER NOT NULL,
    kind      TEXT    NOT NULL,
    reason    TEXT,
    PRIMARY KEY (key, id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX dead_id ON dead (id);
CREATE UNIQUE INDEX dead_seq ON dead (key, seq);
CREATE TABLE dedup (
    key       BLOB    NOT NULL,
    dedup_id  TEXT    NOT NULL,
    seq       INTEGER NOT NULL,
    id        INTEGER NOT NULL,
    until     INTEGER NOT NULL,
    of        BLOB,                                -- of an id of the whole queue, whose key is empty: the lane's key
    PRIMARY KEY (key, dedup_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX dedup_until ON dedup (until);
CREATE TABLE key_state (
    key       BLOB    PRIMARY KEY,
    value     BLOB    NOT NULL
) STRICT;
CREATE TABLE mark (
    one             INTEGER PRIMARY KEY CHECK (one = 1),
    fold_position   INTEGER NOT NULL DEFAULT 0,    -- messages resolved up to this position are deleted, or in `gone`
    cut             INTEGER NOT NULL DEFAULT 0,    -- newest deleted entry
    mid             INTEGER NOT NULL DEFAULT 0,    -- its top
    counted         INTEGER NOT NULL DEFAULT 0,    -- the totals include entries up to this one,
    counted_top     INTEGER NOT NULL DEFAULT 0,    -- and messages up to this one
    epoch           INTEGER NOT NULL DEFAULT 0,
    config_version  INTEGER NOT NULL DEFAULT 0,
    time_offset     INTEGER NOT NULL DEFAULT 0,
    seq_floor       INTEGER NOT NULL DEFAULT 0,    -- new lanes begin above it
    last_token      INTEGER NOT NULL DEFAULT 0,
    features        INTEGER NOT NULL DEFAULT 0,    -- bits of features that a reader must know
    lanes INTEGER NOT NULL DEFAULT 0, pending INTEGER NOT NULL DEFAULT 0, dead INTEGER NOT NULL DEFAULT 0,
    sends INTEGER NOT NULL DEFAULT 0, claims INTEGER NOT NULL DEFAULT 0, receives INTEGER NOT NULL DEFAULT 0,
    acks INTEGER NOT NULL DEFAULT 0, retries INTEGER NOT NULL DEFAULT 0, redeliveries INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0, dropped INTEGER NOT NULL DEFAULT 0, purged INTEGER NOT NULL DEFAULT 0,
    redriven INTEGER NOT NULL DEFAULT 0, dead_letters INTEGER NOT NULL DEFAULT 0, rejected INTEGER NOT NULL DEFAULT 0,
    empty_receives INTEGER NOT NULL DEFAULT 0,
    ack_rate REAL NOT NULL DEFAULT 0.0,            -- messages a second, exponentially weighted over a minute
    ack_rate_at INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO mark (one) VALUES (1);

-- name: load
-- lane_rows: rows of lanes, with every column in the order of LaneAtRest. Takes their keys. Index: primary key.
SELECT key, lsn, tail, first, position, due, expires, token, deadline, held, started, holder, held_at, active_at, opts, done,
    ids_from, ids FROM lane WHERE key IN ({{ ? }});

-- name: parts
-- lane_rows: parts of a deep lane's ids, from the one with a seq on. Takes key, seq, and how many parts. Index: primary key.
SELECT first, ids FROM pending
WHERE key = ?1 AND first >= ifnull((SELECT max(first) FROM pending WHERE key = ?1 AND first <= ?2), 0) ORDER BY first LIMIT ?3;

-- name: write
-- lane_rows: the whole row of a lane. Takes every column. The last resolution stays if memory does not know it.
INSERT INTO lane VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
ON CONFLICT DO UPDATE SET lsn = ?2, tail = ?3, first = ?4, position = ?5, due = ?6, expires = ?7, token = ?8, deadline = ?9,
    held = ?10, started = ?11, holder = ?12, held_at = ?13, active_at = max(active_at, ?14), opts = ?15, done = ifnull(?16, done),
    ids_from = ?17, ids = ?18;

-- name: insert
-- moving.arrive: the row of a lane that the shard does not have. Takes every column.
INSERT INTO lane VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: write_empty
-- lane_rows: rows of lanes without messages and without a lease, many a statement. Takes key, lsn, tail, first, active_at, done of each.
INSERT INTO lane (key, lsn, tail, first, active_at, done) VALUES {{ (?, ?, ?, ?, ?, ?) }}
ON CONFLICT DO UPDATE SET lsn = excluded.lsn, tail = excluded.tail, first = excluded.first, position = NULL, due = NULL,
    expires = NULL, token = NULL, deadline = NULL, held = NULL, started = NULL, holder = NULL, held_at = NULL,
    active_at = max(active_at, excluded.active_at), opts = NULL, done = ifnull(excluded.done, done), ids_from = NULL, ids = NULL;

-- name: write_head
-- lane_rows: the row of a deep lane but for its ids. Takes the first 16 columns.
UPDATE lane SET lsn = ?2, tail = ?3, first = ?4, position = ?5, due = ?6, expires = ?7, token = ?8, deadline = ?9,
    held = ?10, started = ?11, holder = ?12, held_at = ?13, active_at = max(active_at, ?14), opts = ?15, done = ifnull(?16, done)
WHERE key = ?1;

-- name: seal
-- lane_rows: move the ids of a deep lane's row to `pending`, if they have at least so many bytes. Takes key, bytes.
INSERT INTO pending SELECT key, ids_from, ids FROM lane WHERE key = ?1 AND length(ids) >= ?2;

-- name: unseal
-- lane_rows: and clear the row's ids, by the same condition. Takes key, bytes, the seq of the next id.
UPDATE lane SET ids_from = ?3, ids = x'' WHERE key = ?1 AND length(ids) >= ?2;

-- name: append
-- lane_rows: add ids to the row of a deep lane. Takes key, lsn, tail, earliest end of a TTL (NULL: none), ids. `||` returns text.
UPDATE lane SET lsn = ?2, tail = ?3, expires = iif(?4 IS NULL, expires, min(ifnull(expires, ?4), ?4)), ids = CAST(ids || ?5 AS BLOB)
WHERE key = ?1;

-- name: insert_part
-- lane_rows: a part of a deep lane's ids. Takes every column.
INSERT INTO pending VALUES (?, ?, ?);

-- name: any_part
-- lane_rows: whether a lane has parts. Index: primary key.
SELECT EXISTS (SELECT 1 FROM pending WHERE key >= x'');

-- name: drop_parts
-- lane_rows: every part of the ids of lanes. Takes their keys. Index: primary key.
DELETE FROM pending WHERE key IN ({{ ? }});

-- name: drop_parts_before
-- lane_rows: the parts that end before a seq. Takes key and seq. Index: primary key.
DELETE FROM pending WHERE key = ?1 AND first < (SELECT max(first) FROM pending WHERE key = ?1 AND first <= ?2);

-- name: ready
-- resting: the next ready lanes at rest, in order. Takes the place and key of the last one that was read. Index: lane_ready.
SELECT position, key FROM lane WHERE position IS NOT NULL AND (position, key) > (?1, ?2) ORDER BY position, key LIMIT ?3;

-- name: delayed
-- resting: the same for delayed lanes, by the end of their delays. Index: lane_due.
SELECT due, key FROM lane WHERE due IS NOT NULL AND (due, key) > (?1, ?2) ORDER BY due, key LIMIT ?3;

-- name: leased
-- resting: the same for leased lanes, by their deadlines. Index: lane_leased.
SELECT deadline, key FROM lane WHERE token IS NOT NULL AND (deadline, key) > (?1, ?2) ORDER BY deadline, key LIMIT ?3;

-- name: endless
-- batch_leases: the lanes at rest that a recorded batch holds. Takes its token, the last key that was read, and how many. Index:
-- lane_endless.
SELECT key FROM lane WHERE token = ?1 AND deadline = 4611686018427387904 AND key > ?2 ORDER BY key LIMIT ?3;

-- name: read_mark
-- mark: the row where memory begins, without its first column.
SELECT fold_position, cut, mid, counted, counted_top, epoch, config_version, time_offset, seq_floor, last_token, features,
    lanes, pending, dead, sends, claims, receives, acks, retries, redeliveries, expired, dropped, purged, redriven,
    dead_letters, rejected, empty_receives, ack_rate, ack_rate_at FROM mark;

-- name: write_mark
-- mark: the same row, after a slice of a fold. Takes every column of it.
UPDATE mark SET fold_position = ?, cut = ?, mid = ?, counted = ?, counted_top = ?, epoch = ?, config_version = ?, time_offset = ?,
    seq_floor = ?, last_token = ?, features = ?, lanes = ?, pending = ?, dead = ?, sends = ?, claims = ?, receives = ?, acks = ?,
    retries = ?, redeliveries = ?, expired = ?, dropped = ?, purged = ?, redriven = ?,
    dead_letters = ?, rejected = ?, empty_receives = ?, ack_rate = ?, ack_rate_at = ?;

-- name: epoch
-- shard_identity.epoch and store: the epoch of the last write that began one.
SELECT epoch FROM mark;

-- name: skip_tokens
-- checkpoint: after a failed sync. Takes how many, and the mask of a token's number. Reads the journal.
UPDATE mark SET last_token = max(last_token, ifnull((SELECT max(token & ?2) FROM journal WHERE kind = 1), 0)) + ?1;

-- name: read_gone
-- gone: the bits of one bucket. Takes its number. Index: rowid.
SELECT bits, deleted FROM gone WHERE bucket = ?;

-- name: write_gone
-- gone: the same. Takes number and both.
INSERT INTO gone VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET bits = ?2, deleted = ?3;

-- name: add_newest
-- gone: a row that has the newest arrival number. Takes it, and a key.
INSERT INTO message VALUES (?, ?, 0, 0, NULL, NULL, NULL, NULL);

-- name: some_gone
-- gone: buckets that have rows of resolved messages, the oldest first. Takes how many. Reads the table up to them.
SELECT bucket FROM gone WHERE bits <> zeroblob(16) ORDER BY bucket LIMIT ?;

-- name: drop_gone
-- gone: a bucket whose messages were all deleted. Takes its number.
DELETE FROM gone WHERE bucket = ?;

-- name: bury
-- dead: a message that became a dead letter. Takes every column.
INSERT INTO dead VALUES (?, ?, ?, ?, ?, ?);

-- name: trouble_of
-- trouble: what attempts left of a message. Takes its arrival number. Index: rowid.
SELECT attempts, first_at, error, output, errors FROM trouble WHERE id = ?;

-- name: set_trouble
-- trouble: the whole row. Takes arrival number, and the columns in order.
INSERT INTO trouble VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO UPDATE SET attempts = ?2, first_at = ?3, error = ?4, output = ?5, errors = ?6;

-- name: keep_ended
-- ending: a record of each message that is about to end. Takes now, attempts that `trouble` does not count
-- yet, seconds of prepare and of process, outcome, whether bodies are kept, the arrival numbers as JSON, what the handler printed, and
-- when the lease began. `log.pairs` runs it, too. `opts` is a JSON array unless it has headers alone. Indexes: rowids.
INSERT INTO history (key, seq, arrival, sent_at, first_at, done_at, attempts, prepare_seconds, process_seconds, size, size_hint, outcome, body,
    errors, output)
SELECT m.key, m.seq, m.id, m.sent_at,
       CASE WHEN t.first_at IS NOT NULL THEN t.first_at
            WHEN ?2 = 0 THEN NULL
            WHEN ?4 IS NOT NULL THEN max(?1 - CAST(?4 * 1000000 AS INTEGER), m.sent_at)
            ELSE ?9 END,
       ?1, ifnull(t.attempts, 0) + ?2, ?3, ?4, length(m.body),
       CASE WHEN substr(m.opts, 1, 1) = '[' THEN json_extract(m.opts, '$[0]') END, ?5,
       CASE WHEN ?6 THEN m.body END, t.errors, ifnull(substr(?8, 1, 10000), t.output)
FROM json_each(?7) c CROSS JOIN message m ON m.id = c.value LEFT JOIN trouble t ON t.id = m.id ORDER BY m.id;

-- name: any_trouble
-- gone: whether there is a row at all. Rowid seek.
SELECT EXISTS (SELECT 1 FROM trouble);

-- name: drop_trouble
-- gone: rows of messages whose rows are deleted. Takes the first and the last one. Index: rowid.
DELETE FROM trouble WHERE id BETWEEN ? AND ?;

-- name: key_state
-- key_states: the state of a key. Index: primary key.
SELECT value FROM key_state WHERE key = ?;

-- name: settled_key_state
-- key_states.settled: the same, with what a reader of the shard must know. Index: primary key.
SELECT (SELECT value FROM key_state WHERE key = ?), features FROM mark;

-- name: set_key_state
-- key_states: the same. Takes key and value.
INSERT INTO key_state VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2;

-- name: delete_key_state
-- key_states: a key has no state any more.
DELETE FROM key_state WHERE key = ?;

-- name: unbury
-- dead: a dead letter that is redriven or purged. Takes key and arrival number. Index: primary key.
DELETE FROM dead WHERE key = ? AND id = ?;

-- name: add_dedup
-- dedup: remember a dedup id, unless it is remembered and its window has not ended. Takes every column, and the time.
INSERT INTO dedup VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO UPDATE SET seq = ?3, id = ?4, until = ?5, of = ?6 WHERE until <= ?7;

-- name: dedup_seq
-- dedup: seq and arrival number of the message with a dedup id, and its lane if the id is of the whole queue. Takes key, id and time.
-- Index: primary key.
SELECT seq, id, of FROM dedup WHERE key = ? AND dedup_id = ? AND until > ?;

-- name: old_dedups
-- dedup: some ids whose windows have ended. Takes the time, and how many. Index: dedup_until.
SELECT key, dedup_id FROM dedup WHERE until <= ? ORDER BY until LIMIT ?;

-- name: next_dedup
-- dedup: when the next window ends. Index: dedup_until.
SELECT min(until) FROM dedup;

-- name: drop_dedup
-- dedup: one of them. Takes key and id. Index: primary key.
DELETE FROM dedup WHERE key = ? AND dedup_id = ?;

-- name: must_keep
-- forgetting: whether a lane has a dead letter, a dedup id or a state. Takes its key. Indexes: primary keys.
SELECT EXISTS (SELECT 1 FROM dead WHERE key = ?1) OR EXISTS (SELECT 1 FROM dedup WHERE key = ?1)
    OR EXISTS (SELECT 1 FROM key_state WHERE key = ?1);

-- name: drop_lane
-- forgetting: the row of a lane. Takes its key. Index: primary key.
DELETE FROM lane WHERE key = ?;

-- name: some_lanes
-- checking: rows of lanes, in the order of keys. Takes the last key that was read, and how many. Index: primary key.
SELECT key FROM lane WHERE key > ? ORDER BY key LIMIT ?;

-- name: some_messages
-- shard_lanes and checking: messages in order of arrival, without bodies. Takes the last one that was read, and how many. Index: rowid.
SELECT id, key, seq FROM message WHERE id > ? ORDER BY id LIMIT ?;
