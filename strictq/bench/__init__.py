"""The measurements of `strictq bench`: the queue compared with bare SQLite, in one run, on one disk."""
