"""What is at rest in a shard: lanes, the mark where memory begins, the messages whose rows may be deleted.

- `lane_rows`: rows of lanes, and the windows of their ids.
- `resting`: the indexes of lanes at rest, read in order.
- `mark`: where memory begins, and the stored totals.
- `gone`: which resolved messages still have rows.

Folds write these tables. They change no state, so whatever a fold writes can be read at any moment: see `lsn`.
"""
