"""Invariants that hold under every fault.

This module reads plain JSON, and shares no code with the controller.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from highspy import Highs, kHighsInf

Body = Mapping[str, Any]

MOST_TIMES_NEEDED = 2.0
"""Maximum cost of the instances, as a multiple of what the pods need."""


MOST_INCOMPLETE = 300.0
"""Greatest number of seconds for which some nodes of a gang may be there without the others."""

REGISTRATION_TIMEOUT = 900.0
"""Seconds until a NodeClaim whose Node does not register is deleted; its gang waits for it."""

SURGE = 0.25
"""Share of a NodePool's nodes that may be replaced at the same time: the budget of each pool."""

VOLUNTARY = ("Drifted", "Underutilized")
"""Reasons of disruptions that nothing forces."""

REMEMBERED = 1800.0
"""Seconds for which the cost of past pods still counts: pods leave faster than instances."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance as the cloud reports it."""

    id: str
    provider_id: str
    state: str
    claim: str
    price: float
    """On-demand price in $/h, whatever is paid; capacity is compared by it."""

    node: str = ""
    """The name of its node once it has joined."""

    foreign: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    is_static: bool = False
    """Whether it belongs to a static NodePool, which has nodes whatever the pods need."""

    touched: bool = False
    """Whether a user has changed or stopped it. Pods are then lost whatever the controller does."""

    @property
    def lives(self) -> bool:
        """Whether the instance exists and is not terminating."""
        return self.state not in ("shutting-down", "terminated")


@dataclass(frozen=True, slots=True)
class View:
    """Cluster and cloud at one moment, Joiner's objects and foreign ones; times are in seconds.

    `templates` is the number of launch templates. `wanted` maps each workload to its replicas.
    """

    at: float
    claims: Sequence[Body]
    nodes: Sequence[Body]
    pods: Sequence[Body]
    instances: Sequence[Instance]
    pools: Sequence[Body] = ()
    templates: int = 0
    wanted: Mapping[str, int] = field(default_factory=dict)
    gangs: Collection[str] = ()
    """The workloads whose pods are scheduled together or not at all."""

    replicas: Mapping[str, int] = field(default_factory=dict)
    """Static NodePool → its `spec.replicas`."""

    foreign: Collection[str] = ()
    """The kind and the name of every foreign object that was ever created."""


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type: millicores and MiB for pods, and the on-demand price in $/h."""

    cpu: int
    memory: int
    price: float


def inconsistencies(view: View) -> list[str]:
    """Return the violations of the invariants of a cluster that has become stable."""
    return [
        *_instances(view), *_claims(view), *_nodes(view), *_pods(view), *_static_pools(view)
    ]  # fmt: skip


def _static_pools(view: View) -> Iterator[str]:
    for pool, replicas in view.replicas.items():
        if (there := len(_active_claims(view, pool))) != replicas:
            yield f"static NodePool {pool} has {there} of {replicas} NodeClaims"


def _active_claims(view: View, pool: str) -> list[Body]:
    """Return the NodeClaims of a NodePool that are not being deleted."""
    return [
        claim for claim in _ours(view.claims)
        if claim["metadata"].get("labels", {}).get("karpenter.sh/nodepool") == pool
        and not _is_going(claim)
    ]  # fmt: skip


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
    """Whether an object's Ready condition is true."""
    return any(
        c["type"] == "Ready" and c["status"] == "True"
        for c in body.get("status", {}).get("conditions", ())
    )


def _annotation(body: Body, key: str) -> str:
    return str((body["metadata"].get("annotations") or {}).get(key, ""))


def _is_for(claim: Body, gang: str) -> bool:
    return _annotation(claim, "joiner.dev/gang").rpartition("/")[2] == gang


def _cpu_for(gang: str, claim: Body, view: View) -> int:
    """Return the millicores of a NodeClaim that was bought for a gang.

    It is what the claim requests, or more if its node has more left beside other pods: a gang that
    restarts uses that too.
    """
    requested = _cpu(claim["spec"]["resources"]["requests"]["cpu"])
    allocatable = claim.get("status", {}).get("allocatable", {}).get("cpu")
    if allocatable is None:
        return requested
    return max(requested, _cpu(allocatable) - sum(map(_requested_cpu, _others(gang, claim, view))))


def _others(gang: str, claim: Body, view: View) -> list[Body]:
    """Return the pods outside a gang that are bound to a NodeClaim's node."""
    names = {
        node["metadata"]["name"]
        for node in view.nodes
        if _provider(claim) and node["spec"].get("providerID") == _provider(claim)
    }
    return [
        pod
        for pod in view.pods
        if pod["spec"].get("nodeName") in names and pod["metadata"]["labels"]["app"] != gang
    ]


def _nominated_instance(pod: Body) -> str:
    """Return the ID of the instance for whose node the pod is nominated, empty if it is not."""
    return str(pod.get("status", {}).get("nominatedNodeName", "")).partition(".")[0]


def _instance(claim: Body) -> str:
    """Return the ID of a NodeClaim's instance, empty if none was launched."""
    return str(claim.get("status", {}).get("providerID", "")).rpartition("/")[2]


def _is_registered(claim: Body) -> bool:
    states = claim.get("status", {}).get("conditions", [])
    return any(state["type"] == "Registered" and state["status"] == "True" for state in states)


def _is_going(body: Body) -> bool:
    return "deletionTimestamp" in body["metadata"]


def _requested_cpu(pod: Body) -> int:
    return sum(_cpu(c["resources"]["requests"]["cpu"]) for c in pod["spec"]["containers"])


def _cpu(quantity: str) -> int:
    """Return millicores."""
    is_milli = quantity.endswith("m")
    return int(quantity[:-1]) if is_milli else int(quantity) * 1000


def _voluntary(claim: Body) -> Body | None:
    """Return the condition of a NodeClaim that says that it is disrupted voluntarily, or None."""
    return next(
        (
            c for c in claim.get("status", {}).get("conditions", ())
            if c["type"] == "DisruptionReason" and c["status"] == "True"
            and c.get("reason") in VOLUNTARY
        ),
        None,
    )  # fmt: skip


def _is_disrupted(claim: Body) -> bool:
    """Whether the controller has decided to disrupt a NodeClaim, for whatever reason."""
    return any(
        c["type"] == "DisruptionReason" and c["status"] == "True"
        for c in claim.get("status", {}).get("conditions", ())
    )


def _provider(claim: Body) -> str:
    return str(claim.get("status", {}).get("providerID", ""))


def _finalizers(body: Body) -> str:
    return ", ".join(body["metadata"].get("finalizers") or ["no finalizer"])


def _ours(bodies: Iterable[Body]) -> Iterator[Body]:
    return (b for b in bodies if not is_foreign(b))


def is_foreign(body: Body) -> bool:
    """Whether an object belongs to another owner, so the controller must leave it alone."""
    return "foreign" in (body["metadata"].get("labels") or {})


@dataclass(slots=True)
class Auditor:
    """Checks the invariants continuously, and keeps what it saw."""

    instance_types: Sequence[InstanceType]
    findings: list[str] = field(default_factory=list)
    _seen: dict[str, Instance] = field(default_factory=dict)
    _by_claim: dict[str, list[str]] = field(default_factory=dict)
    _needs: list[tuple[float, float]] = field(default_factory=list)
    _foreign: dict[str, object] = field(default_factory=dict)
    _is_wasteful: bool = False
    _lived: frozenset[str] = frozenset()
    _replicas: dict[str, int] = field(default_factory=dict)
    """Static NodePool → the replicas that it reached last."""

    _incomplete: dict[str, float] = field(default_factory=dict)
    """Since when only some nodes of a gang are there, in seconds."""

    def find(self, finding: str) -> None:
        """Record a violation; a repeated one is recorded once."""
        if finding not in self.findings:
            self.findings.append(finding)

    def check(self, view: View) -> None:
        """Check the invariants that hold at every moment."""
        self._launches(view)
        self._check_spending(view)
        self._check_foreign(view)
        self._endings(view)
        self._gangs(view)
        self._replication(view)

    def _replication(self, view: View) -> None:
        """Check that a static NodePool has only as many NodeClaims more than replicas as allowed.

        Replacements are launched before the nodes that they replace are removed. The budget limits
        their number: it is a share of all nodes, earlier replacements included, as in Karpenter. A
        smaller number of replicas takes effect within moments.
        """
        for pool, replicas in view.replicas.items():
            most = max(replicas, self._replicas.get(pool, 0))
            there = len(_active_claims(view, pool))
            if there > most + math.ceil(SURGE * (there - 1)):
                self.find(f"static NodePool {pool} has {there} NodeClaims, and {most} replicas")
            if there <= replicas:
                self._replicas[pool] = replicas

    def check_eviction(self, app: str, serving: int, needed: int) -> None:
        """Check that an eviction leaves an app as many serving pods as its budget requires."""
        if serving < needed:
            self.find(f"an eviction left {serving} pods of {app}, and its budget needs {needed}")

    def check_disruption(
        self,
        name: str,
        claims: Sequence[Body],
        nodes: Iterable[Body],
        pods: Iterable[Body],
        *,
        announced: Container[str] = (),
    ) -> None:
        """Check that the voluntary disruption of NodeClaim `name` disrupts whole gangs.

        Called when the NodeClaim is deleted. All other nodes that run pods of the node's gangs must
        be marked for disruption before the first NodeClaim is deleted. Pods that were created after
        the node was marked are ignored, because their gang has restarted. Nothing is checked if
        `announced` has the instance's ID: a message announced the instance's end, so the disruption
        is not voluntary.
        """
        by_name = {claim["metadata"]["name"]: claim for claim in claims}
        mark = _voluntary(by_name[name]) if name in by_name else None
        if mark is None or _instance(by_name[name]) in announced:
            return
        marked = datetime.fromisoformat(mark["lastTransitionTime"])
        provider = {node["metadata"]["name"]: node["spec"].get("providerID") for node in nodes}
        # Another owner's node may have the name of a former one, to which pods are still bound.
        owner = {_provider(c): c for c in claims if _provider(c) and not is_foreign(c)}
        claims_of: dict[str, dict[str, Body | None]] = {}
        for pod in pods:
            gang = pod["spec"].get("schedulingGroup", {}).get("podGroupName")
            node = pod["spec"].get("nodeName")
            is_old = datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) <= marked
            if gang and node and is_old and not _is_going(pod):
                claims_of.setdefault(gang, {})[node] = owner.get(provider.get(node) or "")
        for gang, on in claims_of.items():
            if not any(claim is by_name[name] for claim in on.values()):
                continue
            for node, claim in on.items():
                if claim is not None and not _is_going(claim) and _voluntary(claim) is None:
                    self.find(f"{name} is disrupted, and {node} stays, which runs {gang} too")

    def _gangs(self, view: View) -> None:
        """Check that nodes for a part of a gang do not stay: all are bought, or none."""
        for gang in view.gangs:
            members = [p for p in view.pods if p["metadata"]["labels"]["app"] == gang]
            bought = [c for c in view.claims if _is_for(c, gang) and not _is_going(c)]
            wanted = sum(map(_requested_cpu, members))
            covered = sum(_cpu_for(gang, c, view) for c in bought)
            # Some pods of the gang may go to nodes that were bought before, or are still starting.
            others = {n["metadata"]["name"].partition(".")[0] for n in view.nodes}
            others |= {_instance(c) for c in view.claims if not _is_going(c)}
            others -= {_instance(c) for c in bought} | {""}
            covered += sum(_requested_cpu(p) for p in members if _nominated_instance(p) in others)
            runs = any(p["spec"].get("nodeName") for p in members)
            # A node that runs pods outside the gang is not wasted.
            idle = [c for c in bought if not _others(gang, c, view)]
            if not idle or runs or covered >= wanted:
                self._incomplete.pop(gang, None)
                continue
            # Pods may be planned on a node that does not join, which the auditor cannot see.
            joining = any(not is_foreign(c) and not _is_registered(c) for c in view.claims)
            most = MOST_INCOMPLETE + (REGISTRATION_TIMEOUT if joining else 0.0)
            if view.at > self._incomplete.setdefault(gang, view.at) + most:
                self.find(f"{gang} has nodes for {covered} of {wanted} millicores, and none runs")

    def _launches(self, view: View) -> None:
        living = {i.id: i for i in view.instances if i.lives}
        for instance in view.instances:
            if instance.foreign or instance.id in self._seen:
                continue
            if not instance.claim:
                continue  # one of a shared launch: its tag follows
            self._seen[instance.id] = instance
            before = self._by_claim.setdefault(instance.claim, [])
            if any(other in living and not living[other].touched for other in before):
                self.find(f"{instance.claim} has a second instance beside {before[-1]}")
            before.append(instance.id)

    def _check_spending(self, view: View) -> None:
        needed = least_cost(view.pods, self.instance_types)
        self._needs = [(at, n) for at, n in self._needs if at > view.at - REMEMBERED]
        self._needs.append((view.at, needed))
        wasted = _waste(view, max(n for _, n in self._needs), self.instance_types)
        if wasted and not self._is_wasteful:
            self._is_wasteful = True
            self.find(f"{view.at:.0f} s: {wasted[0]}")

    def _check_foreign(self, view: View) -> None:
        """Check that no foreign object changes or disappears once it exists.

        New ones may appear.
        """
        foreign = {
            f"{kind} {body['metadata']['name']}": _identity(body)
            for kind, bodies in (
                ("NodePool", view.pools), ("NodeClaim", view.claims), ("Node", view.nodes)
            )
            for body in bodies
            if is_foreign(body) and body["metadata"]["labels"]["foreign"] != "launching"
        }  # fmt: skip
        foreign |= {f"instance {i.id}": (i.lives, i.tags) for i in view.instances if i.foreign}
        for name in [*view.foreign, *self._foreign]:
            if name not in foreign:
                self.find(f"foreign {name} was deleted")
            elif foreign[name] != self._foreign.get(name, foreign[name]):
                self.find(f"foreign {name} was touched")
        self._foreign |= foreign

    def _endings(self, view: View) -> None:
        """Check that no instance terminates while it has pods that were not asked to terminate.

        An instance that got the address of a former one may end before it registers, while the Node
        with its name is still that of the former instance.
        """
        of_node = {n["metadata"]["name"]: n["spec"].get("providerID") for n in view.nodes}
        for instance in view.instances:
            if instance.lives or instance.touched or instance.id not in self._lived:
                continue
            if of_node.get(instance.node, instance.provider_id) != instance.provider_id:
                continue
            cut_off = [
                pod["metadata"]["name"]
                for pod in view.pods
                if pod["spec"].get("nodeName") == instance.node
                and "deletionTimestamp" not in pod["metadata"]
            ]
            if cut_off:
                self.find(
                    f"instance {instance.id} was terminated while it ran {', '.join(cut_off)}"
                )
        self._lived = frozenset(i.id for i in view.instances if i.lives and not i.foreign)


def too_many(view: View) -> frozenset[str]:
    """Return the names of the NodeClaims that may stay drifted because of their gangs.

    Nodes that run pods of one gang are disrupted together. If gangs share a node, the nodes of all
    these gangs are disrupted together. Such a group of nodes may stay if it belongs to more than
    one NodePool, or has more than the share `SURGE` of its NodePool's nodes or CPU.
    """
    pool_of = {
        node["metadata"]["name"]: node["metadata"].get("labels", {}).get("karpenter.sh/nodepool")
        for node in view.nodes
    }
    cpu = {
        node["metadata"]["name"]: _cpu(node["status"]["capacity"]["cpu"])
        for node in view.nodes
        if "cpu" in node.get("status", {}).get("capacity", {})
    }
    on: dict[str, set[str]] = {}
    for pod in view.pods:
        gang, node = pod["spec"].get("schedulingGroup"), pod["spec"].get("nodeName")
        if gang and node:
            on.setdefault(gang["podGroupName"], set()).add(node)
    units: list[set[str]] = []
    for nodes in on.values():
        joined = [unit for unit in units if unit & nodes]
        units = [unit for unit in units if not unit & nodes]
        units.append(nodes.union(*joined))
    providers = {node["metadata"]["name"]: node["spec"].get("providerID") for node in view.nodes}
    kept: set[str] = set()
    for unit in units:
        pools = {pool_of.get(node) for node in unit}
        members = [node for node, pool in pool_of.items() if pool in pools]
        many = len(unit) > math.ceil(SURGE * len(members))
        large = sum(cpu.get(n, 0) for n in unit) > SURGE * sum(cpu.get(n, 0) for n in members)
        if len(unit) > 1 and (many or large or len(pools) > 1):
            kept |= {providers.get(node) or "" for node in unit}
    return frozenset(c["metadata"]["name"] for c in view.claims if _provider(c) in kept - {""})


def unneeded_instances(view: View, instance_types: Sequence[InstanceType]) -> list[str]:
    """Return a finding if the instances cost too much for the existing pods; empty if not.

    They may cost `MOST_TIMES_NEEDED` times `least_cost`, plus the price of one instance of the most
    expensive type, since `least_cost` counts fractions of instances.
    """
    return _waste(view, least_cost(view.pods, instance_types), instance_types)


def _waste(view: View, needed: float, instance_types: Sequence[InstanceType]) -> list[str]:
    # A stopped instance costs nothing. An instance whose NodeClaim or Node a user removed together
    # with its finalizers is of no use until garbage collection. A node that a user or EC2 ends, and
    # not the controller's decision, needs its replacement before it has drained.
    forced = {_provider(c) for c in view.claims if _is_going(c) and not _is_disrupted(c)}
    claimed = {_provider(claim) for claim in view.claims}
    claimed &= {node["spec"].get("providerID") for node in view.nodes}
    paid = [
        i for i in view.instances
        if i.state in ("pending", "running") and not i.foreign and not i.is_static
        and not (i.touched and i.provider_id not in claimed) and i.provider_id not in forced
    ]  # fmt: skip
    spent = sum(i.price for i in paid)
    # Instances are whole: the bound allows one more.
    most = MOST_TIMES_NEEDED * needed + max(instance_type.price for instance_type in instance_types)
    if spent <= most:
        return []
    return [f"instances for {spent:.2f} $/h are there, and at most {most:.2f} are of use"]


def _identity(body: Body) -> object:
    """Return what must not change of a foreign object: all of it, or only that it exists."""
    meta = body["metadata"]
    if meta["labels"]["foreign"] == "kept":
        return meta["uid"], "deletionTimestamp" in meta
    return meta["uid"], meta["resourceVersion"]


def least_cost(pods: Iterable[Body], instance_types: Sequence[InstanceType]) -> float:
    """Return a lower bound of the cost of the instances for these pods, in $/h.

    It is the value of the linear program that buys instances filled with whole pods, and may buy
    fractions of instances. So the cost includes the capacity that a large pod leaves on its
    instance, if no other pod fits there.
    """
    requests = Counter(
        (int(asked["cpu"].removesuffix("m")), int(asked["memory"].removesuffix("Mi")))
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        for container in pod["spec"]["containers"]
        for asked in (container["resources"]["requests"],)
    )
    if not requests:
        return 0.0
    program = _program(tuple(sorted(requests)), tuple(instance_types))
    for row, size in enumerate(sorted(requests)):
        program.changeRowBounds(row, requests[size], kHighsInf)
    program.run()
    return float(program.getInfo().objective_function_value)


@cache
def _program(sizes: tuple[tuple[int, int], ...], instance_types: tuple[InstanceType, ...]) -> Highs:
    """Return the linear program for pods of these sizes, in millicores and MiB: a row for each."""
    program = Highs()
    program.silent()
    for _ in sizes:
        program.addRow(0, kHighsInf, 0, [], [])
    for instance_type in instance_types:
        for filling in _fillings(instance_type.cpu, instance_type.memory, sizes):
            rows = [row for row, count in enumerate(filling) if count]
            counts = [float(filling[row]) for row in rows]
            program.addCol(instance_type.price, 0, kHighsInf, len(rows), rows, counts)
    return program


def _fillings(cpu: int, memory: int, sizes: Sequence[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
    """Yield the sets of pods that fit on an instance, as numbers of pods by size.

    Of the last size, each set has as many pods as fit beside the others.
    """
    (asked_cpu, asked_memory), *others = sizes
    most = min(cpu // asked_cpu, memory // asked_memory)
    if not others:
        yield (most,)
        return
    for count in range(most + 1):
        left = cpu - count * asked_cpu, memory - count * asked_memory
        yield from ((count, *rest) for rest in _fillings(*left, others))
