"""Joiner's main use end to end, as the demo shows it and the system test asserts it.

The steps: `pulumi up`, a second `pulumi up`, 200 pods, scale down to 80, a spot interruption, scale
to 0, a pod with a volume, a node deleted by hand, `pulumi destroy` under load, no resources left.
Every step asserts its claims. A claim that does not hold ends the scenario; the error has the
observed state.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from testbed.cloud.control import CloudControl
from testbed.demo.observation import NodeView, Observation, Observer
from testbed.kube.client import KubeClient, NotFoundError, Object, holds
from testbed.plugins.engine import Changes, EngineError, PulumiEngine

STACK = "demo"
SIZES = (
    ("100m", "256Mi"),
    ("250m", "512Mi"),
    ("500m", "1Gi"),
    ("1", "2Gi"),
    ("500m", "4Gi"),
)
"""CPU and memory requests of the pods; each size is a fifth of the pods."""

PATIENCE_SECONDS = 300.0
POLL_SECONDS = 0.25
MOST_LEFT = 0.6
"""What the nodes may cost at most after the scale-down to 40 % of the pods, as a share of before.

kube-scheduler may bind evicted pods to other nodes than planned, so several passes follow each
other until the cost is near the lower bound, and how many is chance.
"""

INTERRUPTION_SECONDS = 20.0
"""Seconds from the spot notice to the instance's termination; 120 in AWS."""

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
NODE_POOL = "/apis/karpenter.sh/v1/nodepools/default"
STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUME_CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"

STORAGE_CLASS: Object = {
    "metadata": {"name": "gp3"},
    "provisioner": "ebs.csi.aws.com",
    "volumeBindingMode": "WaitForFirstConsumer",
}
VOLUME_CLAIM: Object = {
    "metadata": {"name": "kept"},
    "spec": {
        "storageClassName": "gp3",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "8Gi"}},
    },
}

FREE_EVICTION = {"joiner.dev/eviction-price": "0"}
"""Annotation of the pods: they start at once, so evicting them costs nothing.

Without it, an eviction costs $0.01. A saving counts only for as long as the workloads have run (at
least ten minutes), so Joiner would not evict the pods within the minutes of the demo.
"""

KARPENTER_GROUPS = ("karpenter.sh", "karpenter.k8s.aws", "autoscaling.x-k8s.io")


class ClaimError(AssertionError):
    """A claim of a step does not hold."""


class Viewer:
    """Receives the progress of the scenario; this one shows nothing."""

    def begin(self, title: str) -> None:
        """Receive that a step begins."""

    def show(self, observation: Observation) -> None:
        """Receive a new observation."""

    def end(self, title: str, seconds: float, outcome: str) -> None:
        """Receive that a step succeeded, after how many seconds, and its outcome."""


@dataclass(slots=True)
class Step:
    """The result of a step: its duration in seconds, and a sentence about the outcome."""

    title: str
    seconds: float
    outcome: str


@dataclass(slots=True)
class Summary:
    """The results of the scenario; costs in $/h, times in seconds."""

    steps: list[Step] = field(default_factory=list)
    pods_bound: int = 0
    seconds_to_bound: float = 0.0
    nodes_by_type: dict[str, int] = field(default_factory=dict)
    cost: float = 0.0
    lower_bound: float = 0.0
    left: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class Scenario:
    """The scenario, on a running testbed.

    `configuration` has the settings of the stack. `logs` is the directory of the pods' logs.
    """

    observer: Observer
    engine: PulumiEngine
    configuration: Mapping[str, str]
    logs: Path
    viewer: Viewer = field(default_factory=Viewer)
    summary: Summary = field(default_factory=Summary)

    @property
    def kube(self) -> KubeClient:
        """A client of the cluster, with administrator rights."""
        return self.observer.kube

    @property
    def cloud(self) -> CloudControl:
        """A client of the cloud's control API."""
        return self.observer.cloud

    async def run(self) -> Summary:
        """Run the whole scenario.

        Raises ClaimError if a claim of a step does not hold, and EngineError if Pulumi fails.
        """
        await self.bootstrap()
        await self.change_nothing()
        await self.scale_up()
        await self.shrink()
        await self.interrupt()
        await self.scale_to_nothing()
        await self.keep_a_volume()
        await self.delete_a_busy_node()
        await self.destroy()
        return self.summary

    async def bootstrap(self) -> None:
        """`pulumi up` creates all resources; the controller and the NodePools become ready."""
        async with self._step("pulumi up") as outcome:
            changes = await self._engine(self.engine.up, STACK, self.configuration)
            self._claim(changes.create > 0, f"pulumi up created nothing: {changes}")
            ready = await self._pods_ready("kube-system", "app.kubernetes.io/instance=karpenter")
            self._claim(ready >= 1, "no controller pod is ready after pulumi up")
            await self._until("the NodePools are ready", self._pools_ready)
            outcome(f"{changes.create} resources, {ready} controller replicas ready")

    async def change_nothing(self) -> None:
        """A second `pulumi up` changes nothing."""
        async with self._step("pulumi up, a second time") as outcome:
            changes = await self._engine(self.engine.up, STACK, self.configuration)
            self._claim(not changes.any, f"a second pulumi up changed something: {changes}")
            outcome("nothing to change")

    async def scale_up(self, pods: int = 200) -> None:
        """Scale from 0 to `pods` pods of mixed sizes: Joiner adds nodes and every pod runs."""
        async with self._step(f"{pods} pods") as outcome:
            began = time.monotonic()
            await self._scale(pods)
            await self._see("every pod is bound", lambda s: s.bound >= pods)
            self.summary.seconds_to_bound = time.monotonic() - began
            observation = await self._see(
                "every pod runs, every node is initialized, each NodeClaim has its instance",
                lambda s: s.running >= pods and _is_stable(s) and len(s.claims) == len(s.instances),
            )
            self.summary.pods_bound = observation.bound
            self.summary.cost = observation.cost
            self.summary.nodes_by_type = dict(observation.types)
            self.summary.lower_bound = self._lower_bound()
            outcome(
                f"{observation.bound} bound in {self.summary.seconds_to_bound:.1f} s on "
                f"{len(observation.instances)} nodes at {observation.cost:.3f} $/h"
            )

    async def shrink(self, pods: int = 80) -> None:
        """Scale down to `pods` pods: Joiner consolidates until the nodes cost much less."""
        async with self._step(f"{pods} pods are left on half-empty nodes") as outcome:
            before = await self.observer.observe()
            await self._scale(pods)
            await self._see("the others are gone", lambda s: len(s.pods) == pods)
            await self.kube.patch(NODE_POOL, _consolidation_patch("WhenEmptyOrUnderutilized"))
            # Fewer pods in the same proportions: the lower bound shrinks proportionally.
            bound = self.summary.lower_bound * pods / self.summary.pods_bound
            observation = await self._see(
                f"every pod runs for {MOST_LEFT * before.cost:.3f} $/h at most",
                lambda s: (
                    s.running == len(s.pods) == pods
                    and _is_stable(s)
                    and s.cost <= MOST_LEFT * before.cost
                ),
            )
            await self.kube.patch(NODE_POOL, _consolidation_patch("WhenEmpty"))
            outcome(
                f"{len(before.instances)} nodes at {before.cost:.3f} $/h became "
                f"{len(observation.instances)} at {observation.cost:.3f}; "
                f"nothing is below {bound:.3f}"
            )

    async def interrupt(self) -> None:
        """A spot interruption: Joiner removes the node, and every pod runs on other nodes."""
        async with self._step("a spot interruption") as outcome:
            before = await self.observer.observe()
            spots = [n for n in before.nodes if n.instance.capacity_type == "spot"]
            self._claim(bool(spots), "there is no spot node to interrupt")
            victim = _busiest(before, spots)
            moved, wanted = len(before.pods_on(victim.name)), before.running
            self.cloud.interrupt(victim.instance.instance_id, delay_seconds=INTERRUPTION_SECONDS)
            observation = await self._see(
                "the interrupted node is gone and its pods run elsewhere",
                lambda s: s.running >= wanted and not _knows(s, victim) and _is_stable(s),
            )
            self._claim(
                not any(p.node == victim.name for p in observation.pods), "a pod is still on it"
            )
            outcome(f"{victim.instance.instance_type} replaced, {moved} pods moved")

    async def scale_to_nothing(self) -> None:
        """Scale to 0: Joiner removes every node, and every instance is terminated."""
        async with self._step("scale to 0") as outcome:
            nodes = len((await self.observer.observe()).nodes)
            await self._scale(0)
            await self._see(
                "all nodes, claims and instances are gone",
                lambda s: not (s.pods or s.nodes or s.claims or s.instances),
            )
            outcome(f"{nodes} nodes gone, every instance terminated")

    async def keep_a_volume(self) -> None:
        """A pod with an unbound PersistentVolumeClaim gets a node and a volume.

        Joiner removes the node after the pod, and the CSI driver the volume after the claim.
        """
        async with self._step("a pod with a volume") as outcome:
            await self.kube.create(STORAGE_CLASSES, STORAGE_CLASS)
            await self.kube.create(VOLUME_CLAIMS, VOLUME_CLAIM)
            await self.kube.create(
                DEPLOYMENTS, _add_volume(VOLUME_CLAIM, _inflate("keeper", *SIZES[0], 1))
            )
            observation = await self._see(
                "its pod runs", lambda s: s.running == 1 and _is_stable(s)
            )
            (instance,) = observation.instances
            await self._until("its volume is attached", self._volume_attached)
            zones = [zone for volume in await self._volumes() for zone in _zones(volume)]
            self._claim(zones == [instance.zone], f"the volume is not in {instance.zone}: {zones}")
            await self.kube.delete(f"{DEPLOYMENTS}/keeper")
            await self._see(
                "its node, claim and instance are gone",
                lambda s: not (s.pods or s.nodes or s.claims or s.instances),
            )
            await self.kube.delete(f"{VOLUME_CLAIMS}/{VOLUME_CLAIM['metadata']['name']}")
            await self._until("the volume is gone", self._volumes_left)
            outcome(f"bound and attached in {instance.zone}, detached before its node went")

    async def delete_a_busy_node(self, pods: int = 50) -> None:
        """`kubectl delete node` on a busy node: Joiner drains and terminates it; its pods move."""
        async with self._step(f"{pods} pods, and a node deleted by hand") as outcome:
            await self._scale(pods)
            before = await self._see(
                "every pod runs", lambda s: s.running >= pods and _is_stable(s)
            )
            victim = _busiest(before, before.nodes)
            uids = {p.uid for p in before.pods_on(victim.name)}
            await self.kube.delete(f"/api/v1/nodes/{victim.name}")
            observation = await self._see(
                "the node is gone and every pod runs",
                lambda s: s.running >= pods and not _knows(s, victim) and _is_stable(s),
            )
            self._claim(
                not uids & {p.uid for p in observation.pods}, "a pod outlived the node it ran on"
            )
            outcome(f"{victim.name} drained, {len(uids)} pods placed again")

    async def destroy(self) -> None:
        """`pulumi destroy` while pods run: no resources are left in the cloud or the cluster."""
        async with self._step("pulumi destroy, pods still running") as outcome:
            running = (await self.observer.observe()).running
            changes = await self._engine(self.engine.destroy, STACK)
            self.summary.left = await asyncio.to_thread(self.cloud.leftovers)
            self._claim(not self.summary.left, f"left in the cloud: {self.summary.left}")
            left = await self._left_in_cluster()
            self._claim(not left, f"left in the cluster: {', '.join(left)}")
            outcome(f"{changes.delete} resources deleted under {running} pods; nothing is left")

    # Helpers of the steps.

    @asynccontextmanager
    async def _step(self, title: str) -> AsyncIterator[Callable[[str], None]]:
        outcome: list[str] = []
        self.viewer.begin(title)
        began = time.monotonic()
        watcher = asyncio.create_task(self._watch())
        try:
            yield outcome.append
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        step = Step(title, time.monotonic() - began, "; ".join(outcome))
        self.summary.steps.append(step)
        self.viewer.end(step.title, step.seconds, step.outcome)

    async def _engine(self, operation: Callable[..., Changes], *arguments: object) -> Changes:
        """Run an operation of the Pulumi engine; cancelling the scenario interrupts it."""
        running = asyncio.create_task(asyncio.to_thread(operation, *arguments))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.engine.interrupt()
            with suppress(EngineError):
                await running
            raise

    async def _watch(self) -> None:
        while True:
            self.viewer.show(await self.observer.observe())
            await asyncio.sleep(POLL_SECONDS)

    async def _see(self, claim: str, holds: Callable[[Observation], bool]) -> Observation:
        async def check() -> str | None:
            return None if holds(self.observer.latest) else _describe(self.observer.latest)

        await self._until(claim, check)
        return self.observer.latest

    async def _until(self, claim: str, obstacle: Callable[[], object]) -> None:
        """Wait until `obstacle` returns None, with a new observation before each check."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            await self.observer.observe()
            seen = obstacle()
            seen = await seen if asyncio.iscoroutine(seen) else seen
            if seen is None:
                return
            if time.monotonic() > end:
                raise ClaimError(f"not within {PATIENCE_SECONDS:.0f} s: {claim}; seen: {seen}")
            await asyncio.sleep(POLL_SECONDS)

    def _claim(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise ClaimError(otherwise)

    async def _pods_ready(self, namespace: str, selector: str) -> int:
        pods, _ = await self.kube.list(
            f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector
        )
        return sum(holds(pod, "Ready") for pod in pods)

    async def _pools_ready(self) -> str | None:
        pools, _ = await self.kube.list("/apis/karpenter.sh/v1/nodepools")
        if not pools:
            return "there is no NodePool"
        for pool in pools:
            if not holds(pool, "Ready"):
                return f"NodePool {pool['metadata']['name']}: {pool.get('status')}"
        return None

    async def _volumes(self) -> list[Object]:
        volumes, _ = await self.kube.list("/api/v1/persistentvolumes")
        return volumes

    async def _volumes_left(self) -> str | None:
        return ", ".join(volume["metadata"]["name"] for volume in await self._volumes()) or None

    async def _volume_attached(self) -> str | None:
        attachments, _ = await self.kube.list("/apis/storage.k8s.io/v1/volumeattachments")
        attached = [attachment["status"]["attached"] for attachment in attachments]
        return None if attached == [True] else f"{attachments}"

    async def _scale(self, pods: int) -> None:
        share, rest = divmod(pods, len(SIZES))
        await asyncio.gather(
            *(
                self._deployment(number, cpu, memory, share + (number < rest))
                for number, (cpu, memory) in enumerate(SIZES)
            )
        )

    async def _deployment(self, number: int, cpu: str, memory: str, replicas: int) -> None:
        name = f"inflate-{number}"
        try:
            await self.kube.patch(f"{DEPLOYMENTS}/{name}", {"spec": {"replicas": replicas}})
        except NotFoundError:
            await self.kube.create(DEPLOYMENTS, _inflate(name, cpu, memory, replicas))

    async def _left_in_cluster(self) -> list[str]:
        left = []
        crds, _ = await self.kube.list("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        left += [
            f"CRD {c['metadata']['name']}" for c in crds if c["spec"]["group"] in KARPENTER_GROUPS
        ]
        for kind, path in (
            ("Deployment", "/apis/apps/v1/namespaces/kube-system/deployments"),
            ("ServiceAccount", "/api/v1/namespaces/kube-system/serviceaccounts"),
            ("ClusterRole", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
        ):
            objects, _ = await self.kube.list(path)
            left += [
                f"{kind} {o['metadata']['name']}"
                for o in objects
                if "karpenter" in o["metadata"]["name"]
            ]
        nodes, _ = await self.kube.list("/api/v1/nodes", labelSelector="karpenter.sh/nodepool")
        return left + [f"Node {n['metadata']['name']}" for n in nodes]

    def _lower_bound(self) -> float:
        """Return the proven lower bound of the launches in the controller's log, in $/h."""
        bound = 0.0
        for log in self.logs.glob("kube-system_karpenter-*_controller.log"):
            for line in log.read_text().splitlines():
                if '"lower-bound"' in line:
                    bound += float(json.loads(line)["lower-bound"])
        return bound


def _inflate(name: str, cpu: str, memory: str, replicas: int) -> Object:
    requests = {"cpu": cpu, "memory": memory}
    container = {
        "name": "inflate",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": requests},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}, "annotations": FREE_EVICTION},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
            },
        },
    }


def _consolidation_patch(policy: str) -> Object:
    """Return the patch of a NodePool that sets its consolidation policy."""
    return {"spec": {"disruption": {"consolidationPolicy": policy}}}


def _add_volume(claim: Object, deployment: Object) -> Object:
    """Add a claim's volume to the pods of a Deployment."""
    source = {"claimName": claim["metadata"]["name"]}
    pod = deployment["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "kept", "persistentVolumeClaim": source}]
    return deployment


def _zones(volume: Object) -> list[str]:
    """Return the zones that a volume is accessible from."""
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    return list(expression["values"])


def _busiest(observation: Observation, nodes: tuple[NodeView, ...] | list[NodeView]) -> NodeView:
    return max(nodes, key=lambda n: (len(observation.pods_on(n.name)), n.name))


def _knows(observation: Observation, node: NodeView) -> bool:
    """Return whether the node or its instance still exists."""
    return any(n.name == node.name for n in observation.nodes) or any(
        i.instance_id == node.instance.instance_id for i in observation.instances
    )


def _is_stable(observation: Observation) -> bool:
    """Return whether every instance has an initialized node that is not terminating."""
    ready = {
        n.instance.instance_id for n in observation.nodes if n.initialized and not n.terminating
    }
    return all(i.instance_id in ready for i in observation.instances)


def _describe(observation: Observation) -> str:
    return (
        f"{len(observation.pods)} pods, {observation.bound} bound, {observation.running} running; "
        f"{len(observation.nodes)} nodes, {len(observation.claims)} NodeClaims, "
        f"{len(observation.instances)} instances at {observation.cost:.4f} $/h"
    )
