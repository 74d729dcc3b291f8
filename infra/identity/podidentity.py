"""Waits until EKS serves a Pod Identity association, and replaces pods that got no credentials.

EKS notices a new or deleted association some seconds late, and injects credentials into a pod only
when the pod is created. So the program creates a pod with dry run until that pod would get
credentials. Pods that were created too early are deleted, so that the Deployment replaces them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, UpdateResult

from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import CLUSTER_ERRORS, ApiError, ClusterApi, ClusterLocation, Objects, Wire
from infra.lifecycle.registeredresource import RegisteredResource
from infra.lifecycle.statefulprovider import StatefulProvider
from infra.lifecycle.waiting import Clock, say

WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/pod-identity-webhook"
"""EKS's webhook that injects credentials into pods; without it there is nothing to wait for."""

CREDENTIALS = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
"""The environment variable that the webhook sets in a pod with an association."""

POLL_SECONDS = 2.0
PATIENCE_SECONDS = 120.0
"""Maximum wait; an association takes seconds. After this, `up` continues and prints a warning."""


class Cluster(Objects, Protocol):
    """The requests to the cluster's API server."""

    def request(self, method: str, path: str, body: Wire | None = None) -> Wire:
        """Send one request and return the answer."""


@dataclass(kw_only=True)
class Identities:
    """Checks whether pods of one service account get credentials from Pod Identity."""

    cluster: Cluster
    namespace: str
    service_account: str
    clock: Clock = field(default_factory=lambda: time)
    say: Callable[[str], None] = say

    def ensure_credentials(self) -> None:
        """Wait until new pods get credentials, then delete pods that were created without."""
        if self.cluster.get(WEBHOOK) is None or not self._wait(given=True):
            return
        for pod in self.without():
            self.say(
                f"deleting pod {pod}, which started without credentials; its Deployment creates "
                "another"
            )
            self.cluster.delete(f"{self._pods}/{pod}")

    def end(self) -> None:
        """Wait until new pods no longer get credentials from a deleted association."""
        if self.cluster.get(WEBHOOK) is not None:
            self._wait(given=False)

    def without(self) -> list[str]:
        """Return the names of the service account's non-terminating pods without credentials."""
        return [
            pod["metadata"]["name"]
            for pod in self.cluster.list(self._pods)
            if pod["spec"].get("serviceAccountName") == self.service_account
            and "deletionTimestamp" not in pod["metadata"]
            and not _has_identity(pod)
        ]

    @property
    def is_given(self) -> bool:
        """Whether a pod created now would get credentials, by a dry run."""
        probe = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": f"{self.service_account}-", "namespace": self.namespace},
            "spec": {
                "serviceAccountName": self.service_account,
                "containers": [{"name": "probe", "image": "none"}],
            },
        }
        return _has_identity(self.cluster.request("POST", f"{self._pods}?dryRun=All", probe))

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def _wait(self, *, given: bool) -> bool:
        deadline = self.clock.monotonic() + PATIENCE_SECONDS
        account = f"{self.namespace}/{self.service_account}"
        try:
            while self.is_given is not given:
                if self.clock.monotonic() >= deadline:
                    self.say(
                        f"pods of service account {account} get no credentials after "
                        f"{PATIENCE_SECONDS:.0f} s: check that its Pod Identity association "
                        "exists, then run `pulumi up` again"
                        if given
                        else f"pods of service account {account} still get credentials of a "
                        f"deleted Pod Identity association after {PATIENCE_SECONDS:.0f} s: AWS "
                        "may refuse calls of pods that start now; delete such pods"
                    )
                    return False
                self.clock.sleep(POLL_SECONDS)
        except ApiError as exc:
            self.say(
                f"cannot check whether pods of service account {account} get credentials: {exc}"
            )
            return False
        return True


class PodIdentity(RegisteredResource, module="joiner", name="PodIdentity"):
    """Waits until EKS serves the Pod Identity association, before the first pod needs it."""

    def __init__(
        self,
        name: str,
        cluster: EksCluster,
        *,
        namespace: pulumi.Input[str],
        service_account: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {**cluster.location, "namespace": namespace, "service_account": service_account}
        super().__init__(_PodIdentityProvider(), name, props, opts)


class _PodIdentityProvider(StatefulProvider):
    """Waits on creation, and on each `up` replaces pods that have no credentials."""

    kind = "pod-identity"
    identity = ("cluster_name", "namespace", "service_account")

    def create(self, props: dict[str, Any]) -> CreateResult:
        identities_of(props).ensure_credentials()
        return super().create(props)

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        found = super().diff(_id, olds, news)
        found.changes = found.changes or _needs_healing(olds)
        return found

    def update(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        identities_of(news).ensure_credentials()
        return super().update(_id, olds, news)


def identities_of(props: Mapping[str, Any]) -> Identities:
    """Return the identities of the service account in a resource's properties."""
    return Identities(
        cluster=ClusterApi.find(ClusterLocation.of(props)),
        namespace=props["namespace"],
        service_account=props["service_account"],
    )


def _needs_healing(props: Mapping[str, Any]) -> bool:
    try:
        identities = identities_of(props)
        return bool(
            identities.cluster.get(WEBHOOK) and identities.without() and identities.is_given
        )
    except CLUSTER_ERRORS:
        return False  # The next change to the cluster reports the failure.


def _has_identity(pod: Wire) -> bool:
    return any(
        variable["name"] == CREDENTIALS
        for container in pod["spec"]["containers"]
        for variable in container.get("env") or []
    )
