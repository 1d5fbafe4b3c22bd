"""What `strictq bench` measures: the queue against the floor of what SQLite itself does, in one run, on one disk."""
