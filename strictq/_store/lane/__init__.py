"""The rules of a lane, and the entries of the journal. No SQL: nothing here reads a file, and nothing of the store is imported.

- `entries`: the kinds of entries, and the form of their data.
- `live_lane`: one lane in memory, and what may happen to it.
- `order`: the order of ready lanes, and the times at which delays and leases end.
- `turns`, `tenant_counts`: the order of several tenants, and how many messages each has.
- `ranges`: which hashes a shard owns, once ranges have moved.
- `totals`: where memory begins, and what entries add up to.
- `memory`: all lanes of a shard that are loaded, and `apply`, the only function that changes them.

A lane is an object in memory while something happens to it, and one row while it is at rest. The object is a function of the
row, of the messages with a higher seq than the row's tail, and of the entries with a higher id than the row's `lsn`.

To add a kind of entry: give it the next number and a name in `entries`, say in `memory.EFFECTS` what it does to each lane, and
let a module of `shard` plan it. Say in `shard/loading`, `shard/checking`, `tenant_counts` and `salvage/known` what it names. Add
a step to the random walk of `tests/support/lane_walk.py`, and its effect to `tests/support/naive_lanes.py`.
A version that does not know a kind refuses the shard, so a new kind needs a bit of `mark.features`.
"""
