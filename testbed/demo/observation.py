"""The visible state of cluster and cloud at one moment, for the scenario and its viewers."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from testbed.cloud.control import CloudControl, InstanceView
from testbed.kube.client import KubeClient, NotFoundError, Object, holds

NODE_POOL = "karpenter.sh/nodepool"


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of the scenario: its node and its status."""

    uid: str
    node: str
    ready: bool
    terminating: bool

    @property
    def runs(self) -> bool:
        """Whether the pod is ready and not terminating."""
        return self.ready and not self.terminating


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that the controller created, and its instance."""

    name: str
    initialized: bool
    terminating: bool
    instance: InstanceView


@dataclass(frozen=True, slots=True)
class Observation:
    """The state at one moment; `instances` are those not terminated."""

    pods: tuple[PodView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    instances: tuple[InstanceView, ...] = ()
    claims: tuple[str, ...] = ()

    @property
    def running(self) -> int:
        """Number of pods that run."""
        return sum(pod.runs for pod in self.pods)

    @property
    def bound(self) -> int:
        """Number of pods that are bound to a node."""
        return sum(bool(pod.node) for pod in self.pods)

    @property
    def cost(self) -> float:
        """Cost of all pending and running instances in $/h."""
        return sum(i.price for i in self.instances if i.state in ("pending", "running"))

    @property
    def types(self) -> Counter[str]:
        """Number of instances by instance type and capacity type."""
        return Counter(f"{i.instance_type} {i.capacity_type}" for i in self.instances)

    def pods_on(self, node: str) -> list[PodView]:
        """Return the pods of one node."""
        return [pod for pod in self.pods if pod.node == node]


@dataclass(slots=True)
class Observer:
    """Observes cluster and cloud on request; `latest` is the last observation."""

    kube: KubeClient
    cloud: CloudControl
    namespace: str = "default"
    latest: Observation = field(default_factory=Observation)

    async def observe(self) -> Observation:
        """Observe the cluster and the cloud now; return the observation and keep it as `latest`."""
        pods, nodes, instances, claims = await asyncio.gather(
            self.kube.list(f"/api/v1/namespaces/{self.namespace}/pods"),
            self.kube.list("/api/v1/nodes", labelSelector=NODE_POOL),
            asyncio.to_thread(self.cloud.instances),
            self._claims(),
        )
        alive = tuple(i for i in instances.instances if i.state != "terminated")
        by_provider_id = {f"aws:///{i.zone}/{i.instance_id}": i for i in instances.instances}
        self.latest = Observation(
            pods=tuple(_pod(p) for p in pods[0]),
            nodes=tuple(
                _node(n, by_provider_id[n["spec"]["providerID"]])
                for n in nodes[0]
                if n["spec"].get("providerID") in by_provider_id
            ),
            instances=alive,
            claims=claims,
        )
        return self.latest

    async def _claims(self) -> tuple[str, ...]:
        try:
            claims, _ = await self.kube.list("/apis/karpenter.sh/v1/nodeclaims")
        except NotFoundError:
            return ()
        return tuple(claim["metadata"]["name"] for claim in claims)


def _pod(pod: Object) -> PodView:
    return PodView(
        uid=pod["metadata"]["uid"],
        node=pod["spec"].get("nodeName", ""),
        ready=holds(pod, "Ready"),
        terminating="deletionTimestamp" in pod["metadata"],
    )


def _node(node: Object, instance: InstanceView) -> NodeView:
    return NodeView(
        name=node["metadata"]["name"],
        initialized=node["metadata"].get("labels", {}).get("karpenter.sh/initialized") == "true",
        terminating="deletionTimestamp" in node["metadata"],
        instance=instance,
    )
