"""Requests to the API server, and the kinds it serves.

* UnreachableError   there is no cluster, or it does not answer
* MissingKindError   the API server does not serve a kind
* ApiError           the API server refused a request; has its HTTP status
"""

from __future__ import annotations

import json
import os
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import requests
import yaml
from requests.adapters import HTTPAdapter

from testbed.kube.kubeconfig import Kubeconfig
from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError

APPLY: Final = "application/apply-patch+yaml"
JSON_PATCH: Final = "application/json-patch+json"
CREATOR: Final = "pulumi-kubernetes"
"""Field manager of the requests that create objects.

Server-side apply uses a field manager of each resource, whose name is in the resource's state.
"""
ALREADY_EXISTS: Final = "AlreadyExists"
REQUEST_SECONDS: Final = 60
CONNECTIONS: Final = 64
CONNECT_RETRIES: Final = 2
NOT_FOUND: Final = 404
CONFLICT: Final = 409


class UnreachableError(ProviderError):
    """There is no cluster, or it does not answer."""


class MissingKindError(ProviderError):
    """The API server does not serve a kind."""


class ApiError(ProviderError):
    """The API server refused a request."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        self.status = status
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Kind:
    """A Kubernetes kind as the API server serves it."""

    plural: str
    is_namespaced: bool


def read_kubeconfig(given: Any, context: str | None) -> Kubeconfig | None:
    """Return the connection of a kubeconfig, or None if there is no kubeconfig.

    `given` is a path, the text, or the document itself; paths in it are relative to the current
    folder. None means `KUBECONFIG` or the file in the
    home directory. Raises `ProviderError` if the kubeconfig is invalid.
    """
    if given is None:
        given = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    try:
        if isinstance(given, str) and _is_path(given):
            path = Path(given.split(os.pathsep)[0]).expanduser()
            if not path.exists():
                return None
            # The real provider loads the text alone, so paths in it start at the engine's folder.
            return _with_context(yaml.safe_load(path.read_text()), context)
        return _with_context(yaml.safe_load(given) if isinstance(given, str) else given, context)
    except (KeyError, TypeError, ValueError, OSError, yaml.YAMLError) as error:
        raise ProviderError(f"the kubeconfig cannot be used: {error}") from error


def active_cluster(settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the active cluster in the provider's kubeconfig, or None if it names none.

    Raises `ProviderError` if the setting is neither a file nor a kubeconfig.
    """
    given = settings.get("kubeconfig")
    if not given:
        return None
    document = _document_of(given)
    contexts, clusters = (
        {entry["name"]: entry for entry in document.get(kind) or []}
        for kind in ("contexts", "clusters")
    )
    context = contexts.get(settings.get("context") or document.get("current-context"))
    if context is None:
        return None
    named = clusters.get(settings.get("cluster") or context["context"]["cluster"])
    return named["cluster"] if named else None


def _document_of(given: Any) -> Mapping[str, Any]:
    """Return the document of a kubeconfig, given as path, text or document."""
    document = given
    try:
        if isinstance(given, str):
            is_file = _is_path(given) and Path(given).expanduser().exists()
            text = Path(given).expanduser().read_text() if is_file else given
            document = yaml.safe_load(text)
    except (OSError, yaml.YAMLError) as error:
        raise ProviderError(f"failed to parse kubeconfig: {error}") from error
    if not isinstance(document, Mapping):
        raise ProviderError("failed to parse kubeconfig: it is no mapping")
    return document


def _with_context(document: Mapping[str, Any], context: str | None) -> Kubeconfig:
    return Kubeconfig.of({**document, "current-context": context} if context else document)


def _is_path(text: str) -> bool:
    return "\n" not in text and not text.lstrip().startswith("{")


def context_namespace(given: Any) -> str | None:
    """Return the namespace of a kubeconfig's current context, or None if it has none.

    `given` is the text or the document of the kubeconfig. For a path, the answer is None.
    """
    document = yaml.safe_load(given) if isinstance(given, str) and not _is_path(given) else given
    if not isinstance(document, Mapping):
        return None
    for entry in document.get("contexts") or []:
        if entry["name"] == document.get("current-context"):
            namespace: str | None = entry["context"].get("namespace")
            return namespace
    return None


def is_group_served_alike(old: str, new: str) -> bool:
    """Return whether two API versions share a group, so that an object can move between them."""
    return old.rpartition("/")[0] == new.rpartition("/")[0]


class _Trusting(HTTPAdapter):
    """HTTP adapter that uses only the CAs and the client certificate of a TLS context."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        super().__init__(pool_maxsize=CONNECTIONS, pool_block=True, max_retries=CONNECT_RETRIES)

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, **more, ssl_context=self._tls)

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        # The base method would add the public CAs to those of the context.
        pass


class Api:
    """One API server. Thread-safe."""

    def __init__(self, kubeconfig: Kubeconfig, namespace: str) -> None:
        tls = kubeconfig.tls()
        self.namespace = namespace
        self._server = kubeconfig.server
        self._session = requests.Session()
        # Only the kubeconfig decides how to connect: no proxy, no credentials of a .netrc.
        self._session.trust_env = False
        if isinstance(tls, ssl.SSLContext):
            self._session.mount("https://", _Trusting(tls))
        self._session.headers["User-Agent"] = "pulumi-kubernetes-standin"
        if kubeconfig.token:
            self._session.headers["Authorization"] = f"Bearer {kubeconfig.token.strip()}"
        self._kinds: dict[tuple[str, str], Kind] = {}
        self._lock = threading.Lock()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Bag:
        """Send one request; return the JSON answer. Raises `ApiError` or `UnreachableError`."""
        try:
            answer = self._session.request(
                method,
                f"{self._server}{path}",
                params=query,
                data=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": content_type},
                timeout=REQUEST_SECONDS,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise UnreachableError(f"the Kubernetes API cannot be reached: {error}") from error
        if answer.status_code >= 400:
            raise ApiError(answer.status_code, *_words(answer.content))
        parsed: Bag = json.loads(answer.content)
        return parsed

    def check(self) -> None:
        """Raise `ProviderError` if the API server does not answer, or refuses the credentials."""
        self.request("GET", "/openapi/v3")

    def kind_of(self, api_version: str, kind: str) -> Kind | None:
        """Return how the server serves a kind; None if it does not, as before the CRD exists."""
        with self._lock:
            if (api_version, kind) not in self._kinds:
                try:
                    served = self.request("GET", _root(api_version))["resources"]
                except ApiError as error:
                    if error.status != NOT_FOUND:
                        raise
                    return None
                for entry in served:
                    if "/" not in entry["name"]:
                        self._kinds[api_version, entry["kind"]] = Kind(
                            entry["name"], entry["namespaced"]
                        )
            return self._kinds.get((api_version, kind))

    def path_of(self, thing: Mapping[str, Any], kind: Kind) -> str:
        """Return the path of an object from its `apiVersion` and `metadata`."""
        metadata = thing["metadata"]
        place = ""
        if kind.is_namespaced:
            place = f"/namespaces/{metadata.get('namespace') or self.namespace}"
        return f"{_root(thing['apiVersion'])}{place}/{kind.plural}/{metadata['name']}"

    def get(self, path: str) -> Bag | None:
        """Return the object at a path, or None if it does not exist."""
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def create(self, path: str, thing: Bag, *, dry_run: bool = False) -> Bag:
        """Create the object at a path; return it as created. Raises `ApiError` if it exists.

        The API server drops fields that it does not know.
        """
        query = _query(CREATOR, dry_run=dry_run)
        return self.request("POST", path.rpartition("/")[0], body=thing, query=query)

    def replace(self, path: str, thing: Bag, *, manager: str, dry_run: bool = False) -> Bag:
        """Replace the object at a path by another one, and return that."""
        return self.request("PUT", path, body=thing, query=_query(manager, dry_run=dry_run))

    def own_fields(self, path: str, entries: list[Bag], *, version: str) -> Bag:
        """Replace the managed fields of the object at a path by `entries`; return the object.

        Raises `ApiError` if the object has changed since its resource version was `version`.
        """
        steps = [
            {"op": "replace", "path": "/metadata/managedFields", "value": entries},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
        ]
        return self.request("PATCH", path, body=steps, content_type=JSON_PATCH)

    def apply(
        self, path: str, thing: Bag, *, manager: str, force: bool, dry_run: bool = False
    ) -> Bag:
        """Apply the object with server-side apply, as field manager `manager`; return the object.

        With `force`, fields of other managers are taken over. Raises `ApiError` for a conflict, and
        for a field that the API server does not know.
        """
        query = {**_query(manager, dry_run=dry_run), "force": str(force).lower()}
        return self.request("PATCH", path, body=thing, query=query, content_type=APPLY)


def _query(manager: str, *, dry_run: bool) -> dict[str, str]:
    return {"fieldManager": manager, **({"dryRun": "All"} if dry_run else {})}


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _words(content: bytes) -> tuple[str, str]:
    """Return message and reason of the API server's error."""
    try:
        status = json.loads(content)
    except ValueError:
        return content.decode(errors="replace")[:300], ""
    return str(status.get("message") or status), str(status.get("reason") or "")
