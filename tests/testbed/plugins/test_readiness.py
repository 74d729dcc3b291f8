"""What an object waits for, what needs a new one, and what goes with its cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.plugins.kubernetesprovider.api import UnreachableError, read_kubeconfig
from testbed.plugins.kubernetesprovider.provider import KubernetesProvider
from testbed.plugins.kubernetesprovider.readiness import pending
from testbed.plugins.kubernetesprovider.replacement import is_immutable
from testbed.plugins.provider import ProviderError, Work
from testbed.processes.ports import free_ports

Thing = dict[str, Any]


def thing(api_version: str, kind: str, *, annotations: Thing | None = None, **more: Any) -> Thing:
    metadata = {
        "name": "a",
        "namespace": "default",
        "generation": 2,
        "annotations": annotations or {},
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


def nothing(_path: str) -> Thing | None:
    return None


def condition(name: str, status: str = "True", message: str = "") -> Thing:
    return {"conditions": [{"type": name, "status": status, "message": message}]}


READY = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}


@pytest.mark.parametrize(
    "ready",
    [
        thing("v1", "ConfigMap"),
        thing("v1", "Namespace", status={"phase": "Active"}),
        thing("v1", "Pod", status=condition("Ready")),
        thing("v1", "Pod", status={"phase": "Succeeded"}),
        thing("apps/v1", "Deployment", spec={"replicas": 2}, status=READY),
        thing("apps/v1", "Deployment", spec={"replicas": 0}, status={"observedGeneration": 2}),
        thing("batch/v1", "Job", status=condition("Complete")),
        thing("example.dev/v1", "Deployment", spec={}),
        thing("v1", "Service", spec={"clusterIP": "None", "selector": {"a": "b"}}),
        thing("v1", "Service", spec={"clusterIP": "10.0.0.1"}),
    ],
    ids=lambda wire: f"{wire['apiVersion']}-{wire['kind']}",
)
def test_a_ready_object_waits_for_nothing(ready: Thing) -> None:
    assert pending(ready, nothing) == []


@pytest.mark.parametrize(
    ("unready", "reason"),
    [
        (thing("v1", "Namespace"), "is new"),
        (thing("v1", "Pod", status=condition("PodScheduled", "False", "0/3 nodes")), "0/3 nodes"),
        (
            thing("apps/v1", "Deployment", spec={}, status={"observedGeneration": 1}),
            "has not seen",
        ),
        (
            thing("apps/v1", "Deployment", spec={"replicas": 3}, status=READY),
            "2 of 3 replicas ready",
        ),
        (thing("batch/v1", "Job", status=condition("Failed", message="deadline")), "deadline"),
        (thing("v1", "Service", spec={"selector": {"a": "b"}}), "no ready pod"),
        (thing("v1", "Service", spec={"type": "LoadBalancer"}), "no address"),
        (
            thing(
                "apiextensions.k8s.io/v1",
                "CustomResourceDefinition",
                status=condition("Established"),
            ),
            "not established",
        ),
    ],
)
def test_an_object_that_is_not_ready_says_why(unready: Thing, reason: str) -> None:
    assert reason in "; ".join(pending(unready, nothing))


def test_a_service_is_ready_with_its_first_ready_pod() -> None:
    slices = {"items": [{"endpoints": [{"conditions": {"ready": True}}]}, {"endpoints": None}]}
    service = thing("v1", "Service", spec={"selector": {"a": "b"}})

    assert pending(service, lambda _path: slices) == []


@pytest.mark.parametrize(
    ("wanted", "is_met"),
    [
        ("condition=Ready", True),
        ("condition=Ready=False", False),
        ("jsonpath={.status.phase}=Bound", True),
        ("jsonpath={.status.phase}=Lost", False),
        ("jsonpath={.status.phase}", True),
        ("jsonpath={.status.absent}", False),
        (json.dumps(["condition=Ready", "jsonpath={.status.phase}"]), True),
        (json.dumps(["condition=Ready", "jsonpath={.status.absent}"]), False),
    ],
)
def test_what_to_wait_for_can_be_said_by_annotation(wanted: str, is_met: bool) -> None:
    claim = thing(
        "example.dev/v1",
        "Claim",
        annotations={"pulumi.com/waitFor": wanted},
        status={"phase": "Bound", **condition("Ready")},
    )

    assert (pending(claim, nothing) == []) is is_met


def test_what_the_api_server_refuses_to_change_needs_a_new_object() -> None:
    assert is_immutable("Deployment", "spec.selector.matchLabels.app")
    assert is_immutable("Job", "spec.template.spec.containers[0].image")
    assert is_immutable("Pod", "spec.nodeName")
    assert not is_immutable("Pod", "spec.containers[0].image")
    assert not is_immutable("Deployment", "spec.replicas")
    assert not is_immutable("Widget", "spec.selector")


@pytest.fixture
def gone() -> str:
    """The kubeconfig of a cluster that is no more."""
    named = {"name": "gone"}
    server = f"http://127.0.0.1:{free_ports(1)[0]}"
    return json.dumps(
        {
            "current-context": "gone",
            "contexts": [{**named, "context": {"cluster": "gone", "user": "gone"}}],
            "clusters": [{**named, "cluster": {"server": server}}],
            "users": [{**named, "user": {"token": "x"}}],
        }
    )


def test_objects_go_with_their_cluster_where_the_program_says_so(gone: str) -> None:
    work = Work(type="kubernetes:core/v1:ConfigMap", identity="default/a", tell=print)
    state = thing("v1", "ConfigMap")
    strict, lenient = KubernetesProvider(), KubernetesProvider()
    strict.configure({"kubeconfig": gone})
    lenient.configure({"kubeconfig": gone, "deleteUnreachable": True})

    lenient.delete(work, state)
    assert lenient.read(work, state, state) is None
    with pytest.raises(UnreachableError, match="cannot be reached"):
        strict.delete(work, state)
    with pytest.raises(UnreachableError):
        strict.read(work, state, state)


def test_a_kubeconfig_that_cannot_be_used_says_what_is_wrong(gone: str) -> None:
    with pytest.raises(ProviderError, match="elsewhere"):
        read_kubeconfig(gone, "elsewhere")


def test_files_that_a_kubeconfig_names_lie_beside_it_whatever_the_context(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("an authority")
    (tmp_path / "config").write_text(
        json.dumps(
            {
                "current-context": "other",
                "contexts": [{"name": "mine", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {"server": "https://c", "certificate-authority": "ca.pem"},
                    }
                ],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )

    kubeconfig = read_kubeconfig(str(tmp_path / "config"), "mine")

    assert kubeconfig is not None
    assert kubeconfig.certificate_authority == b"an authority"
