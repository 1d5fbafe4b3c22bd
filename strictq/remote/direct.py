"""DirectClient: a client of the SDK whose frequent requests take less processor time."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

CONTENT_TYPE: Final = "application/x-amz-json-1.0"
TARGET: Final = "AmazonSQS"
SERVICE: Final = "sqs"


class DirectClient:
    """A client of the SDK that makes the requests of workers and forwarders itself.

    The parameters of these actions are their JSON, and so are their answers. The SDK looks each member up in its description of
    the service, and calls hooks, which takes longer than to sign and to send the request. It still does these two, with its
    credentials, proxies and certificates. All other actions are the SDK's.
    """

    def __init__(self, client: Any, credentials: Any) -> None:
        """Wrap a client.

        Args:
            client: of boto3.
            credentials: of its session, which renews them; None: there are none.
        """
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        self._client = client
        self._credentials = credentials
        self._sign, self._request = SigV4Auth, AWSRequest
        self._http = client._endpoint.http_session
        self._url = client.meta.endpoint_url.rstrip("/") + "/"
        self._region = client.meta.region_name
        self._user_agent = client.meta.config.user_agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def send_message_batch(self, **parameters: Any) -> Mapping[str, Any]:
        """Call SendMessageBatch."""
        return self._batch("SendMessageBatch", parameters)

    def delete_message_batch(self, **parameters: Any) -> Mapping[str, Any]:
        """Call DeleteMessageBatch."""
        return self._batch("DeleteMessageBatch", parameters)

    def change_message_visibility_batch(self, **parameters: Any) -> Mapping[str, Any]:
        """Call ChangeMessageVisibilityBatch."""
        return self._batch("ChangeMessageVisibilityBatch", parameters)

    def receive_message(self, **parameters: Any) -> Mapping[str, Any]:
        """Call ReceiveMessage."""
        answer = self._call("ReceiveMessage", parameters)
        for message in _objects(answer, "Messages"):
            _object(message.get("Attributes"))
            for value in map(_object, _object(message.get("MessageAttributes")).values()):
                if "BinaryValue" in value:
                    value["BinaryValue"] = _bytes(value["BinaryValue"])
        return answer

    def _batch(self, action: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = self._call(action, parameters)
        for name in ("Successful", "Failed"):
            _objects(answer, name)
        return answer

    def _call(self, action: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make a request.

        Raises:
            botocore.exceptions.ClientError, BotoCoreError: as the SDK.
        """
        from botocore.exceptions import ClientError, NoCredentialsError

        if self._credentials is None:
            raise NoCredentialsError
        headers = {"Content-Type": CONTENT_TYPE, "X-Amz-Target": f"{TARGET}.{action}", "User-Agent": self._user_agent}
        request = self._request("POST", self._url, headers=headers, data=json.dumps(parameters).encode())
        self._sign(self._credentials.get_frozen_credentials(), SERVICE, self._region).add_auth(request)
        response = self._http.send(request.prepare())
        require_whole(response.headers, response.content)
        if response.status_code >= 300:
            try:
                found = _object(json.loads(response.content))
            except ValueError:  # of a proxy
                found = {}
            error = {"Code": str(found.get("__type", response.status_code)), "Message": str(found.get("message", ""))}
            raise ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": response.status_code}}, action)
        try:
            return _object(json.loads(response.content or "null"))
        except ValueError as e:
            raise _unreadable(str(e)) from e


def _unreadable(why: str) -> Exception:
    from botocore.parsers import ResponseParserError

    error: Exception = ResponseParserError(f"the answer is not one of SQS: {why}")
    return error


def _object(found: Any) -> dict[str, Any]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise _unreadable(f"{type(found).__name__} instead of an object")
    return found


def _objects(answer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = answer.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise _unreadable(f"{name} is not a list")
    return [_object(each) for each in found]


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text)
    except (TypeError, ValueError) as e:
        raise _unreadable(str(e)) from e


def require_whole(headers: Mapping[str, Any], body: bytes) -> None:
    """Raise if the connection cut off an answer.

    botocore does not compare the length of an answer with its header. It parses a part of an answer as an empty success, which
    would be a receive without messages.
    """
    from botocore.exceptions import IncompleteReadError

    length = str(headers.get("content-length", ""))
    if not length.isdigit():
        # It ended among its headers, unless its body has no length by intent.
        if body or "transfer-encoding" in headers:
            return
        length = "unknown"
    elif int(length) == len(body):
        return
    raise IncompleteReadError(actual_bytes=len(body), expected_bytes=length)
