"""The instance types last offered, for prices of nodes and for metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.cloudprovider.instancetypes import InstanceType, Offering


class Market:
    """Instance types by NodePool, as of the last request for them."""

    def __init__(self) -> None:
        self._asked: dict[str, Sequence[InstanceType]] = {}
        self._named: dict[str, dict[str, InstanceType]] = {}

    def set_types(self, node_pool: str, types: Sequence[InstanceType]) -> None:
        """Store the instance types of a NodePool; cheap if they are the same sequence as before.

        NodePools with the same sequence share the stored data.
        """
        if self._asked.get(node_pool) is types:
            return
        alike = next((pool for pool, known in self._asked.items() if known is types), None)
        self._asked[node_pool] = types
        self._named[node_pool] = (
            {each.name: each for each in types} if alike is None else self._named[alike]
        )

    def offering(self, claim: NodeClaim) -> Offering | None:
        """Return the offering of a NodeClaim's instance, or None if unknown."""
        mine = claim.metadata.labels
        types = self._named.get(mine.get(labels.NODEPOOL, ""), {})
        instance_type = types.get(mine.get(labels.INSTANCE_TYPE, ""))
        wanted = (mine.get(labels.ZONE, ""), mine.get(labels.CAPACITY_TYPE, ""))
        for offering in instance_type.offerings if instance_type else ():
            if (offering.zone, offering.capacity_type) == wanted:
                return offering
        return None

    def types(self) -> Iterator[InstanceType]:
        """Yield every instance type once, sorted by name."""
        # A copy, because a scrape runs in its own thread.
        known = self._named.copy()
        every = {name: each for named in known.values() for name, each in named.items()}
        yield from (every[name] for name in sorted(every))
