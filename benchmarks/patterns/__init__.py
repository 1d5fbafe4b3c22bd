"""What people do with a queue, one pattern after the other, as processor time per message: `python -m benchmarks patterns`.

`catalog` lists the patterns, `programs` does them with any version of strictq, `others` does them with bare SQLite and with the
peers, and `command` runs all of them alternately and prints the table.
"""
