-- name: meta
-- __init__: the identity of a shard. docs/explanation/storage.md describes every table for other programs.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- name: schema
-- __init__: the tables of lanes, format 1. docs/explanation/storage.md describes every table for other programs.
-- One row, written by every transaction that changes anything: the state that the next one continues from, and running totals.
CREATE TABLE counter (
    one             INTEGER PRIMARY KEY CHECK (one = 1),
    config_version  INTEGER NOT NULL,
    epoch           INTEGER NOT NULL,
    time_offset     INTEGER NOT NULL,
    last_time       INTEGER NOT NULL,              -- queue time of the last write, microseconds
    last_id         INTEGER NOT NULL,              -- arrivals and positions
    last_token      INTEGER NOT NULL,              -- within the epoch
    last_lane       INTEGER NOT NULL,
    last_outbox     INTEGER NOT NULL,
    seq_floor       INTEGER NOT NULL,              -- lanes are born above it
    next_deadline   INTEGER NOT NULL,              -- no lease ends before it; 2^62: none is live
    lanes           INTEGER NOT NULL,
    pending         INTEGER NOT NULL CHECK (pending >= 0),   -- rows of message
    dead            INTEGER NOT NULL CHECK (dead >= 0),      -- rows of dead
    sends           INTEGER NOT NULL,
    receives        INTEGER NOT NULL,              -- messages handed out
    claims          INTEGER NOT NULL,              -- looks that found something
    empty_receives  INTEGER NOT NULL,              -- looks that found nothing
    acks            INTEGER NOT NULL,
    retries         INTEGER NOT NULL,
    redeliveries    INTEGER NOT NULL,
    expired         INTEGER NOT NULL,
    dropped         INTEGER NOT NULL,
    purged          INTEGER NOT NULL,
    ack_rate        REAL    NOT NULL,              -- messages a second, exponentially weighted over a minute
    ack_rate_at     INTEGER NOT NULL
) STRICT;

CREATE TABLE lane (
    id          INTEGER PRIMARY KEY,               -- never reused
    key         BLOB    NOT NULL UNIQUE,           -- type byte and content
    last_seq    INTEGER NOT NULL,                  -- highest seq that left `message`: the tail is the larger of it and the newest row there
    resolved    INTEGER NOT NULL,                  -- seqs up to the tail that have no row in `message`: depth = tail - resolved
    solo_to     INTEGER NOT NULL DEFAULT 0,        -- one message at a time up to this seq
    charged_to  INTEGER NOT NULL DEFAULT 0,        -- no later message has attempts
    hold        TEXT,                              -- why an operator or a poison message holds the lane
    held_at     INTEGER,
    active_at   INTEGER NOT NULL,                  -- queue time at which a message last left it
    done_token  INTEGER,                           -- the last resolution: who, what and which
    done_kind   TEXT CHECK (done_kind = 'ack' OR done_kind = 'nack' OR done_kind = 'reject'),  -- IN would cost 1 µs more a lane
    done_lo     INTEGER,
    done_hi     INTEGER,
    done_gaps   TEXT                               -- JSON array of the seqs between that were not part of it
) STRICT;
CREATE INDEX lane_held ON lane (id) WHERE hold IS NOT NULL;

-- Unresolved messages, and nothing else, in lane order.
CREATE TABLE message (
    lane            INTEGER NOT NULL,
    seq             INTEGER NOT NULL CHECK (seq > 0),
    id              INTEGER NOT NULL,              -- arrival number, never reused
    sent_at         INTEGER NOT NULL,              -- queue time, like every time here
    due             INTEGER,                       -- not before
    expires         INTEGER,
    attempts        INTEGER NOT NULL DEFAULT 0,    -- of ended leases; a live one adds 1 where seq <= lease.started
    headers         TEXT,                          -- JSON object
    size_hint       REAL,
    prepare_seconds REAL,
    process_seconds REAL,
    error           TEXT,
    output          TEXT,
    first_at        INTEGER,                       -- first handed out to a handler, once that attempt has failed
    body            BLOB,                          -- NULL: in `body`
    PRIMARY KEY (lane, seq)
) STRICT, WITHOUT ROWID;

-- Bodies that would spill over a page of `message`.
CREATE TABLE body (
    id   INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

-- A lane with messages is in exactly one of: ready, delayed, held (lane.hold), or leased and not expired.
CREATE TABLE ready (
    position INTEGER PRIMARY KEY,                  -- the order of claims
    lane     INTEGER NOT NULL UNIQUE,
    careful  INTEGER NOT NULL DEFAULT 0            -- 1: has an expired lease, or a solo range: claim it by itself
) STRICT;
CREATE TABLE delayed (
    lane INTEGER PRIMARY KEY,
    due  INTEGER NOT NULL
) STRICT;
CREATE INDEX delayed_due ON delayed (due);

-- This primary key enforces one holder per lane.
CREATE TABLE lease (
    lane      INTEGER PRIMARY KEY,
    token     INTEGER NOT NULL,                    -- epoch * 2^40 + number
    consumer  TEXT    NOT NULL,
    lo        INTEGER NOT NULL,
    hi        INTEGER NOT NULL,                    -- its messages: the rows of `message` with lo <= seq <= hi
    started   INTEGER NOT NULL,                    -- a handler was started for those up to here
    pending   INTEGER NOT NULL CHECK (pending >= 0),   -- how many are unresolved
    leased_at INTEGER NOT NULL,
    deadline  INTEGER NOT NULL,
    expired   INTEGER NOT NULL DEFAULT 0,          -- 1: seen past its deadline, the lane is claimable again
    ack_first INTEGER NOT NULL DEFAULT 0,
    redrive   INTEGER NOT NULL DEFAULT 0,          -- 1: dead letters wait for its end
    closed    INTEGER NOT NULL DEFAULT 0,          -- 1: some of it was given back: it grows no more
    CHECK (lo <= hi AND started <= hi)
) STRICT;

CREATE TABLE dead (
    lane            INTEGER NOT NULL,
    seq             INTEGER NOT NULL,
    id              INTEGER NOT NULL,
    sent_at         INTEGER NOT NULL,
    died_at         INTEGER NOT NULL,
    kind            TEXT    NOT NULL CHECK (kind IN ('rejected', 'poison', 'expired')),
    reason          TEXT,
    attempts        INTEGER NOT NULL,
    headers         TEXT,
    size_hint       REAL,
    prepare_seconds REAL,
    process_seconds REAL,
    output          TEXT,
    body            BLOB,
    redrive         INTEGER NOT NULL DEFAULT 0,    -- 1: goes back when the lane's lease ends
    PRIMARY KEY (lane, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX dead_waiting ON dead (lane) WHERE redrive = 1;

CREATE TABLE dedup (
    lane     INTEGER NOT NULL,
    dedup_id TEXT    NOT NULL,
    seq      INTEGER NOT NULL,
    id       INTEGER NOT NULL,
    until    INTEGER NOT NULL,
    PRIMARY KEY (lane, dedup_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX dedup_until ON dedup (until);

CREATE TABLE key_state (
    lane  INTEGER PRIMARY KEY,
    value BLOB NOT NULL
) STRICT;

-- name: lease_index
-- __init__: finds the leases of a batch, in a shard of format 1 or 2.
CREATE INDEX lease_handout ON lease (token) WHERE deadline = 4611686018427387904;

-- name: common
-- __init__: other tables that a shard has in every format.
-- Sends of transactions of this shard that belong to other shards, until they arrived there.
CREATE TABLE outbox (
    destination     INTEGER NOT NULL,
    id              INTEGER NOT NULL,
    key             BLOB    NOT NULL,
    sent_at         INTEGER NOT NULL,
    due             INTEGER,
    expires         INTEGER,
    dedup_id        TEXT,
    headers         TEXT,
    size_hint       REAL,
    prepare_seconds REAL,
    process_seconds REAL,
    body            BLOB    NOT NULL,
    PRIMARY KEY (destination, id)
) STRICT, WITHOUT ROWID;
-- The last arrivals from other shards: never removed, so that a repeated forward does nothing.
CREATE TABLE inlet (
    origin     TEXT PRIMARY KEY,
    high_water INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Records of finished messages, if the configuration keeps them, in the order in which they ended.
CREATE TABLE history (
    n               INTEGER PRIMARY KEY AUTOINCREMENT,   -- never reused, so that a reader can go on where it was
    key             BLOB    NOT NULL,              -- as in `lane`, which may be forgotten
    seq             INTEGER NOT NULL,
    arrival         INTEGER NOT NULL,              -- the message's id
    sent_at         INTEGER NOT NULL,
    first_at        INTEGER,                       -- its first attempt; NULL: there was none
    done_at         INTEGER NOT NULL,
    attempts        INTEGER NOT NULL,
    prepare_seconds REAL,                          -- measured by a worker
    process_seconds REAL,
    size            INTEGER NOT NULL,              -- of the body, bytes
    size_hint       REAL,
    outcome         TEXT    NOT NULL CHECK (outcome IN ('acked', 'rejected', 'poison', 'expired', 'dropped', 'purged')),
    body            BLOB                           -- NULL: not kept
) STRICT;

-- name: logs
-- moving, and the schema of format 2: its logs. Every arrival, and its outcome. docs/explanation/storage.md describes how the two are read together.
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

-- name: format_2
-- __init__.FORMAT_2, formats: the additions of format 2 to the tables above. The errors are the newest ones of a message's
-- attempts, as JSON (see failures.py); NULL if no attempt failed.
ALTER TABLE message ADD COLUMN errors TEXT;
ALTER TABLE dead ADD COLUMN errors TEXT;

-- name: history_2
-- __init__: the same for records.
ALTER TABLE history ADD COLUMN errors TEXT;
ALTER TABLE history ADD COLUMN output TEXT;

-- name: objects
-- formats: everything that the file's schema has.
SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema;

-- name: written_tables
-- foreign: the roots of the tables one of which every commit writes to. Scans the schema.
SELECT rootpage FROM sqlite_schema WHERE name IN ('counter', 'inbox', 'journal')
    OR (name = 'message' AND EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'mark'));

-- name: read_meta
-- shard_file, writer and shard_identity: one value of the shard's identity. Takes name. Index: primary key.
SELECT value FROM meta WHERE name = ?;

-- name: write_meta
-- shard, writer, shard_identity.lay_out_shard and salvage: set one value of the shard's identity. Takes name, value.
INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: has_meta
-- shard_identity.verify_shard and checkpoint: whether the file has its tables. Scans the schema.
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'meta';
