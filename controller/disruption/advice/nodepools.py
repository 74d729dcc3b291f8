"""Changes of NodePools that allow cheaper clusters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain, count

import msgspec

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import quantities
from controller.apis.kubernetes.meta import ObjectMeta, with_fields
from controller.apis.kubernetes.pods import Quantities
from controller.apis.kubernetes.quantities import MILLI
from controller.apis.kubernetes.taints import Requirement
from controller.constraints.requirements import read
from controller.constraints.resources import MEMORY, parse_resources
from controller.disruption.advice.forecast import NEVER, never_allows
from controller.disruption.problem import DisruptionProblem
from controller.state.nodes import StateNode
from controller.state.usage import usage

Pools = Mapping[str, NodePool]
"""NodePools by name."""

Edit = Callable[[Pools], Pools]
"""A change of the NodePools."""

CONSOLIDATES = "WhenEmptyOrUnderutilized"
SOON = "1m"

CATEGORY = f"{labels.AWS_GROUP}/instance-category"
BURSTABLE = "t"
"""The category of burstable instance types. Their price buys a fraction of their CPUs, so they are
not recommended."""

UNITS = {MEMORY: MILLI * 2**30}
"""The step to which a raised limit is rounded up, by resource: 1 GiB of memory, in thousandths of a
byte. Limits of other resources are rounded up to whole units."""

FIXED = frozenset({f"{labels.AWS_GROUP}/instance-tenancy"})
"""Labels of instances whose values users do not choose by price."""


def describes_instances(key: str) -> bool:
    """Whether a requirement on this label restricts the instance types."""
    return key not in FIXED and (key == labels.INSTANCE_TYPE or "/instance-" in key)


def describe_requirements(pool: NodePool, key: str) -> str:
    """Return the NodePool's requirements on a label in words, such as `c, m, r`."""
    terms = [term for term in pool.spec.template.spec.requirements if term.key == key]
    name = key if describes_instances(key) else ""
    return "; ".join(
        f"{name} {'' if term.operator == 'In' and not name else term.operator} "
        f"{', '.join(term.values)}".strip()
        for term in terms
    ).replace("  ", " ")


def with_edit(problem: DisruptionProblem, edit: Edit) -> DisruptionProblem:
    """Return the problem with changed NodePools.

    A new NodePool has the instance types of a NodePool with the same EC2NodeClass.
    """
    snapshot = problem.snapshot
    pools = edit(problem.node_pools)
    dynamic = edit({pool.metadata.name: pool for pool in snapshot.node_pools})
    types = dict(snapshot.instance_types)
    for name in dynamic.keys() - types.keys():
        like = next(known for known in types if _alike(pools[known], pools[name]))
        types[name] = types[like]
    snapshot = replace(snapshot, node_pools=tuple(dynamic.values()), instance_types=types)
    return replace(problem, node_pools=pools, snapshot=snapshot)


def _alike(pool: NodePool, other: NodePool) -> bool:
    return pool.spec.template.spec.node_class_ref == other.spec.template.spec.node_class_ref


def pool_edit(name: str, change: Callable[[NodePool], NodePool]) -> Edit:
    """Return the edit that changes one NodePool, if it is there."""

    def edit(pools: Pools) -> Pools:
        return {**pools, name: change(pools[name])} if name in pools else pools

    return edit


def labelled_copy_edit(like: str, key: str, value: str) -> Edit:
    """Return the edit that adds a copy of a NodePool whose nodes have one more label."""

    def edit(pools: Pools) -> Pools:
        base = pools[like]
        wanted = re.sub(r"[^a-z0-9-]+", "-", value.lower()).strip("-") or like
        names = chain((wanted,), (f"{wanted}-{number}" for number in count(2)))
        name = next(name for name in names if name not in pools)
        carried = {**(base.spec.template.metadata.labels or {}), key: value}
        spec = with_fields(base.spec, "template.metadata", labels=carried)
        return {**pools, name: NodePool(metadata=ObjectMeta(name=name), spec=spec)}

    return edit


def without_requirement(pool: NodePool, key: str) -> NodePool:
    """Return the NodePool without its requirements on a label.

    It allows no burstable instance types that it did not allow before.
    """
    before = pool.spec.template.spec.requirements
    left = [term for term in before if term.key != key]
    categories = read(before).get(CATEGORY)
    if describes_instances(key) and not (categories is not None and categories.has(BURSTABLE)):
        left.append(Requirement(key=CATEGORY, operator="NotIn", values=[BURSTABLE]))
    return with_fields(pool, "spec.template.spec", requirements=left)


def allow_values(pool: NodePool, key: str, values: Iterable[str]) -> NodePool:
    """Return the NodePool that also allows these values of a label."""
    more = sorted(set(values))

    def widen(term: Requirement) -> Requirement | None:
        if term.key != key:
            return term
        if term.operator == "In":
            return msgspec.structs.replace(term, values=[*term.values, *more])
        if term.operator == "NotIn":
            left = [value for value in term.values if value not in more]
            return msgspec.structs.replace(term, values=left) if left else None
        return None

    widened = map(widen, pool.spec.template.spec.requirements)
    terms = [term for term in widened if term is not None]
    return with_fields(pool, "spec.template.spec", requirements=terms)


def new_values(pool: NodePool, key: str, nodes: Iterable[StateNode]) -> list[str]:
    """Return the values of a label on these nodes that the NodePool does not allow."""
    allowed = read(pool.spec.template.spec.requirements).get(labels.normalize(key))
    name = pool.metadata.name
    values = {
        state.labels[labels.normalize(key)]
        for state in nodes
        if state.node_pool == name and labels.normalize(key) in state.labels
    }
    return sorted(value for value in values if allowed is not None and not allowed.has(value))


def limits_of(pool: NodePool, nodes: Iterable[StateNode]) -> Quantities:
    """Return the NodePool's limits, raised so that these nodes use four fifths of them at most."""
    used = usage(nodes).get(pool.metadata.name, {})
    limits = dict(pool.spec.limits)
    for name, limit in parse_resources(limits).items():
        needed, unit = used.get(name, 0) * 5 // 4, UNITS.get(name, MILLI)
        if needed > limit:
            limits[name] = quantities.format_quantity(-(-needed // unit) * unit, name)
    return limits


def with_limits(pool: NodePool, limits: Quantities) -> NodePool:
    """Return the NodePool with these limits."""
    return with_fields(pool, "spec", limits=limits)


def with_consolidation(pool: NodePool) -> NodePool:
    """Return the NodePool with a policy that consolidates underutilized nodes, too."""
    return with_fields(pool, "spec.disruption", consolidation_policy=CONSOLIDATES)


def with_finite_consolidate_after(pool: NodePool) -> NodePool:
    """Return the NodePool with `consolidateAfter` of one minute if it was `Never`."""
    after = pool.spec.disruption.consolidate_after
    return with_fields(pool, "spec.disruption", consolidate_after=SOON if after == NEVER else after)


def without_closed_budgets(pool: NodePool) -> NodePool:
    """Return the NodePool without budgets that never allow a disruption."""
    left = [each for each in pool.spec.disruption.budgets if not never_allows(each)]
    return with_fields(pool, "spec.disruption", budgets=left)
