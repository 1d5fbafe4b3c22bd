"""botocore's model of the SQS service, compiled: each action's parameters are checked by nested functions.

The model has every action, member, type and required member. It has neither bounds nor the names of the query protocol.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sized
from functools import cache
from typing import Any, Final, NamedTuple

from ..._platform.extras import need
from .errors import SqsError, missing

Check = Callable[[Any], Any]
"""Checks a value of JSON and returns it in Python's types, or raises SqsError."""

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER_MAX: Final = 10**18
MEMBERS_MAX: Final = 2_000
"""Most members of a list or a map. The largest that SQS accepts are far smaller, and are checked later."""


class Action(NamedTuple):
    """One action of the service.

    Attributes:
        check: checks the parameters. Unknown members are dropped, and nulls are absent.
        takes, gives: the names of the shapes; gives is None if the answer has no content.
    """

    name: str
    check: Check
    takes: str
    gives: str | None


class ServiceModel(NamedTuple):
    """The actions and shapes of the service."""

    actions: Mapping[str, Action]
    shapes: Mapping[str, Any]


@cache
def model() -> ServiceModel:
    """Return the compiled model of the installed botocore.

    Raises:
        MissingExtra: botocore is not installed.
    """
    need("botocore", "sqs")
    from botocore.loaders import Loader

    service = Loader().load_service_model("sqs", "service-2")
    shapes = service["shapes"]
    made: dict[str, Check] = {}
    actions = {
        name: Action(
            name,
            _checker(shapes, operation["input"]["shape"], made),
            operation["input"]["shape"],
            operation["output"]["shape"] if "output" in operation else None,
        )
        for name, operation in service["operations"].items()
    }
    return ServiceModel(actions, shapes)


def _checker(shapes: Mapping[str, Any], name: str, made: dict[str, Check]) -> Check:
    """Return the check of a shape. SQS has no recursive shapes."""
    if name not in made:
        shape = shapes[name]
        kind = shape["type"]
        if kind == "structure":
            members = {member: _checker(shapes, m["shape"], made) for member, m in shape["members"].items()}
            made[name] = _structure(members, tuple(shape.get("required", ())))
        elif kind == "list":
            made[name] = _list(_checker(shapes, shape["member"]["shape"], made))
        elif kind == "map":
            made[name] = _map(_checker(shapes, shape["value"]["shape"], made))
        else:
            made[name] = _SCALARS[kind]
    return made[name]


def _wrong(expected: str) -> SqsError:
    return SqsError("SerializationException", f"{expected} was expected.")


def _encodable(text: str) -> str:
    """Refuse a lone surrogate, which JSON can spell and UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SqsError("InvalidMessageContents", "Invalid characters found.") from None
    return text


def _string(value: Any) -> str:
    if type(value) is not str:
        raise _wrong("A string")
    return value if value.isascii() else _encodable(value)


def _integer(value: Any) -> int:
    if type(value) is int and -_NUMBER_MAX < value < _NUMBER_MAX:
        return value
    if type(value) is float and value.is_integer() and abs(value) < _NUMBER_MAX:
        return int(value)
    if type(value) is str and _NUMBER.fullmatch(value):
        return int(value)
    raise _wrong("A number")


def _boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise _wrong("A boolean")


def _blob(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        raise _wrong("Base64") from None


_SCALARS: Final[Mapping[str, Check]] = {
    "string": _string, "integer": _integer, "long": _integer, "boolean": _boolean, "blob": _blob,
}  # fmt: skip


def _require_few(members: Sized) -> None:
    if len(members) > MEMBERS_MAX:
        raise SqsError("MalformedInput", f"A list or a map has more than {MEMBERS_MAX:,} members.")


def _list(member: Check) -> Check:
    def check(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _wrong("A list")
        _require_few(value)
        return [member(each) for each in value]

    return check


def _map(member: Check) -> Check:
    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong("A map")
        _require_few(value)
        return {_string(name): member(each) for name, each in value.items() if each is not None}

    return check


def _structure(members: Mapping[str, Check], required: tuple[str, ...]) -> Check:
    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong("An object")
        found: dict[str, Any] = {}
        for name, each in value.items():
            if each is not None and (member := members.get(name)) is not None:
                found[name] = member(each)
        for name in required:
            if name not in found:
                raise missing(name)
        return found

    return check
