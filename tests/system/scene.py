"""Pods, nodes and NodeClaims as the API reports them over time, and a gate for requests.

A `Scene` follows the cluster's watches. It checks invariants after every change, and waits for
conditions by changes too. A `Gate` holds requests of a kind at the API server until the test
decides about them. A test can thereby reach a state that otherwise lasts milliseconds.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

from testbed.cloud.control import InstanceView
from testbed.kube.client import (
    ChangeType,
    KubeClient,
    KubernetesError,
    NotFoundError,
    Object,
)
from tests.system.manifests import class_ref, in_pool, need, node_pool
from tests.system.region import (
    DEPLOYMENTS,
    NODE_CLAIMS,
    NODE_CLASSES,
    NODE_POOLS,
    NODES,
    PODS,
    Region,
    condition,
    deployment,
    eventually,
    holds,
)

POOL = "karpenter.sh/nodepool"
DISRUPTED = "karpenter.sh/disrupted"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
ONE_EACH = {"cpu": "1200m", "memory": "512Mi"}
"""Requests of a pod that shares its node with no other pod of its kind."""

PATIENCE_SECONDS = 600.0
"""Time limit of each wait of a scenario, while other scenarios run, even on a busy machine."""

T = TypeVar("T")


def small_nodes(name: str, **disruption: Any) -> Object:
    """Return a NodePool of on-demand m5.large whose nodes are not consolidated by default."""
    requirements = [
        need("node.kubernetes.io/instance-type", "In", "m5.large"),
        need("karpenter.sh/capacity-type", "In", "on-demand"),
    ]
    without_disruption = {"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}
    return node_pool(
        name,
        requirements=requirements,
        disruption={**without_disruption, **disruption},
    )


def pods_of(name: str, pool: str, replicas: int, **requests: str) -> Object:
    """Return a Deployment in a NodePool; by default each pod needs its own node."""
    wanted = requests or ONE_EACH
    container = {"name": "main", "image": "none", "resources": {"requests": wanted}}
    return deployment(name, replicas, containers=[container], **in_pool(pool))


def disruption_budget(app: str, **spec: Any) -> Object:
    """Return a PodDisruptionBudget for a Deployment."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app},
        "spec": {"selector": {"matchLabels": {"app": app}}, **spec},
    }


@dataclass(slots=True)
class Scene:
    """The current objects of the cluster, and all earlier ones."""

    kube: KubeClient
    region: Region
    pods: dict[str, Object] = field(default_factory=dict)
    nodes: dict[str, Object] = field(default_factory=dict)
    claims: dict[str, Object] = field(default_factory=dict)
    rules: list[Callable[[], str | None]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Messages of violated invariants, with the state at the first violation."""

    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    # Invariants.

    def never(self, obstacle: Callable[[], str | None]) -> Callable[[], None]:
        """Check an invariant after every change from now on; return a function that ends the check.

        `obstacle` returns what is wrong, or None.
        """
        self.rules.append(obstacle)
        return lambda: self.rules.remove(obstacle)

    def at_least(self, pods: int, app: str) -> Callable[[], None]:
        """Require at least `pods` ready pods of a Deployment at every moment from now on."""

        def too_few() -> str | None:
            ready = len(self.ready(app))
            return f"{ready} pods of {app} were ready, fewer than {pods}" if ready < pods else None

        return self.never(too_few)

    def at_most(self, nodes: int, pool: str) -> Callable[[], None]:
        """Require at most `nodes` nodes of a NodePool in disruption at every moment from now on."""

        def too_many() -> str | None:
            going = self.going(pool)
            return f"{going} went at once, more than {nodes}" if len(going) > nodes else None

        return self.never(too_many)

    def untouched(self, claims: frozenset[str]) -> Callable[[], None]:
        """Require that none of these NodeClaims and of their nodes is disrupted from now on."""

        def touched() -> str | None:
            lost = claims - self.present(claims) | frozenset(self.marked(claims))
            return f"{sorted(lost)} were on their way out" if lost else None

        return self.never(touched)

    def expect_kept(self) -> None:
        """Assert that every invariant has held at every moment."""
        assert not self.broken, "\n".join(self.broken)

    # Current state.

    def of_app(self, app: str) -> list[Object]:
        """Return the pods of a Deployment that are not terminating."""
        return [
            pod
            for pod in self.pods.values()
            if pod["metadata"]["labels"].get("app") == app
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def ready(self, app: str) -> frozenset[str]:
        """Return the uids of a Deployment's ready pods."""
        return frozenset(p["metadata"]["uid"] for p in self.of_app(app) if holds(p, "Ready"))

    def under(self, app: str) -> frozenset[str]:
        """Return the NodeClaims on whose nodes a Deployment's pods run.

        Node names come from addresses, which are reused.
        """
        nodes = {p["spec"].get("nodeName") for p in self.of_app(app)}
        return frozenset(
            _name(c) for c in self.claims.values() if c["status"].get("nodeName") in nodes
        )

    def present(self, claims: frozenset[str]) -> frozenset[str]:
        """Return those of these NodeClaims that exist and are not being deleted."""
        return frozenset(
            _name(c)
            for c in self.claims.values()
            if _name(c) in claims and "deletionTimestamp" not in c["metadata"]
        )

    def gone(self, claims: frozenset[str]) -> bool:
        """Whether all these NodeClaims and their nodes are gone."""
        return not any(_name(c) in claims for c in self.claims.values())

    def marked(self, claims: frozenset[str]) -> list[str]:
        """Return those of these NodeClaims that are marked for disruption, or whose nodes are."""
        tainted = {_name(n) for n in self.nodes.values() if is_going(n)}
        return [
            _name(c)
            for c in self.claims.values()
            if _name(c) in claims
            and (c["status"].get("nodeName") in tainted or condition(c, "DisruptionReason"))
        ]

    def of_pool(self, pool: str) -> list[Object]:
        """Return the nodes of a NodePool."""
        return [n for n in self.nodes.values() if n["metadata"].get("labels", {}).get(POOL) == pool]

    def claims_of(self, pool: str) -> list[Object]:
        """Return the NodeClaims of a NodePool."""
        return [c for c in self.claims.values() if c["metadata"]["labels"].get(POOL) == pool]

    def names_of(self, pool: str) -> list[str]:
        """Return the names of a NodePool's NodeClaims."""
        return [_name(c) for c in self.claims_of(pool)]

    def going(self, pool: str) -> list[str]:
        """Return the NodeClaims of a NodePool that count towards its budgets.

        Those are the ones marked for disruption or being deleted, until their instance is
        terminating.
        """
        return [
            _name(claim)
            for claim in self.claims_of(pool)
            if holds(claim, "Initialized")
            and ("deletionTimestamp" in claim["metadata"] or holds(claim, "DisruptionReason"))
            and not holds(claim, "InstanceTerminating")
        ]

    def instances_of(self, pool: str) -> list[InstanceView]:
        """Return every instance that was ever launched for a NodePool."""
        return [i for i in self.region.cloud.instances().instances if i.tags.get(POOL) == pool]

    # Waiting.

    async def until(self, claim: str, holds_now: Callable[[], T]) -> T:
        """Wait for changes until a condition is true; return its value."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
                while not (answer := holds_now()):
                    await self._changed.wait()
                return answer
        except TimeoutError:
            raise AssertionError(
                f"not within {PATIENCE_SECONDS:g} s: {claim}; seen:\n{self}"
            ) from None

    async def at_rest(self, app: str, pool: str, pods: int) -> frozenset[str]:
        """Wait until `pods` pods run on ready nodes of a NodePool and nothing of it is changing.

        Return the names of the nodes' NodeClaims.
        """

        def stable_nodes() -> frozenset[str] | None:
            nodes, claims = self.of_pool(pool), self.claims_of(pool)
            names = frozenset(_name(c) for c in claims)
            is_stable = (
                len(self.ready(app)) == len(self.of_app(app)) == pods
                and self.under(app) == names
                and len(claims) == len(nodes)
                and all(holds(c, "Initialized") for c in claims)
                and self.present(names) == names
                and not any(map(is_going, nodes))
            )
            return names if is_stable else None

        pods_at_rest = await self.until(f"{pods} pods of {app} are at rest in {pool}", stable_nodes)
        assert pods_at_rest is not None
        return pods_at_rest

    async def begin(
        self, app: str, pods: int, *, node_class: str = "default", **disruption: Any
    ) -> frozenset[str]:
        """Create a NodePool with a Deployment of the same name; return its NodeClaims' names."""
        pool = small_nodes(app, **disruption)
        pool["spec"]["template"]["spec"]["nodeClassRef"] = class_ref(node_class)
        await self.kube.create(NODE_POOLS, pool)
        await self.kube.create(DEPLOYMENTS, pods_of(app, app, pods))
        return await self.at_rest(app, app, pods)

    async def drift(self, pool: str) -> None:
        """Change a NodePool so that its nodes have drifted."""
        other = {"metadata": {"labels": {"example.com/generation": "next"}}}
        await self.kube.patch(f"{NODE_POOLS}/{pool}", {"spec": {"template": other}})

    async def choose_images(self, node_class: str, terms: list[Object]) -> None:
        """Change the machine images that a node class selects."""
        await self.kube.patch(f"{NODE_CLASSES}/{node_class}", {"spec": {"amiSelectorTerms": terms}})

    async def until_false(self, pool: str, kind: str) -> None:
        """Wait until a condition of a NodePool is False."""

        async def refused() -> bool:
            node_pool = await self.kube.get(f"{NODE_POOLS}/{pool}")
            return condition(node_pool, kind).get("status") == "False"

        await eventually(f"{kind} of {pool} is False", refused, otherwise=lambda: self)

    async def wait_for_events(self, reason: str, names: Iterable[str], *words: str) -> None:
        """Wait for an event with these words on each of these objects.

        For each NodeClaim among them, its node must have such an event too.
        """
        wanted = {*names}
        nodes = (c["status"].get("nodeName") for c in self.claims.values() if _name(c) in wanted)
        wanted.update(filter(None, nodes))
        seen: set[str] = set()

        async def is_told() -> bool:
            events, _ = await self.kube.list("/api/v1/events", fieldSelector=f"reason={reason}")
            seen.update(f"{e['involvedObject']['name']}: {e['message']}" for e in events)
            wait_for_events = (e for e in events if all(word in e["message"] for word in words))
            return wanted <= {e["involvedObject"]["name"] for e in wait_for_events}

        await eventually(f"events {reason} {words} about {wanted}", is_told, otherwise=lambda: seen)

    async def end(self, *names: str) -> None:
        """Delete NodePools, Deployments and budgets of these names, and end their invariants.

        What belongs to them is deleted in the background.
        """
        self.rules.clear()
        for name in names:
            for collection in (BUDGETS, DEPLOYMENTS, NODE_POOLS):
                try:
                    await self.kube.delete(f"{collection}/{name}")
                except NotFoundError:
                    continue

    # Recording.

    async def follow(self, path: str, known: dict[str, Object], synced: asyncio.Event) -> None:
        """Record all changes of a collection until cancelled."""
        async for change in self.kube.follow(path):
            if change.type is ChangeType.SYNCED:
                synced.set()
                continue
            uid = change.object["metadata"]["uid"]
            if change.type is ChangeType.DELETED:
                known.pop(uid, None)
            else:
                known[uid] = {"status": {}, **change.object}
            if not self.broken:
                said = [obstacle for rule in self.rules if (obstacle := rule()) is not None]
                self.broken = [*said, str(self)] if said else []
            async with self._changed:
                self._changed.notify_all()

    def __str__(self) -> str:
        nodes = sorted(
            f"{_name(n)} of {n['metadata'].get('labels', {}).get(POOL)}"
            f"{' going' if is_going(n) else ''}"
            for n in self.nodes.values()
        )
        claims = sorted(f"{_name(c)} {' '.join(_held_by(c))}" for c in self.claims.values())
        pods = sorted(
            f"{_name(p)} on {p['spec'].get('nodeName')}, "
            f"{'ready' if holds(p, 'Ready') else 'not ready'}"
            for p in self.pods.values()
        )
        return "\n".join((*self.broken[:3], *nodes, *claims, *pods))


def _held_by(wire: Object) -> list[str]:
    conditions = wire["status"].get("conditions") or []
    return [condition["type"] for condition in conditions if condition["status"] == "True"]


def _name(wire: Object) -> str:
    return str(wire["metadata"]["name"])


def is_going(node: Object) -> bool:
    """Whether a node is marked for disruption, or being deleted."""
    taints = node["spec"].get("taints") or []
    return "deletionTimestamp" in node["metadata"] or any(t["key"] == DISRUPTED for t in taints)


@asynccontextmanager
async def watched(kube: KubeClient, region: Region) -> AsyncIterator[Scene]:
    """Follow the cluster while the block runs; then assert that every invariant has held."""
    scene = Scene(kube, region)
    followed = {PODS: scene.pods, NODES: scene.nodes, NODE_CLAIMS: scene.claims}
    synced = {path: asyncio.Event() for path in followed}
    async with asyncio.TaskGroup() as tasks:
        following = [
            tasks.create_task(scene.follow(path, known, synced[path]))
            for path, known in followed.items()
        ]
        for event in synced.values():
            await event.wait()
        yield scene
        for task in following:
            task.cancel()
    scene.expect_kept()


@dataclass(slots=True)
class Gate:
    """Holds requests for an operation until the test lets them through or refuses them.

    Other requests pass.
    """

    operation: str
    is_there: bool = False
    """Whether the API server has called the webhook yet."""

    _held: asyncio.Event = field(default_factory=asyncio.Event)
    _decided: asyncio.Event = field(default_factory=asyncio.Event)
    _is_open: bool = False

    async def answer(self, request: web.Request) -> web.Response:
        """Hold the API server's review until it is decided; refuse a dry run at once."""
        asked = (await request.json())["request"]
        self.is_there = True
        is_tried = asked.get("dryRun", False)
        if asked["operation"] == self.operation and not is_tried:
            self._held.set()
            await self._decided.wait()
        is_allowed = not is_tried and (asked["operation"] != self.operation or self._is_open)
        verdict: Object = {"uid": asked["uid"], "allowed": is_allowed}
        return web.json_response(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": verdict}
        )

    async def meet(self) -> None:
        """Wait until a request is held."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._held.wait()

    def refuse(self) -> None:
        """Refuse the held requests, and later ones."""
        self._decided.set()

    def let_through(self) -> None:
        """Let the held requests pass, and later ones."""
        self._is_open = True
        self._decided.set()


@asynccontextmanager
async def gate(scene: Scene, operation: str, collection: str, pool: str) -> AsyncIterator[Gate]:
    """Hold requests for an operation on nodes or NodeClaims of a NodePool that already has some.

    At the end, requests that are still held are refused.
    """
    closed = Gate(operation)
    application = web.Application()
    application.router.add_post("/", closed.answer)
    runner = web.AppRunner(application, shutdown_timeout=1)
    cluster = scene.region.testbed.cluster
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*cluster.serving_certificate)
    async with AsyncExitStack() as undone:
        await runner.setup()
        undone.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}/"
        webhook = _webhook(url, cluster.ca_data, operation, collection, pool)
        name = f"{operation}-{collection.rpartition('/')[2]}-{pool}".lower()
        await scene.kube.create(WEBHOOKS, {"metadata": {"name": name}, "webhooks": [webhook]})
        undone.push_async_callback(scene.kube.delete, f"{WEBHOOKS}/{name}")
        undone.callback(closed.refuse)
        known = scene.claims_of(pool) if collection == NODE_CLAIMS else scene.of_pool(pool)
        tried: Object = {
            **{key: known[0][key] for key in ("apiVersion", "kind", "spec") if key in known[0]},
            "metadata": {"name": "tried", "labels": {POOL: pool}},
        }

        async def is_there() -> bool:
            with suppress(KubernetesError):
                await scene.kube.create(f"{collection}?dryRun=All", tried)
            return closed.is_there

        await eventually("the API server asks the gate", is_there)
        yield closed


def _webhook(url: str, certificate: str, operation: str, collection: str, pool: str) -> Object:
    path, _, plural = collection.rpartition("/")
    group = path.split("/")[2] if path.startswith("/apis/") else ""
    return {
        "name": "gate.example.com",
        "clientConfig": {"url": url, "caBundle": certificate},
        "rules": [
            {
                "apiGroups": [group],
                "apiVersions": ["v1"],
                "operations": sorted({"CREATE", operation}),
                "resources": [plural],
            }
        ],
        "objectSelector": {"matchLabels": {POOL: pool}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
        "timeoutSeconds": 30,
    }
