"""List operations that moto answers, with AWS's paging, filters and eventual consistency.

moto returns most listings whole, or in pages of its own size. If a test sets a smaller page
size (`World.largest_page`), a resource is not visible yet (`visible_after`), or moto ignores the
filters by tags (`IGNORED`), this module reads the listing from moto to its end, and filters and
pages the result itself.
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

from testbed.cloud.protocol.filters import page, select_by
from testbed.cloud.protocol.wire import Call, Response, read_result, write_result
from testbed.cloud.state.world import World

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
"""Key of a listing → key in its items that names a resource that may not be visible yet."""

IGNORED: Final = frozenset({"DescribeEgressOnlyInternetGateways", "DescribeNatGateways"})
"""Operations whose filters by tags moto ignores."""

WHOLE: Final = 1000
"""Page size if the caller sets none."""

Ask = Callable[[bytes], Response]
"""Function that sends moto the call with another request body."""


@dataclass(frozen=True, slots=True)
class Paging:
    """Paging parameters of a list operation, as botocore's paginator models define them."""

    token: str
    next_token: str
    limit: str | None
    listing: str


@lru_cache(maxsize=256)
def paging(service: str, operation: str) -> Paging | None:
    """Return an operation's paging parameters; None without a paginator, or with several tokens."""
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
    """Return the paging parameters of a call that this module pages, or None if moto answers it."""
    if not (world.unseen or call.largest_page or _tag_filters(call)):
        return None
    return paging(call.service, call.operation)


def _tag_filters(call: Call) -> list[Mapping[str, Any]]:
    """Return the filters by tags that moto ignores."""
    if call.operation not in IGNORED:
        return []
    given = call.get("Filters") or call.get("Filter") or []
    return [each for each in given if each["Name"].startswith("tag")]


def _tags(item: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in item.get("Tags") or ()}


def answer(world: World, call: Call, how: Paging, body: bytes, ask: Ask) -> Response:
    """Answer a list operation from moto's complete listing.

    Reads every page from moto, drops resources that are not visible yet, and returns one page of
    the rest. `body` is the request's body, and `ask` sends moto the request with another body.
    Returns moto's response unchanged if it is an error.
    """
    items: list[Any] = []
    token = None
    while True:
        response = ask(_with_parameters(body, {how.token: token, how.limit: None}))
        if response.status >= 400:
            return response
        result = read_result(call, response)
        items += result.get(how.listing) or []
        token = result.get(how.next_token)
        if not token:
            break
    name = NAMED_BY.get(how.listing)
    found = select_by(items, _tag_filters(call), attributes={}, tags=_tags)
    seen = [each for each in found if name is None or world.is_seen(each[name])]
    size = int(call.get(how.limit) or WHOLE) if how.limit else WHOLE
    listed, rest = page(seen, call, default=size, token=call.get(how.token))
    result |= {how.listing: list(listed), how.next_token: rest}
    if "IsTruncated" in result:
        result["IsTruncated"] = rest is not None
    return write_result(call, result)


def _with_parameters(body: bytes, changes: Mapping[str | None, str | None]) -> bytes:
    """Return the request body with some parameters replaced; parameters set to None are removed."""
    text, given = body.decode(), {str(k): v for k, v in changes.items() if v is not None}
    if text.lstrip().startswith("{"):
        asked = {k: v for k, v in json.loads(text).items() if k not in changes}
        return json.dumps({**asked, **given}).encode()
    form = [(k, v) for k, v in parse_qsl(text, keep_blank_values=True) if k not in changes]
    return urlencode([*form, *given.items()]).encode()
