"""Implements the API server's port with aiohttp.

Objects are decoded directly into reduced types, which have only the fields that Joiner reads.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
import tenacity

from controller.apis.kinds import EVENT, POD, Kind, T
from controller.apiserver.errors import (
    ApiError,
    ConflictError,
    InvalidError,
    TooManyRequestsError,
    UnavailableError,
)
from controller.apiserver.port import Change, Patch
from controller.kube import decoding, watching
from controller.kube.access import Access, AccessError
from controller.kube.errors import refusal, translated
from controller.kube.throttle import Priority, Throttle
from controller.kube.watching import SilenceError

FIELD_MANAGER = "karpenter"
"""The field manager of every write; the same name for all versions."""

PAGE = 500
"""Number of objects per page of a list: a few MiB of pods."""

REQUEST_SECONDS = 30.0
READ_ATTEMPTS = 4
CONNECTIONS = 100
BACKGROUND_CONNECTIONS = 50
"""The number of connections for background requests: a webhook can block each for seconds."""

NUMEROUS: tuple[Kind[Any], ...] = (EVENT, POD)
"""The kinds whose objects are created or deleted in large numbers."""

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

RequestObserver = Callable[[str, int], None]
"""Called for every response with the HTTP method and the status (0 without a response)."""


class Client:
    """Kubernetes over HTTP. Implements `ApiServer`; belongs to one event loop.

    Use it as an asynchronous context manager, which closes the connections at the end.
    """

    def __init__(
        self,
        access: Access,
        *,
        qps: float = 200,
        burst: int = 300,
        user_agent: str = "karpenter",
        observer: RequestObserver | None = None,
    ) -> None:
        self._access = access
        self._throttle = Throttle(qps, burst)
        self._background = asyncio.Semaphore(BACKGROUND_CONNECTIONS)
        self._user_agent = user_agent
        self._observer = observer
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            base_url=self._access.server,
            proxy=self._access.proxy or None,
            connector=aiohttp.TCPConnector(ssl=self._access.ssl_context(), limit=CONNECTIONS),
            headers={"User-Agent": self._user_agent},
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    # The port.

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """Return one object."""
        body = await _with_retries(lambda: self._request("GET", path(kind, namespace, name)))
        return decoding.one(kind, body)

    async def list(
        self, kind: Kind[T], *, label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        """Return all objects of a kind, read in pages."""
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        objects: builtins.list[T] = []
        async for page in self.pages(kind, **selectors):
            objects += page.items or ()
        return objects

    def watch(self, kind: Kind[T]) -> AsyncIterator[Change[T]]:
        """Yield the existing objects, then every change; see `watching.follow`."""
        return watching.follow(self, kind)

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        """Create an object, and return it as the server stored it.

        The request is not repeated if the response is lost, because the object may exist.
        """
        full = {"apiVersion": kind.api_version, "kind": kind.name, **body}
        answer = await self._write("POST", path(kind, namespace), full, priority=_priority(kind))
        return decoding.one(kind, answer)

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Patch,
        *,
        namespace: str = "",
        subresource: str = "",
        resource_version: str = "",
        uid: str = "",
    ) -> T:
        """Merge a patch into an object or its subresource; return the resulting object."""
        identity = {"resourceVersion": resource_version, "uid": uid}
        given = {key: value for key, value in identity.items() if value}
        if given:
            patch = {**patch, "metadata": {**(patch.get("metadata") or {}), **given}}
        target = path(kind, namespace, name, subresource)
        try:
            answer = await self._write("PATCH", target, patch, content_type=MERGE_PATCH)
        except InvalidError as exc:
            # With another uid, the server returns an error, because the field is immutable.
            if uid and "metadata.uid" in str(exc):
                raise ConflictError(str(exc), status=409, reason="Conflict") from exc
            raise
        return decoding.one(kind, answer)

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        """Request an object's deletion."""
        options = _delete_options(uid, resource_version, grace_period_seconds)
        target = path(kind, namespace, name)
        await self._write("DELETE", target, options, priority=_priority(kind))

    async def evict(self, name: str, namespace: str, *, uid: str) -> None:
        """Evict a pod.

        The request is not repeated after status 429: a PodDisruptionBudget forbids the eviction.
        """
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options(uid),
        }
        target = path(POD, namespace, name, "eviction")
        await self._request("POST", target, body=eviction, priority=Priority.BACKGROUND)

    # Calls for `watching` that are not in the port.

    async def pages(
        self, kind: Kind[T], **selectors: str
    ) -> AsyncGenerator[decoding.Page[T], None]:
        """Yield the pages of a list.

        Raises:
            GoneError: the list took too long and must begin again.

        """
        params = {"limit": str(PAGE)} | {key: value for key, value in selectors.items() if value}
        while True:
            body = await _with_retries(lambda: self._request("GET", path(kind), params=params))
            page = decoding.page(kind, body)
            yield page
            if not page.metadata.continue_:
                return
            params["continue"] = page.metadata.continue_

    async def stream(
        self, kind: Kind[Any], params: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch until the server ends it.

        Args:
            kind: the kind to watch.
            params: the parameters of the query.
            silence_seconds: how long the server may send nothing after its first response.

        Raises:
            SilenceError: the server has sent nothing for `silence_seconds`.
            ApiError: the server refused the watch or did not answer, or the connection broke.

        """
        await self._throttle.take()
        headers = await self._headers()
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=REQUEST_SECONDS, sock_read=silence_seconds
        )
        with translated():
            async with asyncio.timeout(REQUEST_SECONDS):
                response = await self._http.get(
                    path(kind), params=params, headers=headers, timeout=timeout
                )
            async with response:
                self._observe("GET", response.status)
                if response.status >= 400:
                    raise refusal(response.status, await response.read())
                pending = b""
                chunks = response.content.iter_any()
                while (chunk := await _next_chunk(chunks)) is not None:
                    *lines, pending = (pending + chunk).split(b"\n")
                    for line in lines:
                        yield line

    # Requests.

    @property
    def _http(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use the client as an asynchronous context"
        return self._session

    async def _headers(self) -> dict[str, str]:
        try:
            token = await self._access.bearer()
        except AccessError as exc:
            raise UnavailableError(str(exc)) from exc
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _observe(self, method: str, status: int) -> None:
        if self._observer is not None:
            self._observer(method, status)

    async def _write(
        self,
        method: str,
        target: str,
        body: Mapping[str, Any],
        *,
        content_type: str = JSON,
        priority: Priority = Priority.WORK,
    ) -> bytes:
        """Send a write; retry after status 429, which means that the server did not process it."""
        params = {} if method == "DELETE" else {"fieldManager": FIELD_MANAGER}
        return await _with_retries(
            lambda: self._request(
                method,
                target,
                params=params,
                body=body,
                content_type=content_type,
                priority=priority,
            ),
            retried=(TooManyRequestsError,),
        )

    async def _request(
        self,
        method: str,
        target: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        priority: Priority = Priority.WORK,
    ) -> bytes:
        """Send one request once the throttle allows it, and a background request has a slot."""
        slot = self._background if priority is Priority.BACKGROUND else contextlib.nullcontext()
        async with slot:
            await self._throttle.take(priority)
            return await self._send(method, target, params, body, content_type)

    async def _send(
        self,
        method: str,
        target: str,
        params: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
    ) -> bytes:
        """Send one request and return the body of the response.

        Raises:
            ApiError: the status is 400 or above.

        """
        headers = await self._headers() | {"Accept": JSON}
        if body is not None:
            headers["Content-Type"] = content_type
        status = 0
        try:
            with translated():
                async with self._http.request(
                    method,
                    target,
                    params=params,
                    data=None if body is None else msgspec.json.encode(body),
                    headers=headers,
                ) as response:
                    status = response.status
                    answer = await response.read()
        finally:
            self._observe(method, status)
        if status >= 400:
            raise refusal(status, answer)
        return answer


def path(kind: Kind[Any], namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Return the URL path of a collection, an object or a subresource."""
    scope = ("namespaces", namespace) if kind.namespaced and namespace else ()
    return "/".join((kind.root, *scope, *filter(None, (kind.plural, name, subresource))))


async def _next_chunk(chunks: AsyncIterator[bytes]) -> bytes | None:
    """Return the next chunk of a response, or None at its end; raises SilenceError on a timeout."""
    try:
        return await anext(chunks, None)
    except TimeoutError as exc:
        raise SilenceError from exc


async def _with_retries(
    send: Callable[[], Awaitable[bytes]],
    *,
    retried: tuple[type[ApiError], ...] = (TooManyRequestsError, UnavailableError),
) -> bytes:
    """Send a request, and retry after errors of the given types.

    The caller must pass only errors after which a repetition is safe. There are at most
    `READ_ATTEMPTS` attempts, with random exponential pauses of at most 5 s.
    """
    async for attempt in tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(retried),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
        stop=tenacity.stop_after_attempt(READ_ATTEMPTS),
        reraise=True,
    ):
        with attempt:
            return await send()
    raise AssertionError("the last attempt returns or raises")


def _priority(kind: Kind[Any]) -> Priority:
    """Return the priority of creating and deleting objects of a kind."""
    return Priority.BACKGROUND if kind in NUMEROUS else Priority.WORK


def _delete_options(
    uid: str, resource_version: str = "", grace_period_seconds: int | None = None
) -> dict[str, Any]:
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    wanted = {"uid": uid, "resourceVersion": resource_version}
    if any(wanted.values()):
        options["preconditions"] = {name: value for name, value in wanted.items() if value}
    if grace_period_seconds is not None:
        options["gracePeriodSeconds"] = grace_period_seconds
    return options
