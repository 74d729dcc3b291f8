"""A client of registries of container images: the part of the OCI Distribution API for a push.

Of the client libraries on PyPI, `oras` pushes no index of several architectures, and `python-dxf`
does not repeat requests that a registry throttles, as ECR Public does. `requests` reads proxies
and CA bundles from the environment.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from typing import IO, Any
from urllib.parse import urljoin

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_TYPES = (
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"

CHUNK = 1 << 20
TIMEOUT_SECONDS = (15.0, 120.0)
"""Patience for a connection, and for each part of an answer."""

TRIES = 5
BUSY = (429, 500, 502, 503, 504)
"""Statuses after which a request is repeated."""

BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "SSL_CERT_FILE")


class RegistryError(Exception):
    """A registry cannot be reached, or refuses a request; the message says what to do."""


def digest_of(content: bytes) -> str:
    """Return a digest as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Repository:
    """The images of one name in a registry."""

    def __init__(self, name: str, credentials: tuple[str, str] | None = None) -> None:
        """Make a client of a repository, such as `public.ecr.aws/docker/library/python`."""
        self.host, _, self.path = name.partition("/")
        self._basic = ""
        if credentials:
            self._basic = f"Basic {base64.b64encode(':'.join(credentials).encode()).decode()}"
        self._authorization = ""
        # As other clients do: a registry on this machine needs no TLS.
        is_local = re.match(r"(localhost|127\.\d+\.\d+\.\d+)(:\d+)?$", self.host)
        self._url = f"{'http' if is_local else 'https'}://{self.host}/v2/{self.path}/"
        self._session = requests.Session()
        self._session.verify = next(filter(None, map(os.environ.get, BUNDLES)), True)
        retry = Retry(
            TRIES,
            connect=1,
            other=0,
            allowed_methods=None,
            status_forcelist=BUSY,
            backoff_factor=1,
            raise_on_status=False,
        )
        self._session.mount("https://", HTTPAdapter(max_retries=retry))

    def manifest(self, reference: str) -> bytes:
        """Return a manifest or an index by its tag or digest."""
        accepted = ", ".join((INDEX, MANIFEST, *DOCKER_TYPES))
        content = self._ask("GET", f"manifests/{reference}", headers={"Accept": accepted}).content
        if reference.startswith("sha256:"):
            self._check(reference, digest_of(content))
        return content

    def find(self, tag: str) -> str | None:
        """Return the digest of the image with a tag; None if there is none."""
        answer = self._ask(
            "GET", f"manifests/{tag}", headers={"Accept": INDEX}, absent_is_fine=True
        )
        return digest_of(answer.content) if answer.ok else None

    def blob(self, digest: str, file: IO[bytes]) -> None:
        """Write a blob to a file, and check its digest."""
        sha256 = hashlib.sha256()
        answer = self._ask("GET", f"blobs/{digest}", stream=True)
        try:
            for chunk in answer.iter_content(CHUNK):
                sha256.update(chunk)
                file.write(chunk)
        except requests.RequestException as exc:
            raise self._unreachable(exc) from exc
        self._check(digest, f"sha256:{sha256.hexdigest()}")

    def has_blob(self, digest: str) -> bool:
        """Whether the repository has a blob."""
        return self._ask("HEAD", f"blobs/{digest}", absent_is_fine=True).ok

    def mount(self, digest: str, source: Repository) -> bool:
        """Take over a blob of another repository in the same registry, if the registry can."""
        where = {"mount": digest, "from": source.path}
        return self.host == source.host and self._start(where).status_code == requests.codes.created

    def push_blob(self, digest: str, content: bytes | IO[bytes]) -> None:
        """Upload a blob."""
        location = urljoin(self._url, self._start({}).headers["Location"])
        headers = {"Content-Type": "application/octet-stream"}
        self._ask("PUT", location, params={"digest": digest}, data=content, headers=headers)

    def push_manifest(self, reference: str, content: bytes, media_type: str) -> None:
        """Upload a manifest or an index, after all that it names."""
        headers = {"Content-Type": media_type}
        self._ask("PUT", f"manifests/{reference}", data=content, headers=headers)

    def _start(self, parameters: Mapping[str, str]) -> requests.Response:
        return self._ask("POST", "blobs/uploads/", params=parameters)

    def _ask(
        self, method: str, path: str, *, absent_is_fine: bool = False, **options: Any
    ) -> requests.Response:
        answer = self._try(method, path, options)
        if answer.status_code == requests.codes.unauthorized:
            self._log_in(answer.headers.get("WWW-Authenticate", ""))
            answer = self._try(method, path, options)
        if answer.ok or (absent_is_fine and answer.status_code == requests.codes.not_found):
            return answer
        raise self._refusal(answer)

    def _try(self, method: str, path: str, options: Mapping[str, Any]) -> requests.Response:
        if (body := options.get("data")) and not isinstance(body, bytes):
            body.seek(0)
        try:
            return self._session.request(
                method,
                urljoin(self._url, path),
                auth=self._authorize,
                timeout=TIMEOUT_SECONDS,
                **options,
            )
        except requests.RequestException as exc:
            raise self._unreachable(exc) from exc

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._authorization:
            request.headers["Authorization"] = self._authorization
        return request

    def _log_in(self, challenge: str) -> None:
        """Authenticate as the registry asks: with the credentials, or with a token for them."""
        if challenge.lower().startswith("bearer"):
            asked = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
            realm = asked.pop("realm")
            self._authorization = self._basic
            answer = self._try("GET", realm, {"params": asked})
            if not answer.ok:
                raise self._refusal(answer)
            said = answer.json()
            self._authorization = f"Bearer {said.get('token') or said['access_token']}"
        else:
            self._authorization = self._basic

    def _check(self, wanted: str, found: str) -> None:
        if wanted != found:
            raise RegistryError(
                f"{self.host} answered with {found} to a request for {self.path}@{wanted}: a proxy "
                "or a mirror changes images; run `pulumi up` where none does"
            )

    def _refusal(self, answer: requests.Response) -> RegistryError:
        try:
            words = "; ".join(f"{e['code']}: {e.get('message')}" for e in answer.json()["errors"])
        except (ValueError, KeyError, TypeError):
            words = answer.text.strip()[:200]
        remedy = "Run the command again; what is uploaded already stays"
        if answer.status_code in (401, 403):
            remedy = (
                "The principal needs the rights on ECR in docs/how-to/clusters.md; another "
                "registry needs a login (`podman login`, `docker login`)"
            )
        said = f"{answer.request.method} {self.path}: {answer.status_code} {words}"
        return RegistryError(f"{self.host} refuses {said}. {remedy}")

    def _unreachable(self, error: requests.RequestException) -> RegistryError:
        if isinstance(error, requests.exceptions.SSLError):
            remedy = "set REQUESTS_CA_BUNDLE to a file with the CA certificates of your proxy"
        elif isinstance(error, requests.exceptions.ProxyError):
            remedy = "check HTTPS_PROXY and NO_PROXY"
        else:
            remedy = "set HTTPS_PROXY if this machine needs a proxy, and run the command again"
        return RegistryError(
            f"cannot reach the registry {self.host}: {remedy}; or set joiner:image to an image "
            f"that exists: {error}"
        )
