"""Clients that people use work with the endpoint as they are.

boto3 and aiobotocore are installed for the tests. For the others, name a directory in STRICTQ_CLIENTS that is a virtual
environment with `awscli`, `celery` and `kombu[sqs]`, and in which `npm install @aws-sdk/client-sqs` was run.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import boto3
import pytest

from strictq.testing import SqsEndpoint

CLIENTS = os.environ.get("STRICTQ_CLIENTS", "")
PATIENCE_SECONDS = 120


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{CLIENTS}/bin{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def ran(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_boto3_takes_the_endpoint_from_the_environment(sqs_endpoint: SqsEndpoint) -> None:
    sqs = boto3.resource("sqs")
    queue = sqs.create_queue(QueueName="orders.fifo", Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"})
    for body in ("a", "b"):
        attribute = {"DataType": "String", "StringValue": "v"}
        queue.send_message(MessageBody=body, MessageGroupId="g", MessageAttributes={"k": attribute})
    first, second = queue.receive_messages(MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    assert [first.body, second.body] == ["a", "b"]
    assert first.message_attributes == {"k": {"DataType": "String", "StringValue": "v"}}
    first.delete()
    second.change_visibility(VisibilityTimeout=0)
    (again,) = queue.receive_messages(MaxNumberOfMessages=10)
    assert again.body == "b"
    queue.delete_messages(Entries=[{"Id": "0", "ReceiptHandle": again.receipt_handle}])
    sqs_endpoint.clock.advance(60)
    assert queue.receive_messages() == []


def test_boto3_errors_and_waits(sqs_endpoint: SqsEndpoint) -> None:
    client = sqs_endpoint.client
    with pytest.raises(client.exceptions.QueueDoesNotExist):
        client.get_queue_url(QueueName="none")
    url = sqs_endpoint.create_queue()
    with pytest.raises(client.exceptions.ReceiptHandleIsInvalid):
        client.delete_message(QueueUrl=url, ReceiptHandle="x")
    with pytest.raises(client.exceptions.InvalidMessageContents):
        client.send_message(QueueUrl=url, MessageBody="\0")
    sender = threading.Timer(0.05, client.send_message, kwargs={"QueueUrl": url, "MessageBody": "late"})
    sender.start()
    (m,) = client.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    sender.join()
    assert m["Body"] == "late"
    for name in ("list_queues", "list_dead_letter_source_queues"):
        assert client.can_paginate(name)
    pages = client.get_paginator("list_queues").paginate(PaginationConfig={"PageSize": 1})
    assert [page["QueueUrls"] for page in pages] == [[url]]


def test_aiobotocore(sqs_endpoint: SqsEndpoint) -> None:
    session = pytest.importorskip("aiobotocore.session")

    async def main() -> list[str]:
        async with session.get_session().create_client("sqs", endpoint_url=sqs_endpoint.url) as client:
            url = (await client.create_queue(QueueName="a"))["QueueUrl"]
            poll = asyncio.ensure_future(client.receive_message(QueueUrl=url, WaitTimeSeconds=20))
            await asyncio.sleep(0.05)
            await client.send_message(QueueUrl=url, MessageBody="one")
            (m,) = (await poll)["Messages"]
            await client.delete_message(QueueUrl=url, ReceiptHandle=m["ReceiptHandle"])
            await client.send_message_batch(QueueUrl=url, Entries=[{"Id": "0", "MessageBody": "two"}])
            got = await client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
            return [m["Body"], *(m["Body"] for m in got["Messages"])]

    assert asyncio.run(main()) == ["one", "two"]


@pytest.mark.slow
def test_the_aws_command(sqs_endpoint: SqsEndpoint) -> None:
    aws = tool("aws")

    def sqs(*arguments: str) -> Any:
        text = ran(aws, "--endpoint-url", sqs_endpoint.url, "--output", "json", "sqs", *arguments, **sqs_endpoint.environment)
        return json.loads(text) if text.strip() else {}

    attributes = "FifoQueue=true,ContentBasedDeduplication=true"
    url = sqs("create-queue", "--queue-name", "c.fifo", "--attributes", attributes)["QueueUrl"]
    sqs("send-message", "--queue-url", url, "--message-body", "hello", "--message-group-id", "g")
    (m,) = sqs("receive-message", "--queue-url", url, "--attribute-names", "All")["Messages"]
    assert m["Body"] == "hello"
    assert m["Attributes"]["MessageGroupId"] == "g"
    sqs("delete-message", "--queue-url", url, "--receipt-handle", m["ReceiptHandle"])
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    assert sqs("get-queue-attributes", "--queue-url", url, "--attribute-names", *names)["Attributes"] == dict.fromkeys(names, "0")


CELERY = """
import sys, threading
from celery import Celery
from celery.contrib.testing.worker import start_worker

app = Celery("c", broker="sqs://test:test@" + sys.argv[1].removeprefix("http://"), broker_transport_options={
    "is_secure": False, "region": "us-east-1", "wait_time_seconds": 1, "polling_interval": 0.01, "visibility_timeout": 30,
})
app.conf.task_ignore_result = True
done, seen = threading.Event(), []

@app.task(name="add")
def add(a, b):
    seen.append(a + b)
    if len(seen) == 5:
        done.set()

with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
    for i in range(5):
        add.delay(i, 1)
    assert done.wait(60), seen
print(sorted(seen))
"""


@pytest.mark.slow
def test_celery(sqs_endpoint: SqsEndpoint) -> None:
    python = Path(CLIENTS) / "bin" / "python"
    if not CLIENTS or subprocess.run([python, "-c", "import celery, kombu.transport.SQS"], capture_output=True).returncode:
        pytest.skip("celery and kombu[sqs] are not installed in STRICTQ_CLIENTS")
    assert ran(str(python), "-c", CELERY, sqs_endpoint.url, **sqs_endpoint.environment).strip().endswith("[1, 2, 3, 4, 5]")


NODE = """
const {
  SQSClient, CreateQueueCommand, SendMessageCommand, ReceiveMessageCommand, DeleteMessageCommand,
} = require("@aws-sdk/client-sqs");
(async () => {
  const sqs = new SQSClient({ endpoint: process.env.AWS_ENDPOINT_URL_SQS });
  const Attributes = { FifoQueue: "true", ContentBasedDeduplication: "true" };
  const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: "js.fifo", Attributes }));
  const MessageAttributes = { k: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) } };
  for (const MessageBody of ["a", "b"])
    await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody, MessageGroupId: "g", MessageAttributes }));
  const got = await sqs.send(new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 10, MessageAttributeNames: ["All"] }));
  for (const m of got.Messages)
    await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: m.ReceiptHandle }));
  try { await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: "x" })); } catch (e) { console.log(e.name); }
  console.log(got.Messages.map(m => m.Body + m.MessageAttributes.k.BinaryValue.join()).join(" "));
})();
"""


@pytest.mark.slow
def test_the_javascript_sdk(sqs_endpoint: SqsEndpoint) -> None:
    node, modules = tool("node"), Path(CLIENTS) / "node_modules"
    if not CLIENTS or not (modules / "@aws-sdk" / "client-sqs").is_dir():
        pytest.skip("@aws-sdk/client-sqs is not installed in STRICTQ_CLIENTS")
    lines = ran(node, "-e", NODE, NODE_PATH=str(modules), **sqs_endpoint.environment).split("\n")
    assert lines[:2] == ["ReceiptHandleIsInvalid", "a0,255 b0,255"]
