"""One pod on a system node, from its binding to its deletion."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from testbed.kube.client import TRANSIENT, ConflictError, KubeClient, NotFoundError, Object, Patch
from testbed.kube.kubeconfig import make_kubeconfig
from testbed.workloads.addresses import AddressBlock, reported_address
from testbed.workloads.containers import Container, Place, timestamp
from testbed.workloads.environment import Surroundings, resolve
from testbed.workloads.podidentity import AGENT
from testbed.workloads.systemnodes import ALLOCATABLE
from testbed.workloads.tokens import TokenFile, write_atomically

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
SETTLE_SECONDS = 2.0  # for a container that was stopped while it waited for the API server


@dataclass(frozen=True, kw_only=True)
class Host:
    """What a node provides to every pod."""

    kube: KubeClient
    session: aiohttp.ClientSession
    addresses: AddressBlock
    address: str
    pods_directory: Path
    logs_directory: Path
    checkout: Path
    cloud_url: str
    region: str


@dataclass(frozen=True)
class _Stop:
    grace_seconds: float
    is_object_left: bool


@dataclass
class Pod:
    """A pod bound to a system node. `live` runs it to its end; `notify` reports object changes."""

    host: Host
    object: Object
    containers: list[Container] = field(default_factory=list)
    init_containers: list[Container] = field(default_factory=list)
    _address: str = ""
    _started_at: str = field(default_factory=timestamp)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _stop: asyncio.Future[_Stop] = field(default_factory=lambda: asyncio.Future())
    _transitions: dict[str, tuple[str, str]] = field(default_factory=dict)  # type → status, since
    _renewals: list[asyncio.Task[None]] = field(default_factory=list)
    _given: dict[str, str] | None = None
    _tokens: dict[tuple[str, str], Path] = field(default_factory=dict)  # volume, path in it → file

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.object["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return str(self.object["metadata"]["namespace"])

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    @property
    def _directory(self) -> Path:
        return self.host.pods_directory / str(self.object["metadata"]["uid"])

    def notify(self, changed: Object) -> None:
        """Record the current object; a deletion timestamp stops the pod."""
        self.object = changed
        if changed["metadata"].get("deletionTimestamp"):
            grace = changed["metadata"].get("deletionGracePeriodSeconds") or 0
            self.stop(float(grace), is_object_left=True)

    def stop(self, grace_seconds: float, *, is_object_left: bool) -> None:
        """Ask the pod to stop; later calls have no effect.

        If `is_object_left`, `live` reports the end of the pod and deletes the Pod object. Otherwise
        `live` leaves the object as it is.
        """
        if not self._stop.done():
            self._stop.set_result(_Stop(grace_seconds, is_object_left))

    async def live(self) -> None:
        """Run the pod until it is asked to stop, then remove everything that belongs to it."""
        if self.object.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return await self._delete_object(await self._stop)
        self._address = self.host.addresses.take()
        self._make_containers()
        reporting = asyncio.create_task(self._report_changes())
        running = asyncio.create_task(self._run())
        try:
            await asyncio.wait((running, self._stop), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            asked = await self._stop
            if not asked.is_object_left:
                reporting.cancel()  # a node that shuts down does not report the end of its pods
            await self._stop_containers(asked.grace_seconds)
            await asyncio.wait((running,), timeout=SETTLE_SECONDS)
            if asked.is_object_left:
                await self._report()
            reporting.cancel()
            await self._delete_object(asked)
        finally:
            await self._clear_away(reporting, running)

    # --- running

    def _make_containers(self) -> None:
        spec = self.object["spec"]
        policy = spec.get("restartPolicy", "Always")
        # A failed init container is retried unless the pod's restart policy is Never.
        init_policy = "Never" if policy == "Never" else "OnFailure"
        self.init_containers = [
            self._container(each, init_policy) for each in spec.get("initContainers") or []
        ]
        self.containers = [self._container(each, policy) for each in spec["containers"]]

    def _container(self, spec: Object, restart_policy: str) -> Container:
        directory = self._directory / str(spec["name"])
        place = Place(
            directory=directory,
            log=log_file(self.host.logs_directory, self.namespace, self.name, str(spec["name"])),
            working_directory=self.host.checkout,
            address=self._address,
            session=self.host.session,
        )
        return Container(
            spec=spec,
            place=place,
            environment=self._environment,
            restart_policy=restart_policy,
            grace_seconds=float(self.object["spec"].get("terminationGracePeriodSeconds", 30)),
            changed=self._changed.set,
        )

    async def _run(self) -> None:
        self._changed.set()
        for container in self.init_containers:
            await container.run()
            if container.exit_code != 0:
                return
        await asyncio.gather(*(container.run() for container in self.containers))

    async def _stop_containers(self, grace_seconds: float) -> None:
        every = [*self.init_containers, *self.containers]
        await asyncio.gather(*(container.stop(grace_seconds) for container in every))

    async def _environment(self, container: Object) -> dict[str, str]:
        if self._given is None:
            self._given = await self._prepare()
        surroundings = Surroundings(
            pod=self.object,
            address=self._address,
            host_address=self.host.address,
            allocatable=ALLOCATABLE,
            read=self._read,
        )
        variables = await resolve(container, surroundings, self._given)
        found = self._found_here(container)
        return {name: found.get(value, value) for name, value in variables.items()}

    def _found_here(self, container: Object) -> dict[str, str]:
        """Return the local counterpart of each address and path that a container uses on EKS."""
        mounts = [
            (volume, path, file, mount["mountPath"])
            for (volume, path), file in self._tokens.items()
            for mount in container.get("volumeMounts") or []
            if mount["name"] == volume
        ]
        return {
            f"{AGENT}/v1/credentials": f"{self.host.cloud_url}/v1/credentials",
            **{f"{mounted_at}/{path}": str(file) for _, path, file, mounted_at in mounts},
        }

    async def _read(self, kind: str, name: str) -> Object:
        return await self.host.kube.get(f"/api/v1/namespaces/{self.namespace}/{kind}/{name}")

    async def _prepare(self) -> dict[str, str]:
        """Fetch the pod's tokens and return the variables that all of its containers get."""
        server = self.host.kube.kubeconfig.server
        address, _, port = server.partition("://")[2].rpartition(":")
        given = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self._directory),
            "HOSTNAME": self.name,
            "PYTHONPATH": str(self.host.checkout),
            "PYTHONUNBUFFERED": "1",
            "KUBERNETES_SERVICE_HOST": address,
            "KUBERNETES_SERVICE_PORT": port,
            "BIND_ADDRESS": self._address,
            "AWS_ENDPOINT_URL": self.host.cloud_url,
            "AWS_REGION": self.host.region,
        }
        account = await self._service_account()
        if self._mounts_token(account):
            given["KUBECONFIG"] = await self._mount_token()
        await self._project_tokens()
        return given

    async def _service_account(self) -> Object:
        name = self.object["spec"].get("serviceAccountName") or "default"
        return await self._read("serviceaccounts", name)

    def _mounts_token(self, account: Object) -> bool:
        mounts = self.object["spec"].get("automountServiceAccountToken")
        if mounts is None:
            mounts = account.get("automountServiceAccountToken")
        return mounts is not False

    async def _mount_token(self) -> str:
        token = TokenFile(path=self._directory / "tokens" / "kubernetes")
        await self._project(token)
        path = self._directory / "kubeconfig"
        cluster = self.host.kube.kubeconfig
        user = {"tokenFile": str(token.path)}
        authority = cluster.certificate_authority
        content = make_kubeconfig("pod", cluster.server, authority, user, namespace=self.namespace)
        write_atomically(path, content)
        return str(path)

    async def _project_tokens(self) -> None:
        """Fetch the tokens in the pod's volumes for audiences other than the API server."""
        for volume in self.object["spec"].get("volumes") or []:
            for source in (volume.get("projected") or {}).get("sources") or []:
                asked = source.get("serviceAccountToken") or {}
                if not asked.get("audience"):
                    continue
                file = self._directory / "tokens" / volume["name"] / asked["path"]
                token = TokenFile(
                    path=file,
                    audience=asked["audience"],
                    lifetime_seconds=asked["expirationSeconds"],
                )
                await self._project(token)
                self._tokens[volume["name"], asked["path"]] = file

    async def _project(self, token: TokenFile) -> None:
        due = await token.write(self.host.kube, self.object)
        renewal = token.renew(self.host.kube, self.object, due)
        self._renewals.append(asyncio.create_task(renewal))

    # --- reporting

    async def _report_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._report()
            except TRANSIENT as exc:
                log.info("writing the status of pod %s again: %s", self.name, exc)
                self._changed.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _report(self) -> None:
        body = {"metadata": {"uid": self.object["metadata"]["uid"]}, "status": self._status()}
        try:
            await self.host.kube.patch(f"{self._path}/status", body, how=Patch.STRATEGIC)
        except (NotFoundError, ConflictError):
            log.debug("pod %s is gone", self.name)

    def _status(self) -> Object:
        has_begun = all(container.exit_code == 0 for container in self.init_containers)
        are_ready = has_begun and all(container.is_ready for container in self.containers)
        status: Object = {
            "phase": self._phase(),
            "hostIP": self.host.address,
            "hostIPs": [{"ip": self.host.address}],
            "podIP": reported_address(self._address),
            "podIPs": [{"ip": reported_address(self._address)}],
            "startTime": self._started_at,
            "conditions": [
                self._condition("PodReadyToStartContainers", True),
                self._condition("Initialized", has_begun),
                self._condition("ContainersReady", are_ready),
                self._condition("Ready", are_ready),
            ],
            "containerStatuses": [container.status for container in self.containers],
        }
        if self.init_containers:
            status["initContainerStatuses"] = [each.status for each in self.init_containers]
        return status

    def _phase(self) -> str:
        codes = [container.exit_code for container in self.containers]
        policy = self.object["spec"].get("restartPolicy", "Always")
        is_over = self._stop.done() or policy != "Always"
        if any(each.exit_code and policy == "Never" for each in self.init_containers):
            return "Failed"
        if is_over and all(code is not None for code in codes):
            return "Failed" if any(codes) else "Succeeded"
        if all(container.exit_code == 0 for container in self.init_containers) and any(
            container.is_running or container.restarts or container.exit_code is not None
            for container in self.containers
        ):
            return "Running"
        return "Pending"

    def _condition(self, name: str, holds: bool) -> Object:
        status = "True" if holds else "False"
        known, since = self._transitions.get(name, ("", ""))
        if known != status:
            since = timestamp()
            self._transitions[name] = (status, since)
        condition = {"type": name, "status": status, "lastTransitionTime": since}
        if not holds:
            condition["reason"] = "ContainersNotReady"
        return condition

    # --- ending

    async def _delete_object(self, asked: _Stop) -> None:
        """Delete the object, as a kubelet does once none of the pod's containers runs."""
        while asked.is_object_left:
            try:
                uid = str(self.object["metadata"]["uid"])
                await self.host.kube.delete(self._path, grace_seconds=0, uid=uid)
            except (NotFoundError, ConflictError):
                log.debug("pod %s was deleted by another", self.name)
            except TRANSIENT as exc:
                log.info("pod %s is deleted again: %s", self.name, exc)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            return

    async def _clear_away(self, *tasks: asyncio.Task[None]) -> None:
        every = [*tasks, *self._renewals]
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)
        for container in [*self.init_containers, *self.containers]:
            await container.abandon()
        shutil.rmtree(self._directory, ignore_errors=True)
        self.host.addresses.give_back(self._address)


def log_file(directory: Path, namespace: str, pod: str, container: str) -> Path:
    """Return the file that a container's output goes to."""
    return directory / f"{namespace}_{pod}_{container}.log"
