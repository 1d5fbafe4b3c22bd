"""Other queues on one machine, each behind the same protocol: what strictq is compared with.

`python -m benchmarks peers` measures them, `python -m benchmarks conformance` shows what each of them does.
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
"""By the name that the command line takes."""

ALL: Final[dict[str, type[Peer]]] = {"strictq": Strictq, **PEERS}
