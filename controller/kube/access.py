"""Where the API server is, and by what right we talk to it.

Two sources, as everywhere in Kubernetes: a kubeconfig named by `KUBECONFIG`, or what
the kubelet mounts into every pod. Tokens that lie in a file are read again when the
file changes, because the kubelet renews them under our feet.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

MOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""What the kubelet mounts: `token`, `ca.crt` and `namespace`."""


EXEC_SECONDS = 60.0
EARLY = timedelta(minutes=1)
"""How long before its end a token is not used any more."""


class AccessError(RuntimeError):
    """There is no way to the API server; says what was looked for."""


@dataclass(slots=True)
class TokenFile:
    """A bearer token in a file that somebody else renews."""

    path: Path
    _stamp: tuple[int, int] = (0, 0)
    _token: str = field(default="", repr=False)

    def read(self) -> str:
        """Return the token; the file is read only when it has changed."""
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp != self._stamp:
                self._token = self.path.read_text().strip()
                self._stamp = stamp
        except OSError as exc:
            if not self._token:
                raise AccessError(f"cannot read the token in {self.path}: {exc.strerror}") from exc
        return self._token


@dataclass(slots=True)
class TokenCommand:
    """A bearer token that a program prints, as `aws eks get-token` does: a kubeconfig's `exec`."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    api_version: str
    _token: str = field(default="", repr=False)
    _until: datetime | None = None

    def read(self) -> str:
        """Return the token; the program runs again shortly before it expires."""
        if not self._token or (self._until is not None and datetime.now(UTC) > self._until):
            self._token, self._until = self._asked()
        return self._token

    def _asked(self) -> tuple[str, datetime | None]:
        asked = {
            "apiVersion": self.api_version,
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }
        environ = {**os.environ, **self.environ, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
        command = " ".join(self.argv)
        try:
            ended = subprocess.run(
                self.argv, env=environ, capture_output=True, check=True, timeout=EXEC_SECONDS
            )
            status = json.loads(ended.stdout)["status"]
            token = str(status["token"])
            expires = status.get("expirationTimestamp")
            until = datetime.fromisoformat(expires) - EARLY if expires else None
        except subprocess.CalledProcessError as exc:
            said = exc.stderr.decode(errors="replace").strip()
            raise AccessError(f"{command} failed: {said}") from exc
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise AccessError(f"{command} cannot be run: {exc}") from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise AccessError(f"{command} printed no token") from exc
        return token, until


@dataclass(frozen=True, slots=True)
class Access:
    """A server and the credentials for it; PEM texts are empty when there are none."""

    server: str
    ca: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)
    static_token: str = field(default="", repr=False)
    token_file: TokenFile | TokenCommand | None = None
    insecure: bool = False
    namespace: str = ""

    @property
    def token(self) -> str:
        """The bearer token as it is now; empty when certificates speak for us."""
        return self.token_file.read() if self.token_file is not None else self.static_token

    def ssl_context(self) -> ssl.SSLContext:
        """Return a TLS context that trusts the server's CA and shows our certificate."""
        context = ssl.create_default_context(cadata=self.ca or None)
        # Kubernetes asks for no key identifiers, Python from 3.13 on does; older clusters' CAs
        # have none. Chain and host name are verified as ever.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            # OpenSSL takes key pairs from files only.
            with _private_file(self.certificate + "\n" + self.key) as path:
                context.load_cert_chain(path)
        return context


def from_environment(environ: Mapping[str, str], *, mount: Path = MOUNT) -> Access:
    """Find the way to the API server: `KUBECONFIG` first, then the pod's mount.

    Raises:
        AccessError: there is neither, or one that cannot be used.

    """
    if paths := environ.get("KUBECONFIG"):
        return from_kubeconfig(Path(paths.split(os.pathsep)[0]))
    if (mount / "token").exists():
        return in_cluster(environ, mount=mount)
    raise AccessError(f"no API server: KUBECONFIG is not set, and there is no token in {mount}")


def in_cluster(environ: Mapping[str, str], *, mount: Path = MOUNT) -> Access:
    """Return the access of a pod: the service account's token and the cluster's CA."""
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise AccessError("KUBERNETES_SERVICE_HOST is not set: is this a pod?")
    namespace = mount / "namespace"
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca=(mount / "ca.crt").read_text(),
        token_file=TokenFile(mount / "token"),
        namespace=namespace.read_text().strip() if namespace.exists() else "",
    )


def from_kubeconfig(path: Path) -> Access:
    """Return the access that a kubeconfig's current context gives.

    Certificates, tokens, token files and programs that print a token (`exec`) are understood.
    """
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as exc:
        raise AccessError(f"cannot read the kubeconfig {path}: {exc.strerror}") from exc
    context = _named(config, "contexts", config.get("current-context", ""), "context", path)
    cluster = _named(config, "clusters", context.get("cluster", ""), "cluster", path)
    user = _named(config, "users", context["user"], "user", path) if context.get("user") else {}
    if "auth-provider" in user:
        raise AccessError(f"{path}: credentials by auth-provider are not supported")
    return Access(
        server=cluster["server"].rstrip("/"),
        ca=_pem(cluster, "certificate-authority", path),
        certificate=_pem(user, "client-certificate", path),
        key=_pem(user, "client-key", path),
        static_token=user.get("token", ""),
        token_file=_token_source(user, path),
        insecure=bool(cluster.get("insecure-skip-tls-verify", False)),
        namespace=context.get("namespace", ""),
    )


def _named(
    config: Mapping[str, Any], plural: str, name: str, singular: str, path: Path
) -> dict[str, Any]:
    for entry in config.get(plural) or ():
        if entry["name"] == name:
            section: dict[str, Any] = entry[singular] or {}
            return section
    raise AccessError(f"{path}: {plural} has no {name!r}")


def _token_source(user: Mapping[str, Any], path: Path) -> TokenFile | TokenCommand | None:
    """Return where a token comes from that somebody else renews."""
    if file := user.get("tokenFile"):
        return TokenFile(path.parent / str(file))
    plugin = user.get("exec")
    if plugin is None:
        return None
    return TokenCommand(
        argv=(str(plugin["command"]), *map(str, plugin.get("args") or ())),
        environ={
            str(variable["name"]): str(variable["value"]) for variable in plugin.get("env") or ()
        },
        api_version=str(plugin.get("apiVersion", "client.authentication.k8s.io/v1")),
    )


def _pem(section: Mapping[str, Any], name: str, path: Path) -> str:
    """Return a PEM text that stands in the kubeconfig, or in a file beside it."""
    if encoded := section.get(f"{name}-data"):
        return base64.b64decode(str(encoded)).decode()
    if file := section.get(name):
        return (path.parent / str(file)).read_text()
    return ""


@contextlib.contextmanager
def _private_file(text: str) -> Iterator[str]:
    """Yield the path of a file that only we can read, and remove it."""
    descriptor, path = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink()
