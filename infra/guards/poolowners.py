"""Refuses to delete NodePools that another tool also applies.

Flux and Argo CD would create the NodePools again at once, after their nodes were drained for
nothing. Another stack or tool may also have taken a NodePool over. The program does not run in a
destroy, so a resource records the stack's NodePools. It is created after them and deleted first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pulumi
from pulumi.dynamic import DiffResult, ReadResult

from controller.apis.appliers import STACK, appliers
from controller.apis.kinds import NODE_POOL
from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import (
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    ClusterNotAbandonedError,
    ClusterUnreachableError,
    unless_abandoned,
)
from infra.guards.removalproof import refuse_unreachable
from infra.lifecycle.destroying import refuse_ahead
from infra.lifecycle.registeredresource import RegisteredResource
from infra.lifecycle.statefulprovider import StatefulProvider


class SharedPoolsError(Exception):
    """NodePools would be deleted that another tool also applies; the message says what to do."""

    def __init__(self, others: Mapping[str, Sequence[str]]) -> None:
        super().__init__(
            "\n".join(
                f"NodePool {name} would be deleted with its nodes, but "
                f"{' and '.join(who)} also applies it. Remove it there, or remove it from the "
                "stack without deleting it (`pulumi state delete` with its URN, which `pulumi "
                "stack --show-urns` shows). Nothing has been deleted."
                for name, who in others.items()
            )
        )


class PoolOwners(RegisteredResource, module="joiner", name="PoolOwners"):
    """Records the NodePools of a stack, and refuses to delete those that another tool applies."""

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
        """Record the NodePools.

        Args:
            name: the name of the resource.
            cluster: the cluster of the NodePools.
            pools: names of the NodePools.
            stack: organization/project/stack, which applies them.
            has_controller: whether the stack also manages the controller; then `Drain` checks
                all NodePools, and `RemovalProof` each refresh.
            opts: the options of the resource.

        """
        props = {
            **cluster.location,
            "pools": sorted(pools),
            "stack": stack,
            "has_controller": has_controller,
        }
        keys = list(props)
        super().__init__(_PoolOwnersProvider(), name, props, opts)
        refuse_ahead(self, keys, _refusals)


class _PoolOwnersProvider(StatefulProvider):
    """Checks the NodePools that a change, or a destroy, would delete.

    In a stack without the controller, a destroy and a refresh also require that the cluster
    answers: a cluster that does not answer still has the NodePools.
    """

    kind = "pool-owners"

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        if not props["has_controller"]:
            refuse_unreachable(ClusterLocation.of(props))
        return super().read(id_, props)

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        found = super().diff(_id, olds, news)
        # If the cluster does not answer, the engine cannot delete the NodePools either.
        with contextlib.suppress(ClusterGoneError, ClusterUnreachableError):
            _refuse_shared(olds, [name for name in olds["pools"] if name not in news["pools"]])
        return found

    def end(self, props: dict[str, Any]) -> None:
        if props["has_controller"]:
            return
        with unless_abandoned(ClusterLocation.of(props)):
            _refuse_shared(props, props["pools"])


def _refusals(props: Mapping[str, Any]) -> list[str]:
    """Return why the end of the stack would be refused."""
    try:
        _PoolOwnersProvider().end(dict(props))
    except (ClusterNotAbandonedError, SharedPoolsError) as exc:
        return [str(exc)]
    return []


def _refuse_shared(props: Mapping[str, Any], going: Sequence[str]) -> None:
    """Check whether another tool applies NodePools that would be deleted.

    Raises:
        SharedPoolsError: another tool applies some of them.
        ClusterGoneError: the cluster does not exist.
        ClusterUnreachableError: the cluster does not answer.

    """
    if not going:
        return
    cluster = ClusterApi.find(ClusterLocation.of(props))
    others = {name: [*_others(cluster, name, props["stack"])] for name in going}
    if shared := {name: who for name, who in others.items() if who}:
        raise SharedPoolsError(shared)


def _others(cluster: ClusterApi, name: str, stack: str) -> Iterator[str]:
    """Yield the names of other tools and stacks that apply a NodePool."""
    pool = cluster.get(f"{NODE_POOL.collection}/{name}")
    if pool is None:
        return
    metadata = pool["metadata"]
    (ours,) = appliers({}, {STACK: stack})
    marks = metadata.get("labels") or {}, metadata.get("annotations") or {}
    yield from (applier.name for applier in appliers(*marks) if applier != ours)
