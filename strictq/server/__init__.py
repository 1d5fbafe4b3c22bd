"""Queues over HTTP: an SQS endpoint, a console, and metrics."""
