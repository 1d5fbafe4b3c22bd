"""queue.db and the identity of each shard: what a directory says of its queue before any shard is used."""
