-- name: schema
-- The logs of hot lanes: every arrival, and its outcome. docs/explanation/storage.md describes how the two are read together.
CREATE TABLE inbox (
    id              INTEGER PRIMARY KEY,           -- arrival number: the same sequence as counter.last_id
    key             BLOB    NOT NULL,
    seq             INTEGER NOT NULL,
    sent_at         INTEGER NOT NULL,
    expires         INTEGER,
    headers         TEXT,
    size_hint       REAL,
    prepare_seconds REAL,
    process_seconds REAL,
    body            BLOB                           -- NULL: in `body`
) STRICT;
CREATE TABLE journal (
    id       INTEGER PRIMARY KEY,                  -- without a hole: a writer that missed one reads it first
    kind     INTEGER NOT NULL,                     -- 1 claim, 2 ack, 3 start, 4 cool
    at       INTEGER NOT NULL,                     -- queue time
    top      INTEGER NOT NULL,                     -- newest row of inbox that was there before it
    count    INTEGER NOT NULL,                     -- messages
    token    INTEGER NOT NULL,                     -- claim: of its leases; else 0
    deadline INTEGER NOT NULL,                     -- claim: of its leases; cool: rows of inbox up to here are gone
    before   INTEGER NOT NULL,                     -- claim: while nothing is started, lease.started is so far before its first message
    charged  INTEGER NOT NULL,                     -- claim: 1: a message that is alone in its lease counts as started
    consumer TEXT,                                 -- claim
    data     BLOB    NOT NULL                      -- arrival numbers, 8 bytes each, little-endian; cool: keys
) STRICT;
CREATE TABLE counted (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    inbox_top   INTEGER NOT NULL,                  -- the counter row includes rows of inbox up to here,
    journal_top INTEGER NOT NULL,                  -- and of journal
    gate        INTEGER NOT NULL                   -- how often the counter row was written
) STRICT;
INSERT INTO counted VALUES (1, 0, 0, 0);

-- name: exists
-- catalog: whether the shard has logs, or an older format.
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'counted';

-- name: newest
-- memory: at the start of every transaction and look: whether anything was written that this memory does not have. A writer of
-- other tables also writes the counter row, which changes the gate. Rowid seeks.
-- If the inbox is empty, the newest row of the journal, which is never removed, names its last arrival.
SELECT ifnull((SELECT max(id) FROM journal), 0),
       coalesce((SELECT max(id) FROM inbox), (SELECT top FROM journal ORDER BY id DESC LIMIT 1), 0), gate FROM counted;

-- name: counted
-- memory: the last rows of the logs that the counter row includes.
SELECT inbox_top, journal_top FROM counted;

-- name: write_counted
-- memory: set these positions, with the counter row. Takes both.
UPDATE counted SET inbox_top = ?, journal_top = ?, gate = gate + 1 RETURNING gate;

-- name: arrivals
-- memory: inbox rows that it does not have yet, with the columns of a claim. Takes the last one that it has. Index: rowid.
SELECT id, 0, key, 0, seq, NULL, expires, 0, id, sent_at, headers, size_hint, prepare_seconds, process_seconds, body
FROM inbox WHERE id > ? ORDER BY id;

-- name: events
-- memory: the same for the journal. Index: rowid.
SELECT id, kind, at, top, count, token, deadline, before, charged, consumer, data FROM journal WHERE id > ? ORDER BY id;

-- name: acked_token
-- memory: the token of a lane's last resolution in the tables; NULL: it has none. Index: lane's UNIQUE one on key.
SELECT done_token FROM main.lane WHERE key = ?;

-- name: insert_plain
-- tier: messages without options, many rows a statement. Takes sent_at and expires of all of them; then of each id, key, seq, body.
INSERT INTO inbox (sent_at, expires, id, key, seq, body) VALUES {{ (?1, ?2, ?, ?, ?, ?) }};

-- name: insert_full
-- tier.write_arrivals: a message with options. Takes every column.
INSERT INTO inbox (id, key, seq, sent_at, expires, headers, size_hint, prepare_seconds, process_seconds, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_event
-- tier and cooling: one row of the journal. Takes every column.
INSERT INTO journal (id, kind, at, top, count, token, deadline, before, charged, consumer, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: append_arrival
-- direct: a message without options, as a transaction of its own. Takes id, key, seq, sent_at, body, and the newest rows of journal
-- and inbox and the gate, as memory has them: if they differ, seq is NULL, and IGNORE skips the row. Indexes: rowids.
INSERT OR IGNORE INTO inbox (id, key, seq, sent_at, body) VALUES (?1, ?2, iif(
    (SELECT gate FROM counted) = ?8 AND ifnull((SELECT max(id) FROM journal), 0) = ?6
    AND coalesce((SELECT max(id) FROM inbox), (SELECT top FROM journal ORDER BY id DESC LIMIT 1), 0) = ?7, ?3, NULL), ?4, ?5);

-- name: append_event
-- direct: one row of the journal, in the same way. Takes every column, and the gate.
INSERT OR IGNORE INTO journal (id, kind, at, top, count, token, deadline, before, charged, consumer, data) VALUES (?1, iif(
    (SELECT gate FROM counted) = ?12 AND ifnull((SELECT max(id) FROM journal), 0) = ?1 - 1
    AND coalesce((SELECT max(id) FROM inbox), (SELECT top FROM journal ORDER BY id DESC LIMIT 1), 0) = ?4, ?2, NULL),
    ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11);

-- name: cut_inbox
-- cooling: rows that no memory needs. Takes the last of them. Index: rowid.
DELETE FROM inbox WHERE id <= ?;

-- name: cut_journal
-- cooling: the same. Takes the last of them. Index: rowid.
DELETE FROM journal WHERE id <= ?;

-- name: insert_message
-- cooling: messages of lanes that cool, in lane order. Takes lane, seq, id, sent_at, expires, headers, size_hint, prepare_seconds,
-- process_seconds, body.
INSERT INTO message (lane, seq, id, sent_at, expires, headers, size_hint, prepare_seconds, process_seconds, body)
VALUES {{ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) }};

-- name: lanes_of
-- cooling: the ids of the lanes of keys. Index: lane's UNIQUE one on key.
SELECT key, id FROM lane WHERE key IN ({{ ? }});

-- name: write_lane
-- cooling: the resolutions of a lane. Takes token, lowest and highest seq and gaps of its last acks (NULL: it keeps those that
-- it has), active_at, lane, last_seq, resolved. Index: rowid.
UPDATE lane SET
    done_token = ifnull(?1, done_token), done_kind = iif(?1 IS NULL, done_kind, 'ack'), done_lo = ifnull(?2, done_lo),
    done_hi = ifnull(?3, done_hi), done_gaps = iif(?1 IS NULL, done_gaps, ?4),
    active_at = max(active_at, ?5), last_seq = max(last_seq, ?7), resolved = ?8
WHERE id = ?6;

-- name: write_acks
-- cooling: the last acks of a lane that stays hot. Takes token, lowest and highest seq, gaps, active_at, lane. Index: rowid.
UPDATE lane SET
    done_token = ?, done_kind = 'ack', done_lo = ?, done_hi = ?, done_gaps = ?, active_at = max(active_at, ?)
WHERE id = ?;

-- name: insert_lease
-- cooling: the lease of a lane that cools. Takes what `HotLane.lease_row` gives.
INSERT INTO lease (lane, token, consumer, lo, hi, started, pending, leased_at, deadline) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: next_cold
-- claim: the next lane of the cold order behind a position. Index: primary key.
SELECT position FROM ready WHERE position > ? ORDER BY position LIMIT 1;


-- name: listed
-- memory and send: whether a lane is listed as ready, and when the next delay ends. Indexes: primary keys.
SELECT EXISTS (SELECT 1 FROM ready), (SELECT min(due) FROM delayed);

-- name: outlook
-- claim.outlook_with_logs: CLAIM.outlook, and the newest rows of the logs. Indexes: as there, rowids.
SELECT EXISTS (SELECT 1 FROM ready), next_deadline, (SELECT min(due) FROM delayed), epoch, config_version,
       ifnull((SELECT max(id) FROM journal), 0),
       coalesce((SELECT max(id) FROM inbox), (SELECT top FROM journal ORDER BY id DESC LIMIT 1), 0) FROM counter;

-- name: lanes_since
-- memory.figures: the keys of lanes that were created behind one. Takes its id. Index: rowid.
SELECT key FROM lane WHERE id > ?;

-- name: arrived
-- audit: every row of the inbox. Index: rowid.
SELECT id, key, seq FROM inbox ORDER BY id;

-- name: epoch
-- audit and store: the shard's epoch; no token has a later one.
SELECT epoch FROM counter;

-- name: cold_rows
-- audit: whether a lane has messages, a place, a lease or a hold in the tables, and its last seq there. Indexes: lane's UNIQUE one on
-- key, primary keys.
SELECT EXISTS (SELECT 1 FROM message m WHERE m.lane = l.id), EXISTS (SELECT 1 FROM ready r WHERE r.lane = l.id),
       EXISTS (SELECT 1 FROM delayed d WHERE d.lane = l.id), EXISTS (SELECT 1 FROM lease e WHERE e.lane = l.id),
       hold IS NOT NULL, last_seq FROM lane l WHERE key = ?;

-- name: floor
-- audit: the seq above which new lanes start.
SELECT seq_floor FROM counter;

-- name: cold_tail
-- audit: the newest seq of a lane in the tables; of one that was forgotten, the floor. Indexes: as above.
SELECT coalesce((SELECT max(last_seq, ifnull((SELECT max(seq) FROM message m WHERE m.lane = l.id), 0)) FROM lane l WHERE key = ?),
                (SELECT seq_floor FROM counter));

-- name: last_id
-- shard and inspect: the newest arrival number. Index: rowid.
SELECT max(last_id, ifnull((SELECT max(id) FROM inbox), 0)) FROM counter;

-- name: pending
-- shard: unresolved messages. Indexes: rowids.
SELECT pending + (SELECT count(*) FROM inbox WHERE id > inbox_top)
       - (SELECT ifnull(sum(count), 0) FROM journal WHERE id > journal_top AND kind = 2) FROM counter, counted;

-- name: last_time
-- catalog.last_time: queue time of the last write. Indexes: rowids.
SELECT max(last_time, ifnull((SELECT at FROM journal ORDER BY id DESC LIMIT 1), 0),
           ifnull((SELECT sent_at FROM inbox ORDER BY id DESC LIMIT 1), 0)) FROM counter;

-- name: make_shadows
-- look: tables of this connection for what hot lanes hold.
CREATE TEMP TABLE hot_lane AS SELECT * FROM main.lane WHERE 0;
CREATE INDEX temp.hot_lane_id ON hot_lane (id);
CREATE INDEX temp.hot_lane_key ON hot_lane (key);
CREATE TEMP TABLE hot_message AS SELECT * FROM main.message WHERE 0;
CREATE INDEX temp.hot_message_seq ON hot_message (lane, seq);
CREATE TEMP TABLE hot_lease AS SELECT * FROM main.lease WHERE 0;
CREATE INDEX temp.hot_lease_lane ON hot_lease (lane);
CREATE TEMP TABLE hot_ready AS SELECT * FROM main.ready WHERE 0;
CREATE INDEX temp.hot_ready_position ON hot_ready (position);
CREATE TEMP TABLE hot_counter AS SELECT * FROM main.counter WHERE 0;

-- name: drop_shadows
-- look: drop the tables and views of hot lanes, as far as they exist.
DROP VIEW IF EXISTS temp.lane;
DROP VIEW IF EXISTS temp.message;
DROP VIEW IF EXISTS temp.lease;
DROP VIEW IF EXISTS temp.ready;
DROP VIEW IF EXISTS temp.counter;
DROP TABLE IF EXISTS temp.hot_lane;
DROP TABLE IF EXISTS temp.hot_message;
DROP TABLE IF EXISTS temp.hot_lease;
DROP TABLE IF EXISTS temp.hot_ready;
DROP TABLE IF EXISTS temp.hot_counter;

-- name: show_shadows
-- look: views that make every later statement of this connection see hot lanes in the regular tables.
CREATE TEMP VIEW lane AS SELECT * FROM main.lane WHERE id NOT IN (SELECT id FROM temp.hot_lane) UNION ALL SELECT * FROM temp.hot_lane;
CREATE TEMP VIEW message AS SELECT * FROM main.message UNION ALL SELECT * FROM temp.hot_message;
CREATE TEMP VIEW lease AS SELECT * FROM main.lease UNION ALL SELECT * FROM temp.hot_lease;
CREATE TEMP VIEW ready AS SELECT * FROM main.ready UNION ALL SELECT * FROM temp.hot_ready;
CREATE TEMP VIEW counter AS SELECT * FROM temp.hot_counter;

-- name: hide_shadows
-- look: drop the views when there are no hot lanes.
DROP VIEW temp.lane;
DROP VIEW temp.message;
DROP VIEW temp.lease;
DROP VIEW temp.ready;
DROP VIEW temp.counter;

-- name: empty_shadows
-- look: empty the tables before they are filled again.
DELETE FROM temp.hot_lane;
DELETE FROM temp.hot_message;
DELETE FROM temp.hot_lease;
DELETE FROM temp.hot_ready;
DELETE FROM temp.hot_counter;

-- name: shadow_lane
-- look: a hot lane without a row.
INSERT INTO temp.hot_lane (id, key, last_seq, resolved, solo_to, charged_to, active_at) VALUES (?, ?, 0, 0, 0, 0, 0);

-- name: shadow_known
-- look: a hot lane that has a row. Takes its key.
INSERT INTO temp.hot_lane SELECT * FROM main.lane WHERE key = ? RETURNING id;

-- name: shadow_state
-- look: its resolutions since. Takes last_seq, resolved, active_at, lane.
UPDATE temp.hot_lane SET last_seq = max(last_seq, ?), resolved = ?, active_at = max(active_at, ?) WHERE id = ?;

-- name: shadow_done
-- look: its last acks. Takes token, lowest and highest seq, gaps, lane.
UPDATE temp.hot_lane SET done_token = ?, done_kind = 'ack', done_lo = ?, done_hi = ?, done_gaps = ? WHERE id = ?;

-- name: are_shown
-- scan: whether this look shows hot lanes. Scans the temporary schema.
SELECT 1 FROM sqlite_temp_schema WHERE type = 'view' AND name = 'message';

-- name: any_shown
-- scan: whether a message is in the logs of hot lanes, in a look that shows them.
SELECT 1 FROM temp.hot_message LIMIT 1;

-- name: shadow_message
-- look: an unresolved message.
INSERT INTO temp.hot_message (lane, seq, id, sent_at, expires, attempts, headers, size_hint, prepare_seconds, process_seconds, body)
VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?);

-- name: shadow_lease
-- look: a live lease.
INSERT INTO temp.hot_lease (lane, token, consumer, lo, hi, started, pending, leased_at, deadline, expired, ack_first, redrive, closed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0);

-- name: shadow_ready
-- look: a lane in the order.
INSERT INTO temp.hot_ready (position, lane, careful) VALUES (?, ?, 0);

-- name: shadow_counter
-- look: the counter row with what the logs add to it. Takes the values of Totals.
INSERT INTO temp.hot_counter VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

