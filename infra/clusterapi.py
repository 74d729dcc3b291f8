"""Requests to the cluster's API server, for guards and for the destroy of a stack.

A dynamic provider runs in its own process, without Pulumi's Kubernetes provider. It connects by a
kubeconfig, or by the cluster's name and a token as `aws eks get-token` creates it. The official
Kubernetes client is imported only when it is needed: this takes about 0.2 s.

* ClusterGoneError          the EKS cluster does not exist
* ClusterUnreachableError   the EKS cluster exists, but its API server cannot be reached
* NotAuthenticatedError     the API server does not accept the credentials
* ClusterNotAbandonedError  the cluster does not exist or cannot be reached, and the user did not
                            allow a destroy without it
* ApiError                  the API server returned an error; has its status
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import boto3
import yaml
from botocore.exceptions import ClientError
from botocore.signers import RequestSigner
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from infra.release import CHECKOUT
from infra.rights import explain_denials

if TYPE_CHECKING:
    from kubernetes.client import Configuration

PAGE_SIZE = 500
REQUEST_SECONDS = 30
RETRY_SECONDS = 2.0
TOKEN_SECONDS = 60
UNAUTHORIZED = 401
PROXY_SCHEMES = ("http://",)

FORGET = "PULUMI_K8S_DELETE_UNREACHABLE"
"""Environment variable: with exactly `true`, Pulumi's Kubernetes provider removes the objects of an
unreachable cluster from the state."""

UPSERT = "PULUMI_K8S_UPSERT_EXISTING_OBJECTS"
"""Environment variable: with exactly `true`, Pulumi's Kubernetes provider adopts existing
objects."""

FORCE = "PULUMI_K8S_ENABLE_PATCH_FORCE"
"""Environment variable: with exactly `true`, Pulumi's Kubernetes provider overrides conflicts."""

ABANDON = "JOINER_ABANDON_CLUSTER"
"""Environment variable: name of an unreachable cluster without which the user allows a destroy. Its
instances are terminated without a drain."""

Wire = dict[str, Any]


class ClusterGoneError(Exception):
    """EKS reports that the cluster does not exist."""


class ClusterUnreachableError(Exception):
    """The API server cannot be reached; the cluster itself may be healthy."""


class NotAuthenticatedError(ClusterUnreachableError):
    """The API server does not accept the credentials."""


class ClusterNotAbandonedError(Exception):
    """The stack's objects in the cluster cannot be deleted; the message says what to do."""


class ApiError(Exception):
    """The API server returned an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{status}: {message}")


CLUSTER_ERRORS = (ApiError, ClusterGoneError, ClusterUnreachableError)
"""Every error of a request to the cluster."""


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
        """Return the boto3 client of an AWS API.

        It raises `MissingRightError`, a ClientError, for each call that AWS denies.
        """
        made = boto3.client(
            service, region_name=self.region, endpoint_url=self.aws_endpoint or None
        )
        explain_denials(made)
        return made


class Objects(Protocol):
    """The requests to an API server that most code here needs: a part of `ClusterApi`.

    `path` is the URL path of an object or a collection, such as `/api/v1/nodes`.
    """

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
        server: Configuration,
        *,
        patience_seconds: float = 0.0,
        say: Callable[[str], None] = print,
    ) -> None:
        from kubernetes.client import ApiClient

        server.retries = False
        self._client = ApiClient(server)
        self._client.rest_client.pool_manager.connection_pool_kw["ssl_context"] = _tls(server)
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
            location: the location of the cluster.
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
            answer = self.get(f"{path}?{urllib.parse.urlencode(page)}")
            if answer is None:
                return []
            items += answer.get("items") or []
            after = answer["metadata"].get("continue")
            if not after:
                return items
            page["continue"] = after

    def get(self, path: str) -> Wire | None:
        """Return one object; None if it does not exist."""
        return self._request_existing("GET", path)

    def delete(self, path: str) -> None:
        """Request the deletion of an object; does nothing if it does not exist."""
        self._request_existing("DELETE", path)

    def merge(self, path: str, change: Wire) -> None:
        """Change an object by a JSON merge patch; does nothing if it does not exist."""
        self._request_existing("PATCH", path, change, "application/merge-patch+json")

    def _request_existing(self, *arguments: Any) -> Wire | None:
        """Send a request and return the answer; None if the object does not exist."""
        try:
            return self.request(*arguments)
        except ApiError as exc:
            if exc.status == 404:
                return None
            raise

    def request(
        self,
        method: str,
        path: str,
        body: Wire | None = None,
        content_type: str = "application/json",
    ) -> Wire:
        """Send a request and return the response body; retry while the API server does not answer.

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
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        url = self._client.configuration.host
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        headers["Connection"] = "close"  # an API server that is being replaced closes idle ones
        self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        try:
            response = self._client.call_api(
                method, url + path, headers, body, _request_timeout=REQUEST_SECONDS
            )
            text = response.read().decode(errors="replace")
            if response.status == UNAUTHORIZED:
                raise NotAuthenticatedError(
                    f"{url} does not accept the current credentials (401: {_message(text)}); renew "
                    "them, or set joiner:kubeconfig to a kubeconfig with other credentials"
                )
            if response.status >= 400:
                raise ApiError(response.status, _message(text))
            answer: Wire = json.loads(text)
            return answer
        # An answer that is not HTTP or not JSON is from another server, such as a captive portal.
        except (OSError, HTTPError, ApiException, ValueError) as exc:
            problem = exc.__context__ if isinstance(exc, ApiException) else exc  # a TLS error
            raise ClusterUnreachableError(f"{url} does not answer: {problem}") from exc


def require_abandoned(
    location: ClusterLocation,
    problem: ClusterGoneError | ClusterUnreachableError,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Return only if the user allowed a destroy without the cluster.

    The user allows it by the variables `FORGET` and, if the cluster may exist, `ABANDON` in
    `environment`. `problem` is the error of the attempt to reach the cluster.

    An API server that does not answer does not prove that its cluster was deleted: a VPN that is
    off, an expired certificate and a failing credential plugin have the same effect.

    Raises:
        ClusterNotAbandonedError: the user did not allow it; the message says what to do.

    """
    forgets = environment.get(FORGET) == "true"
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


@contextmanager
def unless_abandoned(location: ClusterLocation) -> Iterator[None]:
    """Leave the block early if the cluster is gone or cannot be reached, and the user gave it up.

    Raises ClusterNotAbandonedError if the user has not.
    """
    try:
        yield
    except (ClusterGoneError, ClusterUnreachableError) as exc:
        require_abandoned(location, exc)


def _server(location: ClusterLocation) -> Configuration:
    cluster = describe_cluster(location)
    if location.kubeconfig:
        return server_of(kubeconfig_file(location.kubeconfig))
    from kubernetes.client import Configuration

    server = Configuration(
        host=cluster["endpoint"].rstrip("/"),
        ca_cert_data=base64.b64decode(cluster["certificateAuthority"]["data"]).decode(),
    )
    return _authenticate(server, lambda: _eks_token(location))


def _authenticate(server: Configuration, token: Callable[[], str]) -> Configuration:
    """Return the server; every request calls `token` for its bearer token."""
    server.api_key["BearerToken"] = ""
    server.refresh_api_key_hook = lambda it: it.api_key.update(BearerToken=f"Bearer {token()}")
    return server


def kubeconfig_file(written: str) -> Path:
    """Return the path of a kubeconfig on this machine.

    Args:
        written: absolute, or relative: to home if it begins with ~, else to the project's folder.
            A stack's state stores it in this form, because a destroy may run on another machine.

    """
    return CHECKOUT / Path(written).expanduser()


def server_of(kubeconfig: Path) -> Configuration:
    """Return the API server of a kubeconfig's current context, without calling it.

    Raises:
        ClusterUnreachableError: the kubeconfig has no API server or no credentials; says which.

    """
    from kubernetes.config import ConfigException

    try:
        return _server_in(yaml.safe_load(kubeconfig.read_text()), kubeconfig.parent)
    except (LookupError, AttributeError, TypeError) as exc:
        raise ClusterUnreachableError(
            f"the kubeconfig {kubeconfig} cannot be used: an entry is incomplete or of the "
            f"wrong type ({exc}); `kubectl config view` shows what kubectl reads"
        ) from exc
    except (OSError, yaml.YAMLError, ValueError, ConfigException) as exc:
        raise ClusterUnreachableError(f"the kubeconfig {kubeconfig} cannot be used: {exc}") from exc


def _server_in(document: Any, folder: Path) -> Configuration:
    """Return the API server of a kubeconfig's current context.

    Raises:
        ValueError: it has no credentials, or a part is unsupported.
        ConfigException: a part is missing.

    """
    from kubernetes.client import Configuration
    from kubernetes.config.kube_config import KubeConfigLoader

    if not isinstance(document, Mapping):
        raise ValueError("it is empty" if document is None else "it is not a YAML mapping")
    users = {entry["name"]: entry for entry in document.get("users") or []}
    for entry in users.values():
        entry["user"] = entry.get("user") or {}  # the official client refuses `user: null`
    loader = KubeConfigLoader(document, config_base_path=str(folder))
    named = loader.current_context["context"].get("user")
    user = users[named]["user"] if named in users else {}
    token = _token_of(user, folder)
    server = Configuration()
    loader.load_and_set(server)
    # `kubectl proxy` (HTTP) requires no credentials; an API server (HTTPS) always does.
    if not user and not token and server.host.startswith("https://"):
        raise ValueError(
            f"its context {document['current-context']!r} has no credentials: name a user with a "
            "token, a client certificate or an exec plugin"
        )
    if server.proxy and not server.proxy.startswith(PROXY_SCHEMES):
        raise ValueError(
            f"its proxy-url is {server.proxy}: allowed is the URL of an HTTP proxy (http://)"
        )
    return _authenticate(server, token) if token else server


def _tls(server: Configuration) -> ssl.SSLContext:
    """Return the TLS context to which urllib3 adds the certificates of the server.

    By default, urllib3 requires key identifiers in certificates on Python 3.13 and later. The CAs
    of older EKS clusters have none.
    """
    from urllib3.util.ssl_ import create_urllib3_context

    verified = ssl.CERT_REQUIRED if server.verify_ssl else ssl.CERT_NONE
    context = create_urllib3_context(cert_reqs=verified, verify_flags=ssl.VerifyFlags(0))
    if not server.ssl_ca_cert and not server.ca_cert_data:
        context.load_default_certs()
    return context


def describe_cluster(location: ClusterLocation) -> Mapping[str, Any]:
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


def _token_of(user: dict[str, Any], folder: Path) -> Callable[[], str] | None:
    """Take a token file or a credential plugin from a kubeconfig's user, and return its token.

    The official client reads a token file only once, and sends its line feed. It runs a plugin
    without a time limit, logs its error, and sends the requests without credentials.
    """
    file, command = user.pop("tokenFile", None), user.pop("exec", None)
    if file:
        return lambda: _token_in(folder / file)
    if command and not user.get("token"):
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


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text
