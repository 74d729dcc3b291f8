"""Listings that moto answers, as AWS gives them: in small pages, and without what is too new.

moto gives most of them whole, or in pages of its own size. While a test asks for smaller ones
(`World.largest_page`), or something is not seen yet (`settling`), a listing is read from moto to
its end and given out again from here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from botocore.exceptions import UnknownServiceError
from botocore.loaders import Loader

from testbed.cloud.filters import page
from testbed.cloud.wire import Call, Response, read_result, write_result
from testbed.cloud.world import World

NAMED_BY: Final[Mapping[str, str]] = {
    "InternetGateways": "InternetGatewayId",
    "NatGateways": "NatGatewayId",
    "Policies": "PolicyName",
    "Roles": "RoleName",
    "RouteTables": "RouteTableId",
    "SecurityGroups": "GroupId",
    "VpcEndpoints": "VpcEndpointId",
    "Vpcs": "VpcId",
}
"""Listing → what names an item of it that may not be seen yet."""

WHOLE: Final = 1000
"""How much is given at once where nobody says: no listing here is longer."""

Ask = Callable[[bytes], Response]
"""Asks moto with a body in place of the caller's."""


@dataclass(frozen=True, slots=True)
class Paging:
    """How an operation is asked page by page, as botocore's paginators know it."""

    token: str
    next_token: str
    limit: str | None
    listing: str


@lru_cache(maxsize=256)
def paging(service: str, operation: str) -> Paging | None:
    """How an operation of a service is paged; None for one that is not."""
    try:
        known = Loader().load_service_model(service, "paginators-1")["pagination"].get(operation)
    except UnknownServiceError:
        return None
    if known is None:
        return None
    listings = known["result_key"]
    found = (known["input_token"], known["output_token"], known.get("limit_key"))
    listing = listings[0] if isinstance(listings, list) else listings
    return Paging(*found, listing) if all(isinstance(each, str) for each in found[:2]) else None


def concern(world: World, call: Call) -> Paging | None:
    """How to page a call that moto shall not answer by itself; None for the others."""
    if not (world.unseen or call.largest_page):
        return None
    return paging(call.service, call.operation)


def answer(world: World, call: Call, how: Paging, body: bytes, ask: Ask) -> Response:
    """Answer a listing from all that moto has of it."""
    items: list[Any] = []
    token = None
    while True:
        response = ask(_asking(body, {how.token: token, how.limit: None}))
        if response.status >= 400:
            return response
        result = read_result(call, response)
        items += result.get(how.listing) or []
        token = result.get(how.next_token)
        if not token:
            break
    name = NAMED_BY.get(how.listing)
    seen = [each for each in items if name is None or world.is_seen(each[name])]
    size = int(call.get(how.limit) or WHOLE) if how.limit else WHOLE
    listed, rest = page(seen, call, default=size, token=call.get(how.token))
    result |= {how.listing: list(listed), how.next_token: rest}
    if "IsTruncated" in result:
        result["IsTruncated"] = rest is not None
    return write_result(call, result)


def _asking(body: bytes, changes: Mapping[str | None, str | None]) -> bytes:
    """The body of a request with some of its parameters changed; those that are None go."""
    text, given = body.decode(), {str(k): v for k, v in changes.items() if v is not None}
    if text.lstrip().startswith("{"):
        asked = {k: v for k, v in json.loads(text).items() if k not in changes}
        return json.dumps({**asked, **given}).encode()
    form = [(k, v) for k, v in parse_qsl(text, keep_blank_values=True) if k not in changes]
    return urlencode([*form, *given.items()]).encode()
