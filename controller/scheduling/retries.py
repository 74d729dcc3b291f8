"""Changes to the cluster for a further solve, if pods were unschedulable in the first.

* A spread with `nodeAffinityPolicy: Ignore` counts every domain that has nodes, even if its own
  pods may not schedule there. A new node for other pods in such a domain sets the least count to
  0. The further solve launches no nodes in these domains.
* NodePools are tried in the order of their weights. Pods that other NodePools could hold may use up
  the limits of the first ones. A further solve packs the pods that need the first NodePools before
  all others. If that does not help, all NodePools have the same weight in another solve, which
  moves pods to NodePools of greater weight in the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.taints import Requirement
from controller.state.snapshot import Snapshot

Domains = Mapping[str, Set[str]]
"""Labels, and the domains (values) of each."""


def without_domains(snapshot: Snapshot, domains: Domains) -> Snapshot:
    """Return the snapshot with NodePools that launch no nodes in these domains."""
    terms = [
        Requirement(key=key, operator="NotIn", values=sorted(values))
        for key, values in sorted(domains.items())
    ]
    pools = tuple(_with_requirements(pool, terms) for pool in snapshot.node_pools)
    return replace(snapshot, node_pools=pools)


def can_exclude(key: str) -> bool:
    """Whether a NodePool can exclude domains of this label: it is well-known, but not the hostname.

    A NodePool with a requirement on a custom label would set that label on its nodes.
    """
    return key in labels.WELL_KNOWN and key != labels.HOSTNAME


def with_equal_weights(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with NodePools that all have the same weight."""
    pools = tuple(with_fields(pool, "spec", weight=0) for pool in snapshot.node_pools)
    return replace(snapshot, node_pools=pools)


def _with_requirements(pool: NodePool, terms: list[Requirement]) -> NodePool:
    """Return the NodePool with further requirements."""
    every = [*pool.spec.template.spec.requirements, *terms]
    return with_fields(pool, "spec.template.spec", requirements=every)
