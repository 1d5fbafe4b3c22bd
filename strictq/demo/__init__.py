"""`strictq demo`: sends events through a queue to several consumer processes, kills one of them, and verifies the result.

events    the events, and the chain that links each to the previous one
consumer  the child process: receives, checks the chain inside the queue's transaction, records what it processed
runner    starts the consumers, sends the events, replaces the consumer that is killed, waits for the end
working   instead of the consumers: one worker, with slow prepares
plot      draws the worker's timeline
verify    compares the records with the events, independently of the queue
"""
