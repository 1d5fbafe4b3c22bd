"""Replication by shipping: a queue's changed pages, as segments in a directory from which the queue can be made again.

`segment` is one file of a replica, `target` the directory, `chain` what it holds; `shipper` fills it, in the thread that `keeper`
runs; `restoring` makes a queue of it.
"""
