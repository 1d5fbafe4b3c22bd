"""The JSON form of all reports of a queue, shared by the command line, a console, and a server.

A key has two fields, key and key_type, and a body has body and body_encoding, so that bytes can be restored. Other bytes are
{"base64": …}, and infinity is a string.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from .keys import Key

_OWN: Final = ("hint", "transient")
"""Attributes of an error that have their own entries."""


class Report:
    """Base class of the values that a queue reports."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values. A key is key and key_type; a body is body and body_encoding."""
        return as_dict(self)


def as_dict(report: Any) -> dict[str, Any]:
    """Return the fields of a report, and its depth if it has one."""
    names = getattr(report, "_fields", None) or [field.name for field in attrs.fields(type(report))]
    values: dict[str, Any] = {}
    for name in names:
        value = getattr(report, name)
        if name == "key":
            values |= key_fields(value)
        elif name == "body":
            values |= body_fields(value)
        else:
            values[name] = plain(value)
    if hasattr(report, "depth"):
        values["depth"] = report.depth
    return values


def error_dict(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON values; see `StrictqError.to_dict`."""
    fields: dict[str, Any] = {}
    for name, value in vars(error).items():
        if name == "key":
            fields |= key_fields(value)
        elif name not in _OWN and not name.startswith("_"):
            fields[name] = plain(value)
    return {
        "type": type(error).__name__,
        "message": Exception.__str__(error) if isinstance(error, Exception) else str(error),
        "hint": str(getattr(error, "hint", "")),
        "code": getattr(error, "hint_code", ""),
        "transient": bool(getattr(error, "transient", False)),
        "fields": fields,
    }


def plain(value: Any) -> Any:
    """Return the JSON form of a value."""
    if isinstance(value, bytes):
        return {"base64": _base64(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, BaseException):
        return error_dict(value)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value)


def key_fields(key: Key | None) -> dict[str, Any]:
    """Return a key and its type. Bytes are base64. Both fields are null for a keyless message."""
    if isinstance(key, bytes):
        return {"key": _base64(key), "key_type": "bytes"}
    return {"key": key, "key_type": None if key is None else type(key).__name__}


def body_fields(body: bytes | None) -> dict[str, str | None]:
    """Return a body as text if it is UTF-8, otherwise as base64. Both fields are null if no body was kept."""
    if body is None:
        return {"body": None, "body_encoding": None}
    try:
        return {"body": body.decode(), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": _base64(body), "body_encoding": "base64"}


def _base64(data: bytes) -> str:
    import base64  # imported late: only programs that write JSON need it

    return base64.b64encode(data).decode()
