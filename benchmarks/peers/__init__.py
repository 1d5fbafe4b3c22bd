"""Other queues on one machine, each behind the same protocol, for comparison with strictq.

`python -m benchmarks peers` measures their speed, `python -m benchmarks conformance` their behaviour.
"""

from __future__ import annotations

from typing import Final

from .diskcache import Diskcache
from .huey import Huey
from .litequeue import Litequeue
from .peer import Peer
from .persistqueue import PersistQueue
from .redis import Redis
from .strict import Strictq

PEERS: Final[dict[str, type[Peer]]] = {
    "litequeue": Litequeue,
    "persist-queue": PersistQueue,
    "huey": Huey,
    "diskcache": Diskcache,
    "redis": Redis,
}
"""The peers by their names on the command line."""

ALL: Final[dict[str, type[Peer]]] = {"strictq": Strictq, **PEERS}
