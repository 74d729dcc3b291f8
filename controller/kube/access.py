"""The address of the API server, and the credentials for it.

There are two sources, as for every Kubernetes client: a kubeconfig named by `KUBECONFIG`, or the
files that the kubelet mounts into every pod. A token in a file is read again when the file changes,
because the kubelet renews it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

MOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory that the kubelet mounts into pods, with `token`, `ca.crt` and `namespace`."""


PROXY_SCHEME = "http://"
SERVER_SCHEMES = ("http://", "https://")

EXEC_SECONDS = 60.0
EARLY = timedelta(minutes=1)
"""Time before a token's expiry at which it is renewed."""


log = logging.getLogger(__name__)


class AccessError(RuntimeError):
    """No access to the API server; the message names what is missing or unusable."""


@dataclass(slots=True)
class TokenFile:
    """A bearer token in a file that another process renews."""

    path: Path
    _stamp: tuple[int, int] = (0, 0)
    _token: str = field(default="", repr=False)

    def read(self) -> str:
        """Return the token; the file is read only when it has changed.

        If the file cannot be read, return the token that was read before.

        Raises:
            AccessError: the file cannot be read, and no token was read before.

        """
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
    """A bearer token that a program prints, such as `aws eks get-token`: a kubeconfig's `exec`."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    api_version: str
    _token: str = field(default="", repr=False)
    _expires: datetime | None = None
    _reading: asyncio.Task[str] | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _reported: str = ""
    """The last failure that was logged; empty if a token was read since."""

    def read(self) -> str:
        """Return the token; the program runs again shortly before it expires.

        Blocks while the program runs: `EXEC_SECONDS` at most.

        Raises:
            AccessError: the program fails, or does not print a token.

        """
        with self._lock:
            if self._is_due():
                self._token, self._expires = self._run_plugin()
            return self._token

    async def read_in_thread(self) -> str:
        """Return the token; the program runs in a separate thread.

        Concurrent requests share one run. They use the old token meanwhile if it is still valid.

        Raises:
            AccessError: as for `read`.

        """
        if not self._is_due():
            return self._token
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(asyncio.to_thread(self.read))
            self._reading.add_done_callback(self._report)
        if self._token and self._expires is not None and datetime.now(UTC) < self._expires:
            return self._token
        return await asyncio.shield(self._reading)

    def _report(self, reading: asyncio.Task[str]) -> None:
        """Log why a token could not be renewed, even if no request waits for it.

        A failure that repeats is logged once.
        """
        if reading.cancelled():
            return
        failure = str(reading.exception() or "")
        if failure and failure != self._reported:
            log.warning("cannot renew the token for the API server; retrying: %s", failure)
        self._reported = failure

    def _is_due(self) -> bool:
        return not self._token or (
            self._expires is not None and datetime.now(UTC) > self._expires - EARLY
        )

    def _run_plugin(self) -> tuple[str, datetime | None]:
        """Run the program; return the token that it prints, and its expiry or None."""
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
            end = datetime.fromisoformat(expires) if expires else None
        except subprocess.CalledProcessError as exc:
            said = exc.stderr.decode(errors="replace").strip()
            said = said or f"exit code {exc.returncode}, and nothing on standard error"
            raise AccessError(f"exec plugin of the kubeconfig: {command} failed: {said}") from exc
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise AccessError(
                f"exec plugin of the kubeconfig: {command} cannot be run: {exc}"
            ) from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise AccessError(f"exec plugin of the kubeconfig: {command} printed no token") from exc
        return token, end


class TlsContext(ssl.SSLContext):
    """A TLS context that can verify the certificate against another name than the URL's host."""

    server_name = ""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a TLS connection; asyncio calls this for each connection."""
        name = self.server_name or server_hostname
        return super().wrap_bio(incoming, outgoing, server_side, name, session)


@dataclass(frozen=True, slots=True)
class Access:
    """The address of a server and the credentials for it; PEM texts are empty if not configured.

    `proxy` is the URL of an HTTP proxy, empty if there is none. `server_name` is the name in the
    server's certificate; by default it is the host of the address. `source` names the context, the
    cluster and the user of the kubeconfig, or says that it is the cluster of this pod.
    """

    server: str
    ca: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)
    static_token: str = field(default="", repr=False)
    token_file: TokenFile | TokenCommand | None = None
    insecure: bool = False
    namespace: str = ""
    proxy: str = ""
    server_name: str = ""
    source: str = ""

    @property
    def token(self) -> str:
        """The current bearer token; empty if the credentials are a client certificate.

        Blocks while a `TokenCommand` runs.
        """
        return self.token_file.read() if self.token_file is not None else self.static_token

    async def bearer(self) -> str:
        """Return the current bearer token without blocking the event loop."""
        if isinstance(self.token_file, TokenCommand):
            return await self.token_file.read_in_thread()
        return self.token

    def ssl_context(self) -> ssl.SSLContext:
        """Return a TLS context that trusts the server's CA and presents the client certificate."""
        # `ssl.create_default_context` of Python 3.13 and later requires key identifiers in
        # certificates, but the CAs of older Kubernetes clusters have none. The chain and the host
        # name are verified here too.
        context = TlsContext(ssl.PROTOCOL_TLS_CLIENT)
        context.server_name = self.server_name
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as that of Python 3.13, and kubectl
        if self.ca:
            context.load_verify_locations(cadata=self.ca)
        else:
            context.load_default_certs()
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            # OpenSSL loads key pairs only from files.
            with _private_file(self.certificate + "\n" + self.key) as path:
                context.load_cert_chain(path)
        return context


def from_environment(
    environ: Mapping[str, str], *, mount: Path = MOUNT, context: str = ""
) -> Access:
    """Return the access to the API server: `KUBECONFIG` first, then the pod's mount.

    `context` names a context of the kubeconfig; the default is its current context.

    Raises:
        AccessError: neither exists, or the first that exists cannot be used.

    """
    if paths := [Path(path) for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]:
        # As in kubectl, files that do not exist are skipped.
        there = [path for path in paths if path.exists()]
        return from_kubeconfig(*(there or paths[:1]), context=context)
    if (mount / "token").exists():
        return in_cluster(environ, mount=mount)
    raise AccessError(
        "no API server: KUBECONFIG is not set, and there is no service account token in "
        f"{mount}: set KUBECONFIG to a kubeconfig, or run in a pod with a service account"
    )


def in_cluster(environ: Mapping[str, str], *, mount: Path = MOUNT) -> Access:
    """Return the access of a pod: the service account's token and the cluster's CA.

    `mount` is the folder where the kubelet mounts both.

    Raises:
        AccessError: KUBERNETES_SERVICE_HOST is not set.

    """
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise AccessError(
            "KUBERNETES_SERVICE_HOST is not set, although every pod has it: to run outside a pod, "
            "set KUBECONFIG to a kubeconfig"
        )
    namespace = mount / "namespace"
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca=(mount / "ca.crt").read_text(),
        token_file=TokenFile(mount / "token"),
        namespace=namespace.read_text().strip() if namespace.exists() else "",
        source="the cluster of this pod",
    )


def from_kubeconfig(*paths: Path, context: str = "") -> Access:
    """Return the access that a context of kubeconfigs gives, by default their current context.

    Of contexts, clusters and users with the same name, and of current contexts, that in the first
    file counts, as in kubectl. Certificates, tokens, token files, programs that print a token
    (`exec`), HTTP proxies and `tls-server-name` are supported.

    Raises:
        AccessError: a file cannot be read or is no kubeconfig, or the context is missing or
            unusable.

    """
    named = os.pathsep.join(map(str, paths))
    try:
        return _access({path: _parse(path) for path in paths}, named, context)
    except OSError as exc:
        raise AccessError(
            f"kubeconfig {named}: cannot read {exc.filename}: {exc.strerror}"
        ) from exc
    except (AttributeError, LookupError, TypeError, ValueError) as exc:
        # Fields of the wrong type or missing; each is checked by its use alone.
        raise AccessError(
            f"the kubeconfig {named} cannot be used: an entry is incomplete or of the wrong type "
            f"({exc}); `kubectl config view` shows what kubectl reads"
        ) from exc


def context_names(*paths: Path) -> list[str]:
    """Return the names of the contexts of kubeconfigs, sorted.

    Raises:
        AccessError: a file is no kubeconfig.

    """
    there = [path for path in paths if path.exists()]
    rows = [row for path in there for row in _parse(path).get("contexts") or ()]
    return sorted({str(row["name"]) for row in rows})


Configs = Mapping[Path, Mapping[str, Any]]
"""Parsed kubeconfigs by their paths, in the order of precedence."""


def _parse(path: Path) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(path.read_text())
    except yaml.YAMLError as exc:
        problem = " ".join(str(exc).split())
        raise AccessError(f"the kubeconfig {path} is not YAML: {problem}") from exc
    if config is None:
        return {}  # As in kubectl, an empty file is a kubeconfig.
    if not isinstance(config, Mapping):
        raise AccessError(f"{path} is not a kubeconfig: expected a YAML mapping")
    return config


def _access(configs: Configs, named: str, name: str) -> Access:
    """Return the access that a context gives; `named` are the paths as text."""
    current = (config.get("current-context") for config in configs.values())
    chosen = name or next(filter(None, current), "")
    if not chosen:
        raise AccessError(
            f"{named} has no current-context: `kubectl config use-context NAME` sets it, and "
            "`kubectl config get-contexts` lists the names"
        )
    context, _ = _named_section(configs, "contexts", chosen, "context", named)
    cluster, path = _named_section(
        configs, "clusters", context.get("cluster", ""), "cluster", named
    )
    user, user_path = (
        _named_section(configs, "users", context["user"], "user", named)
        if context.get("user")
        else ({}, path)
    )
    if "auth-provider" in user:
        raise AccessError(
            f"{user_path}: user {context['user']!r} has an auth-provider, which is not supported: "
            "give it a token, a client certificate or an exec plugin"
        )
    return Access(
        server=_server(cluster, path),
        ca=_pem(cluster, "certificate-authority", path),
        certificate=_pem(user, "client-certificate", user_path),
        key=_pem(user, "client-key", user_path),
        static_token=user.get("token", ""),
        token_file=_token_source(user, user_path),
        insecure=bool(cluster.get("insecure-skip-tls-verify", False)),
        namespace=context.get("namespace", ""),
        proxy=_proxy(cluster, path),
        server_name=cluster.get("tls-server-name", ""),
        source=_source(chosen, context),
    )


def _source(name: str, context: Mapping[str, Any]) -> str:
    """Return the names of a context, its cluster and its user as text; equal ones are one.

    `aws eks update-kubeconfig` gives all three the same name.
    """
    names = {"context": name, "cluster": context.get("cluster"), "user": context.get("user")}
    kinds: dict[str, list[str]] = {}
    for kind, each in names.items():
        if each:
            kinds.setdefault(str(each), []).append(kind)
    return " · ".join(f"{' = '.join(of)} {each}" for each, of in kinds.items())


def _server(cluster: Mapping[str, Any], path: Path) -> str:
    """Return the URL of the API server; as in kubectl, one without a scheme is HTTP."""
    server = str(cluster["server"])
    url = (server if "://" in server else f"http://{server}").rstrip("/")
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.startswith(SERVER_SCHEMES) or any(map(str.isspace, url)):
        raise AccessError(
            f"{path}: server {server!r}: expected the URL of an API server, such as "
            "https://10.0.0.1:6443"
        )
    return url


def _proxy(cluster: Mapping[str, Any], path: Path) -> str:
    proxy = str(cluster.get("proxy-url") or "")
    if proxy and not proxy.startswith(PROXY_SCHEME):
        raise AccessError(
            f"{path}: proxy-url {proxy}: allowed is the URL of an HTTP proxy ({PROXY_SCHEME})"
        )
    return proxy


def _named_section(
    configs: Configs, plural: str, name: str, singular: str, named: str
) -> tuple[Mapping[str, Any], Path]:
    """Return the first section with a name, and the path of its file."""
    for path, config in configs.items():
        for entry in config.get(plural) or ():
            if entry["name"] == name:
                return entry[singular] or {}, path
    raise AccessError(
        f"{named}: {plural} has no {name!r}; `kubectl config view` shows what the kubeconfig has"
    )


def _token_source(user: Mapping[str, Any], path: Path) -> TokenFile | TokenCommand | None:
    """Return the source of a token that is renewed outside this process: a file or a program."""
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
    """Return a PEM text from the kubeconfig itself or from a file that it names."""
    if encoded := section.get(f"{name}-data"):
        return base64.b64decode(str(encoded)).decode()
    if file := section.get(name):
        return (path.parent / str(file)).read_text()
    return ""


@contextlib.contextmanager
def _private_file(text: str) -> Iterator[str]:
    """Yield the path of a temporary file that only this user can read; remove it afterwards."""
    descriptor, path = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink()
