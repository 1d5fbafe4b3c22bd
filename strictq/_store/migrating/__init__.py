"""Read a shard of format 2 as plain values, to migrate it to a later format.

Later formats do not have the tables and logs of format 2, nor the code that works with them. So this package replays the logs by
itself. `reader` never writes to the shard.
"""
