"""How messages are stored. Nothing above this package knows; the way in is `Store` (router.py)."""

from .router import Store

__all__ = ["Store"]
