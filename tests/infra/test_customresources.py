"""Kinds that are in the cluster already."""

from __future__ import annotations

from typing import Any

import pytest

from infra.clusterapi import ClusterApi, ClusterLocation, ClusterUnreachableError
from infra.config import ConfigError
from infra.customresources import definitions, refuse_other_kinds, wanted

POOLS, CLAIMS = "nodepools.karpenter.sh", "nodeclaims.karpenter.sh"
HERE = ClusterLocation("joiner", "us-west-2")


def have(monkeypatch: pytest.MonkeyPatch, manager: str, *names: str, version: str = "v1") -> None:
    """Have a cluster with these definitions, made by somebody."""
    held = {
        name: {
            "metadata": {
                "name": name,
                "managedFields": [{"manager": manager}, {"manager": "kube-apiserver"}],
            },
            "spec": {"versions": [{"name": version, "served": True}]},
        }
        for name in names
    }

    class Cluster:
        def get(self, path: str) -> Any:
            return held.get(path.rpartition("/")[2])

    monkeypatch.setattr(ClusterApi, "find", lambda location: Cluster())


def test_kinds_of_somebody_else_are_left_out_by_name() -> None:
    names = {wire["metadata"]["name"] for wire in wanted([POOLS, CLAIMS])}

    assert names == {wire["metadata"]["name"] for wire in definitions()} - {POOLS, CLAIMS}


def test_a_name_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pods: there is no such kind; there are .*nodepools"):
        wanted(["pods"])


def test_kinds_that_are_there_and_not_named_are_refused_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have(monkeypatch, "eks", POOLS, CLAIMS)

    with pytest.raises(ConfigError) as refused:
        refuse_other_kinds(HERE, [])

    assert len(refused.value.problems) == 2
    assert all("(eks did)" in problem for problem in refused.value.problems)
    refuse_other_kinds(HERE, [POOLS, CLAIMS])


def test_those_that_a_stack_made_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, "pulumi-kubernetes-1a2b3c4d", POOLS)

    refuse_other_kinds(HERE, [])


def test_those_that_are_named_must_be_there_and_of_our_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have(monkeypatch, "helm", POOLS, version="v1beta1")

    with pytest.raises(ConfigError, match=r"has no nodeclaims\.karpenter\.sh"):
        refuse_other_kinds(HERE, [CLAIMS])
    with pytest.raises(ConfigError, match="serves v1beta1 and not v1"):
        refuse_other_kinds(HERE, [POOLS])


def test_a_cluster_that_does_not_answer_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(location: ClusterLocation) -> ClusterApi:
        raise ClusterUnreachableError("no answer")

    monkeypatch.setattr(ClusterApi, "find", silent)

    refuse_other_kinds(HERE, [POOLS])
