"""An endpoint that speaks the protocols of Amazon SQS, over strictq queues."""

from .endpoint import Endpoint, make

__all__ = ["Endpoint", "make"]
