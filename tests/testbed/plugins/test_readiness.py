"""What an object waits for, what requires a replacement, and what is deleted with its cluster."""

from __future__ import annotations

import json
import socketserver
from pathlib import Path
from typing import Any

import pytest

from testbed.plugins.codec import UNKNOWN
from testbed.plugins.kubernetesprovider.api import UnreachableError, read_kubeconfig
from testbed.plugins.kubernetesprovider.fields import taken_over
from testbed.plugins.kubernetesprovider.provider import KubernetesProvider
from testbed.plugins.kubernetesprovider.pruning import prune
from testbed.plugins.kubernetesprovider.readiness import unready_reasons
from testbed.plugins.kubernetesprovider.replacement import must_replace
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
REVISION = "deployment.kubernetes.io/revision"
ROLLED_OUT = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
ROLLING = {**ROLLED_OUT, "reason": "ReplicaSetUpdated"}
AVAILABLE = {"type": "Available", "status": "True"}


def deployment(*conditions: Thing, revision: str = "1") -> Thing:
    made = thing("apps/v1", "Deployment", annotations={REVISION: revision}, spec={"replicas": 2})
    made["metadata"]["uid"] = "d"
    return {**made, "status": {"observedGeneration": 2, "conditions": list(conditions)}}


def replica_set(ready: int, *, revision: str = "1") -> Thing:
    made = thing("apps/v1", "ReplicaSet", annotations={REVISION: revision}, spec={"replicas": 2})
    made["metadata"]["ownerReferences"] = [{"uid": "d"}]
    return {**made, "status": {"readyReplicas": ready}}


@pytest.mark.parametrize(
    "ready",
    [
        thing("v1", "ConfigMap"),
        thing("v1", "Namespace"),
        thing("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        thing("v1", "Pod", status=condition("Ready")),
        thing("v1", "Pod", status={"phase": "Succeeded"}),
        thing("apps/v1", "StatefulSet", spec={"replicas": 2}, status=READY),
        thing("apps/v1", "StatefulSet", spec={"replicas": 0}, status={"observedGeneration": 2}),
        thing("batch/v1", "Job", status=condition("Complete")),
        thing("example.dev/v1", "Deployment", spec={}),
        thing("v1", "Service", spec={"clusterIP": "None", "selector": {"a": "b"}}),
        thing("v1", "Service", spec={"clusterIP": "10.0.0.1"}),
    ],
    ids=lambda wire: f"{wire['apiVersion']}-{wire['kind']}",
)
def test_a_ready_object_waits_for_nothing(ready: Thing) -> None:
    assert unready_reasons(ready, nothing) == []


@pytest.mark.parametrize(
    ("unready", "reason"),
    [
        (thing("v1", "Pod", status=condition("PodScheduled", "False", "0/3 nodes")), "0/3 nodes"),
        (
            thing("apps/v1", "Deployment", spec={}, status={"observedGeneration": 1}),
            "has not seen",
        ),
        (
            thing("apps/v1", "StatefulSet", spec={"replicas": 3}, status=READY),
            "2 of 3 replicas ready",
        ),
        (thing("batch/v1", "Job", status=condition("Failed", message="deadline")), "deadline"),
        (thing("v1", "Service", spec={"selector": {"a": "b"}}), "no ready pod"),
        (thing("v1", "Service", spec={"type": "LoadBalancer"}), "no address"),
        (deployment(), "Minimum number of live Pods was not attained"),
    ],
)
def test_an_object_that_is_not_ready_reports_the_reason(unready: Thing, reason: str) -> None:
    assert reason in "; ".join(unready_reasons(unready, nothing))


@pytest.mark.parametrize(
    ("held", "ready", "reason"),
    [
        (deployment(AVAILABLE, ROLLING), 2, ""),
        (deployment(AVAILABLE, ROLLING), 1, "to consider the application live was not attained"),
        (deployment(AVAILABLE, ROLLED_OUT, revision="2"), 2, ""),
        (deployment(AVAILABLE, ROLLING, revision="2"), 2, "to consider the application live"),
        (deployment(AVAILABLE, ROLLED_OUT, revision="2"), 1, "Attempted to roll forward"),
    ],
)
def test_a_deployment_is_ready_with_the_replica_set_of_its_revision(
    held: Thing, ready: int, reason: str
) -> None:
    revision = held["metadata"]["annotations"][REVISION]
    former = replica_set(0, revision="0")
    sets = {"items": [former, replica_set(ready, revision=revision)]}

    reasons = unready_reasons(held, lambda _path: sets)

    assert (reason in "; ".join(reasons)) if reason else not reasons


def test_a_service_is_ready_with_its_first_ready_pod() -> None:
    slices = {"items": [{"endpoints": [{"conditions": {"ready": True}}]}, {"endpoints": None}]}
    service = thing("v1", "Service", spec={"selector": {"a": "b"}})

    assert unready_reasons(service, lambda _path: slices) == []


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
def test_an_annotation_states_what_to_wait_for(wanted: str, is_met: bool) -> None:
    claim = thing(
        "example.dev/v1",
        "Claim",
        annotations={"pulumi.com/waitFor": wanted},
        status={"phase": "Bound", **condition("Ready")},
    )

    assert (unready_reasons(claim, nothing) == []) is is_met


@pytest.mark.parametrize(
    ("observed", "is_met"),
    [
        ({"observedGeneration": 1, **condition("Ready")}, False),
        ({"observedGeneration": 2, **condition("Ready")}, True),
        ({"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}, False),
        (
            {
                "observedGeneration": 1,
                "conditions": [{"type": "ready", "status": "true", "observedGeneration": 2}],
            },
            True,
        ),
    ],
)
def test_a_status_of_an_earlier_generation_does_not_count(observed: Thing, is_met: bool) -> None:
    claim = thing(
        "example.dev/v1",
        "Claim",
        annotations={"pulumi.com/waitFor": "condition=Ready"},
        status=observed,
    )

    assert (unready_reasons(claim, nothing) == []) is is_met


def test_an_unknown_wait_annotation_is_refused() -> None:
    claim = thing("example.dev/v1", "Claim", annotations={"pulumi.com/waitFor": "Ready"})

    with pytest.raises(ProviderError, match='expected a "jsonpath=" or "condition=" prefix'):
        unready_reasons(claim, nothing)


def test_an_object_is_replaced_as_by_the_real_provider() -> None:
    assert must_replace("apps", "Deployment", "spec.selector.matchLabels.app")
    assert must_replace("batch", "Job", "spec.template.spec.containers[0].image")
    assert must_replace("", "Pod", "spec.nodeName")
    assert must_replace("", "Pod", "spec.containers[0].image")
    assert not must_replace("", "Pod", "spec.activeDeadlineSeconds")
    assert not must_replace("apps", "Deployment", "spec.replicas")
    assert not must_replace("policy", "PodDisruptionBudget", "spec.selector.matchLabels.app")
    assert not must_replace("example.dev", "Deployment", "spec.selector")


def test_created_fields_belong_to_the_manager_that_applies_them_later() -> None:
    created: Thing = {"f:spec": {"f:size": {}, "f:share": {}}}
    entries = [
        {"manager": "pulumi-kubernetes", "operation": "Update", "fieldsV1": created},
        {
            "manager": "pulumi-kubernetes",
            "operation": "Update",
            "subresource": "status",
            "fieldsV1": {"f:status": {}},
        },
        {"manager": "team", "operation": "Apply", "fieldsV1": {"f:spec": {"f:color": {}}}},
    ]

    owned = taken_over(entries, "team")

    assert owned is not None
    assert {entry["manager"]: entry["fieldsV1"] for entry in owned} == {
        "pulumi-kubernetes": {"f:status": {}},
        "team": {"f:spec": {"f:size": {}, "f:share": {}, "f:color": {}}},
    }
    assert taken_over(owned, "team") is None


@pytest.mark.parametrize(
    ("manager", "operation", "is_taken"),
    [
        ("kubectl-annotate", "Update", True),
        ("kubectl-client-side-apply", "Update", True),
        ("kubectl", "Apply", True),
        ("pulumi-kubernetes-4b2b0a96", "Update", True),
        ("pulumi-kubernetes-4b2b0a96", "Apply", False),
        ("me", "Update", False),
    ],
)
def test_an_update_takes_over_the_fields_of_managers_by_prefix(
    manager: str, operation: str, is_taken: bool
) -> None:
    entry = {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {}}}

    owned = taken_over([entry], "pulumi-kubernetes-joiner")

    assert (owned is not None) is is_taken


def test_what_the_program_set_is_compared_with_the_live_object() -> None:
    wanted = {
        "labels": {},
        "cpu": "1000m",
        "env": [{"name": "A"}],
        "wieght": 1,
        "fixed": 8,
    }
    live = {"cpu": "1", "env": [{"name": "A", "value": ""}, {"name": "B"}], "fixed": 9, "uid": "u"}

    assert prune(live, wanted, is_typed=True) == {
        "labels": {}, "cpu": "1000m", "env": [{"name": "A"}], "fixed": 9,
    }  # fmt: skip
    assert prune(live, wanted, is_typed=False) == {
        "cpu": "1", "env": [{"name": "A"}], "fixed": 9,
    }  # fmt: skip


@pytest.mark.parametrize("value", ["true", "TRUE", "1", "t", "false", ""])
def test_a_variable_of_the_provider_counts_only_if_it_is_exactly_true(
    value: str, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_K8S_DELETE_UNREACHABLE", value)
    work = Work(type="kubernetes:core/v1:ConfigMap", identity="default/a", report=print)
    state = thing("v1", "ConfigMap")
    provider = KubernetesProvider()
    provider.configure({"kubeconfig": gone})

    if value == "true":
        assert provider.read(work, state, state) is None
    else:
        with pytest.raises(UnreachableError, match='environment variable set to "true"'):
            provider.read(work, state, state)


def test_another_cluster_is_recognized_by_its_active_context(gone: str) -> None:
    provider = KubernetesProvider()
    elsewhere = gone.replace("127.0.0.1", "127.0.0.2")
    settings = {"kubeconfig": gone}

    def replaces(old: Thing, new: Thing) -> bool:
        return provider.must_replace_settings("kubeconfig", old, new)

    assert replaces(settings, {"kubeconfig": elsewhere})
    assert not replaces(settings, {"kubeconfig": gone.replace('"x"', '"another token"')})
    assert replaces(settings, {"kubeconfig": UNKNOWN})
    one = {"clusterIdentifier": "one"}
    assert not replaces(settings | one, {"kubeconfig": UNKNOWN} | one)
    with pytest.raises(ProviderError, match="failed to parse kubeconfig"):
        replaces({"kubeconfig": "/no/longer/there"}, settings)


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


def test_objects_are_deleted_with_their_cluster_on_request(gone: str) -> None:
    work = Work(type="kubernetes:core/v1:ConfigMap", identity="default/a", report=print)
    state = thing("v1", "ConfigMap")
    strict, lenient = KubernetesProvider(), KubernetesProvider()
    strict.configure({"kubeconfig": gone})
    lenient.configure({"kubeconfig": gone, "deleteUnreachable": True})

    lenient.delete(work, state)
    assert lenient.read(work, state, state) is None
    with pytest.raises(UnreachableError, match="configured Kubernetes cluster is unreachable"):
        strict.delete(work, state)
    with pytest.raises(UnreachableError):
        strict.read(work, state, state)


def test_a_cluster_that_is_unreachable_at_first_stays_so_for_the_operation(gone: str) -> None:
    work = Work(type="kubernetes:core/v1:ConfigMap", identity="default/a", report=print)
    provider = KubernetesProvider()
    provider.configure({"kubeconfig": gone})
    port = int(json.loads(gone)["clusters"][0]["cluster"]["server"].rpartition(":")[2])

    with socketserver.TCPServer(("127.0.0.1", port), socketserver.BaseRequestHandler):
        with pytest.raises(UnreachableError, match="unable to load schema information"):
            provider.create(work, thing("v1", "ConfigMap"))
        with pytest.raises(UnreachableError):
            provider.update(work, thing("v1", "ConfigMap"), {}, thing("v1", "ConfigMap"))


def test_an_invalid_kubeconfig_is_reported_with_the_reason(gone: str) -> None:
    with pytest.raises(ProviderError, match="elsewhere"):
        read_kubeconfig(gone, "elsewhere")


def test_files_named_in_a_kubeconfig_are_looked_up_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "ca.pem").write_text("an authority")
    (tmp_path / "ca.pem").write_text("another authority")
    monkeypatch.chdir(tmp_path / "engine")
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
