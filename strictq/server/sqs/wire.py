"""Both protocols of SQS: JSON, and the older one of forms and XML ("query").

botocore's model lost the names that the query protocol uses for members. They are in a table here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from .errors import NO_QUEUE, SqsError, invalid
from .model import Action, ServiceModel

JSON_TYPE: Final = b"application/x-amz-json-1.0"
XML_TYPE: Final = b"text/xml"
NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
FIELDS_MAX: Final = 2_000
LEVELS_MAX: Final = 8

QUERY_NAMES: Final = {
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
    "StringListValues": "StringListValue",
    "BinaryListValues": "BinaryListValue",
}
"""Names of members in the query protocol: a list and a map are named by one of their members."""
_NAMED_BY_SHAPE: Final = ("Entries", "Successful")
"""Members that are named as their list's shape, without "List"."""

_INVALID: Final = dict.fromkeys(i for i in range(32) if i not in (9, 10, 13))
"""Characters that XML 1.0 cannot have."""


def query_name(member: str, shape: str) -> str:
    """Return the name of a member in the query protocol."""
    return shape.removesuffix("List") if member in _NAMED_BY_SHAPE else QUERY_NAMES.get(member, member)


# ---- JSON

_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def from_json(body: bytes) -> Any:
    """Return the parameters of a request, unchecked."""
    try:
        return json.loads(body.decode()) if body else {}
    except (ValueError, RecursionError):
        raise SqsError("SerializationException", "The request is not JSON.") from None


def to_json(result: Any) -> bytes:
    """Return an answer."""
    return _encode(result).encode("utf-8", "replace")


def error_json(e: SqsError) -> bytes:
    """Return the answer of a refused request."""
    kind = e.code if e.code.endswith("OperationException") else f"com.amazonaws.sqs#{e.code}"
    return to_json({"__type": kind, "message": e.message})


def error_header(e: SqsError) -> tuple[bytes, bytes]:
    """Return the header with the older code, which SDKs show."""
    return b"x-amzn-query-error", f"{e.old};{e.side}".encode()


# ---- forms


def form_of(query: bytes, body: bytes) -> list[tuple[str, str]]:
    """Return the fields of the query string and of the body."""
    fields: list[tuple[str, str]] = []
    try:
        for part in (query, body):
            text = part.decode()
            if text:
                fields += parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError:
        raise SqsError("MalformedInput", "The form can't be read.") from None
    return fields


def from_form(model: ServiceModel, action: Action, fields: list[tuple[str, str]]) -> Any:
    """Return the parameters of a request, unchecked, in the form that JSON has."""
    return _from_tree(model.shapes, action.takes, _tree(fields))


def _tree(fields: list[tuple[str, str]]) -> dict[str, Any]:
    """Return `a.b.1=x` as nested dictionaries."""
    tree: dict[str, Any] = {}
    for name, value in fields:
        at = tree
        parts = name.split(".")
        if len(parts) > LEVELS_MAX:
            raise invalid(f"The name of a parameter has more than {LEVELS_MAX} parts.")
        for part in parts[:-1]:
            deeper = at.setdefault(part, {})
            if type(deeper) is not dict:
                raise invalid(f"The parameter {name} contradicts another one.")
            at = deeper
        if type(at.get(parts[-1])) is dict:
            raise invalid(f"The parameter {name} contradicts another one.")
        at[parts[-1]] = value
    return tree


def _numbered(tree: Mapping[str, Any]) -> list[Any]:
    """Return the values of a numbered list in the order of their numbers."""
    if not all(name.isascii() and name.isdigit() and len(name) < 10 for name in tree):
        raise SqsError("MalformedInput", "The members of a list must be numbered.")
    return [tree[name] for name in sorted(tree, key=int)]


def _from_tree(shapes: Mapping[str, Any], name: str, tree: Any) -> Any:
    shape = shapes[name]
    kind = shape["type"]
    if kind == "structure":
        if type(tree) is not dict:
            return tree
        found = {}
        for member, m in shape["members"].items():
            value = tree.get(query_name(member, m["shape"]))
            if value is not None:
                found[member] = _from_tree(shapes, m["shape"], value)
        return found
    if kind == "list":
        values = _numbered(tree) if type(tree) is dict else [tree]
        return [_from_tree(shapes, shape["member"]["shape"], value) for value in values]
    if kind == "map":
        mapped = {}
        for pair in _numbered(tree) if type(tree) is dict else ():
            key = pair.get("Name", pair.get("Key")) if type(pair) is dict else None
            if type(key) is not str:
                raise SqsError("MalformedInput", "A member of a map has no name.")
            mapped[key] = _from_tree(shapes, shape["value"]["shape"], pair.get("Value", ""))
        return mapped
    return tree


# ---- XML


def to_xml(model: ServiceModel, action: Action, result: Mapping[str, Any], request_id: str) -> bytes:
    """Return an answer."""
    name = action.name
    out = [f'<?xml version="1.0"?><{name}Response xmlns="{NAMESPACE}">']
    if action.gives is not None:
        out.append(f"<{name}Result>")
        _members(model.shapes, action.gives, result, out)
        out.append(f"</{name}Result>")
    out.append(f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{name}Response>")
    return "".join(out).encode("utf-8", "replace")


def error_xml(e: SqsError, request_id: str) -> bytes:
    """Return the answer of a refused request."""
    message = f"{NO_QUEUE[:-1]} for this wsdl version." if e.code == "QueueDoesNotExist" else e.message
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{e.side}</Type><Code>{_text(e.old)}</Code>'
        f"<Message>{_text(message)}</Message><Detail/></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode("utf-8", "replace")


def _text(value: object) -> str:
    text = str(value)
    if not text.isprintable():
        text = text.translate(_INVALID)
    return escape(text, {"\r": "&#xD;"})


def _members(shapes: Mapping[str, Any], name: str, value: Mapping[str, Any], out: list[str]) -> None:
    members = shapes[name]["members"]
    for member, each in value.items():
        if each is not None and (m := members.get(member)) is not None:
            _element(shapes, m["shape"], each, query_name(member, m["shape"]), out)


def _element(shapes: Mapping[str, Any], name: str, value: Any, tag: str, out: list[str]) -> None:
    shape = shapes[name]
    kind = shape["type"]
    if kind == "structure":
        out.append(f"<{tag}>")
        _members(shapes, name, value, out)
        out.append(f"</{tag}>")
    elif kind == "list":
        for each in value:
            _element(shapes, shape["member"]["shape"], each, tag, out)
    elif kind == "map":
        key = "Key" if tag == "Tag" else "Name"
        for label, each in value.items():
            out.append(f"<{tag}><{key}>{_text(label)}</{key}>")
            _element(shapes, shape["value"]["shape"], each, "Value", out)
            out.append(f"</{tag}>")
    elif kind == "boolean":
        out.append(f"<{tag}>{'true' if value else 'false'}</{tag}>")
    elif kind == "blob":
        out.append(f"<{tag}>{value if type(value) is str else base64.b64encode(value).decode()}</{tag}>")
    else:
        out.append(f"<{tag}>{_text(value)}</{tag}>")
