"""Hot lanes: messages that are soon acked are rows of two logs, and the resulting state is kept in memory.

`memory` is the state of the logs, made of a `lane` for each key and the `order` of those that are ready; `journal` is the second
log's format. `tier` sends, claims and acks there, `direct` does the same in single statements, `cooling` moves lanes to the
tables of `lanes/`, which support every feature. `look` and `audit` are for those who only read.
"""
