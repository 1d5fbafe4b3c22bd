"""The storage of messages. Other packages import only api.py.

The rooms, top floor first. Each imports only rooms below it; tests/test_layout.py has every permitted arrow (FLOORS).

- `api`: the door. `Storage` sends, receives and settles. Its parts are classes of the rooms below: `reports`, `operate`,
  `transactions`, `replicating`, `recorded_batches`, `bulk`, `waker`.
- `salvage`: a new queue from what a damaged one has. `bulk`: many messages at a time, without leases.
- `whole`: over all shards. `shipping`: what replication reads of the files, and queues made of pages.
- `shard`: one shard. Plan, append, apply; fold and load. `migrating`: shards of format 2 become shards of this format.
- `catalog`: queue.db, and what a shard says of itself.
- `commit`: transactions, group commit, checkpoints. It does not know what lanes are.
- `tables`: rows of the journal, and rows at rest. `lane`: the rules of a lane, without SQL.
- `disk`: files, the WAL, pages, checksums, locks.
"""
