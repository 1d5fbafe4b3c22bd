"""The fixtures of the store's tests, here too."""

from tests.store.conftest import clock, disk

__all__ = ["clock", "disk"]
