"""Shared objects outlive the stack that created them while other users need them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pulumi.runtime import mocks

from infra.clusterapi import ClusterApi
from infra.deployment.customresources import definitions
from infra.lifecycle.sharedobjects import DEFINITIONS, PATIENCE_SECONDS, delete_unused
from infra.lifecycle.waiting import Clock
from tests.infra.knownaws import Entries, connection
from tests.infra.test_program import ISSUER, run

pytestmark = pytest.mark.usefixtures("entries")

OURS = "organization/joiner/dev"
POOLS, CLAIMS = "nodepools.karpenter.sh", "nodeclaims.karpenter.sh"
BUFFERS, OVERLAYS = "capacitybuffers.autoscaling.x-k8s.io", "nodeoverlays.karpenter.sh"
CLASSES = "ec2nodeclasses.karpenter.k8s.aws"
OF_AUTO_MODE = {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"}
OF_OURS = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}

Wire = dict[str, Any]


class Cluster:
    """A cluster with all our CRDs, and objects of them by the CRD's name."""

    def __init__(self, installation: str = OURS) -> None:
        marks = {"joiner.dev/installation": installation}
        self.held: dict[str, Wire] = {
            wire["metadata"]["name"]: wire
            | {"metadata": {"name": wire["metadata"]["name"], "annotations": marks}}
            for wire in definitions()
        }
        self.objects: dict[str, list[Wire]] = {}

    def get(self, path: str) -> Wire | None:
        assert path.startswith(DEFINITIONS)
        return self.held.get(path.rpartition("/")[2])

    def list(self, path: str) -> list[Wire]:
        group, _, plural = path.removeprefix("/apis/").split("/")
        return self.objects.get(f"{plural}.{group}", [])

    def delete(self, path: str) -> None:
        del self.held[path.rpartition("/")[2]]


def named(name: str, spec: Wire | None = None, **annotations: str) -> Wire:
    marks = {f"joiner.dev/{key}": value for key, value in annotations.items()}
    return {"metadata": {"name": name, "annotations": marks}, "spec": spec or {}}


def pool(name: str, node_class: Wire) -> Wire:
    return named(name, {"template": {"spec": {"nodeClassRef": node_class}}})


def end(
    monkeypatch: pytest.MonkeyPatch,
    cluster: Cluster,
    *retained: str,
    clock: Clock = time,
    **shared: Any,
) -> list[str]:
    """Destroy a stack that created all CRDs and the named resources; return its messages."""
    said: list[str] = []
    monkeypatch.setattr(ClusterApi, "find", lambda location: cluster)
    props = {
        "cluster_name": "joiner",
        "region": "us-west-2",
        "installation": OURS,
        "retained": list(retained),
        "shared": {"definitions": list(cluster.held), **shared},
    }
    delete_unused(props, clock=clock, say=said.append)
    return said


def test_crds_without_foreign_objects_are_deleted_with_the_stack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    cluster.objects[POOLS] = [pool("closed", OF_OURS)]
    cluster.objects[CLASSES] = [named("default")]
    cluster.objects[BUFFERS] = [named("web", stack=OURS)]

    assert end(monkeypatch, cluster) == []
    assert cluster.held == {}


def test_crds_with_foreign_objects_stay_and_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    cluster.objects[POOLS] = [pool("system", OF_AUTO_MODE), pool("closed", OF_OURS)]
    cluster.objects[CLAIMS] = [named("system-1", {"nodeClassRef": OF_AUTO_MODE})]
    cluster.objects[BUFFERS] = [named("by-hand")]
    cluster.objects[OVERLAYS] = [named("prices")]

    said = "\n".join(end(monkeypatch, cluster))

    assert cluster.held.keys() == {POOLS, CLAIMS, BUFFERS, OVERLAYS}
    assert (
        f"keeping CustomResourceDefinition {POOLS}: this would also delete objects that do not "
        "belong to this stack (1): system"
    ) in said
    assert (
        f"{CLAIMS}: this would also delete objects that do not belong to this stack (1): system-1"
    )


def test_crds_of_remaining_nodes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.objects[CLAIMS] = [named("ours", {"nodeClassRef": OF_OURS})]

    end(monkeypatch, cluster, "nodes")

    assert cluster.held.keys() == {CLAIMS}


def test_a_terminating_pool_does_not_keep_its_crd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late(Cluster):
        def sleep(self, seconds: float) -> None:
            self.objects[POOLS] = []

        def monotonic(self) -> float:
            return 0.0

    cluster = Late()
    leaving = pool("of-the-stack", OF_OURS)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.objects[POOLS] = [leaving]

    assert end(monkeypatch, cluster, "nodes", clock=cluster) == []
    assert cluster.held == {}


def test_crds_are_deleted_together_and_those_with_finalizers_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(Cluster):
        def __init__(self) -> None:
            super().__init__()
            self.requested: list[str] = []
            self.now = 0.0

        def delete(self, path: str) -> None:
            self.requested.append(path.rpartition("/")[2])

        def sleep(self, seconds: float) -> None:
            assert len(self.requested) == 6
            self.now += seconds
            self.held = {name: wire for name, wire in self.held.items() if name == CLAIMS}

        def monotonic(self) -> float:
            return self.now

    cluster = Slow()

    (said,) = end(monkeypatch, cluster, clock=cluster)

    assert (
        said == f"CustomResourceDefinition {CLAIMS} is deleted once its objects have no finalizers"
    )
    assert cluster.now == PATIENCE_SECONDS


def test_crds_that_another_installation_adopted_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("organization/joiner/other")

    said = end(monkeypatch, cluster)

    assert len(cluster.held) == len(said) == 6


def test_the_oidc_provider_stays_while_a_role_trusts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    iam = connection("iam", "us-west-2")
    tags = [{"Key": "joiner.dev/installation", "Value": OURS}]
    arn = iam.create_open_id_connect_provider(Url=ISSUER, Tags=tags)["OpenIDConnectProviderArn"]
    trust = json.dumps({"Statement": [{"Effect": "Allow", "Principal": {"Federated": arn}}]})
    iam.create_role(RoleName="external-dns", AssumeRolePolicyDocument=trust)

    def providers() -> list[str]:
        listed = iam.list_open_id_connect_providers()["OpenIDConnectProviderList"]
        return [each["Arn"] for each in listed]

    (said,) = end(monkeypatch, Cluster(), oidcProvider=arn)

    assert said == f"keeping OIDC provider {arn}: these roles trust it: external-dns"
    assert providers() == [arn]
    iam.delete_role(RoleName="external-dns")
    assert end(monkeypatch, Cluster(), oidcProvider=arn) == []
    assert providers() == []
    assert end(monkeypatch, Cluster(), oidcProvider=arn) == []


class Eks:
    """The part of EKS with the Pod Identity agent and its associations."""

    def __init__(self, installation: str, *accounts: str) -> None:
        self.tags: dict[str, str] | None = {"joiner.dev/installation": installation}
        self.accounts = accounts

    def describe_addon(self, **_: str) -> Wire:
        return {"addon": {"tags": self.tags}}

    def list_pod_identity_associations(self, **_: str) -> Wire:
        return {
            "associations": [{"namespace": "apps", "serviceAccount": one} for one in self.accounts]
        }

    def delete_addon(self, **_: str) -> None:
        self.tags = None


@pytest.mark.parametrize(
    ("installation", "accounts", "stays", "words"),
    [
        (OURS, ("dns",), True, ["keeping add-on eks-pod-identity-agent: these service accounts "
                               "have a Pod Identity association: apps/dns"]),
        (OURS, (), False, []),
        ("theirs", (), True, []),
    ],
)  # fmt: skip
def test_the_agent_stays_while_an_association_needs_it(
    monkeypatch: pytest.MonkeyPatch,
    entries: Entries,
    installation: str,
    accounts: tuple[str, ...],
    stays: bool,
    words: list[str],
) -> None:
    eks = Eks(installation, *accounts)
    monkeypatch.setattr(entries, "client", lambda location, service: eks)

    assert end(monkeypatch, Cluster(), agent=True) == words
    assert (eks.tags is not None) is stays


@pytest.mark.usefixtures("hooks")
def test_the_engine_deletes_nothing_that_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    retained: set[str] = set()
    register: Any = mocks.MockMonitor.RegisterResource

    def recorded(monitor: mocks.MockMonitor, request: Any) -> Any:
        if request.retainOnDelete:
            retained.add(request.type)
        return register(monitor, request)

    monkeypatch.setattr(mocks.MockMonitor, "RegisterResource", recorded)

    with_agent = run(podIdentityAgent="create")
    with_provider = run(identity="irsa", oidcProvider="create")

    assert {
        "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition",
        "aws:iam/openIdConnectProvider:OpenIdConnectProvider",
        "aws:eks/addon:Addon",
    } <= retained
    of_agent = with_agent.dynamic["joiner-shared"]["shared"]
    of_provider = with_provider.dynamic["joiner-shared"]["shared"]
    assert of_agent["agent"] is True
    assert of_provider["oidcProvider"].endswith(ISSUER.removeprefix("https://"))
    assert len(of_agent["definitions"]) == 6
