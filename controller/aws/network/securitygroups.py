"""Security groups of nodes: every group that a selector term matches is attached."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cachetools import TTLCache

from controller.apis.karpenter.ec2nodeclass import SecurityGroupStatus, SelectorTerm
from controller.aws.selectors import queries
from controller.aws.session import Aws


@dataclass
class SecurityGroups:
    """Finds security groups; EC2NodeClasses with the same terms share one cached response."""

    aws: Aws
    period: float = 60.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._selected: TTLCache[object, tuple[SecurityGroupStatus, ...]] = TTLCache(
            math.inf, self.period, self.clock
        )
        self._lock = asyncio.Lock()

    async def find(self, terms: Sequence[SelectorTerm]) -> tuple[SecurityGroupStatus, ...]:
        """Return the security groups that any of the terms selects, sorted by ID."""
        key = tuple(sorted((t.id, t.name, tuple(sorted(t.tags.items()))) for t in terms))
        async with self._lock:
            if groups := self._selected.get(key):
                return groups
            names: dict[str, str] = {}
            for filters in queries(terms, id_filter="group-id", name_filter="group-name"):
                described = await self.aws.pages(
                    "ec2", "describe_security_groups", "SecurityGroups", Filters=filters
                )
                names.update({g["GroupId"]: g.get("GroupName", "") for g in described})
            groups = tuple(SecurityGroupStatus(id=i, name=n) for i, n in sorted(names.items()))
            self._selected[key] = groups
            return groups
