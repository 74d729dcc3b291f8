"""An HTTP front for the in-memory Kubernetes API server, as far as a controller uses the API.

Lists and watches cost the controller as much as those of a real API server. This server does less:
it neither writes objects to disk nor runs admission or authorization.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from controller.apis import kinds
from controller.apis.kinds import Kind
from controller.apiserver.errors import ApiError
from controller.apiserver.fake import FakeApiServer

KINDS: Mapping[tuple[str, str], Kind[Any]] = {
    (kind.root, kind.plural): kind for kind in vars(kinds).values() if isinstance(kind, Kind)
}


class Front:
    """HTTP server over an in-memory API server.

    `created` has an event per resource plural, set when the first object is created over HTTP.
    """

    def __init__(self, api: FakeApiServer) -> None:
        self.api = api
        self.created: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._numbers = itertools.count(1)
        self._listings: dict[str, tuple[str, list[dict[str, Any]]]] = {}

    def application(self) -> web.Application:
        """Return the aiohttp application that serves the API."""
        application = web.Application()
        application.router.add_get("/api", self._core)
        application.router.add_get("/apis", self._groups)
        application.router.add_route("*", "/{path:.*}", self._answer)
        return application

    async def _core(self, request: web.Request) -> web.Response:
        return _json({"kind": "APIVersions", "versions": ["v1"]})

    async def _groups(self, request: web.Request) -> web.Response:
        names: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
        for version in sorted({kind.api_version for kind in KINDS.values() if kind.group}):
            name, _, number = version.partition("/")
            names[name].append({"groupVersion": version, "version": number})
        groups = [
            {"name": name, "versions": versions, "preferredVersion": versions[0]}
            for name, versions in names.items()
        ]
        return _json({"kind": "APIGroupList", "groups": groups})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        size = 2 if parts[0] == "api" else 3
        root, rest = "/" + "/".join(parts[:size]), parts[size:]
        if not rest:
            return _json({"kind": "APIResourceList", "resources": _resources(root)})
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        kind = KINDS.get((root, rest[0]))
        if kind is None:
            return _json({"message": f"{request.path} is not served"}, status=404)
        try:
            return await self._respond(request, kind, namespace, *rest[1:])
        except ApiError as exc:
            said = {"kind": "Status", "message": str(exc), "reason": exc.reason}
            return _json(said, status=exc.status)

    async def _respond(
        self, request: web.Request, kind: Kind[Any], namespace: str, name: str = "", sub: str = ""
    ) -> web.StreamResponse:
        if request.method == "GET" and not name:
            watched = request.query.get("watch") == "true"
            return await self._watch(request, kind) if watched else self._list(request, kind)
        body = orjson.loads(await request.read() or b"{}")
        if request.method == "POST" and sub == "eviction":
            await self.api.evict(name, namespace, uid="")
            return _json({"kind": "Status"}, status=201)
        if request.method == "POST":
            name = (await self.api.create(kind, body, namespace)).metadata.name
            self.created[kind.plural].set()
        elif request.method == "PATCH":
            own = body.get("metadata", {})
            version = own.pop("resourceVersion", "")
            await self.api.patch(
                kind, name, body, namespace=namespace, subresource=sub, resource_version=version
            )
        elif request.method == "DELETE":
            await self.api.delete(kind, name, namespace=namespace)
            return _json({"kind": "Status"})
        return _json(self.api.body(kind, name, namespace))

    def _list(self, request: web.Request, kind: Kind[Any]) -> web.Response:
        """Return a page; all pages of a listing show the objects of its first page's time."""
        number, _, offset = request.query.get("continue", "").partition("-")
        begin = int(offset or 0)
        known = self._listings.pop(number) if number in self._listings else self._list_bodies(kind)
        version, bodies = known
        end = begin + int(request.query.get("limit") or len(bodies) or 1)
        metadata = {"resourceVersion": version}
        if end < len(bodies):
            number = number or str(next(self._numbers))
            self._listings[number] = version, bodies
            metadata["continue"] = f"{number}-{end}"
        head = {"apiVersion": kind.api_version, "kind": f"{kind.name}List"}
        return _json({**head, "metadata": metadata, "items": bodies[begin:end]})

    def _list_bodies(self, kind: Kind[Any]) -> tuple[str, list[dict[str, Any]]]:
        bodies = self.api.bodies(kind)
        return str(max((_version(body) for body in bodies), default=0)), bodies

    async def _watch(self, request: web.Request, kind: Kind[Any]) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or 0)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with self.api.listening(kind) as news:
            missed = [body for body in self.api.bodies(kind) if _version(body) > since]
            waiting = [("MODIFIED", body) for body in missed]
            while True:
                lines = [_line(kind, event, body) for event, body in waiting]
                try:
                    await response.write(b"".join(lines))
                except ConnectionResetError:
                    return response  # The controller has closed its connection.
                waiting = [await news.get()]
                while not news.empty():
                    waiting.append(news.get_nowait())


def kubeconfig(server: str) -> str:
    """Return a kubeconfig for a server without TLS."""
    return orjson.dumps(
        {
            "current-context": "benchmark",
            "contexts": [{"name": "benchmark", "context": {"cluster": "it", "user": "me"}}],
            "clusters": [{"name": "it", "cluster": {"server": server}}],
            "users": [{"name": "me", "user": {"token": base64.b64encode(b"me").decode()}}],
        }
    ).decode()


def _resources(root: str) -> list[dict[str, Any]]:
    verbs = ["get", "list", "watch", "create", "patch", "delete"]
    return [
        {
            "name": plural,
            "singularName": kind.name.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.name,
            "verbs": verbs,
        }
        for (place, plural), kind in KINDS.items()
        if place == root
    ]


def _line(kind: Kind[Any], event: str, body: Mapping[str, Any]) -> bytes:
    whole = {"apiVersion": kind.api_version, "kind": kind.name, **body}
    return orjson.dumps({"type": event, "object": whole}) + b"\n"


def _version(body: Mapping[str, Any]) -> int:
    return int(body["metadata"]["resourceVersion"])


def _json(content: Mapping[str, Any], *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")
