"""Connections to the fake client, and what receivers make of the messages that were sent to it."""

from __future__ import annotations

from typing import Any

import strictq
from strictq._values.keys import Key
from strictq.remote.mapping import Decoded, received
from tests.support.fake_sqs import FakeSqs, Made, Stored

NAME = "o.fifo"


def to(sqs: FakeSqs, name: str = NAME, **attributes: Any) -> strictq.RemoteQueue:
    return strictq.connect(sqs.queue(name, **attributes), client=sqs, clock=sqs.clock)


def arrived(sqs: FakeSqs, name: str = NAME) -> list[Decoded]:
    """What receivers make of the messages that are there."""
    return [decoded(m) for m in sqs.stored(f"x/{name}")]


def decoded(m: Stored) -> Decoded:
    system = {"SentTimestamp": str(m.sent // 1000)}
    if m.group is not None:
        system["MessageGroupId"] = m.group
    return received({"Body": m.body, "Attributes": system, "MessageAttributes": m.content.attributes})


def by_key(messages: list[Decoded]) -> dict[Key | None, list[bytes]]:
    found: dict[Key | None, list[bytes]] = {}
    for m in messages:
        found.setdefault(m.key, []).append(m.body)
    return found


def sent(sqs: FakeSqs) -> list[Made]:
    return sqs.made("send_message_batch")
