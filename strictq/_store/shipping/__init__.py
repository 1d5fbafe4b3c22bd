"""What replication needs from files: the pages that commits changed (`tail`, `capture`), and queues made of pages (`rebuild`).

Where the pages go, and when, is decided above the store (strictq/replication).
"""
