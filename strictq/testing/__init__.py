"""Support for testing programs that use strictq: queues with a fake clock, assertions and crashes. Nothing sleeps.

from strictq.testing import assert_sent, assert_settled, drain

def test_an_order_is_charged(strict_queue):  # the fixture of strictq's pytest plugin
    strict_queue.send(b"12 EUR", key="order-1")
    drain(strict_queue, charge)
    assert_sent(strict_queue, "receipts", [b"order-1: 12 EUR"])

Works with any test runner; the fixtures need pytest. See docs/howto/testing.md. strictq itself does not import this.
"""

from .asserts import assert_dead, assert_sent, assert_settled
from .clock import FakeClock, Idle, RunningClock
from .driving import Drained, drain, drain_async, run_until_idle, run_until_idle_async
from .machine import Machine, awaited, clock_of, open, open_async
from .sqs import SqsEndpoint, sqs_endpoint

__all__ = [
    "Drained",
    "FakeClock",
    "Idle",
    "Machine",
    "RunningClock",
    "SqsEndpoint",
    "assert_dead",
    "assert_sent",
    "assert_settled",
    "awaited",
    "clock_of",
    "drain",
    "drain_async",
    "open",
    "open_async",
    "run_until_idle",
    "run_until_idle_async",
    "sqs_endpoint",
]
