-- name: schema
-- The unresolved messages of each tenant, as of the row of `mark`. Those with none have no row.
CREATE TABLE tenant_depth (
    tenant    BLOB    PRIMARY KEY,
    depth     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- name: depth
-- tenant_depths.depth: of one tenant. Index: primary key.
SELECT depth FROM tenant_depth WHERE tenant = ?;

-- name: some
-- tenant_depths.some: two tenants that have messages. Index: primary key.
SELECT tenant FROM tenant_depth LIMIT 2;

-- name: depths
-- tenant_depths.depths: of all tenants.
SELECT tenant, depth FROM tenant_depth;

-- name: add
-- tenant_depths.store: what has changed. Takes tenant, messages. Index: primary key.
INSERT INTO tenant_depth (tenant, depth) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET depth = depth + ?2;

-- name: drop
-- tenant_depths.store: a tenant without messages. Index: primary key.
DELETE FROM tenant_depth WHERE tenant = ? AND depth = 0;

-- name: clear
-- tenant_depths.rebuild: all of them.
DELETE FROM tenant_depth;

-- name: leased
-- tenant_depths.leased: the lanes that are leased by their rows. Index: lane_leased.
SELECT key, deadline FROM lane INDEXED BY lane_leased WHERE token IS NOT NULL;
