"""Does an answer keep the rules of Kubernetes? Written from its documentation alone.

Nothing here knows an engine: it reads the world and the answer as plain JSON and plays
the answer through. Nodes are launched as the cloud might (any type and offering that a
claim leaves open), and pods are bound one after the other, each through the filters of
kube-scheduler. An answer is right when some order binds every pod to the node it was
promised, whichever machines the cloud hands out.

What is checked beside: each waiting pod is answered exactly once, pools keep their
limits, `minValues` hold, and every price is that of the cheapest open offering.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any

Object = Mapping[str, Any]
Labels = Mapping[str, str]
Amounts = dict[str, int]
"""In billionths, so that every quantity is a whole number."""

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
RESERVATION = "karpenter.k8s.aws/capacity-reservation-id"
NODE_POOL = "karpenter.sh/nodepool"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

LAUNCHES = 3
"""In how many ways the cloud is let choose, beside always the cheapest."""

ORDERS = 12
"""How many orders of binding are tried before a placement counts as impossible."""

OPTIONS = 24
"""How many types and offerings of a claim are looked at one by one, at most."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A broken rule, what breaks it, and how."""

    rule: str
    subject: str
    text: str

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{self.rule}: {self.subject}: {self.text}"


@dataclass(slots=True)
class Machine:
    """A node as kube-scheduler sees it."""

    name: str
    labels: dict[str, str]
    taints: Sequence[Object]
    allocatable: Amounts
    daemons: Amounts = field(default_factory=dict)
    daemon_ports: tuple[Port, ...] = ()
    attachable: dict[str, int] = field(default_factory=dict)
    pods: list[Object] = field(default_factory=list)


Port = tuple[str, int, str]
"""Address, port, protocol."""


# Amounts.

ONE = 10**9
SUFFIXES = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    **{unit: Fraction(1000 ** (n + 2)) for n, unit in enumerate("MGTPE")},
    **{f"{unit}i": Fraction(1024 ** (n + 1)) for n, unit in enumerate("KMGTPE")},
}


@cache
def amount(text: str) -> int:
    """Read a quantity, in billionths."""
    digits = text.rstrip("numkKMGTPEi")
    return ceil(Fraction(digits) * SUFFIXES[text[len(digits) :]] * ONE)


def amounts(given: Object | None) -> Amounts:
    """Read a resource list."""
    return {name: amount(str(value)) for name, value in (given or {}).items()}


def plus(*parts: Amounts) -> Amounts:
    """Add resource lists."""
    total: Amounts = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


def most(*parts: Amounts) -> Amounts:
    """Take the larger of each resource."""
    total: Amounts = {}
    for part in parts:
        for name, value in part.items():
            total[name] = max(total.get(name, value), value)
    return total


def requests(pod: Object) -> Amounts:
    """Sum what a pod asks for: sidecars beside containers, init containers before them.

    Requests stated for the pod as a whole win over the sum of its containers', and a
    resize under way counts with what is already allocated where that is more.
    """
    spec = pod["spec"]
    allocated = {
        one["name"]: most(
            amounts(one.get("allocatedResources")), amounts(one["resources"].get("requests"))
        )
        for one in pod.get("status", {}).get("containerStatuses", [])
        if one.get("resources")
    }
    running: Amounts = {}
    for container in spec.get("containers", []):
        running = plus(running, most(_asked(container), allocated.get(container["name"], {})))
    started: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers", []):
        if container.get("restartPolicy") == "Always":
            started = plus(started, _asked(container))
            peak = most(peak, started)
        else:
            peak = most(peak, plus(started, _asked(container)))
    total = most(plus(running, started), peak)
    total.update(amounts(spec.get("resources", {}).get("requests")))
    return plus(total, amounts(spec.get("overhead")), {"pods": ONE})


def _asked(container: Object) -> Amounts:
    return amounts(container.get("resources", {}).get("requests"))


# Selectors, affinity, taints.


def matches(labels: Labels, terms: Iterable[Object]) -> bool:
    """Whether labels meet every expression."""
    return all(_meets(labels.get(term["key"]), term) for term in terms)


def _meets(value: str | None, term: Object) -> bool:
    values = term.get("values") or []
    match term["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    try:
        have, bound = int(value or ""), int(values[0])
    except ValueError:
        return False
    return {
        "Gt": have > bound,
        "Lt": have < bound,
        "Gte": have >= bound,
        "Lte": have <= bound,
    }[term["operator"]]


def selected(labels: Labels, selector: Object | None) -> bool:
    """Whether a label selector picks these labels; none picks nothing, an empty one all."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and matches(
        labels, selector.get("matchExpressions") or []
    )


def node_selected(pod: Object, labels: Labels, name: str) -> bool:
    """Whether a node meets the pod's selector and required node affinity."""
    spec = pod["spec"]
    wanted = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    required = (spec.get("affinity") or {}).get("nodeAffinity", {}).get(REQUIRED)
    return required is None or any(
        node_term(term, labels, name) for term in required["nodeSelectorTerms"]
    )


def node_term(term: Object, labels: Labels, name: str) -> bool:
    """Whether a node meets a term; an empty term meets nothing."""
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    return matches(labels, expressions) and matches({"metadata.name": name}, fields)


def tolerates(pod: Object, taints: Iterable[Object]) -> bool:
    """Whether a pod may be scheduled to, and stay on, a node with these taints."""
    tolerations = pod["spec"].get("tolerations") or []
    return all(
        any(_tolerates(one, taint) for one in tolerations)
        for taint in taints
        if taint["effect"] in ("NoSchedule", "NoExecute")
    )


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return not toleration.get("key") or toleration["key"] == taint["key"]
    return bool(
        toleration.get("key") == taint["key"]
        and toleration.get("value", "") == taint.get("value", "")
    )


def ports(pod: Object) -> tuple[Port, ...]:
    """Return the ports that a pod takes of its host."""
    spec = pod["spec"]
    sidecars = [c for c in spec.get("initContainers", []) if c.get("restartPolicy") == "Always"]
    containers = [*spec.get("containers", []), *sidecars]
    return tuple(
        (one.get("hostIP") or "0.0.0.0", one["hostPort"], one.get("protocol", "TCP"))
        for container in containers
        for one in container.get("ports", [])
        if one.get("hostPort")
    )


def clash(ours: Iterable[Port], theirs: Iterable[Port]) -> bool:
    """Whether two sets of host ports cannot be had on one node; 0.0.0.0 is every address."""
    return any(
        a[1:] == b[1:] and (a[0] == b[0] or "0.0.0.0" in (a[0], b[0])) for a in ours for b in theirs
    )


def key_of(pod: Object) -> str:
    """Name a pod."""
    metadata = pod["metadata"]
    return f"{metadata.get('namespace', 'default')}/{metadata['name']}"


# Volumes.


class Volumes:
    """Where the volumes of pods can be reached, and what attaches them."""

    def __init__(self, world: Object) -> None:
        """Read the claims, volumes and classes."""
        self._claims = {key_of(one): one for one in world.get("persistentVolumeClaims", [])}
        self._volumes = {one["metadata"]["name"]: one for one in world.get("persistentVolumes", [])}
        self._classes = {one["metadata"]["name"]: one for one in world.get("storageClasses", [])}

    def claims(self, pod: Object) -> Iterator[tuple[str, Object]]:
        """Yield the name and the claim of each volume; ephemeral ones bring their template."""
        namespace = pod["metadata"].get("namespace", "default")
        for volume in pod["spec"].get("volumes") or []:
            if "persistentVolumeClaim" in volume:
                name = f"{namespace}/{volume['persistentVolumeClaim']['claimName']}"
                yield name, self._claims.get(name, {"spec": {}})
            elif "ephemeral" in volume:
                name = f"{namespace}/{pod['metadata']['name']}-{volume['name']}"
                made = self._claims.get(name, {"spec": {}})
                is_bound = bool(made["spec"].get("volumeName"))
                yield name, made if is_bound else volume["ephemeral"]["volumeClaimTemplate"]

    def reachable(self, pod: Object, machine: Machine) -> bool:
        """Whether every volume of the pod is, or can be made, where the machine is."""
        return all(self._reachable(claim, machine) for _, claim in self.claims(pod))

    def _reachable(self, claim: Object, machine: Machine) -> bool:
        if bound := claim["spec"].get("volumeName"):
            spec = self._volumes[bound]["spec"]
            required = spec.get("nodeAffinity", {}).get("required")
            return required is None or any(
                node_term(term, machine.labels, machine.name)
                for term in required["nodeSelectorTerms"]
            )
        terms = self._class(claim).get("allowedTopologies") or []
        return not terms or any(
            all(
                machine.labels.get(one["key"]) in one["values"]
                for one in term["matchLabelExpressions"]
            )
            for term in terms
        )

    def attached(self, pod: Object) -> set[tuple[str, str]]:
        """Return driver and identity of what the pod attaches."""
        found = set()
        for name, claim in self.claims(pod):
            if bound := claim["spec"].get("volumeName"):
                driver = self._volumes[bound]["spec"].get("csi", {}).get("driver", "")
            else:
                driver = self._class(claim).get("provisioner", "")
            found.add((driver, name))
        return found

    def _class(self, claim: Object) -> Object:
        found: Object = self._classes.get(claim["spec"].get("storageClassName", ""), {})
        return found


# Topology, as kube-scheduler filters it.


def terms_of(pod: Object, kind: str) -> list[Object]:
    """Return the required terms of `podAffinity` or `podAntiAffinity`."""
    affinity = pod["spec"].get("affinity") or {}
    found: list[Object] = affinity.get(kind, {}).get(REQUIRED, [])
    return found


class Lookup:
    """Which pods a term or a constraint of a pod means; remembered."""

    def __init__(self, world: Object) -> None:
        """Read the labels of namespaces."""
        self._namespaces = {
            one["metadata"]["name"]: {
                "kubernetes.io/metadata.name": one["metadata"]["name"],
                **one["metadata"].get("labels", {}),
            }
            for one in world.get("namespaces", [])
        }
        self._known: dict[tuple[int, int], bool] = {}

    def term(self, owner: Object, term: Object, other: Object) -> bool:
        """Whether an affinity term of the owner means the other pod."""
        key = (id(term), id(other))
        if key not in self._known:
            self._known[key] = self._term(owner, term, other)
        return self._known[key]

    def _term(self, owner: Object, term: Object, other: Object) -> bool:
        own = owner["metadata"].get("namespace", "default")
        theirs = other["metadata"].get("namespace", "default")
        names, chosen = term.get("namespaces") or [], term.get("namespaceSelector")
        if not names and chosen is None:
            names = [own]
        inside = theirs in names or (
            chosen is not None and selected(self._namespaces.get(theirs, {}), chosen)
        )
        labels = other["metadata"].get("labels") or {}
        return (
            inside
            and selected(labels, term.get("labelSelector"))
            and self._label_keys(owner, term, labels)
        )

    def _label_keys(self, owner: Object, term: Object, labels: Labels) -> bool:
        own = owner["metadata"].get("labels") or {}
        alike = all(
            labels.get(key) == own[key] for key in term.get("matchLabelKeys") or [] if key in own
        )
        unlike = all(
            labels.get(key) != own[key] for key in term.get("mismatchLabelKeys") or [] if key in own
        )
        return alike and unlike

    def constraint(self, owner: Object, constraint: Object, other: Object) -> bool:
        """Whether a spread constraint of the owner counts the other pod."""
        key = (id(constraint), id(other))
        if key not in self._known:
            labels = other["metadata"].get("labels") or {}
            self._known[key] = (
                owner["metadata"].get("namespace", "default")
                == other["metadata"].get("namespace", "default")
                and selected(labels, constraint.get("labelSelector"))
                and self._label_keys(owner, constraint, labels)
            )
        return self._known[key]


class Play:
    """Pods being bound to machines, one after the other."""

    def __init__(self, machines: Sequence[Machine], lookup: Lookup) -> None:
        """Begin with what runs."""
        self._machines = machines
        self._lookup = lookup
        self.bound: list[tuple[Object, Machine]] = [
            (pod, machine)
            for machine in machines
            for pod in machine.pods
            if not pod["metadata"].get("deletionTimestamp")
        ]

    def bind(self, pod: Object, machine: Machine) -> None:
        """Bind a pod."""
        self.bound.append((pod, machine))

    def refusal(self, pod: Object, machine: Machine) -> str | None:
        """Say why the pod may not go there now, if so."""
        return (
            self._repelled(pod, machine) or self._alone(pod, machine) or self._skewed(pod, machine)
        )

    def _repelled(self, pod: Object, machine: Machine) -> str | None:
        mine = terms_of(pod, "podAntiAffinity")
        for other, place in self.bound:
            for term in mine:
                if self._together(machine, place, term) and self._lookup.term(pod, term, other):
                    return f"anti-affinity to {key_of(other)} by {term['topologyKey']}"
            for term in terms_of(other, "podAntiAffinity"):
                if self._together(machine, place, term) and self._lookup.term(other, term, pod):
                    return f"anti-affinity of {key_of(other)} by {term['topologyKey']}"
        return None

    @staticmethod
    def _together(one: Machine, other: Machine, term: Object) -> bool:
        value = one.labels.get(term["topologyKey"])
        return value is not None and value == other.labels.get(term["topologyKey"])

    def _alone(self, pod: Object, machine: Machine) -> str | None:
        terms = terms_of(pod, "podAffinity")
        if not terms:
            return None
        if any(term["topologyKey"] not in machine.labels for term in terms):
            return "the node lacks a label of its affinity"
        company = [
            place
            for other, place in self.bound
            if all(self._lookup.term(pod, term, other) for term in terms)
        ]
        near = all(any(self._together(machine, place, term) for place in company) for term in terms)
        first = not any(
            term["topologyKey"] in place.labels for place in company for term in terms
        ) and all(self._lookup.term(pod, term, pod) for term in terms)
        if near or first:
            return None
        return f"nobody of its affinity by {', '.join(t['topologyKey'] for t in terms)} is there"

    def _skewed(self, pod: Object, machine: Machine) -> str | None:
        constraints = hard_spreads(pod)
        keys = {one["topologyKey"] for one in constraints}
        for one in constraints:
            key = one["topologyKey"]
            if key not in machine.labels:
                return f"the node lacks {key} of its spread"
            counts = self._counts(pod, one, keys)
            if machine.labels[key] not in counts:
                continue
            least = min(counts.values())
            if len(counts) < (one.get("minDomains") or 1):
                least = 0
            mine = self._lookup.constraint(pod, one, pod)
            skew = counts[machine.labels[key]] + mine - least
            if skew > one["maxSkew"]:
                return f"skew {skew} by {key} over {dict(counts)}"
        return None

    def _counts(self, pod: Object, constraint: Object, keys: set[str]) -> Counter[str]:
        key = constraint["topologyKey"]
        counts: Counter[str] = Counter()
        eligible = set()
        for machine in self._machines:
            if keys <= machine.labels.keys() and _counted(pod, constraint, machine):
                eligible.add(machine.name)
                counts[machine.labels[key]] += 0
        for other, place in self.bound:
            if place.name in eligible and self._lookup.constraint(pod, constraint, other):
                counts[place.labels[key]] += 1
        return counts


def hard_spreads(pod: Object) -> list[Object]:
    """Return the spread constraints that must be met."""
    return [
        one
        for one in pod["spec"].get("topologySpreadConstraints") or []
        if one["whenUnsatisfiable"] == "DoNotSchedule"
    ]


def _counted(pod: Object, constraint: Object, machine: Machine) -> bool:
    """Whether the policies of a constraint let a node's pods count."""
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor" and not node_selected(
        pod, machine.labels, machine.name
    ):
        return False
    return constraint.get("nodeTaintsPolicy", "Ignore") == "Ignore" or tolerates(
        pod, machine.taints
    )


# Machines.


def standing(world: Object) -> dict[str, Machine]:
    """Return the nodes that exist, and those that are coming under their claim's name."""
    claims = {
        one["status"]["providerID"]: one
        for one in world.get("nodeClaims", [])
        if one.get("status", {}).get("providerID")
    }
    found: dict[str, Machine] = {}
    for node in world.get("nodes", []):
        claim = claims.pop(node["spec"].get("providerID", ""), None)
        found[node["metadata"]["name"]] = _node_machine(node, claim)
    for claim in claims.values():
        name = claim["metadata"]["name"]
        labels = {**claim["metadata"].get("labels", {}), HOSTNAME: name}
        found[name] = Machine(
            name,
            _with_aliases(labels),
            claim["spec"].get("taints", []),
            amounts(claim["status"].get("allocatable")),
        )
    for pod in world["pods"]:
        machine = found.get(pod["spec"].get("nodeName", ""))
        if machine and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            machine.pods.append(pod)
    for one in world.get("csiNodes", []):
        if machine := found.get(one["metadata"]["name"]):
            machine.attachable = {
                driver["name"]: driver["allocatable"]["count"]
                for driver in one["spec"]["drivers"]
                if driver.get("allocatable")
            }
    return found


EPHEMERAL = (
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "karpenter.sh/unregistered",
)


def _node_machine(node: Object, claim: Object | None) -> Machine:
    """Return a node as it will be once it is ready: what its start-up leaves behind is gone."""
    name = node["metadata"]["name"]
    labels = {HOSTNAME: name, **node["metadata"].get("labels", {})}
    taints = list(node["spec"].get("taints", []))
    allocatable = amounts(node["status"].get("allocatable"))
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    if node["spec"].get("unschedulable") and cordon not in taints:
        taints.append(cordon)
    if claim is not None and labels.get("karpenter.sh/initialized") != "true":
        passing = [(one["key"], one["effect"]) for one in claim["spec"].get("startupTaints", [])]
        taints = [
            one
            for one in taints
            if one["key"] not in EPHEMERAL and (one["key"], one["effect"]) not in passing
        ]
        promised = amounts(claim["status"].get("allocatable"))
        allocatable = {**promised, **{k: v for k, v in allocatable.items() if v}}
    return Machine(name, _with_aliases(labels), taints, allocatable)


ALIASES = {
    ZONE: "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region": "failure-domain.beta.kubernetes.io/region",
    "kubernetes.io/arch": "beta.kubernetes.io/arch",
    "kubernetes.io/os": "beta.kubernetes.io/os",
    INSTANCE_TYPE: "beta.kubernetes.io/instance-type",
}
"""Old names of labels, which kubelets and cloud providers still write beside the new ones."""


def _with_aliases(labels: dict[str, str]) -> dict[str, str]:
    return {**{old: labels[new] for new, old in ALIASES.items() if new in labels}, **labels}


@dataclass(frozen=True, slots=True)
class Choice:
    """A type and an offering with which the cloud may answer a claim."""

    kind: Object
    offering: Object


class Trial:
    """An answer under examination."""

    def __init__(self, world: Object, answer: Object, types: Sequence[Object]) -> None:
        """Read both; `types` are the world's instance types written out."""
        self._world, self._answer = world, answer
        self._types = {one["name"]: one for one in types}
        self._pools = {one["metadata"]["name"]: one for one in world.get("nodePools", [])}
        self._pods = {key_of(pod): pod for pod in world["pods"] if not pod["spec"].get("nodeName")}
        self._volumes, self._lookup = Volumes(world), Lookup(world)
        self._asked: dict[int, Amounts] = {}
        self._found: dict[tuple[str, str], Finding] = {}

    def findings(self) -> list[Finding]:
        """Return every broken rule found, once for each pod or node."""
        self._everyone_once()
        choices = [self._choices(index) for index in range(len(self._answer["newNodes"]))]
        if self._found:
            return sorted(self._found.values())
        self._pool_rules(choices)
        self._launches(choices)
        return sorted(self._found.values())

    def machines(self) -> list[Machine]:
        """Return the new nodes as the cheapest machines allowed."""
        chance = random.Random(0)
        return [
            self._machine(index, self._choices(index)[0], chance)
            for index in range(len(self._answer["newNodes"]))
        ]

    def cheapest(self) -> list[tuple[Object, Machine]]:
        """Return who is where, what runs already included, on the cheapest machines allowed."""
        machines = standing(self._world)
        placed = [(pod, machine) for machine in machines.values() for pod in machine.pods]
        for name, keys in self._answer["existingNodes"].items():
            placed += [(pod, machines[name]) for pod in self._named(keys)]
        for machine, node in zip(self.machines(), self._answer["newNodes"], strict=True):
            placed += [(pod, machine) for pod in self._named(node["pods"])]
        return placed

    def _report(self, rule: str, subject: str, text: str) -> None:
        self._found.setdefault((rule, subject), Finding(rule, subject, text))

    def _everyone_once(self) -> None:
        answered: Counter[str] = Counter(list(self._answer["unschedulable"]))
        for node in self._answer["newNodes"]:
            answered.update(node["pods"])
        for pods in self._answer["existingNodes"].values():
            answered.update(pods)
        for key in answered.keys() | self._pods.keys():
            if answered[key] != 1 or key not in self._pods:
                self._report("conservation", key, f"answered {answered[key]} times")

    # What the cloud may choose.

    def _choices(self, index: int) -> list[Choice]:
        node = self._answer["newNodes"][index]
        found = []
        for name in node["instanceTypes"]:
            kind = self._types[name]
            found += [Choice(kind, one) for one in kind["offerings"] if self._open(kind, one, node)]
        found.sort(key=lambda one: (one.offering["price"], one.kind["name"]))
        subject = f"new node {index}"
        if not found:
            self._report("launch", subject, "no available offering meets the requirements")
        elif abs(found[0].offering["price"] - node["price"]) > 1e-9:
            price = found[0].offering["price"]
            self._report("price", subject, f"{node['price']} instead of {price}")
        return found

    def _open(self, kind: Object, offering: Object, node: Object) -> bool:
        if not offering.get("available", True):
            return False
        known = defaultdict(list)
        for term in kind["requirements"]:
            known[term["key"]].append(term)
        place: Labels = offering["requirements"]
        for term in node["requirements"]:
            key = term["key"]
            if key in place:
                if not _meets(place[key], term):
                    return False
            elif key in known and not any(
                _meets(value, term) for one in known[key] for value in one.get("values", [])
            ):
                return False
        return True

    def _machine(self, index: int, choice: Choice, chance: random.Random) -> Machine:
        node = self._answer["newNodes"][index]
        pool = self._pools[node["nodePool"]]
        template = pool["spec"]["template"]
        labels: dict[str, str] = {}
        for term in node["requirements"]:
            values = term.get("values") or []
            if term["operator"] == "In" and values:
                labels[term["key"]] = chance.choice(values)
            elif term["operator"] in ("Exists", "Gt", "Gte", "Lt", "Lte"):
                labels[term["key"]] = self._invented(node["requirements"], term["key"], chance)
        labels |= template.get("metadata", {}).get("labels", {})
        wanted = {term["key"]: term for term in node["requirements"]}
        for term in choice.kind["requirements"]:
            values = [
                value
                for value in term.get("values", [])
                if term["key"] not in wanted or _meets(value, wanted[term["key"]])
            ]
            if values:
                labels[term["key"]] = values[0]
        labels |= choice.offering["requirements"]
        labels |= {NODE_POOL: node["nodePool"], INSTANCE_TYPE: choice.kind["name"]}
        labels[HOSTNAME] = name = f"new-{index}"
        capacity = amounts(choice.kind["capacity"])
        capacity.setdefault("pods", 110 * ONE)
        overhead = amounts(choice.kind.get("overhead"))
        allocatable = {k: v - overhead.get(k, 0) for k, v in capacity.items()}
        taints = template["spec"].get("taints") or []
        return Machine(name, _with_aliases(labels), taints, allocatable)

    @staticmethod
    def _invented(terms: Sequence[Object], key: str, chance: random.Random) -> str:
        mine = [term for term in terms if term["key"] == key]
        numbers = [str(chance.randrange(1000)) for _ in range(2000)]
        return next((one for one in numbers if all(_meets(one, t) for t in mine)), "1")

    # Pools.

    def _pool_rules(self, choices: Sequence[Sequence[Choice]]) -> None:
        drawn: defaultdict[str, Amounts] = defaultdict(dict)
        for node in self._world.get("nodes", []) + self._in_flight():
            if pool := node["metadata"].get("labels", {}).get(NODE_POOL):
                drawn[pool] = plus(drawn[pool], amounts(node["status"].get("capacity")))
        for index, open_ in enumerate(choices):
            node = self._answer["newNodes"][index]
            name = node["nodePool"]
            largest = most(*(amounts(one.kind["capacity"]) for one in open_))
            drawn[name] = plus(drawn[name], largest)
            self._template_rules(index, open_)
            if "replicas" in self._pools[name]["spec"]:
                self._report("static pool", f"new node {index}", f"of {name}")
        self._reservations()
        for name, pool in self._pools.items():
            if not any(one["nodePool"] == name for one in self._answer["newNodes"]):
                continue
            for resource, limit in amounts(pool["spec"].get("limits")).items():
                if resource != "nodes" and drawn[name].get(resource, 0) > limit:
                    self._report("limit", name, f"{resource}: {drawn[name][resource] / ONE}")

    def _reservations(self) -> None:
        """No set of reservations has fewer instances than there are nodes that need one of them."""
        counts = {
            place[RESERVATION]: offering.get("reservationCapacity", 0)
            for kind in self._types.values()
            for offering in kind["offerings"]
            if RESERVATION in (place := offering["requirements"])
        }
        asked = [
            frozenset(term["values"])
            for node in self._answer["newNodes"]
            for term in node["requirements"]
            if term["key"] == RESERVATION and term["operator"] == "In"
        ]
        for named in set(asked):
            number = sum(one <= named for one in asked)
            if number > sum(counts.get(one, 0) for one in named):
                self._report("reservation", ", ".join(sorted(named)), f"{number} nodes")

    def _in_flight(self) -> list[Object]:
        there = {one["spec"].get("providerID") for one in self._world.get("nodes", [])}
        return [
            one
            for one in self._world.get("nodeClaims", [])
            if one.get("status", {}).get("providerID") not in there
        ]

    def _template_rules(self, index: int, open_: Sequence[Choice]) -> None:
        node = self._answer["newNodes"][index]
        template = self._pools[node["nodePool"]]["spec"]["template"]["spec"]
        best_effort = self._world.get("settings", {}).get("MIN_VALUES_POLICY") == "BestEffort"
        for term in template.get("requirements") or []:
            if term.get("minValues") and not best_effort:
                values = set()
                for one in open_:
                    values |= set(self._values_of(one, term["key"]))
                if len(values) < term["minValues"]:
                    text = f"{term['key']}: {len(values)} values of {term['minValues']}"
                    self._report("minValues", f"new node {index}", text)

    @staticmethod
    def _values_of(choice: Choice, key: str) -> list[str]:
        if key in choice.offering["requirements"]:
            return [choice.offering["requirements"][key]]
        return [
            value
            for term in choice.kind["requirements"]
            if term["key"] == key
            for value in term.get("values", [])
        ]

    # Launching, and binding.

    def _launches(self, choices: Sequence[Sequence[Choice]]) -> None:
        chance = random.Random(0)
        self._every_option(choices, chance)
        self._play([one[0] for one in choices], chance)
        for _ in range(LAUNCHES):
            if self._found:
                return
            self._play([chance.choice(one) for one in choices], chance)

    def _every_option(self, choices: Sequence[Sequence[Choice]], chance: random.Random) -> None:
        for index, open_ in enumerate(choices):
            pods = self._named(self._answer["newNodes"][index]["pods"])
            template = self._pools[self._answer["newNodes"][index]["nodePool"]]["spec"]["template"]
            wanted = template["spec"].get("requirements") or []
            sample = open_ if len(open_) <= OPTIONS else chance.sample(list(open_), OPTIONS)
            for choice in sample:
                machine = self._machine(index, choice, chance)
                self._with_daemons(machine)
                what = f"{choice.kind['name']} {choice.offering['requirements']}"
                if not matches(machine.labels, wanted):
                    self._report("pool", machine.name, f"not of the pool's requirements: {what}")
                self._on_machine(machine, pods, what)

    def _named(self, keys: Iterable[str]) -> list[Object]:
        return [self._pods[key] for key in keys]

    def _with_daemons(self, machine: Machine) -> None:
        running = {
            owner.get("name")
            for pod in machine.pods
            for owner in pod["metadata"].get("ownerReferences", [])
            if owner.get("kind") == "DaemonSet"
        }
        for daemon in self._world.get("daemonSets", []):
            pod = daemon["spec"]["template"]
            here = tolerates(pod, machine.taints) and node_selected(
                pod, machine.labels, machine.name
            )
            if here and daemon["metadata"]["name"] not in running:
                machine.daemons = plus(machine.daemons, requests(pod))
                machine.daemon_ports += ports(pod)

    def _on_machine(self, machine: Machine, pods: Sequence[Object], what: str) -> None:
        """Check what does not depend on other nodes."""
        alike: dict[str, Object] = {}
        for pod in pods:
            alike.setdefault(json.dumps(pod["spec"], sort_keys=True), pod)
        for pod in alike.values():
            if not node_selected(pod, machine.labels, machine.name):
                self._report("node affinity", key_of(pod), f"not on {machine.name}, {what}")
            if not tolerates(pod, machine.taints):
                self._report("taint", key_of(pod), f"not on {machine.name}, {what}")
        for pod in pods:
            if not self._volumes.reachable(pod, machine):
                self._report("volume", key_of(pod), f"not from {machine.name}, {what}")
        self._room(machine, pods, what)
        taken = list(machine.daemon_ports)
        for pod in machine.pods:
            taken += ports(pod)
        for pod in pods:
            if clash(ports(pod), taken):
                self._report("host port", key_of(pod), f"taken on {machine.name}")
            taken += ports(pod)
        attached: dict[str, set[str]] = defaultdict(set)
        for pod in (*machine.pods, *pods):
            for driver, name in self._volumes.attached(pod):
                attached[driver].add(name)
        for driver, limit in machine.attachable.items():
            if pods and len(attached[driver]) > limit:
                self._report("volume limit", machine.name, f"{len(attached[driver])} of {driver}")

    def _requests(self, pod: Object) -> Amounts:
        if id(pod) not in self._asked:
            self._asked[id(pod)] = requests(pod)
        return self._asked[id(pod)]

    def _room(self, machine: Machine, pods: Sequence[Object], what: str) -> None:
        wanted = plus(*(self._requests(pod) for pod in pods))
        asked = plus(wanted, *(self._requests(pod) for pod in machine.pods), machine.daemons)
        for name, value in asked.items():
            if wanted.get(name) and value > machine.allocatable.get(name, 0):
                have = machine.allocatable.get(name, 0)
                text = f"{name}: {value / ONE} of {have / ONE} ({what})"
                self._report("resources", machine.name, text)

    def sequence(self) -> list[str]:
        """Return the pods of the answer in an order that binds as many as any order found.

        Nodes are the cheapest machines allowed.
        """
        machines = [*standing(self._world).values(), *self.machines()]
        by_name = {one.name: one for one in machines}
        running = sum(len(one.pods) for one in machines)
        assigned = [
            (pod, by_name[name])
            for name, keys in self._places().items()
            for pod in self._named(keys)
        ]
        play, _ = self._bound_in_some_order(machines, assigned, random.Random(0))
        return [key_of(pod) for pod, _ in play.bound[running:]]

    def _places(self) -> dict[str, Sequence[str]]:
        new = {f"new-{index}": one["pods"] for index, one in enumerate(self._answer["newNodes"])}
        return {**self._answer["existingNodes"], **new}

    def _play(self, chosen: Sequence[Choice], chance: random.Random) -> None:
        machines = standing(self._world)
        assigned: list[tuple[Object, Machine]] = []
        for name, keys in self._answer["existingNodes"].items():
            if name not in machines:
                self._report("existence", name, "no such node")
                return
            self._with_daemons(machines[name])
            self._on_machine(machines[name], self._named(keys), "as it is")
            assigned += [(pod, machines[name]) for pod in self._named(keys)]
        for index, choice in enumerate(chosen):
            machine = self._machine(index, choice, chance)
            machines[machine.name] = machine
            keys = self._answer["newNodes"][index]["pods"]
            assigned += [(pod, machine) for pod in self._named(keys)]
        _, stuck = self._bound_in_some_order(list(machines.values()), assigned, chance)
        for pod, reason in stuck:
            self._report("topology", key_of(pod), reason)

    def _bound_in_some_order(
        self,
        machines: Sequence[Machine],
        assigned: Sequence[tuple[Object, Machine]],
        chance: random.Random,
    ) -> tuple[Play, list[tuple[Object, str]]]:
        """Return the best order found, and the pods that it does not bind, with the reason."""
        order = list(assigned)
        best = self._bound_in_order(machines, order)
        for _ in range(ORDERS):
            if not best[1]:
                break
            chance.shuffle(order)
            another = self._bound_in_order(machines, order)
            if len(another[1]) < len(best[1]):
                best = another
        return best

    def _bound_in_order(
        self, machines: Sequence[Machine], order: Sequence[tuple[Object, Machine]]
    ) -> tuple[Play, list[tuple[Object, str]]]:
        """Bind the choosy first and, when they are stuck, one of the others; repeat."""
        play = Play(machines, self._lookup)
        choosy = [one for one in order if is_choosy(one[0])]
        easy = [one for one in order if not is_choosy(one[0])]
        while choosy or easy:
            waiting = []
            for pod, machine in choosy:
                if play.refusal(pod, machine) is None:
                    play.bind(pod, machine)
                else:
                    waiting.append((pod, machine))
            moved = len(waiting) < len(choosy)
            choosy = waiting
            if moved:
                continue
            for place, (pod, machine) in enumerate(easy):
                if play.refusal(pod, machine) is None:
                    play.bind(pod, machine)
                    del easy[place]
                    moved = True
                    break
            if not moved:
                break
        stuck = [(pod, play.refusal(pod, machine) or "") for pod, machine in (*choosy, *easy)]
        return play, stuck


def is_choosy(pod: Object) -> bool:
    """Whether a pod minds which others are where."""
    return bool(
        hard_spreads(pod) or terms_of(pod, "podAffinity") or terms_of(pod, "podAntiAffinity")
    )


def findings(world: Object, answer: Object, types: Sequence[Object]) -> list[Finding]:
    """Return every rule that an answer breaks; `types` are the instance types written out."""
    return Trial(world, answer, types).findings()
