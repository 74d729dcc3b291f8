"""A thin asynchronous client of the Kubernetes API, for the parts of the testbed.

Objects are plain JSON. Paths are those of the API (`/api/v1/nodes/NAME/status`). The exceptions:

* KubernetesError          the API server answered with an error; holds its Status
  x NotFoundError          404
  x ConflictError          409: the object exists already, or has changed since it was read
  x UnprocessableError     422: the object violates its schema
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import aiohttp

from testbed.kube.kubeconfig import Kubeconfig

log = logging.getLogger(__name__)

Object = dict[str, Any]

PAGE_SIZE = 500
REQUEST_SECONDS = 30
WATCH_SECONDS = 240
RETRY_SECONDS = 0.5


class KubernetesError(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFoundError(KubernetesError):
    """The object does not exist."""


class ConflictError(KubernetesError):
    """The object exists already, or has changed since it was read."""


class UnprocessableError(KubernetesError):
    """The object violates its schema."""


TRANSIENT = (KubernetesError, aiohttp.ClientError, TimeoutError)
"""The errors that a task which runs forever logs before it tries again."""

_ERRORS: Mapping[int, type[KubernetesError]] = {
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableError,
}


class Patch(StrEnum):
    """The content type of a patch, which decides how the API server applies it."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


class ChangeType(StrEnum):
    """The type of a change; SYNCED follows the last object that already existed."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    SYNCED = "SYNCED"


@dataclass(frozen=True, slots=True)
class Change:
    """One change that `follow` yields."""

    type: ChangeType
    object: Object


def holds(thing: Object, condition: str) -> bool:
    """Return whether a condition of an object is true."""
    conditions = thing.get("status", {}).get("conditions", [])
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)


class KubeClient:
    """A client of one API server; an asynchronous context manager.

    Every method except `follow` raises `KubernetesError` if the API server refuses the request, and
    `aiohttp.ClientError` or `TimeoutError` if it does not answer.
    """

    def __init__(self, kubeconfig: Kubeconfig) -> None:
        self.kubeconfig = kubeconfig
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"User-Agent": "joiner-testbed"}
        if self.kubeconfig.token:
            headers["Authorization"] = f"Bearer {self.kubeconfig.token.strip()}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.kubeconfig.tls(), limit=64),
            headers=headers,
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

    async def get(self, path: str, **query: str) -> Object:
        """Return one object."""
        return await self._json("GET", path, query=query)

    async def create(self, path: str, body: Object) -> Object:
        """Create an object in the collection at the path; return it as created."""
        return await self._json("POST", path, body=body)

    async def patch(self, path: str, body: Any, *, how: Patch = Patch.MERGE) -> Object:
        """Patch an object or one of its subresources; return the patched object."""
        return await self._json("PATCH", path, body=body, content_type=how)

    async def delete(
        self, path: str, *, grace_seconds: int | None = None, uid: str | None = None
    ) -> None:
        """Delete an object. With `uid`, raises `ConflictError` if the object has another UID."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        await self._json("DELETE", path, body=body)

    async def list(self, path: str, **query: str) -> tuple[list[Object], str]:
        """Return all objects of a collection, read page by page, and its resource version."""
        objects: list[Object] = []
        page: dict[str, str] = {"limit": str(PAGE_SIZE), **query}
        while True:
            answer = await self.get(path, **page)
            objects += answer.get("items") or []
            if not answer["metadata"].get("continue"):
                return objects, answer["metadata"]["resourceVersion"]
            page["continue"] = answer["metadata"]["continue"]

    async def follow(self, path: str, **query: str) -> AsyncIterator[Change]:
        """Yield every object of a collection, then SYNCED, then every change, forever.

        After a lost connection the collection is listed again, which yields SYNCED again. Objects
        that disappeared meanwhile yield DELETED.
        """
        known: dict[str, Object] = {}
        while True:
            try:
                objects, version = await self.list(path, **query)
                for change in _difference(known, objects):
                    yield change
                yield Change(ChangeType.SYNCED, {})
                async for change in self._watch(path, version, known, query):
                    yield change
            except (aiohttp.ClientError, TimeoutError, KubernetesError) as exc:
                log.debug("the watch of %s broke: %s", path, exc)
                await asyncio.sleep(RETRY_SECONDS)

    async def _watch(
        self, path: str, version: str, known: dict[str, Object], query: Mapping[str, str]
    ) -> AsyncIterator[Change]:
        """Yield changes until the server no longer has the resource version."""
        while True:
            watch = {
                **query,
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(WATCH_SECONDS),
            }
            async with self._request("GET", path, query=watch, endless=True) as response:
                async for line in _lines(response.content):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    changed = event["object"]
                    version = changed["metadata"]["resourceVersion"]
                    if event["type"] == "BOOKMARK":
                        continue
                    change = Change(ChangeType(event["type"]), changed)
                    if change.type is ChangeType.DELETED:
                        known.pop(changed["metadata"]["uid"], None)
                    else:
                        known[changed["metadata"]["uid"]] = changed
                    yield change

    async def _json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Object:
        async with self._request(
            method, path, query=query, body=body, content_type=content_type
        ) as response:
            return dict(await response.json())

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        endless: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("a KubeClient is used as an asynchronous context manager")
        seconds = None if endless else REQUEST_SECONDS
        async with self._session.request(
            method,
            self.kubeconfig.server + path,
            params=query or {},
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": content_type},
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=10),
        ) as response:
            if response.status >= 400:
                raise _error(response.status, await response.text())
            yield response


def _error(status: int, text: str) -> KubernetesError:
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {}
    kind = _ERRORS.get(status, KubernetesError)
    return kind(status, answer.get("reason", "Unknown"), answer.get("message", text))


def _difference(known: dict[str, Object], objects: list[Object]) -> list[Change]:
    """Update the known objects and return the changes."""
    present = {listed["metadata"]["uid"]: listed for listed in objects}
    changes = [Change(ChangeType.DELETED, known[uid]) for uid in known.keys() - present.keys()]
    for uid, listed in present.items():
        if uid not in known:
            changes.append(Change(ChangeType.ADDED, listed))
        elif known[uid]["metadata"]["resourceVersion"] != listed["metadata"]["resourceVersion"]:
            changes.append(Change(ChangeType.MODIFIED, listed))
    known.clear()
    known.update(present)
    return changes


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    # StreamReader.readline rejects lines longer than its buffer, and a pod can be longer.
    pending = b""
    async for chunk in stream.iter_any():
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
