"""The rows of a shard: its logs, and what is at rest: lanes, the mark where memory begins, messages that may be deleted.

- `log_rows`: rows of `message` and `journal`. They are appended, read from a row on, and cut; never updated.
- `lane_rows`: rows of lanes, and the windows of their ids.
- `resting`: the indexes of lanes at rest, read in order.
- `mark`: where memory begins, and the stored totals.
- `gone`: which resolved messages still have rows.
- `parcels`: lanes on their way to another shard. `app_rows`: rows of the program's tables that move with their keys.
- `dead`, `dedup`, `key_states`, `outputs`, `trouble`: what keys and messages have besides.
- `turn_rows`, `tenant_depths`: ready lanes at rest, and unresolved messages, by tenant.

Folds write the next four. They change no state, so whatever a fold writes can be read at any moment: see `lsn`.
"""
