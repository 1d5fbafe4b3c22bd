"""Standard and fair queues, with a clock: counts, old handles, delays, retention."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.server.sqs.asgi import Caller, bodies, counts


def test_a_message_is_hidden_for_its_timeout_and_counted(c: Caller) -> None:
    url = c.standard()
    sent = c.send(url, "x")
    for n in (1, 2, 3):
        (m,) = got = c.receive(url, VisibilityTimeout=10)
        assert counts(got) == [n]
        assert m["MessageId"] == sent["MessageId"]
        assert c.receive(url) == []
        c.clock.advance(10.0)


def test_the_first_receive_is_remembered(c: Caller) -> None:
    url = c.standard()
    c.send(url, "x")
    (first,) = c.receive(url, VisibilityTimeout=10)
    c.clock.advance(10.0)
    (again,) = c.receive(url)
    name = "ApproximateFirstReceiveTimestamp"
    assert first["Attributes"][name] == again["Attributes"][name]
    assert int(first["Attributes"]["SentTimestamp"]) == int(c.clock.now * 1000) - 10_000


def test_an_old_handle_names_the_message(c: Caller) -> None:
    url = c.standard()
    c.send(url, "x")
    (old,) = c.receive(url, VisibilityTimeout=10)
    c.clock.advance(10.0)
    (new,) = c.receive(url, VisibilityTimeout=30)
    assert new["ReceiptHandle"] != old["ReceiptHandle"]
    c.hide(url, old["ReceiptHandle"], 100)
    c.clock.advance(99.0)
    assert c.receive(url) == []
    c.delete(url, old["ReceiptHandle"], new["ReceiptHandle"], old["ReceiptHandle"])
    c.clock.advance(100.0)
    assert c.receive(url) == []


def test_a_change_and_a_delete_after_the_timeout_are_honoured(c: Caller) -> None:
    """AWS honours both, as LocalStack recorded in test_change_message_visibility_after_visibility_timeout_expiration."""
    url = c.standard()
    c.send(url, "x")
    (m,) = c.receive(url, VisibilityTimeout=10)
    c.clock.advance(11.0)
    c.hide(url, m["ReceiptHandle"], 5)
    assert c.receive(url) == []
    c.clock.advance(6.0)
    c.delete(url, m["ReceiptHandle"])
    assert c.receive(url) == []


def test_a_message_received_with_timeout_0_is_visible_and_can_be_deleted(c: Caller) -> None:
    url = c.standard()
    c.send(url, "x")
    (m,) = c.receive(url, VisibilityTimeout=0)
    (again,) = c.receive(url, VisibilityTimeout=0)
    assert counts([m, again]) == [1, 2]
    c.delete(url, m["ReceiptHandle"])
    assert c.receive(url) == []


def test_a_change_to_0_makes_it_visible_at_once(c: Caller) -> None:
    url = c.standard()
    c.send(url, "x")
    (m,) = c.receive(url)
    c.hide(url, m["ReceiptHandle"], 0)
    assert counts(c.receive(url)) == [2]


def test_delays_of_messages_and_of_the_queue(c: Caller) -> None:
    url = c.standard(DelaySeconds="5")
    c.send(url, "queue")
    c.send(url, "none", DelaySeconds=0)
    c.send(url, "own", DelaySeconds=10)
    assert bodies(c.receive(url)) == ["none"]
    c.clock.advance(5.0)
    assert bodies(c.receive(url)) == ["queue"]
    found = c.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert [v for k, v in sorted(found.items()) if k.startswith("Approximate")] == ["0", "1", "2"]
    c.clock.advance(5.0)
    assert bodies(c.receive(url)) == ["own"]


def test_messages_are_gone_after_the_retention(c: Caller) -> None:
    url = c.standard(MessageRetentionPeriod="60")
    c.send(url, "x")
    c.clock.advance(60.0)
    assert c.receive(url) == []


def test_a_purge_deletes_hidden_and_delayed_messages(c: Caller) -> None:
    url = c.standard()
    for i in range(3):
        c.send(url, str(i), DelaySeconds=i)
    c.receive(url, VisibilityTimeout=10)
    c.call("PurgeQueue", QueueUrl=url)
    c.clock.advance(20.0)
    assert c.receive(url) == []


def test_groups_take_turns(c: Caller) -> None:
    url = c.standard()
    for i in range(50):
        c.send(url, f"noisy{i}", "noi/sy%2F")
    c.send(url, "quiet", "quiet")
    got = c.receive(url) + c.receive(url)
    assert "quiet" in bodies(got)
    assert Counter(m["Attributes"]["MessageGroupId"] for m in got) == {"noi/sy%2F": 19, "quiet": 1}


def test_counts_and_handles_outlive_crashes(disk: Caller) -> None:
    c = disk
    url = c.standard()
    for i in range(10):
        c.send(url, str(i))
    got = c.receive(url, VisibilityTimeout=30)
    c.crash()
    assert c.receive(url) == []
    c.delete(url, got[0]["ReceiptHandle"])
    c.hide(url, got[1]["ReceiptHandle"], 0)
    assert bodies(again := c.receive(url)) == ["1"], again
    c.clock.advance(30.0)
    rest = [m for _ in range(10) for m in c.receive(url)]
    assert sorted(bodies(rest)) == [str(i) for i in range(1, 10)]
    assert set(counts(rest)) == {2, 3}


def test_a_batch_fails_entry_by_entry(c: Caller) -> None:
    url = c.standard(MaximumMessageSize="1024")
    entries = [
        {"Id": "good", "MessageBody": "x"},
        {"Id": "long", "MessageBody": "x" * 1025},
        {"Id": "empty", "MessageBody": ""},
        {"Id": "late", "MessageBody": "x", "DelaySeconds": 901},
        {"Id": "bad", "MessageBody": "\u0001"},
    ]
    got = c.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [e["Id"] for e in got["Successful"]] == ["good"]
    assert [(e["Id"], e["Code"]) for e in got["Failed"]] == [
        ("long", "InvalidParameterValue"),
        ("empty", "MissingParameter"),
        ("late", "InvalidParameterValue"),
        ("bad", "InvalidMessageContents"),
    ]


def test_what_another_program_sent_can_be_received(disk: Caller, tmp_path: Path) -> None:
    import strictq

    c = disk
    url = c.standard()
    c.send(url, "x")
    with strictq.open(tmp_path / "q.strictq", clock=c.clock) as q:
        for key in (7, b"k", "a/b", "text"):
            q.send(b"\xff", key=key, headers={"sqs": "no json"})
    got = c.receive(url)
    assert sorted(bodies(got)) == ["x", *["\ufffd"] * 4]
    c.delete(url, *(m["ReceiptHandle"] for m in got))
    assert len({m["MessageId"] for m in got}) == 5
    c.clock.advance(31.0)
    assert c.receive(url) == []
