"""Worlds in which to ask again when pods were left over.

* A spread with `nodeAffinityPolicy: Ignore` counts every domain in which there are nodes,
  also those that its own pods may not go to: once a node is made there for others, the
  least count is that of a domain that stays empty. So such domains are closed.
* Pools come in the order of their weights, and those that come first may use up their limits on
  pods that others have room for. So the pods that were left over come first; and where
  that does not help, all pools come at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from msgspec import structs

from controller.apis import labels
from controller.apis.nodepool import NodePool
from controller.apis.taints import Requirement
from controller.state.snapshot import Snapshot

Domains = Mapping[str, Set[str]]
"""Labels, and values of each."""


def without_domains(snapshot: Snapshot, domains: Domains) -> Snapshot:
    """Return a world whose pools make no nodes in these domains."""
    terms = [
        Requirement(key=key, operator="NotIn", values=sorted(values))
        for key, values in sorted(domains.items())
    ]
    pools = tuple(_with(pool, terms) for pool in snapshot.node_pools)
    return replace(snapshot, node_pools=pools)


def closable(key: str) -> bool:
    """Whether nodes can be kept out of domains of a label: one that the cloud gives them.

    A pool that is told where not to go under a label of its own would begin to set it.
    """
    return key in labels.WELL_KNOWN and key != labels.HOSTNAME


def with_equal_weights(snapshot: Snapshot) -> Snapshot:
    """Return a world whose pools all have the same weight."""
    pools = (
        structs.replace(pool, spec=structs.replace(pool.spec, weight=0))
        for pool in snapshot.node_pools
    )
    return replace(snapshot, node_pools=tuple(pools))


def _with(pool: NodePool, terms: list[Requirement]) -> NodePool:
    inner = pool.spec.template.spec
    inner = structs.replace(inner, requirements=[*inner.requirements, *terms])
    template = structs.replace(pool.spec.template, spec=inner)
    return structs.replace(pool, spec=structs.replace(pool.spec, template=template))
