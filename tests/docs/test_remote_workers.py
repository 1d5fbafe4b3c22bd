"""The worker of docs/howto/remote-workers.md, as processes, of which one is killed: each effect happens once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import strictq
from strictq.testing import SqsEndpoint
from tests.support.running import run_python, until

from .test_code_blocks import ROOT, blocks

PAGE = ROOT / "docs" / "howto" / "remote-workers.md"
GROUPS, MESSAGES = 3, 20
LEDGER = """
import json, sqlite3, sys
print(json.dumps(sqlite3.connect(sys.argv[1]).execute("SELECT name, cents FROM account ORDER BY name").fetchall()))
"""


@pytest.mark.slow
def test_each_effect_happens_once_although_a_worker_is_killed(sqs_endpoint: SqsEndpoint, tmp_path: Path) -> None:
    (program,) = (b.text for b in blocks(PAGE) if b.lines[0] == "# worker.py")
    (tmp_path / "worker.py").write_text(program)
    queue = sqs_endpoint.create_queue("orders.fifo", ContentBasedDeduplication=False, VisibilityTimeout=2)
    for n in range(MESSAGES):
        entries = [
            {"Id": str(g), "MessageBody": str(n), "MessageGroupId": f"customer-{g}", "MessageDeduplicationId": f"{g}-{n}"}
            for g in range(GROUPS)
        ]
        sqs_endpoint.client.send_message_batch(QueueUrl=queue, Entries=entries)
    path = os.pathsep.join(filter(None, [str(Path(strictq.__file__).parent.parent), os.environ.get("PYTHONPATH")]))
    url = sqs_endpoint.url.replace("http://", "sqs+http://") + "/queue/orders.fifo"

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "worker.py", url], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})

    def left() -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        got = sqs_endpoint.client.get_queue_attributes(QueueUrl=queue, AttributeNames=names)
        return sum(map(int, got["Attributes"].values()))

    workers = [start()]
    try:
        until(lambda: left() < GROUPS * MESSAGES, "a first effect")
        workers[0].kill()
        workers.append(start())
        until(lambda: not left(), "all effects")
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait(60)
    found = json.loads(run_python(LEDGER, tmp_path / "ledger.db"))
    assert found == [[f"customer-{g}", sum(range(MESSAGES))] for g in range(GROUPS)]
