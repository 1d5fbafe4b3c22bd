"""The logs of a shard: rows of `message` and `journal`. They are appended, read from a row on, and cut; never updated."""
