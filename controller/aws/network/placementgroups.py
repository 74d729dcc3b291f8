"""EC2 placement groups, which control how instances are placed relative to each other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controller.apis.karpenter.ec2nodeclass import PlacementGroupSelector
from controller.aws.errors import AwsError
from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError

PERIOD = 60.0
"""Seconds for which a response of EC2 is cached."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementGroup:
    """A placement group.

    `strategy` is `cluster`, `partition` or `spread`; `partitions` is the number of partitions.
    """

    id: str
    name: str
    strategy: str
    partitions: int = 0

    @property
    def partition_names(self) -> tuple[str, ...]:
        """The partitions as in label values, from `1`; empty unless the strategy is `partition`."""
        count = self.partitions if self.strategy == "partition" else 0
        return tuple(str(number) for number in range(1, count + 1))

    def part(self, partition: str) -> str:
        """Return the key under which `Unavailable` records the refusals of a partition.

        If `partition` is empty, it is the key of the whole placement group.
        """
        return f"{self.id}/{partition}" if partition else self.id


class PlacementGroups:
    """Finds placement groups."""

    def __init__(self, aws: Aws, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._aws = aws
        self._clock = clock
        # Not in a cache with expiry, because they remain in use while EC2 does not respond.
        self._known: dict[PlacementGroupSelector, tuple[float, PlacementGroup]] = {}
        self._lock = asyncio.Lock()

    async def find(self, selector: PlacementGroupSelector | None) -> PlacementGroup | None:
        """Return the selected placement group, or None if there is none or it is not available.

        Raises:
            CloudProviderError: EC2 did not respond and no earlier response is known.

        """
        if selector is None:
            return None
        # Launches arrive together: the second waits for the response to the first.
        async with self._lock:
            since, known = self._known.get(selector, (float("-inf"), None))
            if known is not None and self._clock() - since < PERIOD:
                return known
            try:
                group = await self._describe(selector)
            except CloudProviderError as exc:
                if known is None:
                    raise
                log.warning(
                    "ec2:DescribePlacementGroups failed; keeping the last known state of the "
                    "placement group",
                    extra={"placement-group": selector.name or selector.id, "error": str(exc)},
                )
                group = known
            if group is None:
                self._known.pop(selector, None)
            else:
                self._known[selector] = (self._clock(), group)
            return group

    def last_result(self, selector: PlacementGroupSelector | None) -> PlacementGroup | None:
        """Return the last result of `find` for the selector, however old; None if there is none."""
        return self._known[selector][1] if selector in self._known else None

    async def _describe(self, selector: PlacementGroupSelector) -> PlacementGroup | None:
        available = {"Name": "state", "Values": ["available"]}
        named = {"Name": "group-name", "Values": [selector.name]}
        # EC2 returns a group shared by another account only for a request with its ID.
        which: dict[str, Any] = (
            {"Filters": [available, named]}
            if selector.name
            else {"Filters": [available], "GroupIds": [selector.id]}
        )
        try:
            response = await self._aws.call("ec2", "describe_placement_groups", **which)
        except AwsError as exc:
            if exc.is_not_found:
                return None
            raise
        for d in response.get("PlacementGroups", []):
            # EC2's filters read a name as a pattern.
            if not selector.name or d.get("GroupName") == selector.name:
                return PlacementGroup(
                    id=d["GroupId"],
                    name=d.get("GroupName", ""),
                    strategy=d.get("Strategy", ""),
                    partitions=d.get("PartitionCount") or 0,
                )
        return None
