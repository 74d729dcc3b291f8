"""Rolls a Deployment whose only pod is on a node that drains, so that the next pod runs before
this one goes.

An eviction ends a pod before another takes its place, and a PodDisruptionBudget of a single
replica forbids it for ever. A roll-out does neither: the Deployment makes its new pod first,
elsewhere since the node is tainted, and takes the old one away itself.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.kinds import DEPLOYMENT, NODE, POD, REPLICA_SET
from controller.apis.meta import ObjectMeta
from controller.apis.nodes import Node
from controller.apis.pods import Pod
from controller.apis.workloads import Deployment
from controller.apiserver.errors import ForbiddenError, NotFoundError
from controller.apiserver.port import ApiServer
from controller.disruption.pods import surges
from controller.reconcilers.clock import Clock
from controller.telemetry.events import Recorder

PATIENCE = timedelta(minutes=10)
"""How long the next pod may take to be available before the old one is evicted like any other;
the time that Kubernetes gives a roll-out to progress."""

RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
"""What `kubectl rollout restart` writes; tools that watch for differences know to ignore it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surge:
    """Rolls Deployments, once for each of their pods."""

    api: ApiServer
    recorder: Recorder
    clock: Clock
    _until: dict[str, dict[str, datetime]] = field(default_factory=dict)
    """Node's uid → pod's uid → when its Deployment has had long enough."""

    async def keeps(self, pod: Pod, node: Node) -> bool:
        """Whether the pod is to be left to its Deployment, which is rolled where it was not yet."""
        if not surges(pod):
            return False
        begun = self._until.setdefault(node.metadata.uid, {})
        until = begun.get(pod.metadata.uid)
        if until is None:
            until = begun[pod.metadata.uid] = await self._rolled(pod, node)
        return self.clock() < until

    def forget(self, node: Node) -> None:
        """Drop what is known of the pods of a node that has gone."""
        self._until.pop(node.metadata.uid, None)

    async def _rolled(self, pod: Pod, node: Node) -> datetime:
        """Roll the pod's Deployment; returns until when to wait for it, now where that is vain."""
        now = self.clock()
        try:
            deployment = await self._deployment(pod)
            obstacle = _obstacle(deployment) if deployment else "it belongs to no Deployment"
            if deployment is None or obstacle:
                await self._report_vain(pod, node, obstacle)
                return now
            await self._restart(deployment, pod, now)
        except (NotFoundError, ForbiddenError) as error:
            await self._report_vain(pod, node, str(error))
            return now
        name = f"{deployment.metadata.namespace}/{deployment.metadata.name}"
        message = f"Rolling Deployment {name}: its next pod starts before this one goes"
        await self.recorder.publish(POD, pod, "Normal", "Surging", message)
        return now + PATIENCE

    async def _deployment(self, pod: Pod) -> Deployment | None:
        namespace = pod.metadata.namespace
        name = _owner(pod.metadata, "ReplicaSet")
        replica_set = await self.api.get(REPLICA_SET, name, namespace)
        owner = _owner(replica_set.metadata, "Deployment")
        return await self.api.get(DEPLOYMENT, owner, namespace) if owner else None

    async def _restart(self, deployment: Deployment, pod: Pod, now: datetime) -> None:
        """Change the template, unless that has been done for this pod, by whichever replica."""
        template = deployment.spec.template.metadata
        if template.annotations.get(labels.SURGED_FOR) == pod.metadata.uid:
            return
        annotations = {RESTARTED_AT: now.isoformat(), labels.SURGED_FOR: pod.metadata.uid}
        await self.api.patch(
            DEPLOYMENT,
            deployment.metadata.name,
            {"spec": {"template": {"metadata": {"annotations": annotations}}}},
            namespace=deployment.metadata.namespace,
            resource_version=deployment.metadata.resource_version,
        )
        log.info(
            "rolling deployment",
            extra={"Deployment": deployment.metadata.name, "Pod": pod.key},
        )

    async def _report_vain(self, pod: Pod, node: Node, why: str) -> None:
        message = f'Pod "{pod.key}" is evicted before its next one runs: {why}'
        await self.recorder.publish(NODE, node, "Normal", "SurgeImpossible", message)


def _owner(metadata: ObjectMeta, kind: str) -> str:
    return next((owner.name for owner in metadata.owner_references if owner.kind == kind), "")


def _obstacle(deployment: Deployment) -> str:
    """Return why rolling the Deployment would not help its one pod; empty when it would."""
    spec, name = deployment.spec, deployment.metadata.name
    if (1 if spec.replicas is None else spec.replicas) != 1:
        return f'Deployment "{name}" has other pods to do its work'
    if spec.strategy.type == "Recreate":
        return f'Deployment "{name}" ends its pod before it makes another (strategy Recreate)'
    surge = spec.strategy.rolling_update.max_surge if spec.strategy.rolling_update else None
    if surge in (0, "0", "0%"):
        return f'Deployment "{name}" may not have a second pod (maxSurge 0)'
    if spec.paused:
        return f'Deployment "{name}" is paused'
    return ""
