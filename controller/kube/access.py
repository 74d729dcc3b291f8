"""Where the API server is, and by what right we talk to it.

Two sources, as everywhere in Kubernetes: a kubeconfig named by `KUBECONFIG`, or what
the kubelet mounts into every pod. Tokens that lie in a file are read again when the
file changes, because the kubelet renews them under our feet.
"""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

MOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""What the kubelet mounts: `token`, `ca.crt` and `namespace`."""


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


@dataclass(frozen=True, slots=True)
class Access:
    """A server and the credentials for it; PEM texts are empty when there are none."""

    server: str
    ca: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)
    static_token: str = field(default="", repr=False)
    token_file: TokenFile | None = None
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


def found(environ: Mapping[str, str], *, mount: Path = MOUNT) -> Access:
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

    Certificates, tokens and token files are understood; a plugin to run (`exec`) is not.
    """
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as exc:
        raise AccessError(f"cannot read the kubeconfig {path}: {exc.strerror}") from exc
    context = _named(config, "contexts", config.get("current-context", ""), "context", path)
    cluster = _named(config, "clusters", context.get("cluster", ""), "cluster", path)
    user = _named(config, "users", context["user"], "user", path) if context.get("user") else {}
    if "exec" in user or "auth-provider" in user:
        raise AccessError(f"{path}: credentials by exec or auth-provider are not supported")
    token_file = user.get("tokenFile")
    return Access(
        server=cluster["server"].rstrip("/"),
        ca=_pem(cluster, "certificate-authority", path),
        certificate=_pem(user, "client-certificate", path),
        key=_pem(user, "client-key", path),
        static_token=user.get("token", ""),
        token_file=TokenFile(path.parent / token_file) if token_file else None,
        insecure=bool(cluster.get("insecure-skip-tls-verify", False)),
        namespace=context.get("namespace", ""),
    )


def _named(config: Mapping[str, Any], many: str, name: str, one: str, path: Path) -> dict[str, Any]:
    for entry in config.get(many) or ():
        if entry["name"] == name:
            section: dict[str, Any] = entry[one] or {}
            return section
    raise AccessError(f"{path}: {many} has no {name!r}")


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
