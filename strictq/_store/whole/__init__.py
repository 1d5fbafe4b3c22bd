"""Over all shards of a queue: open, send, receive, settle, transactions, reports, operations, upkeep."""
