"""One shard of format 3: plan, append, apply; fold and load.

A call is three steps. A plan looks at memory, refuses what is invalid, and builds an entry. `append` writes the entry to the
journal. `apply` changes memory; it is the same function for own entries, for those of other processes, and when memory is built.
A call that needs nothing but memory is a single guarded statement, which writes nothing if another process has written. Any other
call runs in a transaction that has caught up first. Only such a transaction refuses: a memory that is behind may be wrong about a
lease.

- `shard_lanes`: the lanes over one connection, catching up with other processes, `append`.
- `loading`: bring lanes from their rows into memory, and find the lanes that an entry names.
- `folding`: write lanes to their rows, delete resolved messages, cut the journal.
- The verbs, each a part of a transaction: `sending`, `claiming` (with the one iterator of the order), `settling`, `operating`,
  `forgetting`; and what they share: `ending`, `expiring`, `parking`, `message_opts`. `alone`: those that may be one statement.
- `checking`: compare a memory that is built anew with what is at rest.

A new queue uses it if the variable `migrate.NEXT_VARIABLE` is set. The package takes the name `shard` once the module of that
name is gone.
"""
