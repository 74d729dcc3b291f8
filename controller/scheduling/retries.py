"""Changed clusters that are solved again when pods were unschedulable.

* A spread with `nodeAffinityPolicy: Ignore` counts every domain that has nodes, even if its own
  pods may not schedule there. A new node for other pods in such a domain sets the least count to
  0. The second solve launches no nodes in these domains.
* NodePools are tried in the order of their weights. The first ones may use up their limits on pods
  that other NodePools could hold. So the pods that were left over are placed first. If that does
  not help, all NodePools get the same weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from msgspec import structs

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.taints import Requirement
from controller.state.snapshot import Snapshot

Domains = Mapping[str, Set[str]]
"""Labels, and values of each."""


def without_domains(snapshot: Snapshot, domains: Domains) -> Snapshot:
    """Return the snapshot with NodePools that launch no nodes in these domains."""
    terms = [
        Requirement(key=key, operator="NotIn", values=sorted(values))
        for key, values in sorted(domains.items())
    ]
    pools = tuple(_with(pool, terms) for pool in snapshot.node_pools)
    return replace(snapshot, node_pools=pools)


def closable(key: str) -> bool:
    """Whether a NodePool can exclude domains of this label: only if the cloud sets the label.

    A NodePool with a requirement on a custom label would set that label on its nodes.
    """
    return key in labels.WELL_KNOWN and key != labels.HOSTNAME


def with_equal_weights(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with NodePools that all have the same weight."""
    pools = (
        structs.replace(pool, spec=structs.replace(pool.spec, weight=0))
        for pool in snapshot.node_pools
    )
    return replace(snapshot, node_pools=tuple(pools))


def _with(pool: NodePool, terms: list[Requirement]) -> NodePool:
    """Return the NodePool with further requirements."""
    inner = pool.spec.template.spec
    inner = structs.replace(inner, requirements=[*inner.requirements, *terms])
    template = structs.replace(pool.spec.template, spec=inner)
    return structs.replace(pool, spec=structs.replace(pool.spec, template=template))
