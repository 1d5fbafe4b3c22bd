"""The inner API under queues, deliveries, transactions, the worker, the command and Spark."""
