"""Hot lanes: messages that are soon acked are rows of two logs, and the resulting state is kept in memory.

`memory` is the state of the logs, `tier` sends, claims and acks there, `cooling` moves lanes to the tables of `lanes/`, which
support every feature.
"""
