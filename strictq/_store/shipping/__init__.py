"""What replication needs from the files: the pages that commits changed (`tail`, `capture`), and a queue made of pages
(`rebuild`).

Where the pages go, and when, is decided above the store (strictq/replication).
"""
