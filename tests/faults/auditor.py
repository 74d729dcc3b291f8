"""What must hold whatever went wrong. Reads plain JSON, and shares no code with the controller."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Body = Mapping[str, Any]

MOST_TIMES_NEEDED = 2.0
"""How much may be spent at most, of what the pods need."""

REMEMBERED = 1800.0
"""Seconds for which what pods needed may still be paid: they leave faster than machines."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine of the cloud, as the cloud knows it."""

    id: str
    provider_id: str
    state: str
    claim: str
    price: float
    """What it costs on demand, whatever is paid: by it capacity is compared."""

    node: str = ""
    """The name of its node, once it has joined."""

    foreign: bool = False
    touched: bool = False
    """Whether somebody has laid hands on it: then pods are lost whatever the controller does."""

    @property
    def lives(self) -> bool:
        """Whether it is there and not on its way out."""
        return self.state not in ("shutting-down", "terminated")


@dataclass(frozen=True, slots=True)
class View:
    """Cluster and cloud at a moment, ours and foreign; times are seconds."""

    at: float
    claims: Sequence[Body]
    nodes: Sequence[Body]
    pods: Sequence[Body]
    instances: Sequence[Instance]
    pools: Sequence[Body] = ()
    templates: int = 0
    wanted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Machine:
    """What can be bought: milli-CPUs and MiB for pods, and what it costs on demand, in $/h."""

    cpu: int
    memory: int
    price: float


def unsettled(view: View) -> list[str]:
    """Return what is not as it must be once everything has come to rest."""
    return [*_instances(view), *_claims(view), *_nodes(view), *_pods(view)]


def _instances(view: View) -> Iterator[str]:
    for instance in view.instances:
        if instance.foreign or not instance.lives:
            continue
        claims = [c for c in view.claims if _provider(c) == instance.provider_id]
        if len(claims) != 1:
            yield f"instance {instance.id} ({instance.claim}) has {len(claims)} NodeClaims"
        nodes = [n for n in view.nodes if n["spec"].get("providerID") == instance.provider_id]
        if len(nodes) != 1:
            yield f"instance {instance.id} ({instance.claim}) has {len(nodes)} Nodes"


def _claims(view: View) -> Iterator[str]:
    living = {i.provider_id for i in view.instances if i.lives}
    for claim in _ours(view.claims):
        name = claim["metadata"]["name"]
        if "deletionTimestamp" in claim["metadata"]:
            yield f"NodeClaim {name} is being deleted and keeps {_finalizers(claim)}"
        elif _provider(claim) not in living:
            yield f"NodeClaim {name} has no instance ({_provider(claim) or 'not launched'})"


def _nodes(view: View) -> Iterator[str]:
    providers = {_provider(claim) for claim in view.claims}
    for node in _ours(view.nodes):
        name = node["metadata"]["name"]
        if "deletionTimestamp" in node["metadata"]:
            yield f"Node {name} is being deleted and keeps {_finalizers(node)}"
        elif node["spec"].get("providerID") not in providers:
            yield f"Node {name} has no NodeClaim"


def _pods(view: View) -> Iterator[str]:
    running: dict[str, int] = {}
    for pod in view.pods:
        app = pod["metadata"]["labels"]["app"]
        if not pod["spec"].get("nodeName"):
            yield f"Pod {pod['metadata']['name']} has no node"
        elif "deletionTimestamp" not in pod["metadata"] and is_ready(pod):
            running[app] = running.get(app, 0) + 1
    for app, wanted in view.wanted.items():
        if running.get(app, 0) != wanted:
            yield f"{running.get(app, 0)} of {wanted} pods of {app} run"


def is_ready(body: Body) -> bool:
    """Whether an object's condition Ready holds."""
    return any(
        c["type"] == "Ready" and c["status"] == "True"
        for c in body.get("status", {}).get("conditions", ())
    )


def _provider(claim: Body) -> str:
    return str(claim.get("status", {}).get("providerID", ""))


def _finalizers(body: Body) -> str:
    return ", ".join(body["metadata"].get("finalizers") or ["no finalizer"])


def _ours(bodies: Iterable[Body]) -> Iterator[Body]:
    return (b for b in bodies if not is_foreign(b))


def is_foreign(body: Body) -> bool:
    """Whether an object was put beside ours, to be left alone."""
    return "foreign" in (body["metadata"].get("labels") or {})


@dataclass(slots=True)
class Auditor:
    """Looks all the time, and remembers what it saw."""

    machines: Sequence[Machine]
    findings: list[str] = field(default_factory=list)
    _seen: dict[str, Instance] = field(default_factory=dict)
    _by_claim: dict[str, list[str]] = field(default_factory=dict)
    _needs: list[tuple[float, float]] = field(default_factory=list)
    _foreign: Sequence[object] | None = None
    _is_wasteful: bool = False
    _lived: frozenset[str] = frozenset()

    def find(self, finding: str) -> None:
        """Note what must not be; once."""
        if finding not in self.findings:
            self.findings.append(finding)

    def look(self, view: View) -> None:
        """Look at what must hold at every moment."""
        self._launches(view)
        self._spending(view)
        self._strangers(view)
        self._endings(view)

    def evicted(self, app: str, serving: int, needed: int) -> None:
        """Look at what an eviction has left of an app whose disruption budget needs so many."""
        if serving < needed:
            self.find(f"an eviction left {serving} pods of {app}, and its budget needs {needed}")

    def _launches(self, view: View) -> None:
        living = {i.id: i for i in view.instances if i.lives}
        for instance in view.instances:
            if instance.foreign or instance.id in self._seen:
                continue
            self._seen[instance.id] = instance
            before = self._by_claim.setdefault(instance.claim, [])
            if any(other in living and not living[other].touched for other in before):
                self.find(f"{instance.claim} has got a second instance beside {before[-1]}")
            before.append(instance.id)

    def _spending(self, view: View) -> None:
        needed = least_cost(view.pods, self.machines)
        self._needs = [(at, n) for at, n in self._needs if at > view.at - REMEMBERED]
        self._needs.append((view.at, needed))
        wasted = _wasted(view, max(n for _, n in self._needs), self.machines)
        if wasted and not self._is_wasteful:
            self._is_wasteful = True
            self.find(f"{view.at:.0f} s: {wasted[0]}")

    def _strangers(self, view: View) -> None:
        foreign = [
            *(_identity(b) for b in (*view.pools, *view.claims, *view.nodes) if is_foreign(b)),
            *((i.id, i.lives) for i in view.instances if i.foreign),
        ]
        if self._foreign is None:
            self._foreign = foreign
        elif foreign != self._foreign:
            self.find("something foreign was touched")

    def _endings(self, view: View) -> None:
        """No machine may end beneath pods that have not been told to go."""
        for instance in view.instances:
            if instance.lives or instance.touched or instance.id not in self._lived:
                continue
            cut_off = [
                pod["metadata"]["name"]
                for pod in view.pods
                if pod["spec"].get("nodeName") == instance.node
                and "deletionTimestamp" not in pod["metadata"]
            ]
            if cut_off:
                self.find(f"instance {instance.id} was ended beneath {', '.join(cut_off)}")
        self._lived = frozenset(i.id for i in view.instances if i.lives and not i.foreign)


def wasted(view: View, machines: Sequence[Machine]) -> list[str]:
    """Return what is too much for the pods that are there."""
    return _wasted(view, least_cost(view.pods, machines), machines)


def _wasted(view: View, needed: float, machines: Sequence[Machine]) -> list[str]:
    # One that somebody stopped costs nothing; one whose claim a hand took away together with its
    # finalizers is nobody's until garbage is collected.
    claimed = {_provider(claim) for claim in view.claims}
    paid = [
        i for i in view.instances
        if i.state in ("pending", "running") and not i.foreign
        and not (i.touched and i.provider_id not in claimed)
    ]  # fmt: skip
    spent = sum(i.price for i in paid)
    # Machines come whole: one more than the bound may be there.
    most = MOST_TIMES_NEEDED * needed + max(machine.price for machine in machines)
    if spent <= most:
        return []
    return [f"machines for {spent:.2f} $/h are there, and at most {most:.2f} are of use"]


def _identity(body: Body) -> object:
    meta = body["metadata"]
    return meta["name"], meta["resourceVersion"]


def least_cost(pods: Iterable[Body], machines: Sequence[Machine]) -> float:
    """Return a lower bound of what the pods' machines cost, in $/h: what both resources are worth
    together, as the linear program has it in which machines can be bought in parts.

    Pods come whole, so that of a machine no more is worth anything than a multiple of what all
    requests are multiples of.
    """
    requests = [
        (int(asked["cpu"].removesuffix("m")), int(asked["memory"].removesuffix("Mi")))
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        for container in pod["spec"]["containers"]
        for asked in (container["resources"]["requests"],)
    ]
    if not requests:
        return 0.0
    cpus, memories = [cpu for cpu, _ in requests], [memory for _, memory in requests]
    cpu, memory = math.gcd(*cpus), math.gcd(*memories)
    filled = [
        replace(m, cpu=m.cpu // cpu * cpu, memory=m.memory // memory * memory)
        for m in machines
        if m.cpu >= cpu and m.memory >= memory
    ]
    return max(sum(cpus) * a + sum(memories) * b for a, b in _prices(filled))


def _prices(machines: Sequence[Machine]) -> Iterator[tuple[float, float]]:
    """Yield prices of a milli-CPU and of a MiB by which no machine is worth more than it costs."""
    yield min(m.price / m.cpu for m in machines), 0.0
    yield 0.0, min(m.price / m.memory for m in machines)
    for one, other in itertools.combinations(machines, 2):
        determinant = one.cpu * other.memory - other.cpu * one.memory
        if not determinant:
            continue
        cpu = (one.price * other.memory - other.price * one.memory) / determinant
        memory = (one.cpu * other.price - other.cpu * one.price) / determinant
        worth = (m.cpu * cpu + m.memory * memory <= m.price * (1 + 1e-9) for m in machines)
        if cpu >= 0 and memory >= 0 and all(worth):
            yield cpu, memory
