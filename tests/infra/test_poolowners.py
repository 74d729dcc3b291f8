"""A stack does not delete NodePools that another owner applies as well."""

from __future__ import annotations

from typing import Any

import pytest

from infra.clusterapi import (
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    ClusterNotAbandonedError,
    ClusterUnreachableError,
)
from infra.guards.poolowners import SharedPoolsError, _PoolOwnersProvider
from infra.guards.removalproof import RefreshBlockedError

TEAM = "organization/joiner/team"
FLUX = {
    "kustomize.toolkit.fluxcd.io/name": "pools",
    "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
}

Props = dict[str, Any]


class Pools:
    """A cluster with NodePools."""

    def __init__(self) -> None:
        self.held: dict[str, Props] = {}

    def put(self, name: str, *, stack: str = TEAM, **labels: str) -> None:
        metadata = {"name": name, "labels": labels, "annotations": {"joiner.dev/stack": stack}}
        self.held[f"/apis/karpenter.sh/v1/nodepools/{name}"] = {"metadata": metadata}

    def get(self, path: str) -> Props | None:
        return self.held.get(path)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Pools:
    held = Pools()
    monkeypatch.setattr(ClusterApi, "find", lambda _location: held)
    return held


def remembered(*pools: str, has_controller: bool = False) -> Props:
    return {
        **ClusterLocation("joiner", "us-west-2").location,
        "pools": list(pools),
        "stack": TEAM,
        "has_controller": has_controller,
    }


def test_a_pool_that_flux_also_applies_is_not_deleted_with_its_file(pools: Pools) -> None:
    pools.put("web", **FLUX)
    pools.put("batch")

    with pytest.raises(SharedPoolsError) as refused:
        _PoolOwnersProvider().diff("id", remembered("web", "batch"), remembered())

    assert "NodePool web would be deleted" in str(refused.value)
    assert "Flux's Kustomization flux-system/pools also applies it" in str(refused.value)
    assert "pulumi state delete" in str(refused.value)
    assert "batch" not in str(refused.value)


def test_a_pool_that_flux_also_applies_is_not_deleted_with_its_stack(pools: Pools) -> None:
    pools.put("web", stack="organization/joiner/another")

    with pytest.raises(SharedPoolsError, match="stack organization/joiner/another also applies it"):
        _PoolOwnersProvider().end(remembered("web"))


def test_pools_that_are_deleted_with_their_controller_are_left_to_the_drain(
    pools: Pools,
) -> None:
    pools.put("web", **FLUX)

    _PoolOwnersProvider().end(remembered("web", has_controller=True))
    with pytest.raises(SharedPoolsError):
        _PoolOwnersProvider().diff(
            "id", remembered("web", has_controller=True), remembered(has_controller=True)
        )


def test_a_pool_that_only_the_stack_applies_is_deleted(pools: Pools) -> None:
    pools.put("web")

    assert _PoolOwnersProvider().diff("id", remembered("web", "gone"), remembered()).changes
    _PoolOwnersProvider().end(remembered("web", "gone"))


def test_retained_pools_are_not_checked(pools: Pools) -> None:
    pools.put("web", **FLUX)

    _PoolOwnersProvider().diff("id", remembered("web"), remembered("web", "batch"))


def fail(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def find(_location: ClusterLocation) -> ClusterApi:
        raise problem

    monkeypatch.setattr(ClusterApi, "find", find)


UNREACHABLE = ClusterUnreachableError("https://x does not answer: certificate verify failed")


def test_an_abandoned_cluster_does_not_block_the_removal_of_pools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail(monkeypatch, ClusterGoneError("EKS has no cluster joiner in us-west-2"))

    _PoolOwnersProvider().diff("id", remembered("web"), remembered())
    with pytest.raises(ClusterNotAbandonedError, match="PULUMI_K8S_DELETE_UNREACHABLE=true"):
        _PoolOwnersProvider().end(remembered("web"))
    monkeypatch.setenv("PULUMI_K8S_DELETE_UNREACHABLE", "true")
    _PoolOwnersProvider().end(remembered("web"))
    _PoolOwnersProvider().read("id", remembered("web"))


def test_a_silent_cluster_blocks_the_removal_of_pools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail(monkeypatch, UNREACHABLE)
    monkeypatch.setenv("PULUMI_K8S_DELETE_UNREACHABLE", "true")
    provider, platform = _PoolOwnersProvider(), remembered("web", has_controller=True)

    with pytest.raises(ClusterNotAbandonedError, match="EKS has the cluster joiner, but"):
        provider.end(remembered("web"))
    with pytest.raises(
        RefreshBlockedError, match="A cluster that cannot be reached is not deleted"
    ):
        provider.read("id", remembered("web"))
    provider.end(platform)
    assert provider.read("id", platform).outs == platform
