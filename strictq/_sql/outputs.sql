-- Outputs of finished messages that are kept, of a shard that has kept one: see _store/tables/outputs.py.

-- name: schema
-- outputs.create and formats: the table of a shard whose `mark.features` has its bit.
CREATE TABLE kept_output (
    id        INTEGER PRIMARY KEY,                 -- the message's arrival number
    key       BLOB    NOT NULL,                    -- of its lane
    seq       INTEGER NOT NULL,
    until     INTEGER NOT NULL,                    -- queue time at which it may be deleted
    output    TEXT    NOT NULL
) STRICT;
CREATE INDEX kept_output_seq ON kept_output (key, seq);
CREATE INDEX kept_output_until ON kept_output (until);

-- name: add_feature
-- outputs.create: say in `mark` that the shard has the table. Takes the bit.
UPDATE mark SET features = features | ?;

-- name: keep
-- outputs: the output of a message that is about to end. Takes every column.
INSERT INTO kept_output VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET until = ?4, output = ?5;

-- name: of
-- outputs: the kept output of a message. Takes key, seq and time. Index: kept_output_seq.
SELECT output FROM kept_output WHERE key = ? AND seq = ? AND until > ?;

-- name: of_arrival
-- outputs: the same of a keyless message. Takes arrival number and time. Index: rowid.
SELECT output FROM kept_output WHERE id = ? AND until > ?;

-- name: next_end
-- outputs: when the next output may be deleted. Index: kept_output_until.
SELECT min(until) FROM kept_output;

-- name: forget
-- outputs: some outputs that may be deleted, in a bounded step. Takes the time, and how many. Index: kept_output_until.
DELETE FROM kept_output WHERE id IN (SELECT id FROM kept_output WHERE until <= ? ORDER BY until LIMIT ?);

-- name: purge
-- outputs: some outputs, in a bounded step. Takes how many. Index: rowid.
DELETE FROM kept_output WHERE id IN (SELECT id FROM kept_output ORDER BY id LIMIT ?);

-- name: purge_of
-- outputs: the same of a key. Takes key, and how many. Index: kept_output_seq.
DELETE FROM kept_output WHERE id IN (SELECT id FROM kept_output WHERE key = ? ORDER BY seq LIMIT ?);

-- name: rows
-- outputs: those of some messages, for a merge. Takes their arrival numbers. Index: rowid.
SELECT id, until, output FROM kept_output WHERE id IN ({{ ? }});

-- name: keys
-- checking: the keys that have outputs. Reads the index kept_output_seq.
SELECT DISTINCT key FROM kept_output;
