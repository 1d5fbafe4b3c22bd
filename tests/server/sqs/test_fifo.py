"""The table of hidden messages, with a clock: order, timeouts, handles, restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from strictq.server.sqs.received import Received
from tests.server.sqs.asgi import Caller, SqsRefused, bodies, counts


def sent(c: Caller, *messages: str, **attributes: str) -> str:
    """A queue with messages: "a1" is of group "a"."""
    url = c.fifo(**attributes)
    for message in messages:
        c.send(url, message, message[0])
    return url


def numbers(c: Caller, url: str) -> tuple[int, int]:
    """How many messages are visible and hidden, as the attributes say."""
    found = c.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return int(found["ApproximateNumberOfMessages"]), int(found["ApproximateNumberOfMessagesNotVisible"])


def test_a_group_with_a_hidden_message_waits_and_another_does_not(c: Caller) -> None:
    url = sent(c, "a1", "a2", "b1")
    assert bodies(c.receive(url, 1)) == ["a1"]
    assert bodies(c.receive(url)) == ["b1"]
    assert c.receive(url) == []


def test_a_receive_returns_a_group_up_to_the_first_hidden_message(c: Caller) -> None:
    url = sent(c, "a1", "a2", "a3")
    m1, m2, m3 = c.receive(url)
    c.hide(url, m1["ReceiptHandle"], 0)
    again = c.receive(url)
    assert bodies(again) == ["a1"]
    assert counts(again) == [2]
    c.hide(url, m3["ReceiptHandle"], 0)
    assert c.receive(url) == []  # a1 and a2 are hidden
    c.hide(url, again[0]["ReceiptHandle"], 0)
    assert bodies(c.receive(url)) == ["a1"]  # a2 is hidden, and a3 waits behind it
    c.delete(url, m2["ReceiptHandle"])
    assert c.receive(url) == []


def test_a_lane_is_free_when_its_last_hidden_message_is_visible(c: Caller) -> None:
    url = sent(c, "a1", "a2")
    _, m2 = c.receive(url, VisibilityTimeout=30)
    c.hide(url, m2["ReceiptHandle"], 60)
    c.clock.advance(30.0)
    assert bodies(c.receive(url, VisibilityTimeout=10)) == ["a1"]
    c.clock.advance(10.0)
    assert bodies(c.receive(url, VisibilityTimeout=100)) == ["a1"]
    c.clock.advance(20.0)  # a2 is visible, a1 is not
    assert c.receive(url) == []
    c.send(url, "a3", "a")
    c.clock.advance(80.0)
    got = c.receive(url)
    assert bodies(got) == ["a1", "a2", "a3"]
    assert counts(got) == [4, 2, 1]


def test_a_longer_timeout_of_one_message_holds_the_group(c: Caller) -> None:
    url = sent(c, "a1", "a2")
    m1, _ = c.receive(url, VisibilityTimeout=10)
    c.hide(url, m1["ReceiptHandle"], 100)
    c.clock.advance(10.0)
    assert c.receive(url) == []
    c.clock.advance(89.0)
    assert c.receive(url) == []
    c.clock.advance(1.0)
    assert bodies(c.receive(url)) == ["a1", "a2"]


def test_a_shorter_timeout_frees_the_group_sooner(c: Caller) -> None:
    url = sent(c, "a1", "a2")
    m1, m2 = c.receive(url, VisibilityTimeout=1000)
    c.hide(url, m1["ReceiptHandle"], 5)
    c.hide(url, m2["ReceiptHandle"], 6)
    c.clock.advance(5.0)
    assert bodies(c.receive(url, VisibilityTimeout=1)) == ["a1"]
    c.clock.advance(1.0)
    assert bodies(c.receive(url)) == ["a1", "a2"]


def test_deleting_all_frees_the_group(c: Caller) -> None:
    url = sent(c, "a1", "a2", "a3")
    m1, m2 = c.receive(url, 2)
    c.delete(url, m2["ReceiptHandle"], m1["ReceiptHandle"])
    assert bodies(c.receive(url)) == ["a3"]


def test_deleting_the_hidden_one_frees_the_visible_ones(c: Caller) -> None:
    url = sent(c, "a1", "a2")
    m1, m2 = c.receive(url, VisibilityTimeout=30)
    c.hide(url, m1["ReceiptHandle"], 0)
    c.send(url, "a3", "a")
    c.delete(url, m2["ReceiptHandle"])
    assert bodies(c.receive(url)) == ["a1", "a3"]


def test_only_the_newest_handle_is_honoured_and_only_in_its_time(c: Caller) -> None:
    url = sent(c, "a1", "a2")
    m1, m2 = c.receive(url, VisibilityTimeout=30)
    c.hide(url, m1["ReceiptHandle"], 0)
    (again,) = c.receive(url, VisibilityTimeout=5)
    for old in (m1, again):
        if old is again:
            c.clock.advance(5.0)
        with pytest.raises(SqsRefused, match=r"The receipt handle has expired\.") as e:
            c.delete(url, old["ReceiptHandle"])
        assert e.value.code == "InvalidParameterValueException"
        assert e.value.old == "InvalidParameterValue"
        with pytest.raises(SqsRefused, match="not available for visibility timeout change"):
            c.hide(url, old["ReceiptHandle"], 5)
    c.delete(url, m2["ReceiptHandle"])
    c.clock.advance(30.0)
    assert bodies(c.receive(url)) == ["a1"]


def test_a_handle_of_before_the_timeout_of_the_whole_group_is_refused(c: Caller) -> None:
    url = sent(c, "a1")
    (m,) = c.receive(url, VisibilityTimeout=5)
    c.clock.advance(5.0)
    with pytest.raises(SqsRefused, match="expired"):
        c.delete(url, m["ReceiptHandle"])
    assert bodies(c.receive(url)) == ["a1"]
    with pytest.raises(SqsRefused, match="expired"):
        c.delete(url, m["ReceiptHandle"])


def test_deleting_twice_succeeds(c: Caller) -> None:
    url = sent(c, "a1", "a2")
    m1, m2 = c.receive(url)
    c.delete(url, m1["ReceiptHandle"], m1["ReceiptHandle"])
    entries = [{"Id": str(i), "ReceiptHandle": m["ReceiptHandle"]} for i, m in enumerate((m1, m2, m2))]
    got = c.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)
    assert [e["Id"] for e in got["Successful"]] == ["0", "1", "2"]
    assert "Failed" not in got


def test_a_batch_of_visibilities_counts_as_one_change_of_the_group(c: Caller) -> None:
    url = sent(c, "a1", "a2", "a3")
    got = c.receive(url)
    entries = [
        {"Id": m["Body"], "ReceiptHandle": m["ReceiptHandle"], "VisibilityTimeout": seconds}
        for m, seconds in zip(got, (0, 0, 0), strict=True)
    ]
    entries.append({"Id": "wrong", "ReceiptHandle": "no", "VisibilityTimeout": 1})
    answer = c.call("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=entries)
    assert [e["Id"] for e in answer["Successful"]] == ["a1", "a2", "a3"]
    assert [(e["Id"], e["Code"], e["SenderFault"]) for e in answer["Failed"]] == [("wrong", "ReceiptHandleIsInvalid", True)]
    assert bodies(c.receive(url)) == ["a1", "a2", "a3"]


def test_a_receive_with_timeout_0_hides_nothing_and_counts(c: Caller) -> None:
    url = sent(c, "a1", "a2")
    for n in (1, 2):
        assert counts(c.receive(url, 1, VisibilityTimeout=0)) == [n]
    assert counts(c.receive(url)) == [3, 1]


def test_a_duplicate_gets_the_first_ids_and_its_own_digest(c: Caller) -> None:
    url = c.fifo()
    first = c.send(url, "x", "a", MessageDeduplicationId="one")
    again = c.send(url, "other", "a", MessageDeduplicationId="one")
    assert again["MessageId"] == first["MessageId"]
    assert again["SequenceNumber"] == first["SequenceNumber"]
    assert again["MD5OfMessageBody"] != first["MD5OfMessageBody"]
    assert bodies(c.receive(url)) == ["x"]
    c.clock.advance(300.0)
    assert c.send(url, "x", "a", MessageDeduplicationId="one")["MessageId"] != first["MessageId"]


def test_a_receive_is_repeated_by_its_id(c: Caller) -> None:
    url = sent(c, "a1", "b1")
    first = c.receive(url, ReceiveRequestAttemptId="r1")
    c.clock.advance(20.0)
    again = c.receive(url, ReceiveRequestAttemptId="r1")
    assert [m["ReceiptHandle"] for m in again] == [m["ReceiptHandle"] for m in first]
    c.clock.advance(20.0)
    assert c.receive(url) == []  # the repetition began the timeouts anew
    c.delete(url, again[0]["ReceiptHandle"])
    assert c.receive(url, ReceiveRequestAttemptId="r1") == []


def test_large_bodies_are_read_again(c: Caller) -> None:
    url = c.fifo()
    attribute = {"n": {"DataType": "String", "StringValue": "v"}}
    for name in ("1", "2"):
        c.send(url, name * 100_000, "a", MessageAttributes=attribute)
    m1, _ = c.receive(url)
    c.hide(url, m1["ReceiptHandle"], 0)
    (again,) = c.receive(url, MessageAttributeNames=["All"])
    assert again["Body"] == "1" * 100_000
    assert again["MessageAttributes"] == attribute
    assert again["MessageId"] == m1["MessageId"]
    assert again["Attributes"] == m1["Attributes"] | {"ApproximateReceiveCount": "2"}


def test_the_attributes_of_a_queue_count_the_table(c: Caller) -> None:
    url = sent(c, "a1", "a2", "b1")
    m1, _ = c.receive(url, 2)
    c.hide(url, m1["ReceiptHandle"], 0)
    assert numbers(c, url) == (2, 1)


def test_the_attributes_count_a_group_once_whose_last_hidden_message_became_visible(c: Caller) -> None:
    url = sent(c, "a1", "a2", "a3", "b1")
    m1, m2, b1 = *c.receive(url, 2, VisibilityTimeout=30), *c.receive(url, 1, VisibilityTimeout=90)
    c.hide(url, m1["ReceiptHandle"], 0)
    assert m2["Body"] == "a2"
    assert b1["Body"] == "b1"
    assert numbers(c, url) == (2, 2)
    c.clock.advance(31.0)
    assert numbers(c, url) == (3, 1)


def test_the_table_outlives_a_clean_stop(disk: Caller) -> None:
    c = disk
    url = sent(c, "a1", "a2", "b1")
    m1, m2, b1 = c.receive(url, VisibilityTimeout=60)
    c.hide(url, m1["ReceiptHandle"], 10)
    c.restart()
    assert c.receive(url) == []
    c.clock.advance(10.0)
    again = c.receive(url, VisibilityTimeout=10)
    assert bodies(again) == ["a1"]
    assert counts(again) == [2]
    assert again[0]["MessageId"] == m1["MessageId"]
    with pytest.raises(SqsRefused, match="expired"):
        c.delete(url, m1["ReceiptHandle"])
    c.delete(url, m2["ReceiptHandle"], b1["ReceiptHandle"], again[0]["ReceiptHandle"])
    assert c.receive(url) == []


def test_handles_are_honoured_after_two_crashes(disk: Caller) -> None:
    c = disk
    url = sent(c, "a1", "a2")
    m1, m2 = c.receive(url, VisibilityTimeout=60)
    c.crash()
    c.crash()
    assert c.receive(url) == []
    c.hide(url, m1["ReceiptHandle"], 120)
    c.delete(url, m1["ReceiptHandle"], m2["ReceiptHandle"], m2["ReceiptHandle"])
    c.clock.advance(200.0)
    assert c.receive(url) == []


def test_receives_that_a_crash_interrupted_are_counted(disk: Caller) -> None:
    c = disk
    url = sent(c, "a1", "a2", "b1")
    c.receive(url, VisibilityTimeout=10)
    c.crash()
    c.clock.advance(10.0)
    got = c.receive(url)
    assert counts(got) == [2, 2, 2]
    c.hide(url, got[2]["ReceiptHandle"], 0)
    c.crash()
    assert counts(c.receive(url)) == [3]


def test_a_purge_deletes_hidden_messages(c: Caller) -> None:
    url = sent(c, "a1", "a2", "b1")
    m1, _, _ = c.receive(url, VisibilityTimeout=10)
    c.hide(url, m1["ReceiptHandle"], 0)
    c.call("PurgeQueue", QueueUrl=url)
    c.delete(url, m1["ReceiptHandle"])
    c.clock.advance(20.0)
    assert c.receive(url) == []
    c.send(url, "a9", "a")
    assert bodies(c.receive(url)) == ["a9"]


def test_a_delete_is_not_confirmed_for_a_message_that_another_receive_has(disk: Caller) -> None:
    c = disk
    url = sent(c, "a1")
    (old,) = c.receive(url, VisibilityTimeout=5)
    c.clock.advance(5.0)
    (new,) = c.receive(url, VisibilityTimeout=60)
    c.crash()
    with pytest.raises(SqsRefused, match="expired"):
        c.delete(url, old["ReceiptHandle"])
    c.delete(url, new["ReceiptHandle"])


def test_a_native_consumer_takes_a_lane_whose_lease_has_ended(disk: Caller, tmp_path: Path) -> None:
    import strictq

    c = disk
    url = sent(c, "a1", "a2")
    got = c.receive(url, VisibilityTimeout=5)
    with strictq.open(tmp_path / "q.fifo.strictq", clock=c.clock) as q:
        assert len(q.receive()) == 0
        c.clock.advance(5.0)
        (d1, d2) = q.receive()
        for m in got:
            with pytest.raises(SqsRefused, match="expired"):
                c.delete(url, m["ReceiptHandle"])
        assert c.receive(url) == []
        d1.ack()
        d2.nack(delay=0.0)
        assert bodies(c.receive(url)) == ["a2"]


def test_what_another_program_settled_is_not_received_again(c: Caller) -> None:
    url = c.fifo()
    for body in "ab":
        c.send(url, body, "g")
    first, _ = c.receive(url, VisibilityTimeout=600)
    c.hide(url, first["ReceiptHandle"], 0)
    (opened,) = c.endpoint._running()[0].queues.all()
    opened.served.q.reject("g", 1, "an operator's decision", force=True)
    assert numbers(c, url) == (1, 0)
    assert bodies(c.receive(url)) == ["b"]


@pytest.mark.parametrize("most", [1, 10])
def test_a_group_whose_last_hidden_message_becomes_visible_during_a_receive(
    c: Caller, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = sent(c, "a1", "a2")
    m1, _ = c.receive(url, VisibilityTimeout=30)
    c.hide(url, m1["ReceiptHandle"], 0)
    c.clock.advance(29.5)
    (opened,) = c.endpoint._running()[0].queues.all()
    lives = opened.served.lives

    def slowly(m: Received) -> bool:
        c.clock.advance(1.0)
        return lives(m)

    monkeypatch.setattr(opened.served, "lives", slowly)
    assert bodies(c.receive(url, most, VisibilityTimeout=0)) == ["a1"]
    monkeypatch.undo()
    got = c.receive(url)
    assert bodies(got) == ["a1", "a2"]
    assert counts(got) == [3, 2]
