"""Pods that start before their Pod Identity association is served."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from infra.clusterapi import ApiError, ClusterApi
from infra.identity.podidentity import CREDENTIALS, PATIENCE_SECONDS, WEBHOOK, Identities
from infra.identity.podidentity import _PodIdentityProvider as Provider

PODS = "/api/v1/namespaces/kube-system/pods"
PROPS = {
    "cluster_name": "joiner",
    "region": "us-west-2",
    "namespace": "kube-system",
    "service_account": "karpenter",
}


def pod(name: str, *, identity: bool, account: str = "karpenter") -> dict[str, Any]:
    env = [{"name": CREDENTIALS, "value": "http://169.254.170.23/v1/credentials"}]
    containers = [{"name": "controller", **({"env": env} if identity else {})}]
    return {
        "metadata": {"name": name},
        "spec": {"serviceAccountName": account, "containers": containers},
    }


@dataclass
class Eks:
    """A cluster whose webhook sees the association after some seconds; also its clock."""

    seen_after: float = 0.0
    seen_until: float = math.inf
    has_webhook: bool = True
    refusal: ApiError | None = None
    pods: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds

    def get(self, path: str) -> dict[str, Any] | None:
        assert path == WEBHOOK
        return {"kind": "MutatingWebhookConfiguration"} if self.has_webhook else None

    def list(self, path: str, **query: str) -> list[dict[str, Any]]:
        assert path == PODS
        return list(self.pods)

    def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        assert (method, path) == ("POST", f"{PODS}?dryRun=All")
        if self.refusal:
            raise self.refusal
        return pod("probe", identity=self.seen_after <= self.now < self.seen_until)

    def delete(self, path: str) -> None:
        self.pods = [each for each in self.pods if f"{PODS}/{each['metadata']['name']}" != path]

    def ensure_credentials(self) -> None:
        self.identities.ensure_credentials()

    @property
    def identities(self) -> Identities:
        return Identities(
            cluster=self,
            namespace="kube-system",
            service_account="karpenter",
            clock=self,
            say=self.said.append,
        )


def test_the_first_pod_starts_after_eks_serves_the_association() -> None:
    eks = Eks(seen_after=7)

    eks.ensure_credentials()

    assert eks.now == 8
    assert eks.said == []


@pytest.mark.parametrize(
    ("eks", "waited"), [(Eks(seen_until=7), 8), (Eks(has_webhook=False), 0), (Eks(seen_until=0), 0)]
)
def test_the_deletion_of_an_association_is_awaited(eks: Eks, waited: float) -> None:
    eks.pods = [pod("before", identity=True)]

    eks.identities.end()

    assert eks.now == waited
    assert len(eks.pods) == 1
    assert eks.said == []


def test_an_association_that_is_not_deleted_is_reported() -> None:
    eks = Eks()

    eks.identities.end()

    assert "still get credentials of a deleted Pod Identity association" in eks.said[0]


def test_only_pods_that_started_too_early_are_restarted() -> None:
    early, late = pod("early", identity=False), pod("late", identity=True)
    other = pod("other", identity=False, account="coredns")
    eks = Eks(seen_after=3, pods=[early, late, other])

    eks.ensure_credentials()

    assert eks.pods == [late, other]
    assert "deleting pod early, which started without credentials" in eks.said[0]


def test_no_pod_is_restarted_while_it_would_again_lack_its_identity() -> None:
    eks = Eks(seen_after=PATIENCE_SECONDS * 2, pods=[pod("early", identity=False)])

    eks.ensure_credentials()

    assert len(eks.pods) == 1
    assert "check that its Pod Identity association exists" in eks.said[0]


@pytest.mark.parametrize(
    "eks", [Eks(has_webhook=False), Eks(refusal=ApiError(400, "does not support dry run"))]
)
def test_without_information_about_the_agent_nothing_waits(eks: Eks) -> None:
    eks.pods = [pod("early", identity=False)]

    eks.ensure_credentials()

    assert eks.now == 0
    assert len(eks.pods) == 1


def test_a_later_up_restarts_pods_without_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eks = Eks(pods=[pod("early", identity=False)])
    monkeypatch.setattr(ClusterApi, "find", lambda location: eks)
    provider = Provider()

    found = provider.diff("id", PROPS, PROPS)
    provider.update("id", PROPS, PROPS)

    assert (found.changes, found.replaces) == (True, [])
    assert eks.pods == []
    assert not provider.diff("id", PROPS, PROPS).changes
