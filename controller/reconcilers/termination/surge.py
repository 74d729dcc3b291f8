"""Restarts a Deployment whose only pod is on a draining node, so that a replacement runs first.

An eviction deletes a pod before its replacement runs, and the PodDisruptionBudget of a single
replica can block it forever. In a rollout, the Deployment first creates the new pod, on another
node because this one is tainted, and then deletes the old pod.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.kinds import DEPLOYMENT, REPLICA_SET
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import Deployment
from controller.apiserver.errors import ForbiddenError, NotFoundError
from controller.disruption.pods import surges
from controller.reconcilers.ports import Ports, PortUser

ROLLOUT_TIMEOUT = timedelta(minutes=10)
"""How long the replacement may take to be available before the old pod is evicted. It is the
default `progressDeadlineSeconds` of a Deployment."""

RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
"""The annotation of `kubectl rollout restart`, which GitOps tools ignore in comparisons."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surge(PortUser):
    """Restarts the Deployments of a draining node's pods with annotation `joiner.dev/surge`."""

    ports: Ports
    _until: dict[str, dict[str, datetime]] = field(default_factory=dict)
    """The time at which to evict a pod that still runs, by the UIDs of node and pod."""

    async def keeps(self, pod: Pod, node: Node) -> bool:
        """Restart the pod's Deployment once; returns whether to wait until it replaces the pod."""
        if not surges(pod):
            return False
        until_by_pod = self._until.setdefault(node.metadata.uid, {})
        until = until_by_pod.get(pod.metadata.uid)
        if until is None:
            until = until_by_pod[pod.metadata.uid] = await self._try_rollout(pod, node)
        return self.clock() < until

    def forget(self, node: Node) -> None:
        """Drop the state of a deleted node's pods."""
        self._until.pop(node.metadata.uid, None)

    async def _try_rollout(self, pod: Pod, node: Node) -> datetime:
        """Restart the pod's Deployment if that helps; returns when to evict the pod."""
        now = self.clock()
        try:
            deployment = await self._deployment(pod)
            obstacle = _obstacle(deployment) if deployment else "no Deployment owns it"
            if deployment is None or obstacle:
                await self._report_vain(pod, node, obstacle)
                return now
            await self._restart(deployment, pod, now)
        except (NotFoundError, ForbiddenError) as error:
            await self._report_vain(pod, node, str(error))
            return now
        name = deployment.metadata.key
        message = f"Restarting Deployment {name}: a replacement starts before this pod is deleted"
        await self.recorder.publish(pod, "Normal", "Surging", message)
        return now + ROLLOUT_TIMEOUT

    async def _deployment(self, pod: Pod) -> Deployment | None:
        namespace = pod.metadata.namespace
        name = _owner(pod.metadata, "ReplicaSet")
        replica_set = await self.api.get(REPLICA_SET, name, namespace)
        owner = _owner(replica_set.metadata, "Deployment")
        return await self.api.get(DEPLOYMENT, owner, namespace) if owner else None

    async def _restart(self, deployment: Deployment, pod: Pod, now: datetime) -> None:
        """Change the pod template, unless a controller replica already did for this pod."""
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
            "restarting deployment, so that a replacement runs before the pod is deleted",
            extra={"Deployment": deployment.metadata.key, "Pod": pod.key},
        )

    async def _report_vain(self, pod: Pod, node: Node, why: str) -> None:
        message = f'Pod "{pod.key}" is evicted before a replacement runs: {why}'
        await self.recorder.publish(node, "Normal", "SurgeImpossible", message)


def _owner(metadata: ObjectMeta, kind: str) -> str:
    return next((owner.name for owner in metadata.owner_references if owner.kind == kind), "")


def _obstacle(deployment: Deployment) -> str:
    """Return why a restart would not replace the pod first; empty if it would."""
    spec, name = deployment.spec, deployment.metadata.name
    if (1 if spec.replicas is None else spec.replicas) != 1:
        return f'Deployment "{name}" has {spec.replicas} replicas, not 1'
    if spec.strategy.type == "Recreate":
        return f'Deployment "{name}" has strategy Recreate, which deletes a pod before replacing it'
    surge = spec.strategy.rolling_update.max_surge if spec.strategy.rolling_update else None
    if surge in (0, "0", "0%"):
        return f'Deployment "{name}" has maxSurge 0, which allows no second pod'
    if spec.paused:
        return f'Deployment "{name}" is paused'
    return ""
