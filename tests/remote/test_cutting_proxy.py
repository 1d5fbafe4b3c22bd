"""The proxy of the campaigns: answers arrive later, some only in part, and a server that is down closes the connection."""

from __future__ import annotations

import http.client
import socket

import pytest

from strictq.testing import SqsEndpoint
from tests.server.sqs.playing import JSON, Endpoint
from tests.support.cutting_proxy import CuttingProxy

BROKEN = (http.client.HTTPException, OSError, ValueError)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_answers_pass_and_the_cut_ones_are_counted(sqs_endpoint: SqsEndpoint) -> None:
    with CuttingProxy(port_of(sqs_endpoint.url), cut=0.5, seed=1) as proxy:
        arrived = 0
        with Endpoint(f"http://127.0.0.1:{proxy.port}", JSON, lambda _: None) as endpoint:
            for i in range(20):
                try:
                    arrived += bool(endpoint.call("CreateQueue", {"QueueName": f"q{i}"}))
                except BROKEN:
                    continue
        # A client that was cut off on a kept connection has repeated its request on a new one.
        assert 0 < arrived < 20
        assert proxy.cuts >= 20 - arrived
    assert len(sqs_endpoint.client.list_queues()["QueueUrls"]) == 20


def test_a_server_that_is_down_is_a_closed_connection() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    with (
        CuttingProxy(free) as proxy,
        Endpoint(f"http://127.0.0.1:{proxy.port}", JSON, lambda _: None) as endpoint,
        pytest.raises(BROKEN),
    ):
        endpoint.call("ListQueues", {})
