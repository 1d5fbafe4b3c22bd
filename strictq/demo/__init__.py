"""`strictq demo`: sends events through a queue to several consumer processes, kills one of them, and verifies the result.

events    the events; each has what links it to the previous one of its key
consumer  the child process: receives, checks the link inside the queue's transaction, records what it processed
runner    starts the consumers, sends the events, replaces the consumer that is killed, waits for the end
working   instead of the consumers: one worker, with slow prepares
timeline  draws what the worker did
verify    compares the records with the events, independently of the queue
"""
