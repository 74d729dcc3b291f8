"""A minimal client of the Kubernetes API, for guards and for the destroy of a stack.

A dynamic provider runs in its own process, without Pulumi's Kubernetes provider. The client
connects by a kubeconfig, or by the cluster's name and a token as `aws eks get-token` creates it.

* ClusterGoneError          the EKS cluster does not exist
* ClusterUnreachableError   the EKS cluster exists, but its API server cannot be reached
* ClusterNotAbandonedError  either of them, and the user did not allow a destroy without it
* ApiError                  the API server returned an error; has its status
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import boto3
import yaml
from botocore.exceptions import ClientError
from botocore.signers import RequestSigner
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

PROJECT = Path(__file__).resolve().parent.parent
PAGE_SIZE = 500
REQUEST_SECONDS = 30
RETRY_SECONDS = 2.0
TOKEN_SECONDS = 60
UNAUTHORIZED = 401
PROXY_SCHEMES = ("http://",)

FORGET = "PULUMI_K8S_DELETE_UNREACHABLE"
"""Environment variable: with `true`, Pulumi's Kubernetes provider removes the objects of an
unreachable cluster from the state."""

UPSERT = "PULUMI_K8S_UPSERT_EXISTING_OBJECTS"
"""Environment variable: with `true`, Pulumi's Kubernetes provider adopts existing objects."""

ABANDON = "JOINER_ABANDON_CLUSTER"
"""Environment variable: name of an unreachable cluster that the user gives up. Its instances are
terminated without draining."""

Wire = dict[str, Any]


class ClusterGoneError(Exception):
    """EKS returns that the cluster does not exist."""


class ClusterUnreachableError(Exception):
    """The API server cannot be reached; the cluster itself may be healthy."""


class ClusterNotAbandonedError(Exception):
    """The stack's objects in the cluster cannot be deleted; the message says what to do."""


class ApiError(Exception):
    """The API server returned an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{status}: {message}")


@dataclass(frozen=True, slots=True)
class ClusterLocation:
    """Name and region of the cluster, and how to connect; all text, so the state can store it."""

    cluster_name: str
    region: str
    aws_endpoint: str = ""
    kubeconfig: str = ""
    """Path as `kubeconfig_file` takes it; empty to connect by the cluster's name."""

    @classmethod
    def of(cls, props: Mapping[str, Any]) -> ClusterLocation:
        """Return the location from a resource's properties; missing ones are empty."""
        return cls(**{name: str(props.get(name) or "") for name in cls.__slots__})

    @property
    def location(self) -> Mapping[str, str]:
        """The fields as a stack's state stores them."""
        return asdict(self)

    def client(self, service: str) -> Any:
        """Return the boto3 client of an AWS API."""
        return boto3.client(
            service, region_name=self.region, endpoint_url=self.aws_endpoint or None
        )


@dataclass(frozen=True, slots=True)
class Server:
    """An API server: its URL, TLS context, bearer token and proxy."""

    url: str
    context: ssl.SSLContext
    token: Callable[[], str] | None = None
    proxy: str = ""
    """URL of the HTTP proxy; if empty, the proxy of the environment is used, if any."""


class _TlsContext(ssl.SSLContext):
    """A TLS context that can verify the certificate against another name than the URL's host."""

    server_name = ""

    def wrap_socket(
        self,
        sock: socket.socket,
        server_side: bool = False,
        do_handshake_on_connect: bool = True,
        suppress_ragged_eofs: bool = True,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLSocket:
        name = self.server_name or server_hostname
        return super().wrap_socket(
            sock, server_side, do_handshake_on_connect, suppress_ragged_eofs, name, session
        )


class Objects(Protocol):
    """The requests that all users of a cluster's API need: a part of `ClusterApi`."""

    def get(self, path: str) -> Wire | None:
        """Return one object; None if it does not exist."""

    def list(self, path: str, **query: str) -> list[Wire]:
        """Return all objects of a collection."""

    def delete(self, path: str) -> None:
        """Request the deletion of an object."""


class ClusterApi:
    """A client of one API server; objects are plain JSON.

    If the API server does not answer, the client retries for `patience_seconds` per request,
    every `RETRY_SECONDS`. An API server that is being replaced answers again within that time.
    """

    def __init__(
        self,
        server: Server,
        *,
        patience_seconds: float = 0.0,
        say: Callable[[str], None] = print,
    ) -> None:
        self._server = server
        tls = urllib.request.HTTPSHandler(context=server.context)
        ways = [urllib.request.ProxyHandler({"http": server.proxy, "https": server.proxy})]
        self._opener = urllib.request.build_opener(tls, *(ways if server.proxy else []))
        self._patience_seconds = patience_seconds
        self._say = say
        self._persistently = Retrying(
            retry=retry_if_exception_type(ClusterUnreachableError),
            stop=stop_after_delay(patience_seconds),
            wait=wait_fixed(RETRY_SECONDS),
            before_sleep=self._announce,
            reraise=True,
        )

    @classmethod
    def find(
        cls,
        location: ClusterLocation,
        *,
        patience_seconds: float = 0.0,
        say: Callable[[str], None] = print,
    ) -> ClusterApi:
        """Return a client of the cluster's API server, without calling the API server.

        Args:
            location: of the cluster.
            patience_seconds: how long a request is retried without an answer; 0 for no retry.
            say: receives one line when a request is retried.

        Raises:
            ClusterGoneError: the EKS cluster does not exist.
            ClusterUnreachableError: the kubeconfig cannot be used.

        """
        return cls(_server(location), patience_seconds=patience_seconds, say=say)

    def list(self, path: str, **query: str) -> list[Wire]:
        """Return all objects of a collection, by pages; empty if the kind does not exist."""
        items: list[Wire] = []
        page = {"limit": str(PAGE_SIZE), **query}
        while True:
            try:
                answer = self.request("GET", f"{path}?{urllib.parse.urlencode(page)}")
            except ApiError as exc:
                if exc.status == 404:
                    return []
                raise
            items += answer.get("items") or []
            after = answer["metadata"].get("continue")
            if not after:
                return items
            page["continue"] = after

    def get(self, path: str) -> Wire | None:
        """Return one object; None if it does not exist."""
        return next(self._tolerating_absence("GET", path), None)

    def delete(self, path: str) -> None:
        """Request the deletion of an object; does nothing if it does not exist."""
        next(self._tolerating_absence("DELETE", path), None)

    def merge(self, path: str, change: Wire) -> None:
        """Change an object by a JSON merge patch; does nothing if it does not exist."""
        content_type = "application/merge-patch+json"
        next(self._tolerating_absence("PATCH", path, change, content_type), None)

    def _tolerating_absence(self, *arguments: Any) -> Iterator[Wire]:
        try:
            yield self.request(*arguments)
        except ApiError as exc:
            if exc.status != 404:
                raise

    def request(
        self,
        method: str,
        path: str,
        body: Wire | None = None,
        content_type: str = "application/json",
    ) -> Wire:
        """Send a request and return the answer; retry while the API server does not answer.

        Raises:
            ApiError: the API server returned an error.
            ClusterUnreachableError: the API server did not answer within `patience_seconds`, or
                rejected the credentials.

        """
        return self._persistently(self._send, method, path, body, content_type)

    def _announce(self, attempt: RetryCallState) -> None:
        """Report once per request that there is no answer, and how long the client retries."""
        if attempt.attempt_number == 1 and attempt.outcome is not None:
            problem = attempt.outcome.exception()
            self._say(f"{problem}; waiting up to {self._patience_seconds:.0f} s for it")

    def _send(self, method: str, path: str, body: Wire | None, content_type: str) -> Wire:
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        if self._server.token:
            headers["Authorization"] = f"Bearer {self._server.token()}"
        encoded = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310  the scheme is the kubeconfig's
            self._server.url + path, data=encoded, headers=headers, method=method
        )
        try:
            with self._opener.open(request, timeout=REQUEST_SECONDS) as response:
                answer: Wire = json.load(response)
                return answer
        except urllib.error.HTTPError as exc:
            if exc.code == UNAUTHORIZED:
                raise ClusterUnreachableError(
                    f"{self._server.url} does not accept the current credentials (401: "
                    f"{_message(exc)}); renew them, or set joiner:kubeconfig to a kubeconfig with "
                    "other credentials"
                ) from exc
            raise ApiError(exc.code, _message(exc)) from exc
        # An answer that is not HTTP or not JSON is from another server, such as a captive portal.
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise ClusterUnreachableError(f"{self._server.url} does not answer: {exc}") from exc


def require_abandoned(
    location: ClusterLocation,
    problem: ClusterGoneError | ClusterUnreachableError,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Return only if the user allowed a destroy without the cluster.

    An API server that does not answer does not prove that its cluster was deleted: a VPN that is
    off, an expired certificate and a failing credential plugin have the same effect.

    Raises:
        ClusterNotAbandonedError: the user did not allow it; the message says what to do.

    """
    forgets = environment.get(FORGET, "").lower() in ("1", "t", "true")
    end = f"{FORGET}=true pulumi destroy"
    if isinstance(problem, ClusterGoneError):
        if not forgets:
            raise ClusterNotAbandonedError(
                f"{problem}. Nothing has been removed. If the account and the region are correct, "
                f"the cluster was deleted: remove the rest of the stack without it: {end}"
            )
    elif not (forgets and environment.get(ABANDON) == location.cluster_name):
        raise ClusterNotAbandonedError(
            f"EKS has the cluster {location.cluster_name}, but {problem}. Nothing has been "
            "removed. Restore the access to it (network, kubeconfig, credentials) and run `pulumi "
            "destroy` again. Or abandon the cluster, which terminates its instances without a "
            "drain and leaves the stack's objects in the cluster: "
            f"{ABANDON}={location.cluster_name} {end}"
        )


def _server(location: ClusterLocation) -> Server:
    cluster = described(location)
    if location.kubeconfig:
        return server_of(kubeconfig_file(location.kubeconfig))
    authority = base64.b64decode(cluster["certificateAuthority"]["data"]).decode()
    context = _trusting(authority)
    return Server(cluster["endpoint"].rstrip("/"), context, lambda: _eks_token(location))


def kubeconfig_file(written: str) -> Path:
    """Return the path of a kubeconfig on this machine.

    Args:
        written: relative to home if it begins with ~, else to the project's folder. A stack's state
            stores it in this form, because a destroy may run on another machine.

    """
    return PROJECT / Path(written).expanduser()


def server_of(kubeconfig: Path) -> Server:
    """Return the API server of a kubeconfig's current context, without calling it.

    Raises:
        ClusterUnreachableError: it has no API server or no credentials; says what is missing.

    """
    try:
        return _server_in(yaml.safe_load(kubeconfig.read_text()), kubeconfig.parent)
    except (OSError, yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as exc:
        problem = f"it has no {exc}" if isinstance(exc, KeyError) else exc
        raise ClusterUnreachableError(
            f"the kubeconfig {kubeconfig} cannot be used: {problem}"
        ) from exc


def _server_in(document: Any, folder: Path) -> Server:
    """Return the API server of a kubeconfig's current context.

    Raises:
        ValueError: a part is missing or unsupported; a missing key is a KeyError.

    """
    if not isinstance(document, Mapping):
        raise ValueError("it is empty" if document is None else "it is not a YAML mapping")
    chosen = document.get("current-context")
    if not chosen:
        raise ValueError("it has no current-context: set one (kubectl config use-context)")
    context = _named(document, "contexts", chosen).get("context") or {}
    cluster = _named(document, "clusters", context.get("cluster")).get("cluster") or {}
    url = str(cluster["server"]).rstrip("/")
    named = context.get("user")
    user = (_named(document, "users", named).get("user") or {}) if named else {}
    # `kubectl proxy` (HTTP) requires no credentials; an API server (HTTPS) always does.
    if not user and url.startswith("https://"):
        raise ValueError(
            f"its context {chosen!r} has no credentials: name a user with a token, a client "
            "certificate or an exec plugin"
        )
    return Server(url, _tls(cluster, user, folder), _token_of(user, folder), _proxy_of(cluster))


def _proxy_of(cluster: Mapping[str, Any]) -> str:
    proxy = str(cluster.get("proxy-url") or "")
    if proxy and not proxy.startswith(PROXY_SCHEMES):
        raise ValueError(f"its proxy-url is {proxy}: allowed is the URL of an HTTP proxy (http://)")
    return proxy


def described(location: ClusterLocation) -> Mapping[str, Any]:
    """Return EKS' description of the cluster.

    Raises:
        ClusterGoneError: the cluster does not exist.

    """
    try:
        answer: Mapping[str, Any] = location.client("eks").describe_cluster(
            name=location.cluster_name
        )
    except ClientError as exc:
        if exc.response["Error"]["Code"] == "ResourceNotFoundException":
            raise ClusterGoneError(
                f'EKS cluster "{location.cluster_name}" not found in {location.region}'
            ) from exc
        raise
    cluster: Mapping[str, Any] = answer["cluster"]
    return cluster


def _eks_token(location: ClusterLocation) -> str:
    """Return a token as `aws eks get-token` does: a presigned URL of STS GetCallerIdentity.

    EKS calls the URL to learn the caller. The signature is valid for `TOKEN_SECONDS`.
    """
    session = boto3.Session(region_name=location.region)
    client = session.client("sts")
    signer = RequestSigner(
        client.meta.service_model.service_id,
        location.region,
        "sts",
        "v4",
        session.get_credentials(),
        session.events,
    )
    host = client.meta.endpoint_url.rstrip("/")
    url = signer.generate_presigned_url(
        {
            "method": "GET",
            "url": f"{host}/?Action=GetCallerIdentity&Version=2011-06-15",
            "body": {},
            "headers": {"x-k8s-aws-id": location.cluster_name},
            "context": {},
        },
        region_name=location.region,
        expires_in=TOKEN_SECONDS,
        operation_name="",
    )
    encoded = base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
    return f"k8s-aws-v1.{encoded}"


def _named(document: Mapping[str, Any], kind: str, name: Any) -> Mapping[str, Any]:
    for entry in document.get(kind) or []:
        if entry["name"] == name:
            named: Mapping[str, Any] = entry
            return named
    raise ValueError(f"its {kind} do not contain {name!r}")


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    authority = _content(cluster, "certificate-authority", folder)
    context = _trusting(authority.decode() if authority else None)
    context.server_name = str(cluster.get("tls-server-name") or "")
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _content(user, "client-certificate", folder)
    key = _content(user, "client-key", folder)
    if certificate and key:
        # The ssl module loads client certificates only from files.
        with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
            pem.write(certificate + b"\n" + key)
            pem.flush()
            context.load_cert_chain(pem.name)
    return context


def _trusting(authority: str | None) -> _TlsContext:
    """Return a TLS context that verifies chain and host name, by this CA or the system's CAs."""
    context = _TlsContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority:
        context.load_verify_locations(cadata=authority)
    else:
        context.load_default_certs()
    return context


def _content(section: Mapping[str, Any], key: str, folder: Path) -> bytes | None:
    if encoded := section.get(f"{key}-data"):
        return base64.b64decode(str(encoded))
    if named := section.get(key):
        return (folder / str(named)).read_bytes()
    return None


def _token_of(user: Mapping[str, Any], folder: Path) -> Callable[[], str] | None:
    if file := user.get("tokenFile"):
        return lambda: _token_in(folder / file)
    if token := user.get("token"):
        return lambda: str(token)
    if command := user.get("exec"):
        return lambda: _token_by(command)
    return None


def _token_in(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, ValueError) as exc:
        raise ClusterUnreachableError(f"the token in {file} cannot be read: {exc}") from exc


def _token_by(command: Mapping[str, Any]) -> str:
    """Run a credential plugin as kubectl does, and return its token.

    Raises:
        ClusterUnreachableError: the plugin failed, timed out, or returned no token.

    """
    extra = {entry["name"]: entry["value"] for entry in command.get("env") or []}
    try:
        ended = subprocess.run(
            [command["command"], *(command.get("args") or [])],
            env={**os.environ, **extra},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=REQUEST_SECONDS,
        )
        return str(json.loads(ended.stdout)["status"]["token"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as exc:
        # The message has only stderr: stdout may contain a token.
        words = exc.stderr if isinstance(exc, subprocess.CalledProcessError) else type(exc).__name__
        raise ClusterUnreachableError(
            f"{command['command']} returned no token: {str(words).strip()}"
        ) from None


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text
