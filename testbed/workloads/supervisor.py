"""The kubelet of the system nodes: it follows the pods bound to them and runs each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from pathlib import Path

import aiohttp

from testbed.kube.client import Change, ChangeType, KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.processes import owned
from testbed.processes.background import Background
from testbed.workloads.addresses import AddressBlock
from testbed.workloads.podidentity import HasPodIdentity, Webhook
from testbed.workloads.pods import Host, Pod, log_file
from testbed.workloads.systemnodes import SystemNode

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0  # grace period of pods when the testbed stops


class Workloads(Background):
    """The system nodes, two by default, whose pods are local processes.

    `directory` is for this object alone. The processes that this object starts are identified by
    the directory, and their output is in its folder `logs`. Pods run in `checkout` and use the
    interpreter of this process. `start` returns once the nodes are ready and their pods are known.
    `stop` ends every process; Nodes and Pods stay as they are.
    """

    def __init__(
        self,
        kubeconfig: Path,
        cloud_url: str,
        directory: Path,
        *,
        checkout: Path,
        cluster_name: str = "joiner",
        region: str = "us-west-2",
        node_count: int = 2,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._cloud_url = cloud_url.rstrip("/")
        self._directory = directory.absolute()
        self._checkout = checkout.absolute()
        self._cluster_name = cluster_name
        self._region = region
        self._node_count = node_count
        self._pods: dict[str, Pod] = {}  # by UID
        super().__init__("workloads")

    @property
    def logs_directory(self) -> Path:
        """The directory of the containers' output; it remains after `stop`."""
        return self._directory / "logs"

    def logs(self, pod: str, *, namespace: str = "default") -> str:
        """Return the output of a pod, so far or after its end."""
        pattern = log_file(self.logs_directory, namespace, pod, "*").name
        files = sorted(self.logs_directory.glob(pattern))
        return "".join(file.read_text(errors="replace") for file in files)

    def kill(self, pod: str, *, namespace: str) -> int:
        """Kill the main process of each container of a pod; return their number."""
        return self.call(self._kill(pod, namespace))

    async def _kill(self, name: str, namespace: str) -> int:
        containers = [
            container
            for pod in self._pods.values()
            if (pod.name, pod.namespace) == (name, namespace)
            for container in pod.containers
            if container.is_running
        ]
        for container in containers:
            container.send(signal.SIGKILL)
        return len(containers)

    async def _main(self, ready: Callable[[], None]) -> None:
        with (
            owned.temporary_directory(self._directory / "pods") as pods_directory,
            contextlib.closing(AddressBlock.reserve(str(self._directory))) as block,
        ):
            connector = aiohttp.TCPConnector(force_close=True)
            async with (
                KubeClient(Kubeconfig.read(self._kubeconfig)) as kube,
                aiohttp.ClientSession(connector=connector) as session,
            ):
                nodes = [
                    SystemNode(index, self._region, block.of_node(index))
                    for index in range(self._node_count)
                ]
                hosts = [
                    Host(
                        kube=kube,
                        session=session,
                        addresses=block,
                        address=node.address,
                        pods_directory=pods_directory,
                        logs_directory=self.logs_directory,
                        checkout=self._checkout,
                        cloud_url=self._cloud_url,
                        region=self._region,
                    )
                    for node in nodes
                ]
                webhook = Webhook(
                    kube=kube, region=self._region, has_pod_identity=self._has_pod_identity(session)
                )
                async with webhook.serving():
                    await self._serve(nodes, hosts, ready)

    def _has_pod_identity(self, session: aiohttp.ClientSession) -> HasPodIdentity:
        async def has_pod_identity(namespace: str, service_account: str) -> bool:
            url = f"{self._cloud_url}/testbed/pod-identity-associations"
            async with session.get(url) as response:
                response.raise_for_status()
                associations = await response.json()
            wanted = (self._cluster_name, namespace, service_account)
            return any(
                (each["clusterName"], each["namespace"], each["serviceAccount"]) == wanted
                for each in associations
                if each["isSeen"]
            )

        return has_pod_identity

    async def _serve(
        self, nodes: list[SystemNode], hosts: list[Host], ready: Callable[[], None]
    ) -> None:
        lives: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.TaskGroup() as tasks:
                known = [asyncio.Event() for _ in nodes]
                for node, host, event in zip(nodes, hosts, known, strict=True):
                    await node.register(host.kube)
                    tasks.create_task(node.keep_alive(host.kube))
                    tasks.create_task(self._follow_pods(node, host, lives, event))
                await asyncio.gather(*(event.wait() for event in known))
                ready()
        finally:
            await self._end(lives)

    async def _follow_pods(
        self, node: SystemNode, host: Host, lives: set[asyncio.Task[None]], known: asyncio.Event
    ) -> None:
        changes = host.kube.follow("/api/v1/pods", fieldSelector=f"spec.nodeName={node.name}")
        async for change in changes:
            if change.type is ChangeType.SYNCED:
                known.set()
            elif (pod := self._notify(change, host)) is not None:
                life = asyncio.create_task(self._live(pod), name=f"pod {pod.namespace}/{pod.name}")
                lives.add(life)
                life.add_done_callback(lives.discard)
                life.add_done_callback(_report_failure)

    def _notify(self, change: Change, host: Host) -> Pod | None:
        """Pass a change to its pod; return the pod if it is new, else None."""
        uid = change.object["metadata"]["uid"]
        pod = self._pods.get(uid)
        if change.type is ChangeType.DELETED:
            if pod is not None:
                pod.stop(0.0, is_object_left=False)
            return None
        if pod is not None:
            pod.notify(change.object)
            return None
        pod = self._pods[uid] = Pod(host, change.object)
        pod.notify(change.object)
        return pod

    async def _live(self, pod: Pod) -> None:
        try:
            await pod.live()
        finally:
            del self._pods[str(pod.object["metadata"]["uid"])]

    async def _end(self, lives: set[asyncio.Task[None]]) -> None:
        for pod in list(self._pods.values()):
            pod.stop(STOP_SECONDS, is_object_left=False)
        await asyncio.gather(*lives, return_exceptions=True)


def _report_failure(life: asyncio.Task[None]) -> None:
    if not life.cancelled() and (failure := life.exception()) is not None:
        log.error("%s failed", life.get_name(), exc_info=failure)
