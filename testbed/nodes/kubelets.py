"""Emulates the kubelets of the test cloud's instances and the AWS cloud controller manager.

Every running instance becomes a Node as its user data says. If it cannot join, the reason is
recorded. kwok then renews the Node's Lease, makes it Ready and runs its pods. When the instance
reboots, the Node gets another boot ID. When it stops or terminates, the Node becomes NotReady. When
the instance is terminated, the Node is deleted. After other controllers have removed their
finalizers, its pods are deleted as well.

Two properties of kwok shape this module. kwok adopts only a Node that has kwok's annotation at
its creation, so this module cannot choose when kwok makes the Node Ready. Instead, the taint
`uninitialized` keeps pods away until this module, as the cloud controller manager, removes it. kwok
also obeys the Node's Lease: it ignores a Node and its pods while another holder has the Lease.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from testbed.kube.client import (
    TRANSIENT,
    Change,
    ChangeType,
    ConflictError,
    KubeClient,
    NotFoundError,
    Object,
    Patch,
    holds,
)
from testbed.kube.kubeconfig import Kubeconfig
from testbed.nodes.instances import (
    GONE,
    KWOK_NODE,
    KWOK_STATUS,
    SHUTDOWN,
    SILENT,
    UNINITIALIZED,
    Instance,
    Listing,
    cloud_labels,
    registered_node,
)
from testbed.nodes.userdata import Bootstrap, UserDataError, dialect_of, parse_user_data
from testbed.processes.background import Background

log = logging.getLogger(__name__)

POLL_SECONDS = 20
RETRY_SECONDS = 1.0
NODE_GROUPS = frozenset({"system:bootstrappers", "system:nodes"})
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NODES = "/api/v1/nodes"


class RefusedError(Exception):
    """The instance cannot join the cluster; `for_good` means that retrying cannot succeed."""

    def __init__(self, reason: str, *, for_good: bool) -> None:
        super().__init__(reason)
        self.for_good = for_good


class Kubelets(Background):
    """Turns the instances of a test cloud into Nodes of a cluster.

    `start` returns once the current instances are known. Nodes stay as they are after `stop`.

    Args:
        kubeconfig: Kubeconfig of an administrator.
        cloud_url: URL of the test cloud.
        cluster_name: Name of the EKS cluster, which the user data must contain.
        join_delay_seconds: Time from a running instance to its Node (20 to 40 s in AWS).
        ready_delay_seconds: Shortest time from a Node's creation until pods can be scheduled on it.

    """

    def __init__(
        self,
        kubeconfig: Path,
        cloud_url: str,
        cluster_name: str = "joiner",
        join_delay_seconds: float = 1.0,
        ready_delay_seconds: float = 0.5,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._cloud_url = cloud_url.rstrip("/")
        self._cluster_name = cluster_name
        self._join_delay = join_delay_seconds
        self._ready_delay = ready_delay_seconds
        self._refused: dict[str, str] = {}
        super().__init__("kubelets")

    @property
    def refused(self) -> Mapping[str, str]:
        """Why instances have not joined, by instance ID."""
        return dict(self._refused)

    async def _main(self, ready: Callable[[], None]) -> None:
        kubeconfig = Kubeconfig.read(self._kubeconfig)
        async with (
            KubeClient(kubeconfig) as kube,
            aiohttp.ClientSession() as session,
            asyncio.TaskGroup() as tasks,
        ):
            admission = _Admission(kube, session, self._cloud_url, self._cluster_name)
            fleet = _Fleet(
                kube=kube,
                admission=admission,
                tasks=tasks,
                refused=self._refused,
                join_delay=self._join_delay,
                ready_delay=self._ready_delay,
            )
            tasks.create_task(_follow_nodes(kube, fleet))
            tasks.create_task(_follow_instances(session, self._cloud_url, fleet))
            await fleet.complete.wait()
            ready()


async def _follow_nodes(kube: KubeClient, fleet: _Fleet) -> None:
    async for change in kube.follow(NODES):
        fleet.notify_node(change)


async def _follow_instances(session: aiohttp.ClientSession, cloud_url: str, fleet: _Fleet) -> None:
    query: dict[str, str] = {}  # the first answer is immediate, even without instances
    while True:
        try:
            async with session.get(f"{cloud_url}/testbed/instances", params=query) as response:
                response.raise_for_status()
                answer = msgspec.json.decode(await response.read(), type=Listing)
        except (aiohttp.ClientError, TimeoutError) as exc:
            log.warning("cannot list the instances of the test cloud; retrying: %s", exc)
            query = {}  # a restarted cloud counts revisions from 0
            await asyncio.sleep(RETRY_SECONDS)
            continue
        query = {"since": str(answer.revision), "timeout": str(POLL_SECONDS)}
        fleet.notify_instances(answer.instances)


@dataclass
class _Fleet:
    """The kubelets of all instances, and the Nodes as last seen."""

    kube: KubeClient
    admission: _Admission
    tasks: asyncio.TaskGroup
    refused: dict[str, str]
    join_delay: float
    ready_delay: float
    kubelets: dict[str, _Kubelet] = field(default_factory=dict)  # by instance ID
    nodes: dict[str, Object] = field(default_factory=dict)  # by name
    # Addresses are reused, and so are node names. A name belongs to an instance until its
    # Node is gone; the next instance with the same name waits.
    owners: dict[str, str] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    _instances_known: bool = False
    _nodes_known: bool = False

    def notify_instances(self, instances: list[Instance]) -> None:
        present = {instance.id: instance for instance in instances}
        for instance in instances:
            self._notify(instance)
        for instance_id in self.kubelets.keys() - present.keys():
            kubelet = self.kubelets[instance_id]
            kubelet.notify(msgspec.structs.replace(kubelet.instance, state="terminated"))
        self._instances_known = True
        self._check_complete()

    def notify_node(self, change: Change) -> None:
        if change.type is ChangeType.SYNCED:
            self._nodes_known = True
            self._check_complete()
            return
        name = change.object["metadata"]["name"]
        if change.type is ChangeType.DELETED:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = change.object
        kubelet = self.kubelets.get(instance_id_of(change.object) or "")
        if kubelet is not None:
            if change.type is ChangeType.DELETED:
                kubelet.delay_joining()
            kubelet.changed.set()

    def forget(self, kubelet: _Kubelet) -> None:
        del self.kubelets[kubelet.instance.id]
        self.refused.pop(kubelet.instance.id, None)
        if self.owners.get(kubelet.name) == kubelet.instance.id:
            del self.owners[kubelet.name]

    def _notify(self, instance: Instance) -> None:
        known = self.kubelets.get(instance.id)
        if known is not None:
            known.notify(instance)
        elif instance.state not in GONE or self._node_of(instance):
            kubelet = self.kubelets[instance.id] = _Kubelet(self, instance)
            self.tasks.create_task(kubelet.live(), name=f"kubelet {instance.id}")

    def _node_of(self, instance: Instance) -> Object | None:
        node = self.nodes.get(instance.private_dns_name)
        return node if node and instance_id_of(node) == instance.id else None

    def _check_complete(self) -> None:
        if self._instances_known and self._nodes_known and not self.complete.is_set():
            self._adopt_orphans()
            self.complete.set()

    def _adopt_orphans(self) -> None:
        """Find Nodes whose instance disappeared while this process did not run."""
        for name, node in self.nodes.items():
            instance_id = instance_id_of(node)
            if instance_id is None or instance_id in self.kubelets:
                continue
            if node["metadata"].get("annotations", {}).get(KWOK_NODE) == "fake":
                self._notify(
                    _terminated_instance(
                        name, instance_id, node["spec"]["providerID"].split("/")[3]
                    )
                )


def instance_id_of(node: Object) -> str | None:
    """Return the instance ID in a Node's provider ID, or None if there is none."""
    match = re.fullmatch(r"aws:///[^/]+/(i-[0-9a-zA-Z]+)", node["spec"].get("providerID", ""))
    return match[1] if match else None


def _taint_keys(node: Object) -> list[str]:
    return [taint["key"] for taint in node["spec"].get("taints", [])]


def _terminated_instance(name: str, instance_id: str, zone: str) -> Instance:
    return Instance(
        id=instance_id,
        state="terminated",
        type="",
        zone=zone,
        private_ip="",
        private_dns_name=name,
        cpu=0,
        memory_mib=0,
        eni_pods=0,
    )


class _Kubelet:
    """One instance's kubelet: it reads the current state, takes one step and waits for a change."""

    def __init__(self, fleet: _Fleet, instance: Instance) -> None:
        self.instance = instance
        self.changed = asyncio.Event()
        self._fleet = fleet
        self._joins_at: float | None = None
        self._is_silent = False

    @property
    def name(self) -> str:
        return self.instance.private_dns_name

    def notify(self, instance: Instance) -> None:
        if instance != self.instance:
            self.instance = instance
            self.changed.set()

    def delay_joining(self) -> None:
        """Let the instance join again after the join delay, because its Node was deleted.

        Only a running instance joins; one that is terminating never does.
        """
        self._joins_at = None

    async def live(self) -> None:
        while True:
            self.changed.clear()
            try:
                if await self._is_over():
                    return self._fleet.forget(self)
                pause = await self._step()
            except TRANSIENT as exc:
                log.info("the kubelet of %s tries again: %s", self.instance.id, exc)
                pause = RETRY_SECONDS
            await self._wait(pause)

    async def _wait(self, pause: float | None) -> None:
        try:
            async with asyncio.timeout(pause):
                await self.changed.wait()
        except TimeoutError:
            return

    async def _is_over(self) -> bool:
        if self.instance.state not in GONE or self._node() is not None:
            return False
        if self._fleet.owners.get(self.name) == self.instance.id:
            await self._clear_away()
        return True

    async def _step(self) -> float | None:
        """Take one step; return the seconds until the next, or None to wait for a change."""
        node = self._node()
        if self.instance.state == "running":
            return await self._join() if node is None else await self._serve(node)
        if node is not None and self.instance.state in SILENT:
            await self._set_unreachable(node)
        elif node is not None and self.instance.state in GONE:
            await self._set_unreachable(node)
            await self._delete(node)
        return None

    def _node(self) -> Object | None:
        node = self._fleet.nodes.get(self.name)
        if node is None or instance_id_of(node) != self.instance.id:
            return None
        self._fleet.owners[self.name] = self.instance.id
        return node

    # --- joining

    async def _join(self) -> float | None:
        now = asyncio.get_running_loop().time()
        if self._joins_at is None:
            self._joins_at = now + self._fleet.join_delay
        if now < self._joins_at:
            return self._joins_at - now
        if self._fleet.owners.get(self.name, self.instance.id) != self.instance.id:
            return RETRY_SECONDS
        try:
            orders = await self._fleet.admission.admit(self.instance)
        except RefusedError as refusal:
            self._note(str(refusal))
            return None if refusal.for_good else RETRY_SECONDS
        self._fleet.refused.pop(self.instance.id, None)
        node = await self._fleet.kube.create(NODES, registered_node(self.instance, orders))
        self._fleet.nodes[self.name] = node
        return self._fleet.ready_delay

    def _note(self, refusal: str) -> None:
        if self._fleet.refused.get(self.instance.id) != refusal:
            self._fleet.refused[self.instance.id] = refusal
            log.warning("instance %s does not join: %s", self.instance.id, refusal)

    async def _serve(self, node: Object) -> float | None:
        """Report reboots, and initialize the Node once it had time to become ready."""
        self._is_silent = False
        if node["status"]["nodeInfo"]["bootID"] != self.instance.boot_id:
            await self._report_boot()
        if UNINITIALIZED not in _taint_keys(node):
            return None
        created = datetime.fromisoformat(node["metadata"]["creationTimestamp"])
        left = self._fleet.ready_delay - (datetime.now(UTC) - created).total_seconds()
        if left > 0:
            return left
        await self._initialize(node)
        return None

    async def _report_boot(self) -> None:
        """Write the boot ID of a rebooted instance; the Node stays ready, as on kwok."""
        await self._fleet.kube.patch(
            f"{NODES}/{self.name}/status",
            {"status": {"nodeInfo": {"bootID": self.instance.boot_id}}},
        )

    async def _initialize(self, node: Object) -> None:
        # Other clients change taints concurrently, and a JSON patch addresses the list by index.
        # If the index is out of date, the test fails, and the next change of the Node repeats it.
        taint = f"/spec/taints/{_taint_keys(node).index(UNINITIALIZED)}"
        change = [
            {"op": "test", "path": f"{taint}/key", "value": UNINITIALIZED},
            {"op": "remove", "path": taint},
            *(
                {"op": "add", "path": f"/metadata/labels/{key.replace('/', '~1')}", "value": value}
                for key, value in cloud_labels(self.instance).items()
            ),
        ]
        await self._fleet.kube.patch(f"{NODES}/{self.name}", change, how=Patch.JSON)

    # --- leaving

    async def _set_unreachable(self, node: Object) -> None:
        if self._is_silent and not holds(node, "Ready"):
            return
        try:
            await self._take_from_kwok()
            await self._report_unknown()
        except NotFoundError:
            log.debug("node %s went before its kubelet fell silent", self.name)
        self._is_silent = True

    async def _take_from_kwok(self) -> None:
        # The annotation comes first: kwok must see it before it sees the condition below,
        # which it would otherwise reset. An update that kwok has already begun may still
        # arrive later; then the condition is reported once more.
        kube = self._fleet.kube
        await kube.patch(
            f"{NODES}/{self.name}", {"metadata": {"annotations": {KWOK_STATUS: "custom"}}}
        )
        bygone = {"holderIdentity": f"{self.instance.id}-gone", "leaseDurationSeconds": 86400}
        try:
            await kube.patch(f"{LEASES}/{self.name}", {"spec": bygone})
        except NotFoundError:
            log.debug("node %s had no Lease yet", self.name)

    async def _report_unknown(self) -> None:
        silence = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": f"instance {self.instance.id} is {self.instance.state}",
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        node = await self._fleet.kube.patch(
            f"{NODES}/{self.name}/status",
            {"status": {"conditions": [silence]}},
            how=Patch.STRATEGIC,
        )
        if self.instance.state in ("stopping", "stopped") and SHUTDOWN not in _taint_keys(node):
            await self._taint_shutdown(node)

    async def _taint_shutdown(self, node: Object) -> None:
        taint = {"key": SHUTDOWN, "effect": "NoSchedule"}
        add: Object = {"op": "add", "path": "/spec/taints/-", "value": taint}
        if not node["spec"].get("taints"):
            add = {"op": "add", "path": "/spec/taints", "value": [taint]}
        await self._fleet.kube.patch(f"{NODES}/{self.name}", [add], how=Patch.JSON)

    async def _delete(self, node: Object) -> None:
        if node["metadata"].get("deletionTimestamp"):
            return
        try:
            await self._fleet.kube.delete(f"{NODES}/{self.name}", uid=node["metadata"]["uid"])
        except (NotFoundError, ConflictError):
            log.debug("node %s was deleted by another", self.name)

    async def _clear_away(self) -> None:
        """Delete the pods of a deleted Node without grace: no kubelet is left to stop them."""
        kube = self._fleet.kube
        pods, _ = await kube.list("/api/v1/pods", fieldSelector=f"spec.nodeName={self.name}")
        for pod in pods:
            metadata = pod["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            await _ignore_absence(kube.delete(path, grace_seconds=0, uid=metadata["uid"]))
        await _ignore_absence(kube.delete(f"{LEASES}/{self.name}"))


async def _ignore_absence(deletion: Any) -> None:
    try:
        await deletion
    except (NotFoundError, ConflictError):
        log.debug("it was gone already")


@dataclass(frozen=True)
class _Admission:
    """Checks whether the API server would accept an instance's kubelet."""

    kube: KubeClient
    session: aiohttp.ClientSession
    cloud_url: str
    cluster_name: str

    async def admit(self, instance: Instance) -> Bootstrap:
        """Return the kubelet's configuration.

        Raises RefusedError if the subnet cannot reach the API server, or if the user data or the
        role's access is wrong.
        """
        if not instance.reaches_out:
            raise RefusedError("its subnet has no way out: no route, no endpoints", for_good=False)
        try:
            orders = parse_user_data(instance.user_data)
        except UserDataError as exc:
            raise RefusedError(f"user data: {exc}", for_good=True) from exc
        spoken = dialect_of(instance.image_name)
        if spoken not in (None, orders.dialect):
            raise RefusedError(
                f"user data: it is written for {orders.dialect},"
                f" but image {instance.image_name} reads that of {spoken}",
                for_good=True,
            )
        self._require_this_cluster(orders)
        await self._require_access(instance)
        return orders

    def _require_this_cluster(self, orders: Bootstrap) -> None:
        if orders.cluster_name != self.cluster_name:
            raise RefusedError(
                f"user data: it names cluster {orders.cluster_name},"
                f" but this is {self.cluster_name}",
                for_good=True,
            )
        server = self.kube.kubeconfig.server
        if orders.endpoint.rstrip("/").lower() != server.lower():
            raise RefusedError(
                f"user data: it names API server {orders.endpoint}, but this is {server}",
                for_good=True,
            )
        if not _is_same_certificate(
            orders.certificate_authority, self.kube.kubeconfig.certificate_authority
        ):
            raise RefusedError(
                "user data: its certificate authority did not sign the API server's certificate",
                for_good=True,
            )

    async def _require_access(self, instance: Instance) -> None:
        if not instance.role_arn:
            raise RefusedError("it has no instance profile with a role", for_good=False)
        if instance.role_arn in await self._node_roles():
            return
        if await self._is_mapped(instance.role_arn):
            return
        raise RefusedError(
            f"role {instance.role_arn} has no access entry of type EC2_LINUX"
            " and no mapping in the aws-auth ConfigMap",
            for_good=False,
        )

    async def _node_roles(self) -> set[str]:
        async with self.session.get(f"{self.cloud_url}/testbed/access-entries") as response:
            response.raise_for_status()
            entries = await response.json()
        return {
            entry["principalArn"]
            for entry in entries
            if entry["type"] == "EC2_LINUX"
            and entry.get("clusterName", self.cluster_name) == self.cluster_name
        }

    async def _is_mapped(self, role_arn: str) -> bool:
        try:
            auth = await self.kube.get("/api/v1/namespaces/kube-system/configmaps/aws-auth")
        except NotFoundError:
            return False
        mapped = yaml.safe_load((auth.get("data") or {}).get("mapRoles") or "") or []
        # aws-auth holds role ARNs without their path.
        plain = re.sub(r":role/.*/", ":role/", role_arn)
        return any(
            entry.get("rolearn") == plain and NODE_GROUPS.issubset(entry.get("groups") or [])
            for entry in mapped
        )


def _is_same_certificate(encoded: str, pem: bytes) -> bool:
    try:
        return base64.b64decode(encoded, validate=True).split() == pem.split()
    except binascii.Error:
        return False
