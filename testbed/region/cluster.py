"""A real Kubernetes control plane, with kwok as the kubelets.

kwokctl configures, starts and deletes etcd, kube-apiserver, kube-controller-manager,
kube-scheduler and kwok. Each cluster has its own directory and its own loopback ports, so that
any number of clusters run side by side. kwok only manages nodes annotated
`kwok.x-k8s.io/node: fake`.

`_configuration` states the differences from kwokctl's defaults and the reasons for them.
"""

from __future__ import annotations

import base64
import os
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import requests
import yaml

from testbed.kube.kubeconfig import make_kubeconfig
from testbed.processes import binaries, owned
from testbed.processes.ports import free_ports
from testbed.progress import SILENCE, Progress

COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok-controller",
)
RESTARTED = ("kube-controller-manager", "kube-scheduler")
"""Components that are restarted if they exit, as a kubelet does with static pods."""

MOST_RESTARTS = 5
"""Number of restarts of a component; one that exits again after that is broken."""

WATCH_SECONDS = 1.0
"""Interval between checks that the components of `RESTARTED` still run, in seconds."""

STAGES = Path(__file__).with_name("stages.yaml")
"""File of kwok's Stage objects, which change or delete pods and nodes, besides kwok's own."""

READY_SECONDS = 90.0
"""Timeout for the control plane to become ready, in seconds.

It needs about 5 s, and many times that on a busy machine.
"""

ATTEMPTS = 3
"""Number of attempts to choose ports, if another process takes one before its use."""


class ClusterFailedError(RuntimeError):
    """The control plane did not start, or a component exited; includes the end of its log."""


@dataclass(kw_only=True)
class Cluster:
    """One control plane in `directory`, which must not exist before and is removed at the end."""

    directory: Path
    name: str = "joiner"
    progress: Progress = SILENCE
    issuer: str = field(
        default_factory=lambda: (
            f"https://oidc.eks.us-west-2.amazonaws.com/id/{uuid.uuid4().hex.upper()}"
        )
    )
    """Issuer and only audience of service account tokens, in EKS's format.

    Its keys can be read without credentials at `<server>/openid/v1/jwks`.
    """

    feature_gates: Collection[str] = ()
    """Feature gates of Kubernetes to enable in every component."""

    served: Collection[str] = ()
    """API versions to serve that are disabled by default, such as `scheduling.k8s.io/v1beta1`."""

    ports: dict[str, int] = field(default_factory=dict, init=False)
    _owned: ExitStack = field(default_factory=ExitStack, init=False, repr=False)
    _restarts: Counter[str] = field(default_factory=Counter, init=False)
    _restarted: Collection[str] = field(default=(), init=False)
    """The components that are restarted now if they exit."""

    def start(self) -> None:
        """Start the control plane; return once pods can be created and scheduled.

        Raises `ClusterFailedError` or `binaries.BinaryUnavailableError`, after stopping everything.
        """
        binaries.ensure("kwokctl", progress=self.progress)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self.progress.stage(f"control plane of {self.name}"):
                    self._attempt()
            except BaseException as exc:
                self.stop()
                taken = isinstance(exc, ClusterFailedError) and "address already in use" in str(exc)
                if not taken or attempt == ATTEMPTS:
                    raise
                self.progress.note("another process took a port; trying others")
            else:
                return

    def stop(self) -> None:
        """Stop every process and remove the directory. Does nothing if nothing was started."""
        self._owned.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, with embedded certificates."""
        return self.directory / "kubeconfig.yaml"

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://127.0.0.1:{self.ports['kube-apiserver']}"

    @property
    def ca_data(self) -> str:
        """The certificate authority of the API server: base64-encoded PEM, as in EKS."""
        return self._base64_of("ca.crt")

    @property
    def serving_certificate(self) -> tuple[Path, Path]:
        """A certificate for servers on loopback, signed by the cluster's CA, and its key."""
        return self._pki("admin.crt"), self._pki("admin.key")

    @property
    def pids(self) -> dict[str, int]:
        """Component → process ID of each started component."""
        pids = {}
        for file in (self._home / "pids").glob("*.pid"):
            # kwokctl may be writing the file while it restarts the component.
            with suppress(FileNotFoundError, ValueError):
                pids[file.stem] = int(file.read_text())
        return pids

    def check(self) -> None:
        """Raise `ClusterFailedError` if a component has exited and will not be restarted."""
        alive = set(owned.belonging_to(self.directory))
        for component, pid in self.pids.items():
            if pid not in alive and not self._may_restart(component):
                words = owned.log_tail(self._home / "logs" / f"{component}.log")
                raise ClusterFailedError(f"{component} ended:\n{words}")

    def _attempt(self) -> None:
        self._owned.enter_context(owned.temporary_directory(self.directory))
        self._choose_ports()
        configuration = self.directory / "kwokctl.yaml"
        configuration.write_text(yaml.safe_dump_all(self._configuration()))
        self._owned.callback(self._delete)
        self._kwokctl("create", "cluster", self._own_kubeconfig, f"--config={configuration}")
        self._write_kubeconfig()
        self._owned.enter_context(self._watched())
        self._wait_until_ready()
        self._publish_issuer_keys()
        self._restarted = RESTARTED

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Restart the components in `_restarted` if they exit while the block runs."""
        stopping = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(stopping,), daemon=True)
        # It exits if the API server is not healthy within 10 s; others have no reason to, yet.
        self._restarted = ("kube-controller-manager",)
        watcher.start()
        try:
            yield
        finally:
            self._restarted = ()
            stopping.set()
            watcher.join()

    def _watch(self, stopping: threading.Event) -> None:
        while not stopping.wait(WATCH_SECONDS):
            ended = [
                name for name in self._restarted if self._may_restart(name) and not self._runs(name)
            ]
            if not ended:
                continue
            for component in ended:
                self._restarts[component] += 1
                self.progress.note(f"{component} ended; starting it again")
                # kwokctl considers a process running until its parent has reaped it.
                self._pid_file(component).unlink(missing_ok=True)
            with suppress(ClusterFailedError):  # retried at the next check
                self._kwokctl("start", "cluster", "--timeout=30s")

    def _may_restart(self, component: str) -> bool:
        return component in self._restarted and self._restarts[component] < MOST_RESTARTS

    def _runs(self, component: str) -> bool:
        pid = self.pids.get(component)
        return pid is not None and owned.identity(pid) is not None

    def _pid_file(self, component: str) -> Path:
        return self._home / "pids" / f"{component}.pid"

    def _delete(self) -> None:
        # A partly created cluster cannot be deleted completely; the keeper stops the rest.
        ending = {pid: owned.identity(pid) for pid in self.pids.values()}
        with suppress(ClusterFailedError):
            self._kwokctl("delete", "cluster", self._own_kubeconfig)
            owned.await_end(ending)

    def _choose_ports(self) -> None:
        names = (*COMPONENTS, "etcd-peer")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))

    def _kwokctl(self, *arguments: str) -> None:
        ended = subprocess.run(
            [
                binaries.ensure("kwokctl"),
                f"--name={self.name}",
                *arguments,
            ],
            env=owned.marked_environment(self.directory, self._environment()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            start_new_session=True,
        )
        if ended.returncode:
            raise ClusterFailedError(f"kwokctl {' '.join(arguments)} failed:\n{ended.stdout}")

    @property
    def _own_kubeconfig(self) -> str:
        """The option that keeps kwokctl from writing to the user's own kubeconfig."""
        return f"--kubeconfig={self.directory / 'kwokctl-kubeconfig.yaml'}"

    def _environment(self) -> dict[str, str]:
        # A proxy for external traffic must not apply between the components, and kwokctl must
        # not see the user's settings.
        own = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("KWOK_") and key.lower() not in ("http_proxy", "https_proxy")
        }
        return {
            **own,
            "GOGC": "300",  # the API server spends a tenth of its time on garbage collection
            "KWOK_WORKDIR": str(self.directory / "kwokctl"),
            "KWOK_KUBECTL_BINARY": str(binaries.ensure("kubectl")),
        }

    @property
    def _home(self) -> Path:
        return self.directory / "kwokctl" / "clusters" / self.name

    def _pki(self, name: str) -> Path:
        return self._home / "pki" / name

    def _configuration(self) -> list[dict[str, Any]]:
        """Return kwokctl's configuration: its options, and additional flags of each component."""
        # Otherwise each component signs its own certificate, which no client can verify.
        certificate, key = self.serving_certificate
        serving = {"tls-cert-file": str(certificate), "tls-private-key-file": str(key)}
        # One replica of each. With a Lease, it exits if a busy machine delays the renewal.
        alone = {**serving, "leader-elect": "false"}
        return [
            {
                "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
                "kind": "KwokctlConfiguration",
                "options": {
                    "runtime": "binary",
                    "bindAddress": "127.0.0.1",
                    # Thousands of pods must not wait for a client's rate limit.
                    "disableQPSLimits": True,
                    "kubeFeatureGates": ",".join(f"{gate}=true" for gate in self.feature_gates),
                    "kubeRuntimeConfig": ",".join(f"{version}=true" for version in self.served),
                    "etcdPort": self.ports["etcd"],
                    "etcdPeerPort": self.ports["etcd-peer"],
                    "kubeApiserverPort": self.ports["kube-apiserver"],
                    "kubeControllerManagerPort": self.ports["kube-controller-manager"],
                    "kubeSchedulerPort": self.ports["kube-scheduler"],
                    "kwokControllerPort": self.ports["kwok-controller"],
                    "etcdBinary": _binary("etcd"),
                    "kubeApiserverBinary": _binary("kube-apiserver"),
                    "kubeControllerManagerBinary": _binary("kube-controller-manager"),
                    "kubeSchedulerBinary": _binary("kube-scheduler"),
                    "kwokControllerBinary": _binary("kwok"),
                    "kubectlBinary": _binary("kubectl"),
                },
                "componentsPatches": [
                    # etcd's data never outlives its process, so it need not survive a crash.
                    _patch("etcd", added={"unsafe-no-fsync": "true"}),
                    _patch(
                        "kube-apiserver",
                        replaced={"service-account-issuer": self.issuer},
                        added={
                            "service-account-jwks-uri": f"{self.server}/openid/v1/jwks",
                            # Only the endpoints of the Service `kubernetes` show this address. It
                            # may not be loopback, and a machine without a network has no other.
                            "advertise-address": "192.0.2.1",
                            # With the default of 100, kube-scheduler opens a connection for each
                            # of the next requests when it binds more pods at once.
                            "http2-max-streams-per-connection": "1000",
                        },
                    ),
                    _patch("kube-controller-manager", added=alone),
                    _patch("kube-scheduler", added=alone),
                    _patch(
                        "kwok-controller",
                        replaced={"manage-all-nodes": "false"},
                        added={
                            "manage-nodes-with-annotation-selector": "kwok.x-k8s.io/node=fake",
                            "config": str(STAGES),
                        },
                    ),
                ],
            },
        ]

    def _write_kubeconfig(self) -> None:
        """Write a self-contained kubeconfig; kwokctl's own refers to files of the cluster."""
        user = {
            "client-certificate-data": self._base64_of("admin.crt"),
            "client-key-data": self._base64_of("admin.key"),
        }
        authority = self._pki("ca.crt").read_bytes()
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(make_kubeconfig(self.name, self.server, authority, user))

    def _base64_of(self, name: str) -> str:
        return base64.b64encode(self._pki(name).read_bytes()).decode()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while waiting := self._not_ready():
            self.check()
            if time.monotonic() > deadline:
                raise ClusterFailedError(
                    f"{waiting} is not ready after {READY_SECONDS:.0f} s:\n"
                    + owned.log_tail(self._home / "logs" / f"{waiting}.log")
                )
            time.sleep(0.05)

    def _not_ready(self) -> str | None:
        """Return the first component that is not ready, in the order of dependencies.

        None if all are.
        """
        urls = {
            "kube-apiserver": f"{self.server}/readyz",
            "kube-controller-manager": self._local("https", "kube-controller-manager"),
            "kube-scheduler": self._local("https", "kube-scheduler"),
            "kwok-controller": self._local("http", "kwok-controller"),
        }
        for component, url in urls.items():
            if self._ask("GET", url) is None:
                return component
        # The API server refuses pods until their namespace has its service account.
        account = f"{self.server}/api/v1/namespaces/default/serviceaccounts/default"
        return None if self._ask("GET", account) else "kube-controller-manager"

    def _local(self, scheme: str, component: str) -> str:
        return f"{scheme}://127.0.0.1:{self.ports[component]}/healthz"

    def _ask(self, method: str, url: str, body: object = None) -> requests.Response | None:
        """Send a request as the administrator; return None without a successful answer."""
        with requests.Session() as session:
            session.trust_env = False
            session.cert = (str(self._pki("admin.crt")), str(self._pki("admin.key")))
            session.verify = str(self._pki("ca.crt"))
            try:
                answer = session.request(method, url, json=body, timeout=5)
            except (requests.ConnectionError, requests.Timeout):
                return None
            return answer if answer.ok else None

    def _publish_issuer_keys(self) -> None:
        """Allow unauthenticated reads of the issuer's keys, as EKS does, for the cloud's checks."""
        role = "system:service-account-issuer-discovery"
        group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group"}
        binding = {
            "metadata": {"name": "testbed:service-account-issuer-discovery"},
            "roleRef": {"apiGroup": group["apiGroup"], "kind": "ClusterRole", "name": role},
            "subjects": [{**group, "name": "system:unauthenticated"}],
        }
        url = f"{self.server}/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        if self._ask("POST", url, binding) is None:
            raise ClusterFailedError("the API server refused the binding of the issuer's keys")


def _binary(name: str) -> str:
    return str(binaries.ensure(name))


def _patch(
    component: str, *, added: dict[str, str], replaced: dict[str, str] | None = None
) -> dict[str, Any]:
    return {
        "name": component,
        "extraArgs": [
            *({"key": k, "value": v, "override": True} for k, v in (replaced or {}).items()),
            *({"key": k, "value": v} for k, v in added.items()),
        ],
    }
