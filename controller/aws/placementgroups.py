"""Placement groups: where machines stand to one another."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controller.apis.ec2nodeclass import PlacementGroupSelector
from controller.aws.errors import AwsError
from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError

PERIOD = 60.0
"""Seconds for which an answer is believed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementGroup:
    """A group; `strategy` is cluster, partition or spread, `partitions` how many it has."""

    id: str
    name: str
    strategy: str
    partitions: int = 0

    @property
    def partition_names(self) -> tuple[str, ...]:
        """The partitions as labels name them, `1` and so on; none unless that is the strategy."""
        count = self.partitions if self.strategy == "partition" else 0
        return tuple(str(number) for number in range(1, count + 1))

    def part(self, partition: str) -> str:
        """Return by what name refusals of one partition are remembered; of all of them if empty."""
        return f"{self.id}/{partition}" if partition else self.id


class PlacementGroups:
    """Finds placement groups."""

    def __init__(self, aws: Aws, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._aws = aws
        self._clock = clock
        # With their age, not in a cache that drops them: they serve on when EC2 does not answer.
        self._known: dict[PlacementGroupSelector, tuple[float, PlacementGroup]] = {}
        self._asking = asyncio.Lock()

    async def find(self, selector: PlacementGroupSelector | None) -> PlacementGroup | None:
        """Return the group that is selected and can be used, or None."""
        if selector is None:
            return None
        # Launches come together; whoever comes second uses the first one's answer.
        async with self._asking:
            since, known = self._known.get(selector, (float("-inf"), None))
            if known is not None and self._clock() - since < PERIOD:
                return known
            try:
                group = await self._ask(selector)
            except CloudProviderError as exc:
                if known is None:
                    raise
                log.warning("keeping a placement group as it was known", extra={"error": str(exc)})
                group = known
            if group is None:
                self._known.pop(selector, None)
            else:
                self._known[selector] = (self._clock(), group)
            return group

    def known(self, selector: PlacementGroupSelector | None) -> PlacementGroup | None:
        """Return the group as `find` last found it, however long ago."""
        return self._known[selector][1] if selector in self._known else None

    async def _ask(self, selector: PlacementGroupSelector) -> PlacementGroup | None:
        available = {"Name": "state", "Values": ["available"]}
        named = {"Name": "group-name", "Values": [selector.name]}
        # A group that another account shares is told of only to who asks for its id.
        which: dict[str, Any] = (
            {"Filters": [available, named]}
            if selector.name
            else {"Filters": [available], "GroupIds": [selector.id]}
        )
        try:
            answer = await self._aws.call("ec2", "describe_placement_groups", **which)
        except AwsError as exc:
            if exc.is_not_found:
                return None
            raise
        for d in answer.get("PlacementGroups", []):
            # To EC2's filters a name is a pattern.
            if not selector.name or d.get("GroupName") == selector.name:
                return PlacementGroup(
                    id=d["GroupId"],
                    name=d.get("GroupName", ""),
                    strategy=d.get("Strategy", ""),
                    partitions=d.get("PartitionCount") or 0,
                )
        return None
