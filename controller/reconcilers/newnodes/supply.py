"""What pools can buy now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from controller.apis import conditions
from controller.apis.kinds import EC2_NODE_CLASS
from controller.apis.nodepool import NodePool
from controller.cloudprovider.compatibility import is_met
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.instancetypes import InstanceType
from controller.cloudprovider.provider import CloudProvider
from controller.state.cluster import Cluster


@dataclass(slots=True)
class PoolSupply:
    """The types of each pool by its name, overlays applied; and what is wrong where it is.

    A pool whose types nobody can tell now has none.
    """

    types: dict[str, Sequence[InstanceType]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


async def supply(cloud: CloudProvider, cluster: Cluster, pools: Iterable[NodePool]) -> PoolSupply:
    """Ask what pools can buy."""
    supplied = PoolSupply()
    for pool in pools:
        name = pool.metadata.name
        node_class = cluster.get(EC2_NODE_CLASS, pool.spec.template.spec.node_class_ref.name)
        if node_class is None:
            continue
        try:
            types = await cloud.instance_types(node_class, pool)
        except CloudProviderError as error:
            supplied.problems[name] = str(error)
        else:
            supplied.types[name] = types
            supplied.problems[name] = unmet(pool, types)
    return supplied


def ready_pools(pools: Iterable[NodePool]) -> list[NodePool]:
    """Return the pools that may make nodes: ready, dynamic, not on their way out."""
    return [
        p
        for p in pools
        if p.spec.replicas is None
        and not p.metadata.is_deleting
        and conditions.is_true(p.status.conditions, "Ready")
    ]


def unmet(pool: NodePool, types: Sequence[InstanceType]) -> str:
    """Say which of the pool's requirements keep out every type; nothing when some type is left."""
    requirements = pool.spec.template.spec.requirements
    if is_met(requirements, types):
        return ""
    alone = [r for r in requirements if not is_met([r], types)]
    if not alone:
        return "no instance type meets all of spec.template.spec.requirements: loosen some"
    described = ", ".join(f"{r.key} {r.operator} [{', '.join(r.values)}]" for r in alone)
    return f"no instance type meets {described} of spec.template.spec.requirements: change it"
