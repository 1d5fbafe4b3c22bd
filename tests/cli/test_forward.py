"""`strictq forward` and `strictq send URL`, on an endpoint of this process."""

from __future__ import annotations

from pathlib import Path

import pytest

import strictq
from strictq.testing import SqsEndpoint
from tests.cli.test_send import summary
from tests.support.command import in_process, json_lines


def url_of(endpoint: SqsEndpoint, name: str) -> str:
    endpoint.create_queue(name)
    return f"sqs+{endpoint.url}/queue/{name}"


def bodies(endpoint: SqsEndpoint, name: str) -> list[str]:
    got = endpoint.client.receive_message(QueueUrl=name, MaxNumberOfMessages=10)
    return [m["Body"] for m in got.get("Messages", [])]


def test_a_queue_is_forwarded(endpoint: SqsEndpoint, path: Path) -> None:
    url = url_of(endpoint, "a.fifo")
    with strictq.open(path) as q:
        q.send_many([strictq.Message(b"%d" % n, key="k") for n in range(5)])
    result = in_process("forward", path, "--to", url, "--drain", "--per-key", 1, "--batch", 2, "--concurrency", 1)
    assert result.exit_code == 0, result.stderr
    assert "5 messages forwarded" in result.stderr
    assert bodies(endpoint, "a.fifo") == ["0", "1", "2", "3", "4"]
    with strictq.open(path) as q:
        assert q.stats().depth == 0


def test_a_refused_message_holds_its_key(endpoint: SqsEndpoint, path: Path) -> None:
    endpoint.create_queue("small.fifo", MaximumMessageSize=1024)
    with strictq.open(path) as q:
        q.send(b"x" * 2000, key="k")
    result = in_process(
        "forward", path, "--to", f"sqs+{endpoint.url}/queue/small.fifo", "--drain", "--on-refused", "hold", "--json"
    )
    values = summary(result)
    assert (result.exit_code, values["forwarded"], values["refused"]) == (0, 0, 1)
    with strictq.open(path) as q:
        assert q.stats().held == 1


@pytest.mark.parametrize(
    ("url", "code", "why"),
    [
        ("sqs+http://127.0.0.1:1/queue/o.fifo", 1, "did not answer"),
        ("http://127.0.0.1/o", 2, "URL"),
        ("sqs+http://u:secret@127.0.0.1:1/queue/o.fifo", 2, "password"),
        ("orders.strictq", 2, "URL"),
        ("", 2, "does not exist"),
    ],
)
def test_wrong_targets(endpoint: SqsEndpoint, path: Path, url: str, code: int, why: str) -> None:
    strictq.open(path).close()
    result = in_process("forward", path, "--to", url or f"sqs+{endpoint.url}/queue/none.fifo", "--drain")
    assert result.exit_code == code, result.stderr
    assert why in result.stderr
    assert "secret" not in result.stderr


def test_a_queue_that_is_not_there_is_created_if_asked(endpoint: SqsEndpoint, tmp_path: Path) -> None:
    url = url_of(endpoint, "b.fifo")
    new = tmp_path / "new"
    assert in_process("forward", new, "--to", url, "--drain").exit_code == 2
    assert in_process("forward", new, "--to", url, "--drain", "--create").exit_code == 0


def test_lines_are_sent_to_a_url(endpoint: SqsEndpoint) -> None:
    url = url_of(endpoint, "c.fifo")
    lines = "".join(f'{{"k": "a", "n": {n}}}\n' for n in range(6))
    result = in_process("send", url, "--key-field", "k", "--dedup-field", "n", "--json", input=lines + "bad\n")
    values = summary(result)
    assert (result.exit_code, values["sent"], values["bad"], values["stopped_at"]) == (1, 6, 1, 7)
    assert bodies(endpoint, "c.fifo") == lines.splitlines()
    assert in_process("send", url, "--key-field", "k", input='{"k": 1}\n').exit_code == 0
    assert in_process("send", url, "--raw", "--key", "b", "-H", "h=1", "--ttl", 60, input="x\ny\n").exit_code == 0


@pytest.mark.parametrize("words", ["--create", "--shards 2", "--delay 1", "--size-field n", "--process-seconds 1"])
def test_options_of_local_queues_are_refused(endpoint: SqsEndpoint, words: str) -> None:
    url = url_of(endpoint, "c.fifo")
    result = in_process("send", url, "--key-field", "k", *words.split(), input='{"k": "a", "n": 1}\n')
    assert result.exit_code in (1, 2), result.stderr
    assert "sent 0 lines" in result.stderr or result.exit_code == 2


def test_what_an_endpoint_tells_of_a_queue(endpoint: SqsEndpoint) -> None:
    url = url_of(endpoint, "stats.fifo")
    with strictq.connect(url) as q:
        q.send_many([strictq.Message(b"x", key=n) for n in range(3)])
    assert endpoint.client.receive_message(QueueUrl="stats.fifo")["Messages"]
    (values,) = json_lines(in_process("stats", url, "--json").stdout)
    assert (values["fifo"], values["depth"], values["ready"], values["in_flight"]) == (True, 3, 2, 1)
    text = in_process("stats", url).stdout
    assert "a FIFO queue" in text
    assert in_process("stats", url, "--watch").exit_code == 2
    assert in_process("stats", f"{url}-none").exit_code == 2


def test_an_endpoint_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    result = in_process("send", "sqs+http://127.0.0.1:1/queue/o.fifo", "--key", "a", input="{}\n")
    assert result.exit_code == 1
    assert "did not answer" in result.stderr
