"""Validation of calls against botocore's service models, as AWS validates them.

The models hold what AWS publishes about its APIs: required parameters, lengths, ranges,
patterns and enumerations. boto3 itself checks only required parameters and lower bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import regex

from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.wire import Call, model

CODES: Final = {
    "ecr": "InvalidParameterException",
    "ec2": "InvalidParameterValue",
    "eks": "InvalidParameterException",
    "iam": "ValidationError",
    "pricing": "InvalidParameterException",
    "resourcegroupstaggingapi": "InvalidParameterException",
    "sqs": "InvalidParameterValue",
    "sts": "ValidationError",
}
"""Service → error code for a parameter that its model does not allow."""

USUAL_CODE: Final = "ValidationException"

OPEN: Final = frozenset({"InstanceType"})
"""Enumerations that grow between model releases, so the service itself must check them."""


def check(call: Call) -> None:
    """Raise the service's error for parameters that its model does not allow, listing them all.

    Calls of services that are not in `wire.MODELLED` are not checked.
    """
    if not call.protocol:
        return
    shape = model(call.service).operation_model(call.operation).input_shape
    if shape is None:
        return
    faults = list(_faults(shape, call.parameters, ""))
    if not faults:
        return
    plural = "error" if len(faults) == 1 else "errors"
    raise AwsError(
        CODES.get(call.service, USUAL_CODE),
        f"{len(faults)} validation {plural} detected: {'; '.join(faults)}",
    )


def _faults(shape: Any, value: Any, path: str) -> Iterator[str]:
    kind = shape.type_name
    if kind == "structure":
        yield from _structure(shape, value, path)
        return
    limits = shape.metadata
    if kind == "list":
        yield from _length(limits, len(value), value, path)
        for number, item in enumerate(value, start=1):
            yield from _faults(shape.member, item, f"{path}.{number}.member")
    elif kind == "map":
        yield from _length(limits, len(value), value, path)
        for key, item in value.items():
            yield from _faults(shape.key, key, f"{path}.{key}.key")
            yield from _faults(shape.value, item, f"{path}.{key}.value")
    elif kind == "string":
        yield from _text(shape, value, path)
    elif kind in ("integer", "long", "float", "double"):
        yield from _number(limits, value, path)


def _structure(shape: Any, value: Any, path: str) -> Iterator[str]:
    held = {name: inner for name, inner in (value or {}).items() if inner is not None}
    for name in shape.required_members:
        if name not in held:
            yield _failure("null", _under(path, name), "Member must not be null", quote="")
    for name, inner in held.items():
        if name in shape.members:
            yield from _faults(shape.members[name], inner, _under(path, name))


def _under(path: str, name: str) -> str:
    """Return the path of a member, in lower camel case as AWS's messages spell it."""
    spelled = name[:1].lower() + name[1:]
    return f"{path}.{spelled}" if path else spelled


def _text(shape: Any, value: str, path: str) -> Iterator[str]:
    limits = shape.metadata
    yield from _length(limits, len(value), value, path)
    pattern = limits.get("pattern")
    allowed = None if shape.name in OPEN else limits.get("enum")
    if pattern and _compile(pattern).fullmatch(value) is None:
        yield _failure(value, path, f"Member must satisfy regular expression pattern: {pattern}")
    if allowed and value not in allowed:
        yield _failure(value, path, f"Member must satisfy enum value set: [{', '.join(allowed)}]")


def _length(limits: Any, length: int, value: Any, path: str) -> Iterator[str]:
    least, most = limits.get("min"), limits.get("max")
    if least is not None and length < least:
        yield _failure(value, path, f"Member must have length greater than or equal to {least}")
    if most is not None and length > most:
        yield _failure(value, path, f"Member must have length less than or equal to {most}")


def _number(limits: Any, value: float, path: str) -> Iterator[str]:
    least, most = limits.get("min"), limits.get("max")
    if least is not None and value < least:
        yield _failure(value, path, f"Member must have value greater than or equal to {least}")
    if most is not None and value > most:
        yield _failure(value, path, f"Member must have value less than or equal to {most}")


def _failure(value: object, path: str, constraint: str, *, quote: str = "'") -> str:
    return f"Value {quote}{value}{quote} at '{path}' failed to satisfy constraint: {constraint}"


@lru_cache(maxsize=512)
def _compile(pattern: str) -> Any:
    # The patterns are written for Java, where \w is ASCII only and \p{L} is Unicode.
    is_unicode = r"\p{" in pattern
    return regex.compile(pattern, regex.UNICODE if is_unicode else regex.ASCII)
