"""A real Kubernetes control plane, with kwok for the kubelets' side.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok are
configured, started and deleted through kwokctl, in a directory of their own and
on loopback ports of their own, so that any number of clusters run side by side.
kwok takes care only of nodes annotated `kwok.x-k8s.io/node: fake`.

What differs from kwokctl's defaults, and why, stands in `_configuration`.
"""

from __future__ import annotations

import base64
import os
import subprocess
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests
import yaml

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
STAGES = Path(__file__).with_name("stages.yaml")
"""What kwok does with pods on top of its own."""

READY_SECONDS = 90.0
"""How long the control plane may take; it needs about five, many times that on a busy machine."""

ATTEMPTS = 3
"""How often to choose new ports when somebody took one between the choice and its use."""


class ClusterFailedError(RuntimeError):
    """The control plane did not come up, or a part of it ended; carries that part's last words."""


@dataclass(kw_only=True)
class Cluster:
    """One control plane, all of it in `directory`, which must not exist before and not after."""

    directory: Path
    name: str = "joiner"
    progress: Progress = SILENCE
    issuer: str = field(
        default_factory=lambda: (
            f"https://oidc.eks.us-west-2.amazonaws.com/id/{uuid.uuid4().hex.upper()}"
        )
    )
    """Issuer, and only audience, of service account tokens, in the form of EKS. Its keys are read
    without credentials at `<server>/openid/v1/jwks`."""

    ports: dict[str, int] = field(default_factory=dict, init=False)
    _owned: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    def start(self) -> None:
        """Start it and return when pods can be created and scheduled.

        Raises `ClusterFailedError`, or `binaries.BinaryUnavailableError`, with everything undone.
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
                self.progress.note("somebody took a port meanwhile; trying others")
            else:
                return

    def stop(self) -> None:
        """End every process and remove the directory. Does nothing when there is nothing."""
        self._owned.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, certificates inside."""
        return self.directory / "kubeconfig.yaml"

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://127.0.0.1:{self.ports['kube-apiserver']}"

    @property
    def ca_data(self) -> str:
        """The certificate authority of the API server: PEM in base64, as EKS hands it out."""
        return base64.b64encode(self._pki("ca.crt").read_bytes()).decode()

    @property
    def serving_certificate(self) -> tuple[Path, Path]:
        """A certificate for servers on loopback, signed by that authority, and its key."""
        return self._pki("admin.crt"), self._pki("admin.key")

    @property
    def pids(self) -> dict[str, int]:
        """Component → process id, of those that were started."""
        files = (self._home / "pids").glob("*.pid")
        return {file.stem: int(file.read_text()) for file in files}

    def check(self) -> None:
        """Raise `ClusterFailedError` when a component has ended."""
        alive = set(owned.belonging_to(self.directory))
        for component, pid in self.pids.items():
            if pid not in alive:
                words = owned.last_words(self._home / "logs" / f"{component}.log")
                raise ClusterFailedError(f"{component} ended:\n{words}")

    def _attempt(self) -> None:
        self._owned.enter_context(owned.kept(self.directory))
        self._choose_ports()
        configuration = self.directory / "kwokctl.yaml"
        configuration.write_text(yaml.safe_dump_all(self._configuration()))
        self._owned.callback(self._delete)
        self._kwokctl("create", "cluster", "--config", str(configuration))
        self._write_kubeconfig()
        self._wait_until_ready()
        self._publish_issuer_keys()

    def _delete(self) -> None:
        # A cluster that was not quite created cannot quite be deleted; the keeper ends the rest.
        ending = {pid: owned.identity(pid) for pid in self.pids.values()}
        with suppress(ClusterFailedError):
            self._kwokctl("delete", "cluster")
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
                # kwokctl would write to the user's own kubeconfig.
                f"--kubeconfig={self.directory / 'kwokctl-kubeconfig.yaml'}",
            ],
            env=owned.marked(self.directory, self._environment()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            start_new_session=True,
        )
        if ended.returncode:
            raise ClusterFailedError(f"kwokctl {' '.join(arguments)} failed:\n{ended.stdout}")

    def _environment(self) -> dict[str, str]:
        # A proxy for the world outside must not stand between the components, and kwokctl must
        # see no setting of the user's.
        own = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("KWOK_") and key.lower() not in ("http_proxy", "https_proxy")
        }
        return {
            **own,
            "KWOK_WORKDIR": str(self.directory / "kwokctl"),
            "KWOK_KUBECTL_BINARY": str(binaries.ensure("kubectl")),
        }

    @property
    def _home(self) -> Path:
        return self.directory / "kwokctl" / "clusters" / self.name

    def _pki(self, name: str) -> Path:
        return self._home / "pki" / name

    def _configuration(self) -> list[dict[str, Any]]:
        """Tell kwokctl what to start: its options, and what each component gets on top."""
        # Else each signs a certificate of its own, which nobody can verify.
        certificate, key = self.serving_certificate
        serving = {"tls-cert-file": str(certificate), "tls-private-key-file": str(key)}
        return [
            {
                "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
                "kind": "KwokctlConfiguration",
                "options": {
                    "runtime": "binary",
                    "bindAddress": "127.0.0.1",
                    # Thousands of pods must not wait for a client's rate limit.
                    "disableQPSLimits": True,
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
                    # Nothing here outlives its processes, so nothing needs to survive a crash.
                    _patch("etcd", added={"unsafe-no-fsync": "true"}),
                    _patch(
                        "kube-apiserver",
                        replaced={"service-account-issuer": self.issuer},
                        added={
                            "service-account-jwks-uri": f"{self.server}/openid/v1/jwks",
                            # Only the endpoints of the Service `kubernetes` show it, and they
                            # may not be loopback; a machine without a network has no other.
                            "advertise-address": "192.0.2.1",
                        },
                    ),
                    _patch("kube-controller-manager", added=serving),
                    _patch("kube-scheduler", added=serving),
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
        """Write a kubeconfig that can be copied: kwokctl's names files of the cluster's."""

        def inline(name: str) -> str:
            return base64.b64encode(self._pki(name).read_bytes()).decode()

        written = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.name,
            "clusters": [
                {
                    "name": self.name,
                    "cluster": {"server": self.server, "certificate-authority-data": self.ca_data},
                }
            ],
            "users": [
                {
                    "name": "admin",
                    "user": {
                        "client-certificate-data": inline("admin.crt"),
                        "client-key-data": inline("admin.key"),
                    },
                }
            ],
            "contexts": [
                {"name": self.name, "context": {"cluster": self.name, "user": "admin"}},
            ],
        }
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(yaml.safe_dump(written, sort_keys=False))

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while waiting := self._not_ready():
            self.check()
            if time.monotonic() > deadline:
                raise ClusterFailedError(
                    f"{waiting} is not ready after {READY_SECONDS:.0f} s:\n"
                    + owned.last_words(self._home / "logs" / f"{waiting}.log")
                )
            time.sleep(0.05)

    def _not_ready(self) -> str | None:
        """Name the first component that is not ready, in the order of dependence."""
        urls = {
            "kube-apiserver": f"{self.server}/readyz",
            "kube-controller-manager": self._local("https", "kube-controller-manager"),
            "kube-scheduler": self._local("https", "kube-scheduler"),
            "kwok-controller": self._local("http", "kwok-controller"),
        }
        for component, url in urls.items():
            if self._ask("GET", url) is None:
                return component
        # Pods are refused until their namespace has its service account.
        account = f"{self.server}/api/v1/namespaces/default/serviceaccounts/default"
        return None if self._ask("GET", account) else "kube-controller-manager"

    def _local(self, scheme: str, component: str) -> str:
        return f"{scheme}://127.0.0.1:{self.ports[component]}/healthz"

    def _ask(self, method: str, url: str, body: object = None) -> requests.Response | None:
        """Ask as the administrator; None when there is no good answer."""
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
        """Let anybody read the issuer's keys, as with EKS: a cloud verifies by them."""
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
