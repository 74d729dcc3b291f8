"""Creates NodeClaims, and nominates them for the pods that need them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import NODE_CLAIM, NODE_POOL
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.quantities import MILLI
from controller.apiserver.errors import ApiError
from controller.apiserver.port import ApiServer
from controller.cloudprovider.instancetypes import InstanceType
from controller.constraints.resources import NODES, Resources, parse_resources, total
from controller.reconcilers.newnodes.claims import node_claim
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import create_once, new_name
from controller.scheduling.results import NewNode
from controller.state.usage import Sizes, usage
from controller.telemetry.events import Recorder

log = logging.getLogger(__name__)


async def create_claim(
    api: ApiServer,
    recorder: Recorder,
    pool: NodePool,
    body: Mapping[str, Any],
    *,
    is_repeated: bool = False,
) -> NodeClaim:
    """Return a created NodeClaim; if the API server refuses it, publish an event on its NodePool.

    `body` has a name, so a repeated request creates no second NodeClaim. `is_repeated` is that of
    `create_once`.

    Raises:
        ApiError: it could not be created.

    """
    try:
        return await create_once(api, NODE_CLAIM, body, is_repeated=is_repeated)
    except ApiError as error:
        refused = f"Error creating NodeClaim: {error}"
        await recorder.publish(pool, "Warning", "FailedCreate", refused)
        raise


@dataclass(frozen=True, slots=True)
class ClaimWriter(PortUser):
    """Creates NodeClaims within the limits of their NodePools."""

    ports: Ports
    plan: PlacementPlan

    def within_limits(
        self,
        nodes: Sequence[NewNode],
        types: Mapping[str, Sequence[InstanceType]],
        *,
        replacing: bool = False,
    ) -> list[bool]:
        """Return for each node whether its pool's limits admit it in addition to the nodes before.

        `types` are the instance types of each pool: a node that is not launched counts as the
        largest of its instance types. Replacements may exceed a limit until the replaced nodes are
        deleted, but not if the limit is exceeded already.
        """
        limits = {name: self._limits(name) for name in {node.node_pool for node in nodes}}
        if not any(limits.values()):
            return [True] * len(nodes)
        used = usage(self.cluster.state_nodes(self.clock()), types)
        sizes = {name: Sizes(types.get(name, ())) for name in limits}
        admitted = []
        exceeded: Counter[tuple[str, str]] = Counter()
        for node in nodes:
            name = node.node_pool
            there = used.get(name, {})
            own = {**sizes[name].of_types(node.instance_types), NODES: MILLI}
            wanted = there if replacing else total((there, own))
            passed = next((k for k, most in limits[name].items() if wanted.get(k, 0) > most), None)
            admitted.append(passed is None)
            if passed is None:
                used[name] = wanted
            else:
                exceeded[name, passed] += 1
        for (name, limit), count in exceeded.items():
            fields = {"NodePool": name, "limit": limit, "nodeclaims": count}
            log.warning(
                "nodepool limit exceeded, so nodeclaims are not created: raise spec.limits of the "
                "nodepool, if it should have more nodes",
                extra=fields,
            )
        return admitted

    def _limits(self, node_pool: str) -> Resources:
        pool = self.cluster.get(NODE_POOL, node_pool)
        return parse_resources(pool.spec.limits) if pool is not None else {}

    async def create(
        self, node: NewNode, seen: NodePool, types: Iterable[InstanceType], *, reason: str
    ) -> NodeClaim | None:
        """Create a node's NodeClaim; returns None if the pool was deleted or its template changed.

        `seen` is the pool that the scheduler read. A NodeClaim with the template of `seen` and the
        hash of a newer template would never drift. `types` are the pool's instance types; `reason`
        is the value of the label `reason` in metrics.

        Raises:
            ApiError: the API server did not create it.

        """
        pool = self.cluster.get(NODE_POOL, node.node_pool)
        if pool is None or pool.metadata.is_deleting:
            return None
        if pool.spec.template != seen.spec.template:
            log.info(
                "nodepool changed before nodeclaim was created; deciding again",
                extra={"NodePool": node.node_pool},
            )
            return None
        body = node_claim(new_name(f"{pool.metadata.name}-"), pool, node, types)
        claim = await create_claim(self.api, self.recorder, pool, body)
        self.cluster.insert_claim(claim)
        self.metrics.record_creation(claim, reason)
        log.info(
            "created nodeclaim",
            extra={
                "NodeClaim": claim.metadata.name,
                "NodePool": pool.metadata.name,
                "instance-types": len(node.instance_types),
                "cheapest": node.instance_types[0] if node.instance_types else "",
                "pods": len(node.pods),
                "Pods": ", ".join(node.pods),
            },
        )
        return claim

    def expect(self, name: str, pods: Sequence[Pod], patience: timedelta) -> None:
        """Plan pods on a node or NodeClaim, and nominate it for them.

        Because of the nomination it is not disrupted within `patience`.
        """
        for pod in pods:
            self.plan.expect(pod, name)
        if pods:
            self.cluster.nominate(name, pods, self.clock() + patience)
