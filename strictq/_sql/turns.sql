-- name: schema
-- The ready lanes at rest of each tenant, if the queue has a separator of tenants: what the index lane_ready is without one.
CREATE TABLE turn (
    key       BLOB    PRIMARY KEY,
    tenant    BLOB    NOT NULL,                    -- what precedes the separator in its key; empty: the common tenant
    position  INTEGER NOT NULL                     -- as in `lane`
) STRICT, WITHOUT ROWID;
CREATE INDEX turn_order ON turn (tenant, position, key);

-- name: tenants
-- turn_rows.tenants: the names of all tenants with ready lanes at rest, each in one seek. Index: turn_order.
WITH RECURSIVE found (tenant) AS (
    SELECT min(tenant) FROM turn
    UNION ALL SELECT (SELECT min(t.tenant) FROM turn t WHERE t.tenant > found.tenant) FROM found WHERE found.tenant IS NOT NULL
) SELECT tenant FROM found WHERE tenant IS NOT NULL;

-- name: ready
-- resting: ready lanes of a tenant at rest, in order, behind a (position, key). Takes tenant, position, key, limit. Index: turn_order.
SELECT position, key FROM turn WHERE tenant = ?1 AND (position, key) > (?2, ?3) ORDER BY position, key LIMIT ?4;

-- name: write
-- turn_rows.write: a ready lane. Takes key, tenant, position. Index: primary key.
INSERT INTO turn (key, tenant, position) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET position = ?3 WHERE position <> ?3;

-- name: delete
-- moving: a lane that leaves. Takes key. Index: primary key.
DELETE FROM turn WHERE key = ?;

-- name: any
-- turn_rows.write: whether a lane is listed. Index: primary key.
SELECT EXISTS (SELECT 1 FROM turn);

-- name: drop
-- turn_rows.write: lanes that are not ready. Takes their keys. Index: primary key.
DELETE FROM turn WHERE key IN ({{ ? }});

-- name: clear
-- turn_rows.rebuild: all of them.
DELETE FROM turn;

-- name: fill
-- turn_rows.rebuild: the ready lanes at rest. Takes the separator. Index: lane_ready.
INSERT INTO turn (key, tenant, position)
SELECT key, CASE WHEN instr(substr(key, 2), ?1) > 1 AND substr(key, 1, 1) IN (x'73', x'62')
                 THEN substr(key, 2, instr(substr(key, 2), ?1) - 1) ELSE x'' END, position
FROM lane WHERE position IS NOT NULL;

-- name: wrong
-- checking: ready lanes at rest that `turn` lacks or lists elsewhere, and those that it lists although they are not ready. Takes a limit.
SELECT l.key FROM lane l LEFT JOIN turn t ON t.key = l.key WHERE l.position IS NOT t.position AND l.position IS NOT NULL
UNION ALL SELECT t.key FROM turn t LEFT JOIN lane l ON l.key = t.key WHERE l.position IS NULL LIMIT ?;
