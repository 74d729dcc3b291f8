"""Proves at the end of a destroy that nothing of the program is left in AWS or in the cluster.

Pulumi deletes only what the stack's state has. An `up` that was killed leaves resources that the
state never had. A refresh while the cluster is unreachable removes objects from the state that
still exist. So a resource records the names that the program uses, and is deleted after all others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
from botocore.exceptions import BotoCoreError, ClientError
from pulumi.dynamic import ReadResult

from controller.apis import labels
from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import (
    ABANDON,
    FORGET,
    UPSERT,
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    ClusterUnreachableError,
    Objects,
    unless_abandoned,
)
from infra.deployment.controllerobjects import NamedObject, controller_objects, is_made_by_pulumi
from infra.guards.ownership import Given, Name, names_of
from infra.lifecycle.registeredresource import RegisteredResource
from infra.lifecycle.statefulprovider import StatefulProvider
from infra.lifecycle.waiting import Clock, say

POLL_SECONDS = 2.0
PROOF_SECONDS = 120.0
"""How long AWS may take to delete resources."""


class NotRemovedError(Exception):
    """Resources of the stack are left after its destroy; says what to do."""


class RefreshBlockedError(Exception):
    """A refresh cannot determine whether the stack's objects in the cluster still exist."""

    def __init__(self, cluster: str, problem: Exception) -> None:
        super().__init__(
            f"EKS has the cluster {cluster}, but {problem}. A cluster that cannot be reached is "
            f"not deleted. If {FORGET} is set, this refresh has removed objects from the state "
            "that are still in the cluster. Restore the access to the cluster (network, "
            f"kubeconfig, credentials), unset {FORGET}, and run `{UPSERT}=true pulumi up`, which "
            "takes these objects over"
        )


class RemovalProof(RegisteredResource, module="joiner", name="RemovalProof"):
    """The resource that a destroy deletes last.

    Its deletion deletes by tag what is left in AWS, and reports what is left in the cluster.
    """

    def __init__(
        self,
        name: str,
        cluster: EksCluster,
        made: pulumi.Input[Mapping[str, Any]],
        *,
        installation: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Record the names.

        Args:
            name: the name of the resource.
            cluster: the controller's cluster.
            made: the names in AWS, as `Given.plain` returns them; the state stores them unchanged.
            installation: value of the tag on what the program creates.
            opts: the options of the resource.

        """
        props = {**cluster.location, "installation": installation, "made": made}
        super().__init__(_RemovalProofProvider(), name, props, opts)


class _RemovalProofProvider(StatefulProvider):
    """Searches for leftovers on deletion, and checks in each refresh that the cluster answers."""

    kind = "removal-proof"

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        refuse_unreachable(ClusterLocation.of(props))
        return super().read(id_, props)

    def end(self, props: dict[str, Any]) -> None:
        location, given = ClusterLocation.of(props), Given.of(props["made"])
        Sweep(list(names_of(given, location)), installation=props["installation"]).run()
        left: list[NamedObject] = []
        with unless_abandoned(location):
            left = [*left_in_cluster(ClusterApi.find(location), given)]
        if left:
            raise NotRemovedError(
                "these objects exist in the cluster, but the stack's state does not have them: "
                f"{', '.join(map(str, left))}. Delete them and run `pulumi destroy` again: "
                f"{'; '.join(one.removal for one in left)}"
            )


def refuse_unreachable(
    location: ClusterLocation, environment: Mapping[str, str] = os.environ
) -> None:
    """Check that a refresh can reach the cluster's API server.

    The check is skipped if `ABANDON` in `environment` names the cluster. It passes if the cluster
    does not exist.

    Raises:
        RefreshBlockedError: the API server does not answer, and EKS has the cluster or does
            not answer either.

    """
    if environment.get(ABANDON) == location.cluster_name:
        return
    try:
        ClusterApi.find(location).get("/version")
    except ClusterGoneError:
        return
    except (ClusterUnreachableError, BotoCoreError, ClientError) as exc:
        raise RefreshBlockedError(location.cluster_name, exc) from exc


@dataclass(kw_only=True)
class Sweep:
    """Deletes the `candidates` that have the installation's tag, until none is found.

    `candidates` are the names that resources of the program have in AWS.
    """

    candidates: Sequence[Name] = field(kw_only=False)
    installation: str
    clock: Clock = field(default_factory=lambda: time)
    say: Callable[[str], None] = say
    _said: set[str] = field(default_factory=set, init=False)

    def run(self) -> None:
        """Delete the resources, and wait until AWS no longer finds them.

        Raises:
            NotRemovedError: some still exist after `PROOF_SECONDS`; says why.

        """
        deadline = self.clock.monotonic() + PROOF_SECONDS
        while left := [one for one in self.candidates if self._is_ours(one)]:
            refusals = [f"{one}: {problem}" for one in left if (problem := self._delete(one))]
            if self.clock.monotonic() >= deadline:
                raise NotRemovedError(
                    f"AWS did not delete {'; '.join(refusals or map(str, left))}. Remove what AWS "
                    "names, and run `pulumi destroy` again"
                )
            self.clock.sleep(POLL_SECONDS)

    def _delete(self, one: Name) -> str:
        """Request the deletion; return why AWS refused it, or "" if it did not."""
        if str(one) not in self._said:
            self.say(f"deleting {one}, which the stack's state no longer has")
            self._said.add(str(one))
        try:
            one.remove()
        except ClientError as exc:
            return str(exc)
        return ""

    def _is_ours(self, one: Name) -> bool:
        tags = one.found()
        return tags is not None and tags.get(labels.TAG_INSTALLATION) == self.installation


def left_in_cluster(cluster: Objects, given: Given) -> Iterator[NamedObject]:
    """Yield the controller's objects that Pulumi created and that still exist."""
    for one in controller_objects(given.namespace, given.service_account):
        wire = cluster.get(one.path)
        if wire is not None and is_made_by_pulumi(wire):
            yield one
