"""The cluster's API, as much of it as taking things down needs.

A dynamic provider runs in a process of its own, without the Kubernetes provider. It
finds its way by a kubeconfig, or by the cluster's name as `aws eks get-token` does.

* ClusterGoneError         EKS knows no such cluster
* ClusterUnreachableError  EKS knows it, and there is no way to its API server
* NotGivenUpError          either of them, and nobody said that the stack may end without it
* ApiError                 it answered with an error; carries the status
"""

from __future__ import annotations

import base64
import http.client
import json
import os
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

FORGET = "PULUMI_K8S_DELETE_UNREACHABLE"
"""`true` lets Pulumi's Kubernetes provider forget the objects of a cluster it cannot reach."""

ABANDON = "JOINER_ABANDON_CLUSTER"
"""The name of a cluster that exists and cannot be reached: its instances may end undrained."""

Wire = dict[str, Any]


class ClusterGoneError(Exception):
    """There is no such cluster any more."""


class ClusterUnreachableError(Exception):
    """There is no way to the API server: the cluster may be in the best of health."""


class NotGivenUpError(Exception):
    """What a stack has put into a cluster cannot be taken down; says how to end it all the same."""


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{status}: {message}")


@dataclass(frozen=True, slots=True)
class ClusterLocation:
    """How to find the cluster; plain text, so that it can stand in a stack's state."""

    cluster_name: str
    region: str
    aws_endpoint: str = ""
    kubeconfig: str = ""
    """As `kubeconfig_file` reads it."""

    @classmethod
    def of(cls, props: Mapping[str, Any]) -> ClusterLocation:
        """Find it again in what a resource remembers."""
        return cls(**{name: str(props.get(name) or "") for name in cls.__slots__})

    @property
    def location(self) -> Mapping[str, str]:
        """The same as a stack's state keeps it."""
        return asdict(self)

    def client(self, service: str) -> Any:
        """Return the boto3 client of an AWS API."""
        return boto3.client(
            service, region_name=self.region, endpoint_url=self.aws_endpoint or None
        )


@dataclass(frozen=True, slots=True)
class Server:
    """An API server: its URL, how to trust it, and who we are to it."""

    url: str
    context: ssl.SSLContext
    token: Callable[[], str] | None = None


class Objects(Protocol):
    """What everybody asks of a cluster; each adds what he alone does."""

    def get(self, path: str) -> Wire | None:
        """Read one object."""

    def list(self, path: str, **query: str) -> list[Wire]:
        """Read a collection."""

    def delete(self, path: str) -> None:
        """Ask for an object to go."""


class ClusterApi:
    """One API server, spoken to in plain JSON.

    A server that does not answer is asked again for `patience_seconds` in all: one that is
    being replaced comes back, one that is gone does not.
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
        self._opener = urllib.request.build_opener(tls)
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
        """Find the API server.

        Raises:
            ClusterGoneError: EKS knows no such cluster.
            ClusterUnreachableError: the kubeconfig cannot be read.

        """
        return cls(_server(location), patience_seconds=patience_seconds, say=say)

    def list(self, path: str, **query: str) -> list[Wire]:
        """Read a whole collection; nothing where the kind does not exist."""
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
        """Read one object; None when there is none."""
        return next(self._tolerating_absence("GET", path), None)

    def delete(self, path: str) -> None:
        """Ask for an object to go; one that is gone already is fine."""
        next(self._tolerating_absence("DELETE", path), None)

    def merge(self, path: str, change: Wire) -> None:
        """Change an object; one that is gone already is fine."""
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
        """Send one request, again and again while there is no answer.

        Raises:
            ApiError: the server refused it.
            ClusterUnreachableError: there was no answer as long as patience lasted.

        """
        return self._persistently(self._send, method, path, body, content_type)

    def _announce(self, attempt: RetryCallState) -> None:
        """Say once that there is no answer, and how long one is waited for."""
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
            raise ApiError(exc.code, _message(exc)) from exc
        # What is not HTTP, or not JSON, is somebody else who answers in its place.
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise ClusterUnreachableError(f"{self._server.url} does not answer: {exc}") from exc


def require_given_up(
    location: ClusterLocation,
    problem: ClusterGoneError | ClusterUnreachableError,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Go on without a cluster only where somebody said so.

    A server that is silent says nothing about its cluster: a VPN that is off, a certificate or
    a credential plugin that fails look the same from here as a cluster that was deleted.

    Raises:
        NotGivenUpError: nobody did; says what to do.

    """
    forgets = environment.get(FORGET, "").lower() in ("1", "t", "true")
    end = f"{FORGET}=true pulumi destroy"
    if isinstance(problem, ClusterGoneError):
        if not forgets:
            raise NotGivenUpError(
                f"{problem}. Nothing has been removed. If these are the account and the region "
                f"that it was in, end what is left of the stack without it: {end}"
            )
    elif not (forgets and environment.get(ABANDON) == location.cluster_name):
        raise NotGivenUpError(
            f"EKS has the cluster {location.cluster_name}, but {problem}. Nothing has been "
            "removed. Mend the way to it (network, kubeconfig, credentials) and run `pulumi "
            "destroy` again; or give the cluster up, which terminates its instances without "
            f"draining them and leaves in the cluster what the stack has put there: "
            f"{ABANDON}={location.cluster_name} {end}"
        )


def _server(location: ClusterLocation) -> Server:
    cluster = described(location)
    if location.kubeconfig:
        return _server_of(kubeconfig_file(location.kubeconfig))
    authority = base64.b64decode(cluster["certificateAuthority"]["data"]).decode()
    context = _trusting(authority)
    return Server(cluster["endpoint"].rstrip("/"), context, lambda: _eks_token(location))


def kubeconfig_file(written: str) -> Path:
    """Return the file that a path leads to on this machine.

    Args:
        written: from home where it begins with ~, else from the project's folder: a stack's state
            keeps it so, for whatever machine the stack is destroyed on.

    """
    return PROJECT / Path(written).expanduser()


def _server_of(kubeconfig: Path) -> Server:
    folder = kubeconfig.parent
    try:
        document = yaml.safe_load(kubeconfig.read_text())
        current = _named(document, "contexts", document["current-context"])["context"]
        cluster = _named(document, "clusters", current["cluster"])["cluster"]
        user = _named(document, "users", current["user"])["user"]
        return Server(
            cluster["server"].rstrip("/"), _tls(cluster, user, folder), _token_of(user, folder)
        )
    except (OSError, yaml.YAMLError, ValueError, KeyError, TypeError) as exc:
        raise ClusterUnreachableError(f"the kubeconfig {kubeconfig} cannot be used: {exc}") from exc


def described(location: ClusterLocation) -> Mapping[str, Any]:
    """Ask EKS for the cluster: the one who knows whether it is gone.

    Raises:
        ClusterGoneError: there is none.

    """
    try:
        answer: Mapping[str, Any] = location.client("eks").describe_cluster(
            name=location.cluster_name
        )
    except ClientError as exc:
        if exc.response["Error"]["Code"] == "ResourceNotFoundException":
            raise ClusterGoneError(
                f"EKS has no cluster {location.cluster_name} in {location.region}"
            ) from exc
        raise
    cluster: Mapping[str, Any] = answer["cluster"]
    return cluster


def _eks_token(location: ClusterLocation) -> str:
    """Sign a token as `aws eks get-token` does: a presigned question who we are."""
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


def _named(document: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    for entry in document.get(kind) or []:
        if entry["name"] == name:
            named: Mapping[str, Any] = entry
            return named
    raise ClusterUnreachableError(f"the kubeconfig has no {name!r} among its {kind}")


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    authority = _content(cluster, "certificate-authority", folder)
    context = _trusting(authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _content(user, "client-certificate", folder)
    key = _content(user, "client-key", folder)
    if certificate and key:
        # The ssl module takes certificates from files only.
        with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
            pem.write(certificate + b"\n" + key)
            pem.flush()
            context.load_cert_chain(pem.name)
    return context


def _trusting(authority: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority)
    # Kubernetes asks for no key identifiers, Python from 3.13 on does; older clusters' CAs
    # have none. Chain and host name are verified as ever.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
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
    """Run a credential plugin as kubectl does."""
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
        # Its last words help; what it printed as its answer may hold a token.
        words = exc.stderr if isinstance(exc, subprocess.CalledProcessError) else type(exc).__name__
        raise ClusterUnreachableError(
            f"{command['command']} gave no token: {str(words).strip()}"
        ) from None


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text
