"""Queues, their attributes, tags and names: stored, restored, deleted, and refused where they are wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq.server.sqs import Endpoint
from strictq.server.sqs import opened as opened_module
from strictq.server.sqs.catalogue import Catalogue, Entry
from tests.server.sqs.asgi import Caller, SqsRefused, bodies, calling


@pytest.fixture
def c() -> Iterator[Caller]:
    with calling() as caller:
        yield caller


def attributes(c: Caller, url: str, *names: str) -> dict[str, str]:
    got = c.call("GetQueueAttributes", QueueUrl=url, AttributeNames=list(names or ("All",)))
    return dict(got.get("Attributes", {}))


def test_queues_are_there_after_a_restart(disk: Caller) -> None:
    c = disk
    url = c.fifo("a.fifo", VisibilityTimeout="7")
    c.call("TagQueue", QueueUrl=url, Tags={"k": "v", "ü": ""})
    c.call("AddPermission", QueueUrl=url, Label="l", AWSAccountIds=["1"], Actions=["SendMessage"])
    c.send(url, "x", "g")
    before = attributes(c, url)
    c.restart()
    assert c.call("ListQueues")["QueueUrls"] == [url]
    assert attributes(c, url) == before
    assert before["VisibilityTimeout"] == "7"
    assert json.loads(before["Policy"])["Statement"][0]["Sid"] == "l"
    assert c.call("ListQueueTags", QueueUrl=url)["Tags"] == {"k": "v", "ü": ""}
    assert bodies(c.receive(url)) == ["x"]


def test_a_deleted_queue_is_gone_with_its_messages(disk: Caller, tmp_path: Path) -> None:
    c = disk
    url = c.fifo()
    c.send(url, "x", "g")
    c.receive(url)
    c.call("DeleteQueue", QueueUrl=url)
    assert [path.name for path in tmp_path.iterdir()] == [".sqs-server"]
    for action in ("DeleteQueue", "PurgeQueue", "ListQueueTags", "ReceiveMessage"):
        with pytest.raises(SqsRefused) as e:
            c.call(action, QueueUrl=url)
        assert e.value.old == "AWS.SimpleQueueService.NonExistentQueue"
    assert c.receive(c.fifo()) == []


def test_a_deletion_that_a_crash_interrupted_is_finished(disk: Caller, tmp_path: Path) -> None:
    c = disk
    url = c.fifo()
    c.send(url, "x", "g")
    _, catalogue = c.endpoint._running()
    catalogue.change(catalogue.entries["q.fifo"], deleted=True)
    c.crash()
    assert c.call("ListQueues") == {}
    assert not (tmp_path / "q.fifo.strictq").exists()
    assert c.receive(c.fifo()) == []


def test_a_second_server_on_the_directory_is_refused(disk: Caller, tmp_path: Path) -> None:
    other = Endpoint(tmp_path)
    with pytest.raises(strictq.ConfigError, match="another server"):
        disk.run(other.start())
    disk.run(other.stop())
    disk.stop()
    disk.run(other.start())
    disk.run(other.stop())
    disk.start()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"name": "b"}'])
def test_an_entry_that_cannot_be_read_is_not_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.sqs.json").write_bytes(content)
    with pytest.raises(strictq.StoreCorrupt, match=r"a\.sqs\.json"):
        Catalogue(tmp_path)
    (tmp_path / "a.sqs.json").unlink()
    Catalogue(tmp_path).close()  # the lock was released


def test_a_change_that_cannot_be_stored_changes_nothing(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path)
    entry = Entry("a", {"DelaySeconds": "1"}, {}, 0, 0)
    catalogue.save(entry)
    (tmp_path / "a.sqs.json.part").mkdir()
    with pytest.raises(strictq.StoreError):
        catalogue.change(entry, attributes={"DelaySeconds": "2"})
    assert entry.values["DelaySeconds"] == "1"
    with pytest.raises(strictq.StoreError):
        catalogue.save(Entry("a", {}, {}, 0, 0))
    assert catalogue.entries["a"] is entry
    catalogue.close()


def test_queues_that_are_not_used_are_closed_and_opened_again(disk: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    c = disk
    urls = [c.fifo(f"q{i}.fifo") for i in range(4)]
    queues = c.endpoint._running()[0].queues
    monkeypatch.setattr(opened_module, "OPEN_MAX", 2)
    for url in urls:
        c.send(url, "x", "g")
        assert len(queues.all()) <= 2
    handles = [c.receive(url)[0]["ReceiptHandle"] for url in urls[:2]]
    with pytest.raises(SqsRefused) as e:  # both hide messages
        c.receive(urls[2])
    assert (e.value.status, e.value.code) == (503, "ServiceUnavailable")
    c.delete(urls[0], handles[0])
    assert bodies(c.receive(urls[2])) == ["x"]


def test_the_same_attributes_give_the_same_queue(c: Caller) -> None:
    dead = attributes(c, c.standard("dead"), "QueueArn")["QueueArn"]
    given = {"DelaySeconds": "1", "RedrivePolicy": json.dumps({"maxReceiveCount": "3", "deadLetterTargetArn": dead})}
    url = c.standard("q", **given)
    given["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": 3})
    assert c.standard("q", **given) == c.standard("q") == c.standard("q", VisibilityTimeout="30") == url
    with pytest.raises(SqsRefused, match="attribute DelaySeconds") as e:
        c.standard("q", DelaySeconds="2")
    assert (e.value.code, e.value.old) == ("QueueNameExists", "QueueAlreadyExists")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("", {}),
        ("a" * 81, {}),
        ("a b", {}),
        ("a.b", {}),
        ("../a", {}),
        ("ä", {}),
        (".fifo", {"FifoQueue": "true"}),
        ("a.fifo", {}),
        ("a", {"FifoQueue": "true"}),
        ("a", {"FifoQueue": "false"}),
        ("a", {"ContentBasedDeduplication": "true"}),
        ("a", {"DeduplicationScope": "queue"}),
        ("a", {"StrictqDeduplicationSeconds": "5"}),
        ("a.fifo", {"FifoQueue": "true", "FifoThroughputLimit": "perMessageGroupId"}),
        ("a.fifo", {"FifoQueue": "true", "StrictqDeduplicationSeconds": "0"}),
        ("a", {"QueueArn": "x"}),
        ("a", {"Unknown": "x"}),
        ("a", {"All": "x"}),
        ("a", {"DelaySeconds": "901"}),
        ("a", {"DelaySeconds": "-1"}),
        ("a", {"DelaySeconds": "1.0"}),
        ("a", {"DelaySeconds": ""}),
        ("a", {"DelaySeconds": "９"}),
        ("a", {"MaximumMessageSize": "1023"}),
        ("a", {"MaximumMessageSize": "1048577"}),
        ("a", {"MessageRetentionPeriod": "59"}),
        ("a", {"ReceiveMessageWaitTimeSeconds": "21"}),
        ("a", {"VisibilityTimeout": "43201"}),
        ("a", {"SqsManagedSseEnabled": "yes"}),
        ("a", {"Policy": "no"}),
        ("a", {"Policy": "[" * 100_000}),
        ("a", {"RedriveAllowPolicy": '{"redrivePermission": "perhaps"}'}),
    ],
)
def test_wrong_names_and_attributes_are_refused(c: Caller, name: str, given: dict[str, str]) -> None:
    with pytest.raises(SqsRefused) as e:
        c.call("CreateQueue", QueueName=name, Attributes=given)
    assert e.value.status == 400
    assert c.call("ListQueues") == {}


def test_attributes_are_changed_and_removed(c: Caller) -> None:
    url = c.fifo()
    c.call("SetQueueAttributes", QueueUrl=url, Attributes={"VisibilityTimeout": "5", "Policy": "{}", "DelaySeconds": "007"})
    found = attributes(c, url)
    assert (found["VisibilityTimeout"], found["Policy"], found["DelaySeconds"]) == ("5", "{}", "7")
    c.call("SetQueueAttributes", QueueUrl=url, Attributes={"Policy": ""})
    assert "Policy" not in attributes(c, url)
    assert attributes(c, url, "VisibilityTimeout", "StrictqVersion").keys() == {"VisibilityTimeout", "StrictqVersion"}
    assert c.call("GetQueueAttributes", QueueUrl=url) == {}
    with pytest.raises(SqsRefused, match="Unknown Attribute Nothing"):
        attributes(c, url, "Nothing")


def test_the_window_of_deduplication_can_be_set(c: Caller) -> None:
    url = c.fifo(StrictqDeduplicationSeconds="10000")
    c.send(url, "x", "g")
    c.clock.advance(9_999.0)
    c.send(url, "x", "g")
    assert bodies(c.receive(url)) == ["x"]
    c.call("SetQueueAttributes", QueueUrl=url, Attributes={"DeduplicationScope": "messageGroup"})
    c.send(url, "x", "other")
    assert bodies(c.receive(url)) == ["x"]


def test_queues_are_listed_by_pages(c: Caller) -> None:
    for i in range(7):
        c.standard(f"a{i}")
    c.standard("b")
    pages: list[list[str]] = []
    token: dict[str, Any] = {}
    while True:
        got = c.call("ListQueues", QueueNamePrefix="a", MaxResults=3, **token)
        pages.append([url.rpartition("/")[2] for url in got["QueueUrls"]])
        if "NextToken" not in got:
            break
        token = {"NextToken": got["NextToken"]}
    assert pages == [["a0", "a1", "a2"], ["a3", "a4", "a5"], ["a6"]]
    for wrong in (0, 1001):
        with pytest.raises(SqsRefused):
            c.call("ListQueues", MaxResults=wrong)


def test_tags_have_bounds(c: Caller) -> None:
    url = c.standard()
    c.call("TagQueue", QueueUrl=url, Tags={str(i): "v" for i in range(50)})
    for wrong in ({}, {"x": "v"}, {"": "v"}, {"k" * 129: "v"}, {"0": "v" * 257}):
        with pytest.raises(SqsRefused):
            c.call("TagQueue", QueueUrl=url, Tags=wrong)
    with pytest.raises(SqsRefused):
        c.call("UntagQueue", QueueUrl=url, TagKeys=[])
    c.call("UntagQueue", QueueUrl=url, TagKeys=[str(i) for i in range(49)])
    assert c.call("ListQueueTags", QueueUrl=url)["Tags"] == {"49": "v"}


def test_permissions_are_stored(c: Caller) -> None:
    url = c.standard()
    for label in ("one", "two"):
        c.call("AddPermission", QueueUrl=url, Label=label, AWSAccountIds=["1", "2"], Actions=["*"])
    with pytest.raises(SqsRefused, match="Already exists"):
        c.call("AddPermission", QueueUrl=url, Label="one", AWSAccountIds=["1"], Actions=["*"])
    assert [s["Sid"] for s in json.loads(attributes(c, url)["Policy"])["Statement"]] == ["one", "two"]
    c.call("RemovePermission", QueueUrl=url, Label="one")
    with pytest.raises(SqsRefused, match="can't find label"):
        c.call("RemovePermission", QueueUrl=url, Label="one")
    c.call("RemovePermission", QueueUrl=url, Label="two")
    assert "Policy" not in attributes(c, url)


def test_a_minute_of_waiting_as_on_aws() -> None:
    with calling(aws_waits=True) as c:
        url = c.standard()
        c.call("PurgeQueue", QueueUrl=url)
        with pytest.raises(SqsRefused) as e:
            c.call("PurgeQueue", QueueUrl=url)
        assert (e.value.status, e.value.old) == (403, "AWS.SimpleQueueService.PurgeQueueInProgress")
        c.call("DeleteQueue", QueueUrl=url)
        with pytest.raises(SqsRefused) as e:
            c.standard()
        assert e.value.code == "QueueDeletedRecently"


def test_a_reset_deletes_all_queues() -> None:
    with calling(testing=True) as c:
        url = c.fifo()
        c.send(url, "x", "g")
        for path in ("/_strictq/reset", "/moto-api/reset"):
            assert c.run(c.request("POST", path, b"", {}))[0] == 200
            assert c.call("ListQueues") == {}
            c.fifo()


def test_a_file_of_a_foreign_queue_is_adopted(disk: Caller, tmp_path: Path) -> None:
    with strictq.open(tmp_path / "orders.strictq", clock=disk.clock) as q:
        q.send(b"x", key="k")
    url = disk.standard("orders")
    assert bodies(disk.receive(url)) == ["x"]


def test_a_queue_that_is_deleted_while_it_is_being_opened_stays_deleted(disk: Caller) -> None:
    url = disk.standard()
    disk.send(url, "old")
    disk.restart()

    async def both() -> None:
        sending = asyncio.create_task(disk.acall("SendMessage", QueueUrl=url, MessageBody="lost"))
        await disk.acall("DeleteQueue", QueueUrl=url)
        with suppress(SqsRefused):
            await sending

    disk.run(both())
    assert disk.endpoint._running()[0].queues.all() == []
    assert disk.standard() == url
    disk.send(url, "new")
    disk.restart()
    assert bodies(disk.receive(url)) == ["new"]


def test_a_queue_may_be_added_while_the_sources_of_dead_letters_are_looked_for() -> None:
    catalogue = Catalogue(None)

    class Found(Entry):
        @property
        def redrive(self) -> None:
            """Another thread is quicker than the one that reads this."""
            catalogue.entries[f"another-{len(catalogue.entries)}"] = dead

        @redrive.setter
        def redrive(self, _policy: object) -> None: ...

    dead = Entry("dead", {}, {}, 0, 0)
    catalogue.save(Found("q", {}, {}, 0, 0))
    assert catalogue.sources(dead) == []
