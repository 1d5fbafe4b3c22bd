"""The troubles of a shared queue, and the measures that are tried against each."""

from __future__ import annotations

from typing import Any, Final

import attrs

LOUD: Final = "loud"
"""The tenant in trouble. All others are innocent."""
TENANTS: Final = 20
RATE: Final = 2.0
"""Messages per second of each innocent tenant."""
CONSUMERS: Final = 2
SLOTS: Final = 4
"""Messages that each consumer process handles at once."""
LIMIT: Final = 40.0
"""Messages per second that the limits permit the tenant in trouble."""


@attrs.frozen
class Measure:
    """What is done against a trouble, or nothing.

    Attributes:
        what: how the table names it.
        trouble: whether there is any; False: the quiet run, which the others are compared with.
        limit: arguments of `q.limit` for the tenant in trouble, set before it sends.
        ttl: of the messages of the backlog, in seconds. They are older when the consumers go on.
        executor, breaker: of the workers.
    """

    what: str
    trouble: bool = True
    separator: bool = False
    limit: dict[str, Any] = attrs.field(factory=dict)
    breaker: bool = False
    consumers: int = CONSUMERS
    ttl: float | None = None
    purge: bool = False
    executor: str = "thread"


@attrs.frozen
class Trouble:
    """A trouble.

    Attributes:
        what: one sentence.
        rate: messages per second of the tenant in trouble.
        handler_seconds: how long a handler of an innocent message takes.
        loud_seconds: how long one of the tenant in trouble takes. It fails then, if `fails`, or kills its process, if `kills`.
        backlog: whether the tenant in trouble has sent its messages while the consumers were paused.
    """

    what: str
    measures: dict[str, Measure]
    rate: float = 0.0
    handler_seconds: float = 0.06
    loud_seconds: float = 0.06
    fails: bool = False
    kills: bool = False
    backlog: bool = False


QUIET: Final = Measure("quiet: no trouble", trouble=False)
OFF: Final = Measure("nothing")
SEPARATOR: Final = Measure("separator", separator=True)

TROUBLES: Final = {
    "noisy": Trouble(
        f"One tenant sends {100 * RATE:g} messages per second, 100 times as many as each of the other {TENANTS}.",
        {
            "quiet": QUIET,
            "off": OFF,
            "separator": SEPARATOR,
            "send_rate": Measure("separator and send_rate", separator=True, limit={"send_rate": LIMIT}),
            "receive_rate": Measure("separator and receive_rate", separator=True, limit={"receive_rate": LIMIT}),
        },
        rate=100 * RATE,
    ),
    "slow": Trouble(
        "The service that one tenant's handlers call answers nothing. Each call fails after 0.4 s.",
        {
            "quiet": QUIET,
            "off": OFF,
            "separator": SEPARATOR,
            "receive_rate": Measure("separator and receive_rate", separator=True, limit={"receive_rate": 4.0}),
            "breaker": Measure("circuit breaker", breaker=True),
        },
        rate=10 * RATE,
        loud_seconds=0.4,
        fails=True,
    ),
    "kills": Trouble(
        "Each message of one tenant, one every two seconds, kills the process that handles it.",
        {
            "quiet": QUIET,
            "off": OFF,
            "separator": SEPARATOR,
            "processes": Measure("handlers in processes of their own", executor="process"),
            "paused": Measure("separator, and the tenant paused before", separator=True, limit={"paused": True}),
        },
        rate=0.5,
        kills=True,
    ),
    "recovery": Trouble(
        "The consumers go on after an outage. One tenant has a backlog; the others begin to send.",
        {
            "quiet": QUIET,
            "off": OFF,
            "ttl": Measure("a ttl, which the backlog has passed", ttl=0.5),
            "purge": Measure("purge before they go on", purge=True),
            "separator": SEPARATOR,
            "consumers": Measure("twice the consumers", consumers=2 * CONSUMERS),
        },
        handler_seconds=0.005,
        loud_seconds=0.005,
        backlog=True,
    ),
}


@attrs.frozen
class Form:
    """The sizes of a run.

    Attributes:
        seconds: how long the tenants send.
        backlog: messages of the backlog.
        drain_seconds: how long a backlog may take after that.
    """

    seconds: float
    backlog: int
    drain_seconds: float


FORMS: Final = {"long": Form(20.0, 1_000_000, 600.0), "short": Form(3.0, 20_000, 0.0), "tiny": Form(0.3, 50, 0.0)}
