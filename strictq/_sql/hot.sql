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

-- name: insert_event
-- tier and cooling: one row of the journal. Takes every column.
INSERT INTO journal (id, kind, at, top, count, token, deadline, before, charged, consumer, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

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

-- name: listed
-- memory and send: whether a lane is listed as ready, and when the next delay ends. Indexes: primary keys.
SELECT EXISTS (SELECT 1 FROM ready), (SELECT min(due) FROM delayed);

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
