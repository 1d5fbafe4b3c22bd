"""Signatures, checked against botocore's signer."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from strictq.server.sqs.sigv4 import NotSigned, verify
from tests.server.sqs.asgi import calling

SECRETS = {"id": "secret"}
BODY = b'{"QueueName":"a"}'


def signed(
    url: str = "http://localhost:9324/", body: bytes = BODY, method: str = "POST", secret: str = "secret", **headers: str
) -> tuple[str, str, str, list[tuple[bytes, bytes]], bytes]:
    """What `verify` takes, of a request that botocore signed."""
    request = AWSRequest(method, url, {"Host": "localhost:9324", "X-Amz-Target": "AmazonSQS.CreateQueue", **headers}, body)
    SigV4Auth(Credentials("id", secret), "sqs", "us-east-1").add_auth(request)
    path, _, query = url.removeprefix("http://localhost:9324").partition("?")
    return method, path, query, [(k.lower().encode(), v.encode()) for k, v in request.headers.items()], body


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://localhost:9324/", {}),
        ("http://localhost:9324/000000000000/a.fifo", {}),
        ("http://localhost:9324/?Action=SendMessage&MessageBody=a%20b%2F%C3%A4&Empty=", {}),
        ("http://localhost:9324/", {"X-Spaces": "  a   b  "}),
    ],
)
def test_what_botocore_signs_is_accepted(url: str, headers: dict[str, str]) -> None:
    assert verify(*signed(url, **headers), SECRETS) == "id"


def test_a_session_token_is_one_more_header() -> None:
    request = signed()
    assert verify(*request, SECRETS | {"other": "x"}) == "id"


Request = tuple[str, str, str, list[tuple[bytes, bytes]], bytes]


def changed(name: bytes, value: bytes | None) -> Callable[[Request], Request]:
    def change(request: Request) -> Request:
        method, path, query, headers, body = request
        kept = [(k, v) for k, v in headers if k != name]
        return method, path, query, kept if value is None else [*kept, (name, value)], body

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (changed(b"authorization", None), "MissingAuthenticationToken"),
        (changed(b"authorization", b"Bearer x"), "MissingAuthenticationToken"),
        (changed(b"authorization", b"AWS4-HMAC-SHA256 "), "IncompleteSignature"),
        (changed(b"authorization", b"AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=0"), "IncompleteSignature"),
        (
            changed(b"authorization", b"AWS4-HMAC-SHA256 Credential=who/1/r/sqs/aws4_request, SignedHeaders=host, Signature=0"),
            "InvalidClientTokenId",
        ),
        (changed(b"x-amz-date", None), "IncompleteSignature"),
        (changed(b"x-amz-date", b"20260101T000000Z"), "IncompleteSignature"),
        (changed(b"host", b"localhost:9325"), "SignatureDoesNotMatch"),
        (changed(b"x-amz-target", b"AmazonSQS.DeleteQueue"), "SignatureDoesNotMatch"),
        (changed(b"x-amz-more", b"not signed"), "IncompleteSignature"),
        (lambda request: (*request[:4], b"{}"), "SignatureDoesNotMatch"),
        (lambda request: ("GET", *request[1:]), "SignatureDoesNotMatch"),
        (lambda _: signed(secret="guess"), "SignatureDoesNotMatch"),
    ],
)  # fmt: skip
def test_any_change_is_refused(change: Callable[[Request], Request], code: str) -> None:
    with pytest.raises(NotSigned, match=code):
        verify(*change(signed()), SECRETS)


@pytest.mark.parametrize("seconds", [-1000.0, 1000.0])
def test_an_old_request_is_refused(seconds: float) -> None:
    with pytest.raises(NotSigned, match="RequestExpired"):
        verify(*signed(), SECRETS, now=datetime.now(UTC).timestamp() + seconds)


def test_an_endpoint_with_keys_refuses_what_is_not_signed() -> None:
    with calling(keys=SECRETS) as c:
        method, path, _, headers, body = signed()
        given = {k.decode(): v.decode() for k, v in headers if k != b"host"}
        status, _, answer = c.run(c.request(method, path, body, given))
        assert (status, "QueueUrl" in json.loads(answer)) == (200, True)
        status, _, answer = c.run(c.request(method, path, body, {"x-amz-target": "AmazonSQS.CreateQueue"}))
        assert (status, json.loads(answer)["__type"]) == (403, "com.amazonaws.sqs#MissingAuthenticationToken")
