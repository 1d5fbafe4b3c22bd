"""`strictq demo`: events through a queue, several consumer processes, one of them killed, everything verified.

events    the events, and what ties each to the one before it
consumer  the child process: receives, checks the chain inside the queue's transaction, records what it processed
runner    starts the consumers, sends the events, replaces the consumer that is killed, waits for the end
working   instead of the consumers: one worker, with prepares that take their time
plot      draws what the worker did when
verify    compares what was recorded with the events, independently of the queue
"""
