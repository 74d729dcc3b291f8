"""Filters of Describe calls: AND between filters, OR between values, wildcards `*` and `?`."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from testbed.cloud.protocol.errors import AwsError, invalid_value
from testbed.cloud.protocol.wire import Call

T = TypeVar("T")

Attribute = Callable[[T], "str | Iterable[str] | None"]


@lru_cache(maxsize=4096)
def _pattern(glob: str) -> re.Pattern[str]:
    translated = re.escape(glob).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(translated, re.DOTALL)


def like(value: str, glob: str) -> bool:
    """Return whether a value matches a pattern with the wildcards `*` and `?`."""
    if "*" not in glob and "?" not in glob:
        return value == glob
    return _pattern(glob).fullmatch(value) is not None


def select(
    values: Iterable[T],
    call: Call,
    *,
    attributes: Mapping[str, Attribute[T]],
    tags: Callable[[T], Mapping[str, str]] | None = None,
) -> list[T]:
    """Return the values that match every filter of the call.

    `attributes` maps the name of each filter to a function that returns what the filter compares.
    `tags` returns a value's tags. Raises AwsError (InvalidParameterValue) for a filter that the
    operation does not support.
    """
    return select_by(values, call.get("Filters", []), attributes=attributes, tags=tags)


def select_by(
    values: Iterable[T],
    filters: Iterable[Mapping[str, Any]],
    *,
    attributes: Mapping[str, Attribute[T]],
    tags: Callable[[T], Mapping[str, str]] | None = None,
) -> list[T]:
    """Return the values that match every filter, as `select` does."""
    tests = [_test(item, attributes, tags) for item in filters]
    return [value for value in values if all(test(value) for test in tests)]


def _test(
    item: Mapping[str, Any],
    attributes: Mapping[str, Attribute[T]],
    tags: Callable[[T], Mapping[str, str]] | None,
) -> Callable[[T], bool]:
    name, globs = item.get("Name", ""), list(item.get("Values", []))

    def any_like(values: str | Iterable[str] | None) -> bool:
        if values is None:
            return False
        candidates = [values] if isinstance(values, str) else values
        return any(like(candidate, glob) for candidate in candidates for glob in globs)

    if tags is not None and name.startswith("tag:"):
        key = name[len("tag:") :]
        return lambda value: any_like(tags(value).get(key))
    if tags is not None and name == "tag-key":
        return lambda value: any_like(tags(value))
    if tags is not None and name == "tag-value":
        return lambda value: any_like(tags(value).values())
    if name not in attributes:
        raise invalid_value(f"The filter '{name}' is invalid")
    attribute = attributes[name]
    return lambda value: any_like(attribute(value))


def select_page(
    values: Iterable[T],
    call: Call,
    *,
    attributes: Mapping[str, Attribute[T]],
    tags: Callable[[T], Mapping[str, str]] | None = None,
    default: int = 1000,
) -> tuple[Sequence[T], str | None]:
    """Return one page, as `page` does, of the values that `select` returns."""
    return page(select(values, call, attributes=attributes, tags=tags), call, default=default)


def page(
    values: Sequence[T], call: Call, *, default: int, token: str | None = None
) -> tuple[Sequence[T], str | None]:
    """Return one page of a listing, and the token of the next page or None.

    `default` is the page size if the caller sets none. `token` is the caller's token if its
    parameter is not named NextToken. If a test limits pages (`Call.largest_page`), a page holds
    fewer items than the caller requests. Raises AwsError for a token that is invalid.
    """
    token = token or call.get("NextToken") or call.get("nextToken")
    start = _offset(token) if token else 0
    size = int(call.get("MaxResults") or call.get("maxResults") or default)
    size = min(size, call.largest_page or size)
    rest = start + size < len(values)
    next_token = base64.urlsafe_b64encode(f"at {start + size}".encode()).decode() if rest else None
    return values[start : start + size], next_token


def _offset(token: str) -> int:
    try:
        return int(base64.urlsafe_b64decode(token).decode().removeprefix("at "))
    except (ValueError, binascii.Error) as error:
        raise AwsError("InvalidNextToken", f"The token '{token}' is invalid") from error
