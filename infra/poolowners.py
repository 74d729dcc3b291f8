"""NodePools that somebody else applies too do not go because a stack lets go of them.

Flux and Argo CD would have them back at once, and their nodes would have been drained for nothing;
where another has taken a pool over for good, it is his. The program is not run in a destroy: so a
resource remembers the stack's pools, which comes after them and thus goes before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pulumi
from pulumi.dynamic import DiffResult, Resource

from controller.apis.appliers import STACK, appliers
from controller.apis.kinds import NODE_POOL
from infra.clusterapi import (
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    ClusterUnreachableError,
)
from infra.ekscluster import EksCluster
from infra.statefulprovider import StatefulProvider


class SharedPoolsError(Exception):
    """NodePools would be deleted that others apply too; says how to let go of them."""

    def __init__(self, others: Mapping[str, Sequence[str]]) -> None:
        super().__init__(
            "\n".join(
                f"NodePool {name} would be deleted, and its nodes with it; but "
                f"{' and '.join(who)} applies it too. Take it out of there, or out of the stack "
                "without deleting it (`pulumi state delete` with its URN, which `pulumi stack "
                "--show-urns` tells). Nothing has been deleted."
                for name, who in others.items()
            )
        )


class PoolOwners(Resource):
    """Remembers the NodePools of a stack, and looks who else applies those that go."""

    def __init__(
        self,
        name: str,
        cluster: EksCluster,
        pools: Iterable[str],
        *,
        stack: str,
        has_controller: bool,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Remember.

        Args:
            name: of the resource.
            cluster: where the pools are.
            pools: their names.
            stack: organization/project/stack, which applies them.
            has_controller: whether the controller goes with the stack: then its drain says what
                becomes of all pools.
            opts: of the resource.

        """
        props = {
            **cluster.location,
            "pools": sorted(pools),
            "stack": stack,
            "has_controller": has_controller,
        }
        super().__init__(_PoolOwnersProvider(), name, props, opts)


class _PoolOwnersProvider(StatefulProvider):
    """Looks at the pools that a change, or a destroy, would delete."""

    kind = "pool-owners"

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        found = super().diff(_id, olds, news)
        _refuse_shared(olds, [name for name in olds["pools"] if name not in news["pools"]])
        return found

    def end(self, props: dict[str, Any]) -> None:
        if not props["has_controller"]:
            _refuse_shared(props, props["pools"])


def _refuse_shared(props: Mapping[str, Any], going: Sequence[str]) -> None:
    """Look who else applies pools that go.

    Raises:
        SharedPoolsError: somebody does.

    """
    if not going:
        return
    try:
        cluster = ClusterApi.find(ClusterLocation.of(props))
        others = {name: [*_others(cluster, name, props["stack"])] for name in going}
    except (ClusterGoneError, ClusterUnreachableError):
        return  # Then nothing is deleted there, either.
    if shared := {name: who for name, who in others.items() if who}:
        raise SharedPoolsError(shared)


def _others(cluster: ClusterApi, name: str, stack: str) -> Iterator[str]:
    """Yield who applies a pool beside the stack."""
    pool = cluster.get(f"{NODE_POOL.root}/{NODE_POOL.plural}/{name}")
    if pool is None:
        return
    metadata = pool["metadata"]
    (ours,) = appliers({}, {STACK: stack})
    marks = metadata.get("labels") or {}, metadata.get("annotations") or {}
    yield from (applier.name for applier in appliers(*marks) if applier != ours)
