"""Plays the cases of `cases.py` against an endpoint, over the JSON and the query protocol, with bare HTTP.

The encoders here are independent of strictq's: a mistake in one of them is a failed case.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import json
import threading
import urllib.parse
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import botocore.session

JSON, QUERY = "json", "query"
CODES = {
    "InvalidParameterValueException": "InvalidParameterValue",
    "MissingRequiredParameterException": "MissingParameter",
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
}
"""Codes of the query protocol, by the shape of the JSON protocol. Others are the same, or have a prefix."""
PREFIX = "AWS.SimpleQueueService."
WIRE = {
    "AttributeNames": "AttributeName",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "MessageAttributeNames": "MessageAttributeName",
    "Attributes": "Attribute",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "Tags": "Tag",
    "tags": "Tag",
    "TagKeys": "TagKey",
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Results": "ListMessageMoveTasksResultEntry",
    "Failed": "BatchResultErrorEntry",
}


class Refused(Exception):
    """The endpoint answered with an error. `code` is the query protocol's."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.code, self.message, self.status = code, message, status


class Error(NamedTuple):
    """An expected error: the query protocol's code (or several, with |), a part of the message, the HTTP status."""

    code: str
    message: str = ""
    status: int = 400


@functools.cache
def model() -> Any:
    return botocore.session.get_session().get_service_model("sqs")


def same_code(got: str, wanted: str) -> bool:
    return got.removeprefix(PREFIX) in wanted.removeprefix(PREFIX).split("|")


class Endpoint:
    """A server, and how to let its time pass. `call` may be used by many threads."""

    def __init__(self, url: str, protocol: str, tick: Callable[[float], object], wording: bool = True) -> None:
        self.url, self.protocol, self.tick, self.wording = url, protocol, tick, wording
        self.netloc = urllib.parse.urlsplit(url).netloc
        self._local = threading.local()
        self._connections: list[http.client.HTTPConnection] = []

    def request(self, method: str, path: str, body: bytes | str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers in lower case, and body."""
        kept = getattr(self._local, "connection", None)
        for connection in (kept, http.client.HTTPConnection(self.netloc, timeout=90)):
            if connection is None:
                continue
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                if connection is not kept:
                    self._connections.append(connection)
                self._local.connection = connection
                return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
            except (http.client.HTTPException, ConnectionError, BrokenPipeError):
                connection.close()
                self._local.connection = None
                if connection is not kept:
                    raise
        raise AssertionError

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in self._connections:
            connection.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, action: str, params: dict[str, Any]) -> dict[str, Any]:
        return self._json(action, params) if self.protocol == JSON else self._query(action, params)

    def _json(self, action: str, params: dict[str, Any]) -> dict[str, Any]:
        def plain(v: Any) -> str:
            if isinstance(v, bytes):
                return base64.b64encode(v).decode()
            raise TypeError(repr(v))

        headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{action}", **SIGNED}
        status, got, body = self.request("POST", "/", json.dumps(params, default=plain), headers)
        answer = json.loads(body) if body else {}
        if status == 200:
            shape = model().operation_model(action).output_shape
            return answer if shape is None else _from_json(shape, answer)
        kind = str(answer.get("__type", "")).rpartition("#")[2]
        code = got.get("x-amzn-query-error", "").partition(";")[0] or CODES.get(kind, kind)
        raise Refused(code, answer.get("message") or answer.get("Message") or "", status)

    def _query(self, action: str, params: dict[str, Any]) -> dict[str, Any]:
        operation = model().operation_model(action)
        fields = [("Action", action), ("Version", "2012-11-05"), *form(operation.input_shape, params, "")]
        headers = {"content-type": "application/x-www-form-urlencoded", **SIGNED}
        status, _, body = self.request("POST", "/", urllib.parse.urlencode(fields), headers)
        root = _bare(ET.fromstring(body))
        if status == 200:
            result = root.find(f"{action}Result")
            return {} if operation.output_shape is None or result is None else _from_xml(operation.output_shape, result)
        error = root.find(".//Error")
        assert error is not None, body
        raise Refused(error.findtext("Code", ""), error.findtext("Message", ""), status)


SIGNED = {
    "authorization": "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0"
}


def _from_json(shape: Any, v: Any) -> Any:
    if v is None:
        return None
    if shape.type_name == "structure":
        return {k: _from_json(shape.members[k], x) if k in shape.members else x for k, x in v.items() if x is not None}
    if shape.type_name == "list":
        return [_from_json(shape.member, x) for x in v]
    if shape.type_name == "map":
        return {k: _from_json(shape.value, x) for k, x in v.items()}
    return base64.b64decode(v) if shape.type_name == "blob" else v


def form(shape: Any, v: Any, name: str) -> list[tuple[str, str]]:
    if shape.type_name == "structure" and isinstance(v, dict):
        out = []
        for k, x in v.items():
            member = shape.members.get(k)
            wire = member.name.removesuffix("List") if k == "Entries" else WIRE.get(k, k)
            out += form(member, x, f"{name}.{wire}" if name else wire) if member else [(f"{name}.{wire}".lstrip("."), str(x))]
        return out
    if shape.type_name == "list" and isinstance(v, list):
        return [p for i, x in enumerate(v, 1) for p in form(shape.member, x, f"{name}.{i}")]
    if shape.type_name == "map" and isinstance(v, dict):
        key = "Key" if name.endswith("Tag") else "Name"
        out = []
        for i, (k, x) in enumerate(v.items(), 1):
            out += [(f"{name}.{i}.{key}", k), *form(shape.value, x, f"{name}.{i}.Value")]
        return out
    if isinstance(v, bytes):
        return [(name, base64.b64encode(v).decode())]
    return [(name, str(v).lower() if isinstance(v, bool) else str(v))]


def _bare(root: ET.Element) -> ET.Element:
    for e in root.iter():
        e.tag = e.tag.rpartition("}")[2]
    return root


def _from_xml(shape: Any, e: ET.Element) -> Any:
    if shape.type_name == "structure":
        out: dict[str, Any] = {}
        for k, member in shape.members.items():
            wire = member.name.removesuffix("List") if k == "Successful" else WIRE.get(k, k)
            found = e.findall(wire)
            if member.type_name == "map":
                key = "Key" if wire == "Tag" else "Name"
                value = {x.findtext(key, ""): _from_xml(member.value, x.find("Value")) for x in found}  # type: ignore[arg-type]
                if value:
                    out[k] = value
            elif member.type_name == "list":
                if found:
                    out[k] = [_from_xml(member.member, x) for x in found]
            elif found:
                out[k] = _from_xml(member, found[0])
        return out
    text = e.text or ""
    if shape.type_name == "blob":
        return base64.b64decode(text)
    if shape.type_name in ("integer", "long"):
        return int(text)
    return text == "true" if shape.type_name == "boolean" else text


class Call(NamedTuple):
    """A step: one request and what its answer must be. `keep` names members of the answer for later steps."""

    action: str
    params: dict[str, Any]
    expect: Any = MappingProxyType({})
    keep: Mapping[str, str] = MappingProxyType({})
    bodies: tuple[str, ...] | None = None
    save: str = "h"
    background: str = ""


class Tick(NamedTuple):
    seconds: float


class Done(NamedTuple):
    """A step: the answer of a request that was started in the background."""

    name: str


class Case(NamedTuple):
    name: str
    source: str
    steps: tuple[Any, ...]
    only: str = ""

    @property
    def seconds(self) -> float:
        """How long the case takes where time cannot be moved."""
        return sum(s.seconds for s in self.steps if isinstance(s, Tick))


class Env(dict[str, Any]):
    """What a run of a case knows: URLs of queues by alias, receipt handles, members that were kept."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self.endpoint, self.prefix = endpoint, f"c{uuid.uuid4().hex[:12]}"
        self.fifo: set[str] = set()

    def arn(self, alias: str) -> str:
        got = self.endpoint.call("GetQueueAttributes", {"QueueUrl": self[alias], "AttributeNames": ["QueueArn"]})
        return str(got["Attributes"]["QueueArn"])


def resolve(v: Any, env: Env) -> Any:
    """Replace what a case cannot know: functions of the run, and "$name" for what was kept."""
    if isinstance(v, dict):
        return {k: resolve(x, env) for k, x in v.items()}
    if isinstance(v, list):
        return [resolve(x, env) for x in v]
    if isinstance(v, str) and v.startswith("$"):
        return env[v[1:]]
    return v(env) if callable(v) and not isinstance(v, type) else v


class Absent:
    """A member that the answer must not have."""


class Check(NamedTuple):
    """A condition on a member."""

    holds: Callable[[Any, Env], object]
    text: str


def differences(wanted: Any, got: Any, env: Env, at: str = "answer") -> list[str]:
    """Say where `got` is not as wanted. A dict names the members that count; a list is complete."""
    if isinstance(wanted, Check):
        return [] if wanted.holds(got, env) else [f"{at}: {got!r} is not {wanted.text}"]
    if isinstance(wanted, type):
        return [] if isinstance(got, wanted) else [f"{at}: {got!r} is no {wanted.__name__}"]
    if isinstance(wanted, Mapping):
        if not isinstance(got, dict):
            return [f"{at}: {got!r} is no map"]
        out = []
        for k, w in wanted.items():
            if w is Absent:
                if got.get(k) not in (None, [], {}):
                    out.append(f"{at}.{k}: {got[k]!r} is there")
            elif k not in got:
                out.append(f"{at}.{k} is missing")
            else:
                out += differences(w, got[k], env, f"{at}.{k}")
        return out
    if isinstance(wanted, list):
        if not isinstance(got, list) or len(got) != len(wanted):
            return [f"{at}: {got!r} has not {len(wanted)} members"]
        return [d for i, (w, g) in enumerate(zip(wanted, got, strict=True)) for d in differences(w, g, env, f"{at}[{i}]")]
    if isinstance(wanted, str) and wanted.startswith("$"):
        wanted = env[wanted[1:]]
    return [] if wanted == got else [f"{at}: {got!r}, not {wanted!r}"]


def play(case: Case, endpoint: Endpoint) -> list[str]:
    """Play a case and return what was different, and in which step."""
    env = Env(endpoint)
    running: dict[str, tuple[threading.Thread, list[Any], Call]] = {}
    try:
        for i, step in enumerate(case.steps):
            at = f"step {i + 1} of {len(case.steps)}, {getattr(step, 'action', type(step).__name__)}"
            if isinstance(step, Tick):
                endpoint.tick(step.seconds)
            elif isinstance(step, Done):
                thread, box, call = running.pop(step.name)
                thread.join(60)
                if problems := _judge(call, box[0] if box else Refused("none", "no answer", 0), env):
                    return [f"{at} {step.name}: {p}" for p in problems]
            elif step.background:
                box = []
                params = resolve(step.params, env)
                thread = threading.Thread(target=_answer, args=(endpoint, step.action, params, box), daemon=True)
                thread.start()
                running[step.background] = (thread, box, step)
            else:
                box = []
                _answer(endpoint, step.action, resolve(step.params, env), box)
                if problems := _judge(step, box[0], env):
                    return [f"{at}: {p}" for p in problems]
    finally:
        for alias in [k for k in env if k.startswith("queue ")]:
            with contextlib.suppress(Refused):
                endpoint.call("DeleteQueue", {"QueueUrl": env[alias]})
    return []


def _answer(endpoint: Endpoint, action: str, params: dict[str, Any], box: list[Any]) -> None:
    try:
        box.append(endpoint.call(action, params))
    except Exception as e:
        box.append(e)


def _judge(call: Call, got: Any, env: Env) -> list[str]:
    if isinstance(got, Exception) and not isinstance(got, Refused):
        return [f"{type(got).__name__}: {got}"]
    expected: Any = resolve(call.expect, env) if callable(call.expect) and not isinstance(call.expect, Check) else call.expect
    if isinstance(expected, Error):
        if not isinstance(got, Refused):
            return [f"{got!r}, and not {expected.code}"]
        out = [] if same_code(got.code, expected.code) else [f"code {got.code}, not {expected.code} ({got.message})"]
        if env.endpoint.wording and expected.message not in got.message:
            out.append(f"message {got.message!r} has no {expected.message!r}")
        return out if got.status == expected.status else [*out, f"status {got.status}, not {expected.status}"]
    if isinstance(got, Refused):
        return [str(got)]
    out = differences(expected, got, env)
    for name, member in call.keep.items():
        env[name] = got.get(member)
    if call.action == "CreateQueue":
        env["queue " + str(got.get("QueueUrl"))] = got.get("QueueUrl")
        env.fifo |= {alias for alias in call.keep if str(env[alias]).endswith(".fifo")}
    if call.bodies is not None:
        messages = got.get("Messages") or []
        bodies, wanted = [m["Body"] for m in messages], list(call.bodies)
        exact = str(call.params["QueueUrl"])[1:] in env.fifo
        if (bodies if exact else sorted(bodies)) != (wanted if exact else sorted(wanted)):
            out.append(f"received {bodies}, not {wanted}")
        for m in messages:
            env[f"{call.save}:{m['Body']}"] = m["ReceiptHandle"]
    return out
