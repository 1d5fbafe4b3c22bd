-- Lanes on their way from one shard to another: see _store/tables/parcels.py.

-- name: schema
-- parcels.create and formats: the table of a shard whose `mark.features` has the bit of moved ranges.
CREATE TABLE parcel (
    number  INTEGER NOT NULL,
    kind    INTEGER NOT NULL,                      -- which table the row was of
    n       INTEGER NOT NULL,
    c1 ANY, c2 ANY, c3 ANY, c4 ANY, c5 ANY, c6 ANY, c7 ANY, c8 ANY, c9 ANY, c10 ANY, c11 ANY, c12 ANY, c13 ANY, c14 ANY,
    c15 ANY, c16 ANY, c17 ANY, c18 ANY,            -- its columns
    PRIMARY KEY (number, kind, n)
) STRICT, WITHOUT ROWID;

-- name: put
-- parcels.put: one row. Takes number, kind, n and 18 columns.
INSERT INTO parcel VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: numbers
-- parcels.numbers: those that have left and were not swept. Index: primary key.
SELECT DISTINCT number FROM parcel ORDER BY number;

-- name: rows
-- parcels.rows: the rows of one parcel. Takes its number. Index: primary key.
SELECT * FROM parcel WHERE number = ? ORDER BY kind, n;

-- name: sweep
-- parcels.sweep: the rows of a parcel up to one. Takes number, kind and n. Index: primary key.
DELETE FROM parcel WHERE number = ? AND (kind, n) <= (?, ?);

-- name: rest
-- parcels.sweep: the next messages of a parcel that are to be deleted. Takes its number, and the kind. Index: primary key.
SELECT n, c1 FROM parcel WHERE number = ? AND kind = ? ORDER BY n LIMIT 2;

-- name: arrivals
-- moving.arrivals: how many parcels have arrived, and more. Takes the names under which their numbers are noted. Scans the table.
SELECT coalesce(sum(high_water), 0) FROM inlet WHERE origin GLOB ?;

-- name: keys_after
-- moving: some lanes, by key. Takes the last key that was read, and how many. Index: primary key.
SELECT key, tail - first + 1, ids FROM lane WHERE key > ?1 ORDER BY key LIMIT ?2;

-- name: parked
-- moving.leave: the lanes of parked messages of a lane. Takes two keys between which they are. Index: primary key.
SELECT key FROM lane WHERE key > ? AND key < ?;

-- name: deep
-- moving.long_key: lanes with more than so many unresolved positions. Scans the table.
SELECT key, tail - first + 1 FROM lane WHERE tail - first + 1 > ?;

-- name: drop_lanes
-- moving.leave: the rows of lanes. Takes their keys. Index: primary key.
DELETE FROM lane WHERE key IN ({{ ? }});

-- name: dead
-- moving.leave: dead letters of lanes. Takes their keys. Index: primary key.
SELECT key, id, seq, died_at, kind, reason FROM dead WHERE key IN ({{ ? }});

-- name: dedup
-- moving.leave: dedup ids of lanes. Takes their keys. Index: primary key.
SELECT key, dedup_id, seq, id, until, of FROM dedup WHERE key IN ({{ ? }});

-- name: key_state
-- moving.leave: the states of keys, which it takes. Index: primary key.
SELECT key, value FROM key_state WHERE key IN ({{ ? }});

-- name: trouble
-- moving.leave: what attempts left of messages. Takes their arrival numbers as an array. Index: rowid.
SELECT t.id, t.attempts, t.first_at, t.error, t.output, t.errors FROM carray(?) c CROSS JOIN trouble t ON t.id = c.value;

-- name: drop_pending
-- moving.leave: the same of the parts of its ids.
DELETE FROM pending WHERE key = ?;

-- name: add_dedup
-- moving.arrive: a dedup id of a lane that arrives. Takes every column.
INSERT INTO dedup VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: states_after
-- moving.loose: keys that have a state. Takes the last key that was read, and how many. Index: primary key.
SELECT key FROM key_state WHERE key > ?1 ORDER BY key LIMIT ?2;

-- name: has_lane
-- moving.is_loose: whether a key has a lane. Index: primary key.
SELECT 1 FROM lane WHERE key = ?;

-- name: app_tables
-- app_rows.keyed and merging_histories: the program's own tables. Scans the schema.
SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'app\_%' ESCAPE '\' ORDER BY name;

-- name: app_columns
-- app_rows: the columns of a table: name, whether it is computed, and its place in the primary key.
SELECT name, hidden, pk FROM pragma_table_xinfo(?) ORDER BY cid;

-- name: app_indexes
-- app_rows: the indexes of a table: name, whether it is unique, what made it, and whether it leaves rows out.
SELECT name, "unique", origin, partial FROM pragma_index_list(?);

-- name: app_index
-- app_rows: the columns of an index, and how they compare. NULL: an expression.
SELECT name, coll FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno;
