"""Hot lanes: messages that are sent, leased and acked soon are rows of two logs, and what follows from them is kept in memory.

`memory` is what the logs say, `tier` sends, claims and acks there, `cooling` moves lanes to the tables of `lanes/`, which know
every feature.
"""
