"""Custom resource definitions that already exist in the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from infra.clusterapi import ClusterApi, ClusterLocation, ClusterUnreachableError
from infra.config.forms import ConfigError
from infra.deployment.customresources import (
    RESOURCE_TYPE,
    are_kept,
    definitions,
    definitions_to_install,
    refuse_other_kinds,
)
from infra.guards.deletionguard import WouldBeDeletedError, _DeletionGuardProvider

POOLS, CLAIMS = "nodepools.karpenter.sh", "nodeclaims.karpenter.sh"
OURS = "organization/joiner/dev"
HERE = ClusterLocation("joiner", "us-west-2")


def have(
    monkeypatch: pytest.MonkeyPatch,
    manager: str,
    *names: str,
    version: str = "v1",
    installation: str = "",
) -> None:
    """Create a cluster with these CRDs, created by this field manager."""
    marks = {"joiner.dev/installation": installation} if installation else {}
    held = {
        name: {
            "metadata": {
                "name": name,
                "annotations": marks,
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


def test_existing_crds_are_excluded_by_name() -> None:
    names = {wire["metadata"]["name"] for wire in definitions_to_install([POOLS, CLAIMS])}

    assert names == {wire["metadata"]["name"] for wire in definitions()} - {POOLS, CLAIMS}


def test_an_unknown_crd_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pods; allowed are .*nodepools"):
        definitions_to_install(["pods"])


def test_existing_crds_that_are_not_listed_are_refused_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have(monkeypatch, "eks", POOLS, CLAIMS)

    with pytest.raises(ConfigError) as refused:
        refuse_other_kinds(HERE, [], OURS)

    assert len(refused.value.problems) == 2
    assert all("eks created it" in problem for problem in refused.value.problems)
    refuse_other_kinds(HERE, [POOLS, CLAIMS], OURS)


def test_crds_that_the_stack_created_belong_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, "pulumi-kubernetes-1a2b3c4d", POOLS)

    refuse_other_kinds(HERE, [], OURS)


def test_crds_of_another_installation_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, "pulumi-kubernetes", POOLS, installation="organization/joiner/other")

    with pytest.raises(ConfigError, match="belongs to the installation organization/joiner/other"):
        refuse_other_kinds(HERE, [], OURS)
    refuse_other_kinds(HERE, [POOLS], OURS)


def checked(before: list[str] | None, after: list[str]) -> str:
    """Return why a stack whose state has `before` refuses `after`."""
    place = {"cluster_name": "joiner", "region": "us-west-2", "installation": OURS}
    news = {**place, "shared": {"definitions": after}}
    olds = {} if before is None else news | {"shared": {"definitions": before}}
    try:
        _DeletionGuardProvider().check(olds, news)
    except WouldBeDeletedError as exc:
        return " ".join(str(exc).split())
    return ""


def test_crds_of_another_pulumi_stack_are_refused_before_anything_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have(monkeypatch, "pulumi-kubernetes-1a2b3c4d", POOLS)

    for before in (None, [CLAIMS]):
        said = checked(before, [POOLS, CLAIMS])
        assert f"{POOLS} already exists, and is not in the state of this stack" in said
        assert "Add it to joiner:existingCrds" in said
    assert checked([POOLS, CLAIMS], [POOLS, CLAIMS]) == ""
    assert checked(None, [CLAIMS]) == ""


def test_crds_that_the_state_forgot_are_adopted_by_their_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have(monkeypatch, "pulumi-kubernetes-1a2b3c4d", POOLS, installation=OURS)
    recorded = {(RESOURCE_TYPE, f"joiner-crds-{POOLS}")}

    assert are_kept(HERE, [], OURS, set())
    assert not are_kept(HERE, [], OURS, recorded)
    assert not are_kept(HERE, [POOLS], OURS, set())
    assert not are_kept(HERE, [], "organization/joiner/other", set())
    assert not are_kept(None, [], OURS, set())
    assert checked(None, [POOLS]) == ""


def test_listed_existing_crds_must_exist_in_the_supported_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have(monkeypatch, "helm", POOLS, version="v1beta1")

    with pytest.raises(ConfigError, match=r"has no nodeclaims\.karpenter\.sh"):
        refuse_other_kinds(HERE, [CLAIMS], OURS)
    with pytest.raises(ConfigError, match="serves v1beta1 and not v1"):
        refuse_other_kinds(HERE, [POOLS], OURS)


def test_a_silent_cluster_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(location: ClusterLocation) -> ClusterApi:
        raise ClusterUnreachableError("no answer")

    monkeypatch.setattr(ClusterApi, "find", silent)

    refuse_other_kinds(HERE, [POOLS], OURS)
