"""Replication by shipping a queue's changed pages, as segments in a directory from which the queue can be restored.

`segment` is one file of a replica, `target` the directory. `shipper` fills it, in the thread that
`keeper` runs. `restoring` creates a queue from one of its restorable states.
"""
