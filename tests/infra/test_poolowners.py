"""A stack does not delete NodePools that another owner applies as well."""

from __future__ import annotations

from typing import Any

import pytest

from infra.clusterapi import ClusterApi, ClusterGoneError, ClusterLocation
from infra.guards.poolowners import SharedPoolsError, _PoolOwnersProvider

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


def test_a_pool_that_flux_applies_too_does_not_go_with_its_file(pools: Pools) -> None:
    pools.put("web", **FLUX)
    pools.put("batch")

    with pytest.raises(SharedPoolsError) as refused:
        _PoolOwnersProvider().diff("id", remembered("web", "batch"), remembered())

    assert "NodePool web would be deleted" in str(refused.value)
    assert "Flux's Kustomization flux-system/pools also applies it" in str(refused.value)
    assert "pulumi state delete" in str(refused.value)
    assert "batch" not in str(refused.value)


def test_nor_with_its_stack(pools: Pools) -> None:
    pools.put("web", stack="organization/joiner/another")

    with pytest.raises(SharedPoolsError, match="stack organization/joiner/another also applies it"):
        _PoolOwnersProvider().end(remembered("web"))


def test_what_becomes_of_pools_that_lose_their_controller_is_the_drains_concern(
    pools: Pools,
) -> None:
    pools.put("web", **FLUX)

    _PoolOwnersProvider().end(remembered("web", has_controller=True))
    with pytest.raises(SharedPoolsError):
        _PoolOwnersProvider().diff(
            "id", remembered("web", has_controller=True), remembered(has_controller=True)
        )


def test_a_pool_of_the_stacks_own_goes(pools: Pools) -> None:
    pools.put("web")

    assert _PoolOwnersProvider().diff("id", remembered("web", "gone"), remembered()).changes
    _PoolOwnersProvider().end(remembered("web", "gone"))


def test_pools_that_stay_are_nobodys_concern(pools: Pools) -> None:
    pools.put("web", **FLUX)

    _PoolOwnersProvider().diff("id", remembered("web"), remembered("web", "batch"))


def test_a_cluster_that_is_gone_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_location: ClusterLocation) -> ClusterApi:
        raise ClusterGoneError("gone")

    monkeypatch.setattr(ClusterApi, "find", gone)

    _PoolOwnersProvider().end(remembered("web"))
