"""Nodes, NodeClaims and instances of other owners, which the controller must leave alone.

The owners are EKS Auto Mode, another Karpenter, and owners that no object in the cluster names.
Each object has the label `foreign`, and each instance the tag `foreign`, by which the auditor
recognizes them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from bench.faults.region import CLUSTER, Instance, Region
from bench.faults.replicas import EPOCH, wall_clock
from controller.apis import kinds
from controller.apiserver.fake import FakeApiServer
from tests.neighbours import AUTO_MODE, NEIGHBOURS, OTHER_KARPENTER, Neighbour

FOREIGN = "foreign"
UNTOUCHED, KEPT, LAUNCHING = "untouched", "kept", "launching"
"""Values of the label.

`untouched`: no controller may write to the object. `kept`: it may only not be deleted. `launching`:
nothing shows yet that it is not Joiner's.
"""

SECOND_POOL = "second"
"""The NodePool of a second Karpenter on EC2, which is not in this cluster."""

SECOND_CLUSTER = "second-cluster"


class ForeignObjects:
    """Creates objects and instances of other owners next to Joiner's."""

    def __init__(self, api: FakeApiServer, region: Region) -> None:
        self.api, self.region = api, region
        self.placed: list[str] = []
        """The kind and the name of every object created, in order."""

        self._numbers = 0

    def create(self) -> None:
        """Create the initial objects."""
        for neighbour in NEIGHBOURS:
            for pool in neighbour.pools:
                self._store(kinds.NODE_POOL, neighbour.node_pool(pool))
                self.add(neighbour, pool)
        # The owner of these is not visible in the cluster.
        self.add_unclaimed(tags=OTHER_KARPENTER.tags(CLUSTER, "default", "default-of-another"))
        self.add_unclaimed(tags={})

    def add(self, neighbour: Neighbour, pool: str, *, hostname: str = "") -> Instance:
        """Create an instance of another owner's NodePool, with its NodeClaim and its Node."""
        self._numbers += 1
        name = f"{pool}-{self._numbers}"
        instance = self._launch(neighbour.tags(CLUSTER, pool, name), hostname)
        made = {"provider_id": instance.provider_id}
        self._store(kinds.NODE_CLAIM, neighbour.claim(name, pool, node=instance.hostname, **made))
        self._store(kinds.NODE, neighbour.node(instance.hostname, pool, **made))
        return instance

    def add_unclaimed(self, *, tags: Mapping[str, str], hostname: str = "") -> Instance:
        """Create an instance with its Node but no NodeClaim, as in a managed node group."""
        instance = self._launch(tags, hostname)
        node = OTHER_KARPENTER.node(instance.hostname, "", provider_id=instance.provider_id)
        self._store(kinds.NODE, {**node, "metadata": {"name": instance.hostname}})
        return instance

    def replace(self, hostname: str, owner: int) -> Instance:
        """Create another owner's instance with `hostname`, which one of Joiner's instances had.

        The Node has the same name. `owner`, modulo 3, selects a managed node group (0), another
        Karpenter (1) or EKS Auto Mode (2).
        """
        match owner % 3:
            case 0:
                return self.add_unclaimed(tags={"eks:nodegroup-name": "workers"}, hostname=hostname)
            case 1:
                return self.add(OTHER_KARPENTER, "spare", hostname=hostname)
            case _:
                return self.add(AUTO_MODE, "system", hostname=hostname)

    def add_second_class(self) -> None:
        """Create the EC2NodeClass of a second Karpenter, with its own instance profile."""
        if self.api.find(kinds.EC2_NODE_CLASS, SECOND_POOL) is not None:
            return
        (ours,) = (
            body["spec"]
            for body in self.api.bodies(kinds.EC2_NODE_CLASS)
            if body["metadata"]["name"] == "default"
        )
        spec = {name: value for name, value in ours.items() if name != "role"}
        self.region.add_profile(SECOND_POOL, path="/", tags=[], roles=[SECOND_POOL])
        metadata = {"name": SECOND_POOL, "labels": {FOREIGN: KEPT}}
        # Every controller of this node class writes to it, so the auditor does not check it.
        self.api.store_json(
            kinds.EC2_NODE_CLASS,
            {"metadata": metadata, "spec": {**spec, "instanceProfile": SECOND_POOL}},
        )

    async def add_second_karpenters(self, chance: random.Random, *, is_tagged: bool) -> None:
        """Have a second Karpenter on EC2 create a NodeClaim, and write its status a moment later.

        Its instance has that Karpenter's tags, or none if `is_tagged` is false. Without a status,
        the NodeClaim could be one that a user created, which the controller deletes if it cannot be
        launched. From its status on, the controller must not delete it.
        """
        self._numbers += 1
        name = f"{SECOND_POOL}-{self._numbers}"
        tags = {
            "karpenter.sh/nodeclaim": name,
            "karpenter.sh/nodepool": SECOND_POOL,
            f"kubernetes.io/cluster/{SECOND_CLUSTER}": "owned",
            "eks:eks-cluster-name": SECOND_CLUSTER,
        }
        instance = self._launch(tags if is_tagged else {}, "")
        made = {"provider_id": instance.provider_id}
        claim = OTHER_KARPENTER.claim(name, "spare", node=instance.hostname, **made)
        claim["metadata"]["labels"]["karpenter.sh/nodepool"] = SECOND_POOL
        claim["spec"]["nodeClassRef"] = {
            "group": kinds.EC2_NODE_CLASS.group,
            "kind": kinds.EC2_NODE_CLASS.name,
            "name": SECOND_POOL,
        }
        status = claim.pop("status")
        now = {"lastTransitionTime": wall_clock(EPOCH, None).strftime("%Y-%m-%dT%H:%M:%SZ")}
        status["conditions"] = [{**condition, **now} for condition in status["conditions"]]
        self._store(kinds.NODE_CLAIM, claim, LAUNCHING)
        await asyncio.sleep(chance.uniform(0.1, 3.0))
        there = self.api.find(kinds.NODE_CLAIM, name)
        if there is None or there.metadata.is_deleting:
            return
        await self.api.patch(kinds.NODE_CLAIM, name, {"status": status}, subresource="status")
        await self.api.patch(kinds.NODE_CLAIM, name, {"metadata": {"labels": {FOREIGN: KEPT}}})
        self.placed.append(f"{kinds.NODE_CLAIM.name} {name}")
        node = OTHER_KARPENTER.node(instance.hostname, SECOND_POOL, **made)
        self._store(kinds.NODE, node, KEPT)

    def _launch(self, tags: Mapping[str, str], hostname: str) -> Instance:
        zone = "us-west-2b" if hostname else "us-west-2a"
        return self.region.launch("m5.large", zone, {**tags, FOREIGN: "true"}, hostname=hostname)

    def _store(self, kind: kinds.Kind[Any], body: dict[str, Any], how: str = UNTOUCHED) -> None:
        metadata = body["metadata"]
        held = {**metadata.get("labels", {}), FOREIGN: how}
        self.api.store_json(kind, {**body, "metadata": {**metadata, "labels": held}})
        if how != LAUNCHING:
            self.placed.append(f"{kind.name} {metadata['name']}")
