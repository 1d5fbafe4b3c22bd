"""Queues behind an SQS-compatible endpoint: Amazon SQS, or `strictq serve sqs` on another host."""
