"""The instance types last offered, for prices of nodes and for metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.cloudprovider.instancetypes import InstanceType


class Market:
    """Instance types by EC2NodeClass, as of the last request for them."""

    def __init__(self) -> None:
        self._asked: dict[str, Sequence[InstanceType]] = {}
        self._named: dict[str, dict[str, InstanceType]] = {}

    def offered(self, node_class: str, types: Sequence[InstanceType]) -> None:
        """Store the instance types of a class; cheap if it is the same sequence as before."""
        if self._asked.get(node_class) is not types:
            self._asked[node_class] = types
            self._named[node_class] = {each.name: each for each in types}

    def price(self, claim: NodeClaim) -> float | None:
        """Return the price of a claim's instance in $/h, or None if unknown."""
        types = self._named.get(claim.spec.node_class_ref.name, {})
        mine = claim.metadata.labels
        instance_type = types.get(mine.get(labels.INSTANCE_TYPE, ""))
        place = (mine.get(labels.ZONE, ""), mine.get(labels.CAPACITY_TYPE, ""))
        for offering in instance_type.offerings if instance_type else ():
            if (offering.zone, offering.capacity_type) == place:
                return offering.price
        return None

    def types(self) -> Iterator[InstanceType]:
        """Yield every instance type once, sorted by name."""
        # A copy, because a scrape runs in its own thread.
        known = self._named.copy()
        every = {name: each for named in known.values() for name, each in named.items()}
        yield from (every[name] for name in sorted(every))
