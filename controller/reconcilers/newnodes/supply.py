"""The instance types that NodePools can launch now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import EC2_NODE_CLASS
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.taints import Requirement
from controller.apis.wording import shown_values
from controller.cloudprovider.compatibility import choices, has, is_met, offers
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.instancetypes import InstanceType
from controller.cloudprovider.provider import CloudProvider
from controller.constraints.requirements import minimum_values, read
from controller.disruption.offerings import awaited_reservations
from controller.scheduling.catalog.offerings import template
from controller.state.cluster import Cluster

NO_COMPATIBLE = "NodePool requirements filtered out all compatible available instance types"
"""The message of the event `NoCompatibleInstanceTypes`, as in Karpenter."""

TOO_FEW_VALUES = f"{NO_COMPATIBLE} due to minValues incompatibility"


@dataclass(slots=True)
class PoolSupply:
    """The instance types of each NodePool, with NodeOverlays applied, or why it can launch none.

    `types` and `problems` are by the NodePool's name. `types` has no entry for a NodePool whose
    instance types cannot be read now. In `problems`, an empty text means that there is no problem.
    """

    types: dict[str, Sequence[InstanceType]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def is_read(self) -> bool:
        """Whether the instance types of every NodePool whose EC2NodeClass exists could be read."""
        return self.types.keys() == self.problems.keys()


async def supply(cloud: CloudProvider, cluster: Cluster, pools: Iterable[NodePool]) -> PoolSupply:
    """Return the instance types that NodePools can launch now.

    NodePools whose EC2NodeClass does not exist are left out. `problems` has the error if the cloud
    does not return the instance types of a NodePool, and otherwise the result of `unmet`.
    """
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
    """Return the NodePools that may create nodes: ready, dynamic, not being deleted."""
    return [
        p
        for p in pools
        if p.spec.replicas is None
        and not p.metadata.is_deleting
        and conditions.is_true(p.status.conditions, "Ready")
    ]


def unmet(pool: NodePool, types: Sequence[InstanceType]) -> str:
    """Return why no offering meets the pool's requirements, available or not; empty if one does."""
    return _unmet_requirements(
        pool.spec.template.spec.requirements, lambda asked: is_met(asked, types)
    )


def unavailability(pool: NodePool, types: Sequence[InstanceType]) -> str:
    """Return why no offering is available for a node of the pool; empty if one is.

    The labels of the pool's template count as requirements. Too few values for a `minValues` are no
    reason: see `lacks_values`.
    """
    described = template(pool)
    for instance_type in types:
        if has(instance_type, described.requirements) and any(
            o.available and offers(o, described.requirements) for o in instance_type.offerings
        ):
            return ""
    full = ", ".join(sorted(awaited_reservations(types, described.terms)))
    detail = f"capacity reservation {full} is full" if full else "all offerings are unavailable"
    return f"{NO_COMPATIBLE}: {unmet(pool, types) or detail}"


def lacks_values(pool: NodePool, types: Sequence[InstanceType]) -> bool:
    """Return whether the available instance types have too few values for a `minValues`.

    False if no instance type that meets the requirements is available.
    """
    asked = pool.spec.template.spec.requirements
    minimums = minimum_values(asked)
    available = choices(types, asked, {}) if minimums else ()
    seen: dict[str, set[str]] = {key: set() for key in minimums}
    for choice in available:
        for attribute in choice.instance_type.requirements:
            if attribute.key in seen:
                seen[attribute.key].update(attribute.values)
        for offering in choice.offerings:
            for key in seen.keys() & offering.requirements.keys():
                seen[key].add(offering.requirements[key])
    terms = read(asked)
    return bool(available) and any(
        sum(map(terms[key].has, seen[key])) < least for key, least in minimums.items()
    )


def zone_mismatch(pool: NodePool, node_class: EC2NodeClass) -> str:
    """Return why the pool's zones exclude every subnet of its EC2NodeClass; empty if they do not.

    The subnets do not change in a zonal shift.
    """
    zones = sorted({subnet.zone for subnet in node_class.status.subnets})
    terms = [
        requirement
        for requirement in pool.spec.template.spec.requirements
        if labels.normalize(requirement.key) == labels.ZONE
    ]
    allowed = read(terms).get(labels.ZONE)
    if not zones or allowed is None or any(map(allowed.has, zones)):
        return ""
    described = ", ".join(f"{r.key} {r.operator} [{shown_values(r.values)}]" for r in terms)
    return (
        f"no subnet of EC2NodeClass {node_class.metadata.name} meets {described} in "
        f"spec.template.spec.requirements: its subnets are in {', '.join(zones)}"
    )


def requirement_mismatch(pool: NodePool, types: Sequence[InstanceType]) -> str:
    """Return why no instance type meets the pool's requirements; empty if one does.

    Requirements on zones, capacity types and reservations are ignored: the offerings change, for
    example in a zonal shift, without a mistake in the NodePool. Empty if there are no types.
    """

    def has_any(asked: Sequence[Requirement]) -> bool:
        terms = read(asked)
        return not types or any(has(instance_type, terms) for instance_type in types)

    lasting = [
        requirement
        for requirement in pool.spec.template.spec.requirements
        if labels.normalize(requirement.key) not in _OF_OFFERINGS
    ]
    return _unmet_requirements(lasting, has_any)


_OF_OFFERINGS = frozenset(
    {labels.ZONE, labels.ZONE_ID, labels.CAPACITY_TYPE, *labels.RESERVATION_LABELS}
)


def _unmet_requirements(
    asked: Sequence[Requirement], holds: Callable[[Sequence[Requirement]], bool]
) -> str:
    if holds(asked):
        return ""
    alone = [requirement for requirement in asked if not holds([requirement])]
    if not alone:
        return "no instance type meets all of spec.template.spec.requirements: relax one"
    described = ", ".join(f"{r.key} {r.operator} [{shown_values(r.values)}]" for r in alone)
    return f"no instance type meets {described} in spec.template.spec.requirements: change it"
