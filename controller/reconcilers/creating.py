"""Repeatable creation: the object's name is chosen before the request.

With `generateName` the caller cannot find out, after a lost response, whether the object exists.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from controller.apis.kinds import Kind, T
from controller.apiserver.errors import ConflictError, UnavailableError
from controller.apiserver.port import ApiServer

ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Letters and digits that spell no words, as in names that the API server generates."""

SUFFIX = 5
LONGEST_PREFIX = 63 - SUFFIX


def new_name(prefix: str) -> str:
    """Return a name with this prefix and a random suffix, as `generateName` would."""
    return prefix[:LONGEST_PREFIX] + "".join(random.choices(ALPHABET, k=SUFFIX))  # noqa: S311 - no secret


async def create_once(
    api: ApiServer, kind: Kind[T], body: Mapping[str, Any], *, is_repeated: bool = False
) -> T:
    """Create a cluster-wide object whose JSON has a name, and return it.

    If the response is lost, the request is repeated once. A request that is repeated, here or by
    the caller (`is_repeated`), returns the object that the earlier one created.

    Raises:
        ConflictError: another object has the name.
        UnavailableError: the object may exist; repeat the request with the same name.

    """
    try:
        return await api.create(kind, body)
    except ConflictError:
        if is_repeated:
            return await api.get(kind, body["metadata"]["name"])
        raise
    except UnavailableError:
        if is_repeated:
            raise
    return await create_once(api, kind, body, is_repeated=True)
