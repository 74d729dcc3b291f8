"""Security groups of nodes: every group that a selector term matches is attached."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from cachetools import TTLCache

from controller.apis.karpenter.ec2nodeclass import SecurityGroupStatus, SelectorTerm
from controller.aws.selectors import tag_filters
from controller.aws.session import Aws


class SecurityGroups:
    """Finds security groups; EC2NodeClasses with the same terms share one cached response."""

    def __init__(
        self,
        aws: Aws,
        *,
        period: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._aws = aws
        self._selected: TTLCache[object, tuple[SecurityGroupStatus, ...]] = TTLCache(
            math.inf, period, clock
        )
        self._asking = asyncio.Lock()

    async def find(self, terms: Sequence[SelectorTerm]) -> tuple[SecurityGroupStatus, ...]:
        """Return the security groups that any of the terms selects, sorted by ID."""
        key = tuple(sorted((t.id, t.name, tuple(sorted(t.tags.items()))) for t in terms))
        async with self._asking:
            if groups := self._selected.get(key):
                return groups
            names: dict[str, str] = {}
            for filters in _queries(terms):
                described = await self._aws.pages(
                    "ec2", "describe_security_groups", "SecurityGroups", Filters=filters
                )
                names.update({g["GroupId"]: g.get("GroupName", "") for g in described})
            groups = tuple(SecurityGroupStatus(id=i, name=n) for i, n in sorted(names.items()))
            self._selected[key] = groups
            return groups

    def forget(self) -> None:
        """Clear the cache, so that the next call queries EC2."""
        self._selected.clear()


def _queries(terms: Sequence[SelectorTerm]) -> list[list[dict[str, Any]]]:
    ids = sorted(term.id for term in terms if term.id)
    rest = [
        [
            *([{"Name": "group-name", "Values": [term.name]}] if term.name else []),
            *tag_filters(term.tags),
        ]
        for term in terms
        if not term.id and (term.name or term.tags)  # EC2 reads no filter as everything
    ]
    return [*([[{"Name": "group-id", "Values": ids}]] if ids else []), *rest]
