"""The controller's objects in the cluster, and their owners."""

from __future__ import annotations

from typing import Any

import pytest

from infra.clusterapi import ApiError, ClusterApi, ClusterLocation, ClusterUnreachableError
from infra.config.forms import ConfigError
from infra.deployment.controllerobjects import controller_objects, refuse_foreign_objects

HERE = ClusterLocation("joiner", "us-west-2")


def held_by(manager: str, **annotations: str) -> dict[str, Any]:
    named = {key.replace("__", "/").replace("_", "-"): value for key, value in annotations.items()}
    return {"metadata": {"managedFields": [{"manager": manager}], "annotations": named}}


def have(monkeypatch: pytest.MonkeyPatch, held: dict[str, Any]) -> None:
    """Create a cluster with these objects, by kind."""
    paths = {one.path: one for one in controller_objects("kube-system", "karpenter")}

    class Cluster:
        def get(self, path: str) -> Any:
            return held.get(paths[path].kind)

    monkeypatch.setattr(ClusterApi, "find", lambda location: Cluster())


def test_a_helm_release_of_the_same_name_is_named_before_anything_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_helm = held_by("helm") | {
        "metadata": {"annotations": {"meta.helm.sh/release-name": "karpenter"}}
    }
    have(monkeypatch, {"Deployment": of_helm, "ServiceAccount": held_by("eksctl")})

    with pytest.raises(ConfigError) as refused:
        refuse_foreign_objects(HERE, "kube-system", "karpenter")

    (problem,) = refused.value.problems
    assert "Deployment kube-system/karpenter (Helm release karpenter)" in problem
    assert "ServiceAccount kube-system/karpenter (created by eksctl)" in problem
    assert "Set joiner:name to another name" in problem


def test_a_stacks_own_deployment_is_not_another_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, {"Deployment": held_by("pulumi-kubernetes-1a2b3c4d")})

    refuse_foreign_objects(HERE, "kube-system", "karpenter")


@pytest.mark.parametrize("problem", [ClusterUnreachableError("no answer"), ApiError(403, "no")])
def test_a_silent_cluster_is_not_checked(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def silent(location: ClusterLocation) -> ClusterApi:
        raise problem

    monkeypatch.setattr(ClusterApi, "find", silent)

    refuse_foreign_objects(HERE, "kube-system", "karpenter")
