"""Subnets: which ones an EC2NodeClass selects, and which have free IP addresses.

A launch reserves the addresses that it may use, and then releases those in subnets that EC2 did not
choose. A new description of a subnet replaces the controller's own count. A subnet without free
addresses is not used until EC2 reports a free one. A subnet in which EC2 refused to launch an
instance is avoided for 3 minutes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachetools import TTLCache

from controller.apis.karpenter.ec2nodeclass import SelectorTerm
from controller.aws.selectors import queries
from controller.aws.session import Aws
from controller.aws.unavailable import TTL
from controller.cloudprovider.errors import CloudProviderError

ADDRESS_PERIOD = 300.0
"""Seconds for which a count of free addresses is used."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """A subnet; `free` is its number of free IPv4 addresses in EC2's last response.

    `is_public` is whether EC2 gives its instances a public IPv4 address by default.
    """

    id: str
    zone: str
    zone_id: str
    free: int
    is_public: bool = False


@dataclass
class Subnets:
    """Finds subnets and counts their free addresses."""

    aws: Aws
    period: float = 60.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._selected: TTLCache[object, tuple[Subnet, ...]] = TTLCache(
            math.inf, self.period, self.clock
        )
        # Not in a cache with expiry, because they remain in use while EC2 does not respond.
        self._known: dict[str, tuple[float, Subnet]] = {}
        self._in_flight: Counter[str] = Counter()
        self._landed: Counter[str] = Counter()
        self._full: TTLCache[str, None] = TTLCache(math.inf, TTL, self.clock)
        self._lock = asyncio.Lock()
        self._counting = asyncio.Lock()

    async def find(self, terms: Sequence[SelectorTerm]) -> tuple[Subnet, ...]:
        """Return the subnets that any of the terms selects, most free addresses first."""
        key = tuple(sorted((t.id, tuple(sorted(t.tags.items()))) for t in terms))
        # EC2NodeClasses often share terms: the second caller waits for the response to the first.
        async with self._lock:
            if subnets := self._selected.get(key):
                return subnets
            by_id: dict[str, Subnet] = {}
            for filters in queries(terms, id_filter="subnet-id"):
                by_id.update({s.id: s for s in await self._describe(filters)})
            subnets = tuple(sorted(by_id.values(), key=lambda s: (-s.free, s.id)))
            self._selected[key] = subnets
            return subnets

    async def for_launch(self, ids: Iterable[str]) -> dict[str, Subnet]:
        """Return for each zone the subnet with the most free addresses; full subnets are omitted.

        Raises:
            CloudProviderError: EC2 did not respond, and not every subnet has an earlier count.

        """
        wanted = list(ids)
        await self._refresh(wanted)
        best: dict[str, Subnet] = {}
        for subnet_id in wanted:
            if subnet_id not in self._known or self.is_full(subnet_id):
                continue
            subnet = self._known[subnet_id][1]
            rival = best.get(subnet.zone)
            if rival is None or self.free_addresses(subnet) > self.free_addresses(rival):
                best[subnet.zone] = subnet
        return best

    def free_addresses(self, subnet: Subnet) -> int:
        """Return the number of free addresses less those reserved by launches in progress."""
        return subnet.free - self._in_flight[subnet.id]

    def reserve_addresses(self, addresses: Mapping[str, int]) -> None:
        """Reserve addresses for a launch in progress; `addresses` is their number by subnet ID."""
        self._in_flight.update(addresses)

    def release_addresses(self, addresses: Mapping[str, int]) -> None:
        """Undo `reserve_addresses` for the subnets that EC2 did not choose."""
        for subnet_id, count in addresses.items():
            # A description in between has already cleared the reservations.
            self._in_flight[subnet_id] = max(self._in_flight[subnet_id] - count, 0)

    def use_address(self, subnet_id: str) -> None:
        """Record that an instance uses an address that EC2's last response counted as free."""
        self._landed[subnet_id] += 1

    def mark_full(self, subnet_id: str) -> None:
        """Avoid a subnet that had no free address, for 3 minutes."""
        self._full[subnet_id] = None

    def is_full(self, subnet_id: str) -> bool:
        """Whether a subnet is avoided: no free address, or `mark_full` in the last 3 minutes."""
        if subnet_id in self._full:
            return True
        # Pods may need further addresses; only an instance's first address is known to be needed.
        known = self._known.get(subnet_id)
        return known is not None and known[1].free <= self._landed[subnet_id]

    def is_public(self, subnet_id: str) -> bool:
        """Whether EC2 gives instances in the subnet a public IPv4 address by default."""
        known = self._known.get(subnet_id)
        return known is not None and known[1].is_public

    async def zone_names(self, ids: Iterable[str]) -> dict[str, str]:
        """Return zone names by zone ID (such as `usw2-az1`), for zones with a subnet."""
        filters = [{"Name": "availability-zone-id", "Values": sorted(ids)}]
        return {s.zone_id: s.zone for s in await self._describe(filters)}

    async def _refresh(self, ids: list[str]) -> None:
        if not self._stale_ids(ids):
            return
        # A lock of its own, so that a launch never waits for the queries of EC2NodeClasses.
        async with self._counting:
            stale = self._stale_ids(ids)
            if not stale:
                return
            try:
                await self._describe([{"Name": "subnet-id", "Values": stale}])
            except CloudProviderError as exc:
                known = [i for i in stale if i in self._known]
                if len(known) < len(stale):
                    raise
                log.warning(
                    "ec2:DescribeSubnets failed; keeping the last known counts of free addresses",
                    extra={"subnets": known, "error": str(exc)},
                )
                for subnet_id in known:
                    self._known[subnet_id] = (self.clock(), self._known[subnet_id][1])

    def _stale_ids(self, ids: Iterable[str]) -> list[str]:
        now = self.clock()
        return [i for i in ids if i not in self._known or now - self._known[i][0] > ADDRESS_PERIOD]

    async def _describe(self, filters: list[dict[str, Any]]) -> list[Subnet]:
        described = await self.aws.pages("ec2", "describe_subnets", "Subnets", Filters=filters)
        subnets = [
            Subnet(
                id=s["SubnetId"],
                zone=s["AvailabilityZone"],
                zone_id=s.get("AvailabilityZoneId", ""),
                free=s["AvailableIpAddressCount"],
                is_public=s.get("MapPublicIpOnLaunch", False),
            )
            for s in described
        ]
        for subnet in subnets:
            self._known[subnet.id] = (self.clock(), subnet)
            self._in_flight.pop(subnet.id, None)
            self._landed.pop(subnet.id, None)
        return subnets
