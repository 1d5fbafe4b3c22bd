"""One shard: plan, append, apply; fold and load.

A call is three steps. A plan looks at memory, refuses what is invalid, and builds an entry. `append` writes the entry to the
journal. `apply` changes memory; it is the same function for own entries, for those of other processes, and when memory is built.
A call that needs nothing but memory is a single guarded statement, which writes nothing if another process has written. Any other
call runs in a transaction that has caught up first. Only such a transaction refuses: a memory that is behind may be wrong about a
lease.

- `shard_lanes`: the lanes over one connection, catching up with other processes, `append`.
- `loading`: bring lanes from their rows into memory, and find the lanes that an entry names.
- `folding`: write lanes to their rows, delete resolved messages, cut the journal.
- The verbs, each a part of a transaction: `sending`, `claiming` (with the one iterator of the order), `settling`, `operating`,
  `forgetting`, `merging_histories`; `recorded_batches` and `batch_leases` for named consumers. What they share: `ending`,
  `expiring`, `failures`, `history`. Functions with the end `_alone` are single statements.
- `moving`: lanes leave for another shard, and arrive.
- What the verbs take and return: `messages`, `leases`, `columns`.
- `counting`, `looking` and `reporting`: what operators see. `checking`: compare a memory that is built anew with what is at rest.
"""
