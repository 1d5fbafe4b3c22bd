"""Workers and senders on moto's server. It hands a group to two receivers at once, so there is one fetcher and one worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

import strictq
from strictq.testing.sqs import ANY_KEY, REGION

GROUPS, MESSAGES = 3, 5


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """moto's server. Yield its host and port."""
    from moto.server import ThreadedMotoServer

    it = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    it.start()
    try:
        yield "{}:{}".format(*it.get_host_and_port())
    finally:
        it.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["o.fifo", "o"])
def test_a_worker_processes_what_was_sent(server: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in (("ACCESS_KEY_ID", ANY_KEY), ("SECRET_ACCESS_KEY", ANY_KEY), ("DEFAULT_REGION", REGION)):
        monkeypatch.setenv(f"AWS_{variable}", value)
    attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    boto3.client("sqs", endpoint_url=f"http://{server}").create_queue(QueueName=name, Attributes=attributes)
    seen: dict[Any, list[bytes]] = {}
    failed: list[bytes] = []

    def process(job: strictq.Job) -> None:
        if job.body == b"2" and len(failed) < GROUPS:
            failed.append(job.body)
            raise strictq.Retry(0.0)
        seen.setdefault(job.headers["customer"], []).append(job.body)

    with strictq.connect(f"sqs+http://{server}/queue/{name}") as q:
        for n in range(MESSAGES):
            q.send_many(strictq.Message(b"%d" % n, key=f"g{g}", headers={"customer": f"c{g}"}) for g in range(GROUPS))
        strictq.Worker(q, process).run(drain=True)
        assert q.stats().depth == 0
    bodies = [b"%d" % n for n in range(MESSAGES)]
    assert {key: got if q.is_fifo else sorted(got) for key, got in seen.items()} == {f"c{g}": bodies for g in range(GROUPS)}
