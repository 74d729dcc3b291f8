"""Pods that start before their association, on a real API server with EKS's webhook."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from infra.clusterapi import ClusterApi
from infra.identity.podidentity import CREDENTIALS, Identities
from testbed.cloud.control import CloudControl
from testbed.region.testbed import Part, Testbed
from tests import administrator
from tests.infra.stage import api_of

pytestmark = pytest.mark.cluster

NAMESPACE = "/api/v1/namespaces/kube-system"
DEPLOYMENTS = "/apis/apps/v1/namespaces/kube-system/deployments"
ROLE = "arn:aws:iam::123456789012:role/joiner-cluster"
SEEN_AFTER = 2.0
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """A cluster whose pods run as processes, and a cloud that shows associations late."""
    place = tmp_path_factory.mktemp("identity") / "testbed"
    with Testbed(directory=place, until=Part.WORKLOADS) as running:
        assert running.cloud is not None
        CloudControl(running.cloud.url).change_settings(associating=SEEN_AFTER)
        yield running


def test_pods_older_than_their_association_are_restarted_with_credentials(
    testbed: Testbed,
) -> None:
    cluster, said = api_of(testbed), list[str]()
    cluster.request("POST", f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": "early"}})
    cluster.request("POST", DEPLOYMENTS, early_deployment())
    (born_early,) = running_pods(cluster, 1)
    assert not has_identity(born_early)
    assert testbed.cloud is not None
    administrator.client(testbed.cloud.url, "eks").create_pod_identity_association(
        clusterName="joiner", namespace="kube-system", serviceAccount="early", roleArn=ROLE
    )
    identities = Identities(
        cluster=cluster, namespace="kube-system", service_account="early", say=said.append
    )
    assert not identities.is_given

    identities.ensure_credentials()

    assert identities.is_given
    (made_again,) = running_pods(cluster, 1, but=born_early)
    assert has_identity(made_again)
    assert any(born_early["metadata"]["name"] in line for line in said)
    identities.ensure_credentials()
    (stayed,) = running_pods(cluster, 1)
    assert stayed["metadata"]["uid"] == made_again["metadata"]["uid"]


def early_deployment() -> dict[str, Any]:
    """Describe one pod that runs until it is stopped."""
    labels = {"app": "early"}
    container = {"name": "main", "image": "none"}
    return {
        "metadata": {"name": "early"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": "early",
                    "terminationGracePeriodSeconds": 0,
                    "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
                    "containers": [container],
                },
            },
        },
    }


def running_pods(
    cluster: ClusterApi, count: int, *, but: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Wait until so many pods run, that one not among them."""
    gone = (but or {"metadata": {"name": ""}})["metadata"]["name"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        pods = cluster.list(f"{NAMESPACE}/pods", labelSelector="app=early")
        there = [pod for pod in pods if pod["status"].get("phase") == "Running"]
        if len(pods) == len(there) == count and gone not in {p["metadata"]["name"] for p in pods}:
            return there
        assert time.monotonic() < deadline, pods
        time.sleep(0.1)


def has_identity(pod: dict[str, Any]) -> bool:
    """Whether the pod knows where its credentials are."""
    variables = pod["spec"]["containers"][0].get("env") or []
    return CREDENTIALS in {variable["name"] for variable in variables}
