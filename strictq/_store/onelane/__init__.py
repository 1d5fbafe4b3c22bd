"""One shard of format 3: plan, append, apply; fold and load.

A call is three steps. `plan` looks at memory, refuses what is invalid, and builds an entry. `append` writes the entry to the
journal. `apply` changes memory; it is the same function for own entries, for those of other processes, and when memory is built.
A call that needs nothing but memory is a single guarded statement, which writes nothing if another process has written. Any other
call is a transaction that catches up first. Only such a transaction refuses: a memory that is behind may be wrong about a lease.

- `shard_file`: the connection, its transactions, catching up; the verbs.
- `loading`: bring lanes from their rows into memory, and find the lanes that an entry names.
- `claiming`: the one iterator of the order of ready lanes, and the plan of a claim.
- `settling`: the plans of a holder's calls on its lease.
- `folding`: write lanes to their rows, delete resolved messages, cut the journal.
- `checking`: compare a memory that is built anew with what is at rest.

Nothing opens a queue with it yet. The package takes the name `shard` once the module of that name is gone.
"""
