"""Checks an answer against its world by the rules of Kubernetes, and by nothing of the engine.

Written from the Kubernetes documentation on assigning pods to nodes, taints, topology
spread and resources. Works on plain JSON values: a world and an answer, in the forms of
`docs/formats.md`. A node that is yet to be made may turn out as any of its types in any
offering that its requirements leave; what a pod needs must hold for every outcome.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

Json = Mapping[str, Any]

ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
NODEPOOL = "karpenter.sh/nodepool"
TYPE = "node.kubernetes.io/instance-type"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
UNITS: dict[str, Fraction | int] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}


@dataclass
class Place:
    """A node of the finished cluster: what it may turn out to be, and who is on it."""

    name: str
    outcomes: list[dict[str, str]]
    taints: list[Json]
    allocatable: list[dict[str, Fraction]]
    new: bool
    pods: list[Json] = field(default_factory=list)
    running: list[Json] = field(default_factory=list)

    def domain(self, key: str) -> str | None:
        """The value of a label, when it is certain."""
        if key == HOSTNAME:
            return self.outcomes[0].get(HOSTNAME, self.name) if self.outcomes else self.name
        values = {outcome.get(key) for outcome in self.outcomes}
        only = values.pop() if len(values) == 1 else None
        return None if only is None or only.startswith("any value") else only

    @property
    def everyone(self) -> list[Json]:
        """Those who ran there and those who came."""
        return self.running + self.pods


def findings(world: Json, answer: Json) -> list[str]:
    """Return everything that is wrong with the answer, one sentence each; empty when valid."""
    cluster = _cluster(world, answer)
    if isinstance(cluster, str):
        return [cluster]
    found = [*_conservation(world, answer), *_new_nodes(world, answer)]
    for place in cluster:
        found.extend(_fit(world, place))
    found.extend(_spreads(world, cluster))
    found.extend(_repulsion(world, cluster))
    found.extend(_attraction(world, cluster))
    found.extend(_limits(world, answer))
    return found


def quantity(text: Any) -> Fraction:
    """Read a Kubernetes quantity."""
    text = str(text)
    for unit in sorted(UNITS, key=len, reverse=True):
        if text.endswith(unit):
            return Fraction(text[: -len(unit)]) * UNITS[unit]
    return Fraction(text)


def requests(pod: Json) -> dict[str, Fraction]:
    """Return what a pod asks of its node, its slot included."""
    spec = pod["spec"]
    running = _sum(_asked(one) for one in spec.get("containers", ()))
    sidecars: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for container in spec.get("initContainers", ()):
        beside = _sum([sidecars, _asked(container)])
        if container.get("restartPolicy") == "Always":
            sidecars = beside
        for name, amount in beside.items():
            peak[name] = max(peak.get(name, Fraction(0)), amount)
    total = _sum([running, sidecars])
    for name, amount in peak.items():
        total[name] = max(total.get(name, Fraction(0)), amount)
    pod_level = spec.get("resources") or {}
    for name, amount in (pod_level.get("requests") or {}).items():
        total[name] = quantity(amount)
    for name, amount in (spec.get("overhead") or {}).items():
        total[name] = total.get(name, Fraction(0)) + quantity(amount)
    total["pods"] = Fraction(1)
    return total


def _sum(parts: Iterable[Mapping[str, Fraction]]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, Fraction(0)) + amount
    return total


def _asked(container: Json) -> dict[str, Fraction]:
    asked = (container.get("resources") or {}).get("requests") or {}
    return {name: quantity(amount) for name, amount in asked.items()}


def key_of(pod: Json) -> str:
    """Return `namespace/name`."""
    metadata = pod["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def _waiting(world: Json) -> dict[str, Json]:
    return {
        key_of(pod): pod
        for pod in world["pods"]
        if not pod["spec"].get("nodeName")
        and (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
        and not any(
            one["kind"] in {"DaemonSet", "Node"}
            for one in pod["metadata"].get("ownerReferences") or ()
        )
    }


def _conservation(world: Json, answer: Json) -> Iterator[str]:
    named = Counter(
        itertools.chain(
            *(node["pods"] for node in answer["newNodes"]),
            *answer["existingNodes"].values(),
            answer["unschedulable"],
        )
    )
    waiting = _waiting(world)
    for pod in waiting:
        if named[pod] != 1:
            yield f"{pod} is named {named[pod]} times"
    for pod in named:
        if pod not in waiting:
            yield f"{pod} was not waiting"
    for pod, causes in answer["unschedulable"].items():
        if not causes:
            yield f"{pod} is left out without a cause"


def _cluster(world: Json, answer: Json) -> list[Place] | str:
    waiting = _waiting(world)
    places = _existing(world)
    by_name = {place.name: place for place in places}
    try:
        for name, pods in answer["existingNodes"].items():
            by_name[name].pods = [waiting[pod] for pod in pods]
        for number, node in enumerate(answer["newNodes"]):
            place = _new_place(world, node, number)
            place.pods = [waiting[pod] for pod in node["pods"]]
            places.append(place)
    except KeyError as unknown:
        return f"{unknown} is not in the world"
    return places


def _existing(world: Json) -> list[Place]:
    claims = {
        (one.get("status") or {}).get("providerID"): one for one in world.get("nodeClaims") or ()
    }
    places = []
    for node in world.get("nodes") or ():
        claim = claims.pop((node.get("spec") or {}).get("providerID") or object(), None)
        places.append(_node_place(node, claim))
    for claim in claims.values():
        labels = dict(claim["metadata"].get("labels") or {})
        status = claim.get("status") or {}
        places.append(
            Place(
                claim["metadata"]["name"],
                [labels],
                list(claim["spec"].get("taints") or ()),
                [{k: quantity(v) for k, v in (status.get("allocatable") or {}).items()}],
                False,
            )
        )
    by_name = {place.name: place for place in places}
    for pod in world["pods"]:
        name = pod["spec"].get("nodeName")
        done = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
        if name in by_name and not done:
            by_name[name].running.append(pod)
    return places


def _node_place(node: Json, claim: Json | None) -> Place:
    labels = dict(node["metadata"].get("labels") or {})
    taints = list((node.get("spec") or {}).get("taints") or ())
    status = node.get("status") or {}
    allocatable = {k: quantity(v) for k, v in (status.get("allocatable") or {}).items()}
    if claim is not None and labels.get("karpenter.sh/initialized") != "true":
        passing = {(one["key"], one["effect"]) for one in claim["spec"].get("startupTaints") or ()}
        taints = [
            one
            for one in taints
            if (one["key"], one["effect"]) not in passing and not _ephemeral(one)
        ]
        if labels.get("karpenter.sh/registered") != "true":
            taints = list(claim["spec"].get("taints") or ())
            labels = dict(claim["metadata"].get("labels") or {}) | labels
        promised = (claim.get("status") or {}).get("allocatable") or {}
        for name, amount in promised.items():
            if not allocatable.get(name):
                allocatable[name] = quantity(amount)
    return Place(node["metadata"]["name"], [labels], taints, [allocatable], False)


def _ephemeral(taint: Json) -> bool:
    return taint["key"] in {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "karpenter.sh/unregistered",
    } or taint["key"].startswith("readiness.k8s.io/")


def _pool(world: Json, name: str) -> Json:
    pools: list[Json] = [
        one for one in world.get("nodePools") or () if one["metadata"]["name"] == name
    ]
    return pools[0]


def _new_place(world: Json, node: Json, number: int) -> Place:
    pool = _pool(world, node["nodePool"])["spec"]["template"]
    taints = list(pool["spec"].get("taints") or ())
    outcomes: list[dict[str, str]] = []
    allocatable = []
    for name in node["instanceTypes"]:
        kind = _type(world, name)
        found = [labels for labels, _ in _outcomes(node, pool, kind)]
        outcomes.extend(found)
        for labels in found[:1]:
            allocatable.append(_left_by_daemons(world, kind, labels, taints))
    unique = [dict(one) for one in dict.fromkeys(tuple(sorted(o.items())) for o in outcomes)]
    return Place(f"new node {number}", unique, taints, allocatable, True)


def _type(world: Json, name: str) -> Json:
    found: list[Json] = [one for one in world["instanceTypes"] if one["name"] == name]
    return found[0]


def _outcomes(node: Json, pool: Json, kind: Json) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the labels and price of each way to buy a type that the node's terms leave."""
    for offering in kind["offerings"]:
        if not offering.get("available", True):
            continue
        known: dict[str, set[str]] = {
            term["key"]: set(term["values"])
            for term in kind.get("requirements") or ()
            if term["operator"] == "In"
        }
        absent = {
            term["key"]
            for term in kind.get("requirements") or ()
            if term["operator"] == "DoesNotExist"
        }
        for key, value in offering["requirements"].items():
            known[key] = known.get(key, {value}) & {value}
        for key, value in (pool.get("metadata", {}).get("labels") or {}).items():
            known[key] = {value}
        known[NODEPOOL] = {node["nodePool"]}
        possible = True
        for term in node["requirements"]:
            if term["key"] in known:
                kept = {v for v in known[term["key"]] if _allows(term, v)}
                known[term["key"]] = kept
                possible &= bool(kept)
            elif term["operator"] == "In" and term["key"] not in absent:
                known[term["key"]] = set(term["values"])
            elif term["operator"] in {"In", "Exists", "Gt", "Lt", "Gte", "Lte"}:
                if term["key"] in absent:
                    possible = False
                else:
                    known[term["key"]] = {f"any value of {term['key']}"}
        if possible and all(known.values()):
            # A label that is still open takes one value or another: each is an outcome.
            keys = sorted(known)
            for values in itertools.product(*(sorted(known[key]) for key in keys)):
                yield dict(zip(keys, values, strict=True)), offering["price"]


def _left_by_daemons(
    world: Json, kind: Json, labels: Mapping[str, str], taints: Sequence[Json]
) -> dict[str, Fraction]:
    left = {name: quantity(amount) for name, amount in kind["capacity"].items()}
    for name, amount in (kind.get("overhead") or {}).items():
        left[name] = left.get(name, Fraction(0)) - quantity(amount)
    for daemon in world.get("daemonSets") or ():
        spec = daemon["spec"]["template"]["spec"]
        if _tolerates(spec, taints) and _node_affinity(spec, labels):
            for name, amount in requests({"spec": spec}).items():
                left[name] = left.get(name, Fraction(0)) - amount
    return left


def _new_nodes(world: Json, answer: Json) -> Iterator[str]:
    cost = 0.0
    for number, node in enumerate(answer["newNodes"]):
        where = f"new node {number}"
        cost += node["price"]
        if not node["pods"]:
            yield f"{where} is made for nobody"
        if not 0 < len(node["instanceTypes"]) <= 600:
            yield f"{where} names {len(node['instanceTypes'])} types"
        pool = _pool(world, node["nodePool"])["spec"]["template"]
        best = None
        for name in node["instanceTypes"]:
            prices = [price for _, price in _outcomes(node, pool, _type(world, name))]
            if not prices:
                yield f"{where}: {name} cannot be bought as the node requires"
            else:
                best = min(prices) if best is None else min(best, *prices)
        if best is not None and abs(best - node["price"]) > 1e-9:
            yield f"{where}: price {node['price']} is not that of the cheapest offering, {best}"
        yield from _pool_terms(where, node, pool, world)
    if abs(cost - answer["cost"]) > 1e-6 * max(cost, 1):
        yield f"cost {answer['cost']} is not the sum of prices, {cost}"
    if answer["lowerBound"] > answer["cost"] * (1 + 1e-9) + 1e-9:
        yield "the lower bound is above the cost"


def _pool_terms(where: str, node: Json, pool: Json, world: Json) -> Iterator[str]:
    for term in pool["spec"].get("requirements") or ():
        for name in node["instanceTypes"]:
            for labels, _ in _outcomes(node, pool, _type(world, name)):
                value = labels.get(term["key"])
                if value is not None and not value.startswith("any ") and not _allows(term, value):
                    yield f"{where}: {name} breaks the pool's term on {term['key']}"
        bends = (world.get("settings") or {}).get("MIN_VALUES_POLICY") == "BestEffort"
        if term.get("minValues") and not bends:
            values = {
                labels.get(term["key"])
                for name in node["instanceTypes"]
                for labels, _ in _outcomes(node, pool, _type(world, name))
            }
            if len(values) < term["minValues"]:
                yield f"{where}: {len(values)} values of {term['key']}, too few"


def _fit(world: Json, place: Place) -> Iterator[str]:
    if not place.pods:
        return
    asked = _sum(requests(pod) for pod in place.everyone)
    for allocatable in place.allocatable:
        for name, amount in asked.items():
            if amount > allocatable.get(name, Fraction(0)):
                yield f"{place.name} is over capacity: {name} {float(amount)}"
    if not place.allocatable or not place.outcomes:
        yield f"{place.name} can never be"
    for pod in place.pods:
        if not _tolerates(pod["spec"], place.taints):
            yield f"{key_of(pod)} does not tolerate the taints of {place.name}"
        if not all(_node_affinity(pod["spec"], labels) for labels in place.outcomes):
            yield f"{key_of(pod)} may not run on {place.name}"
    yield from _ports(place)
    yield from _volumes(world, place)


def _ports(place: Place) -> Iterator[str]:
    taken: list[tuple[str, int, str, str]] = []
    for pod in place.everyone:
        sidecars = [
            one
            for one in pod["spec"].get("initContainers") or ()
            if one.get("restartPolicy") == "Always"
        ]
        mine = [
            (
                port.get("hostIP") or "0.0.0.0",
                port["hostPort"],
                port.get("protocol", "TCP"),
                key_of(pod),
            )
            for container in [*pod["spec"].get("containers", ()), *sidecars]
            for port in container.get("ports") or ()
            if port.get("hostPort")
        ]
        for one, other in itertools.product(mine, taken):
            same_address = one[0] == other[0] or "0.0.0.0" in {one[0], other[0]}
            if same_address and one[1:3] == other[1:3]:
                yield f"{one[3]} and {other[3]} both take port {one[1]} on {place.name}"
        taken.extend(mine)


def _volumes(world: Json, place: Place) -> Iterator[str]:
    claims = {key_of(one): one for one in world.get("persistentVolumeClaims") or ()}
    volumes = {one["metadata"]["name"]: one for one in world.get("persistentVolumes") or ()}
    classes = {one["metadata"]["name"]: one for one in world.get("storageClasses") or ()}
    for pod in place.pods:
        for volume in pod["spec"].get("volumes") or ():
            source = volume.get("persistentVolumeClaim")
            if not source:
                continue
            namespace = pod["metadata"].get("namespace", "")
            claim = claims.get(f"{namespace}/{source['claimName']}")
            if claim is None:
                yield f"{key_of(pod)} has no claim {source['claimName']}"
                continue
            bound = volumes.get(claim["spec"].get("volumeName") or "")
            if bound is not None:
                selector = ((bound["spec"].get("nodeAffinity") or {}).get("required")) or {}
                terms = selector.get("nodeSelectorTerms") or ()
                if bound["spec"].get("local") or bound["spec"].get("hostPath"):
                    terms = ()
            else:
                name = claim["spec"].get("storageClassName") or ""
                terms = [
                    {
                        "matchExpressions": [
                            {"operator": "In", **one}
                            for one in term.get("matchLabelExpressions") or ()
                        ]
                    }
                    for term in (classes.get(name) or {}).get("allowedTopologies") or ()
                ]
            if terms and not all(_any_term(terms, labels) for labels in place.outcomes):
                yield f"{key_of(pod)} cannot reach its volume from {place.name}"


def _tolerates(spec: Json, taints: Iterable[Json]) -> bool:
    def passes(one: Json, taint: Json) -> bool:
        if one.get("effect") and one["effect"] != taint["effect"]:
            return False
        if one.get("key") and one["key"] != taint["key"]:
            return False
        if one.get("operator", "Equal") == "Exists":
            return True
        return bool(one.get("key")) and one.get("value", "") == taint.get("value", "")

    return all(
        any(passes(one, taint) for one in spec.get("tolerations") or ())
        for taint in taints
        if taint.get("effect") in {"NoSchedule", "NoExecute"}
    )


def _node_affinity(spec: Json, labels: Mapping[str, str]) -> bool:
    for key, value in (spec.get("nodeSelector") or {}).items():
        if _value(labels, key) != value:
            return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get(REQUIRED)
    return required is None or _any_term(required["nodeSelectorTerms"], labels)


def _any_term(terms: Iterable[Json], labels: Mapping[str, str]) -> bool:
    return any(
        term.get("matchExpressions")
        and all(_allows(one, _value(labels, one["key"])) for one in term["matchExpressions"])
        for term in terms
    )


ALIASES = {
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "beta.kubernetes.io/arch": "kubernetes.io/arch",
    "beta.kubernetes.io/os": "kubernetes.io/os",
    "beta.kubernetes.io/instance-type": TYPE,
    "topology.ebs.csi.aws.com/zone": ZONE,
}


def _value(labels: Mapping[str, str], key: str) -> str | None:
    return labels.get(key, labels.get(ALIASES.get(key, key)))


def _allows(term: Json, value: str | None) -> bool:
    values = term.get("values") or []
    match term["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    if value is None or not value.lstrip("-").isdigit():
        return False
    number, bound = int(value), int(values[0])
    return {
        "Gt": number > bound,
        "Lt": number < bound,
        "Gte": number >= bound,
        "Lte": number <= bound,
    }[term["operator"]]


def _selects(selector: Json | None, pod: Json) -> bool:
    if selector is None:
        return False
    labels = pod["metadata"].get("labels") or {}
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    return all(
        _allows(one, labels.get(one["key"])) for one in selector.get("matchExpressions") or ()
    )


def _same_keys(term: Json, own: Json, other: Json) -> bool:
    mine = own["metadata"].get("labels") or {}
    theirs = other["metadata"].get("labels") or {}
    same = all(
        theirs.get(key) == mine[key] for key in term.get("matchLabelKeys") or () if key in mine
    )
    different = all(
        theirs.get(key) != mine[key] for key in term.get("mismatchLabelKeys") or () if key in mine
    )
    return same and different


def _namespace(pod: Json) -> str:
    return str(pod["metadata"].get("namespace", ""))


def _matches(world: Json, term: Json, own: Json, other: Json) -> bool:
    """Whether an affinity term of one pod means another."""
    if _namespace(other) not in _namespaces(world, term, own):
        return False
    return _selects(term.get("labelSelector"), other) and _same_keys(term, own, other)


def _namespaces(world: Json, term: Json, own: Json) -> set[str]:
    names = set(term.get("namespaces") or ())
    selector = term.get("namespaceSelector")
    if not names and selector is None:
        return {_namespace(own)}
    if selector is not None:
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            names.add(_namespace(own))
        names.update(
            one["metadata"]["name"]
            for one in world.get("namespaces") or ()
            if _selects(selector, one)
        )
    return names


def _terms(pod: Json, sort: str) -> list[Json]:
    return list(((pod["spec"].get("affinity") or {}).get(sort) or {}).get(REQUIRED) or ())


def _leaving(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _spreads(world: Json, cluster: Sequence[Place]) -> Iterator[str]:
    """Every owner's constraint must have been met at the moment it was placed, in some order:
    owners first, the pods they only count afterwards.
    """
    seen = set()
    for place in cluster:
        for pod in place.pods:
            for constraint in pod["spec"].get("topologySpreadConstraints") or ():
                if constraint["whenUnsatisfiable"] != "DoNotSchedule":
                    continue
                name = repr(
                    (
                        _namespace(pod),
                        constraint,
                        pod["spec"].get("nodeSelector"),
                        (pod["spec"].get("affinity") or {}).get("nodeAffinity"),
                    )
                )
                if name in seen and not constraint.get("matchLabelKeys"):
                    continue
                seen.add(name)
                yield from _one_spread(pod, constraint, cluster)


def _one_spread(pod: Json, constraint: Json, cluster: Sequence[Place]) -> Iterator[str]:
    key = constraint["topologyKey"]
    if key == HOSTNAME:
        yield from _one_host_spread(pod, constraint, cluster)
        return
    owners: set[str] = set()
    for place in cluster:
        mine = [one for one in place.pods if constraint in _constraints(one)]
        domain = place.domain(key)
        if mine and domain is not None:
            owners.add(domain)
        elif mine:
            yield f"{key_of(mine[0])} has a spread over {key} but no certain domain"
    # Pods that are only counted may have come before or after: before where that helps.
    counts = _counts(pod, constraint, cluster, everyone=False)
    at_most = _counts(pod, constraint, cluster, everyone=True)
    enough = len(counts) >= (constraint.get("minDomains") or 1)
    least = min(at_most.values(), default=0) if enough else 0
    for domain in sorted(owners):
        if counts.get(domain, 0) - least > constraint["maxSkew"] and _came_last(
            pod, constraint, cluster, domain
        ):
            yield (
                f"spread over {key} of {key_of(pod)}: {domain} has {counts[domain]}, "
                f"another {least}, maxSkew {constraint['maxSkew']}"
            )


def _counts(
    pod: Json, constraint: Json, cluster: Sequence[Place], *, everyone: bool
) -> dict[str, int]:
    """Count per domain the pods that ran, the owners, and, for `everyone`, all who came."""
    key = constraint["topologyKey"]
    counts: dict[str, int] = {}
    for place in cluster:
        domain = place.domain(key)
        if domain is None or not _counts_node(pod, constraint, place):
            continue
        came = [one for one in place.pods if everyone or _is_spread(one, key)]
        counted = [
            one
            for one in [*place.running, *came]
            if _selects(constraint.get("labelSelector"), one)
            and _namespace(one) == _namespace(pod)
            and _same_keys(constraint, pod, one)
            and not _leaving(one)
        ]
        counts[domain] = counts.get(domain, 0) + len(counted)
    return counts


def _came_last(pod: Json, constraint: Json, cluster: Sequence[Place], domain: str) -> bool:
    """Whether owners that count themselves went to this domain: only they raise its count."""
    return any(
        constraint in _constraints(one) and _selects(constraint.get("labelSelector"), one)
        for place in cluster
        if place.domain(constraint["topologyKey"]) == domain
        for one in place.pods
        if _same_keys(constraint, pod, one)
    )


def _constraints(pod: Json) -> list[Json]:
    return list(pod["spec"].get("topologySpreadConstraints") or ())


def _is_spread(pod: Json, key: str) -> bool:
    """Whether the pod had to come before those that are only counted."""
    return any(one["topologyKey"] == key for one in _constraints(pod))


def _counts_node(pod: Json, constraint: Json, place: Place) -> bool:
    if constraint.get("nodeAffinityPolicy") != "Ignore" and not all(
        _node_affinity(pod["spec"], labels) for labels in place.outcomes
    ):
        return False
    return constraint.get("nodeTaintsPolicy") != "Honor" or _tolerates(pod["spec"], place.taints)


def _one_host_spread(pod: Json, constraint: Json, cluster: Sequence[Place]) -> Iterator[str]:
    for place in cluster:
        owners = [one for one in place.pods if constraint in _constraints(one)]
        if not owners:
            continue
        counted = [
            one
            for one in [*place.running, *(p for p in place.pods if _is_spread(p, HOSTNAME))]
            if _selects(constraint.get("labelSelector"), one)
            and _namespace(one) == _namespace(pod)
            and _same_keys(constraint, pod, one)
            and not _leaving(one)
        ]
        itself = any(_selects(constraint.get("labelSelector"), one) for one in owners)
        if itself and len(counted) > constraint["maxSkew"]:
            yield f"{place.name} holds {len(counted)} pods of a spread of {constraint['maxSkew']}"


def _repulsion(world: Json, cluster: Sequence[Place]) -> Iterator[str]:
    for key, members in _by_domain(cluster, "podAntiAffinity").items():
        for domain, pods in members.items():
            for own, term in _stated(pods, "podAntiAffinity", key):
                for other, came in pods:
                    if other is own[0] or not (own[1] or came) or _leaving(other):
                        continue
                    if _matches(world, term, own[0], other):
                        yield f"{key_of(own[0])} repels {key_of(other)}, both in {key} {domain}"


def _by_domain(
    cluster: Sequence[Place], sort: str
) -> dict[str, dict[str, list[tuple[Json, bool]]]]:
    """Return, per topology key in use and domain, the pods there and whether they came now."""
    keys = {
        term["topologyKey"]
        for place in cluster
        for pod in place.everyone
        for term in _terms(pod, sort)
    }
    found: dict[str, dict[str, list[tuple[Json, bool]]]] = {key: defaultdict(list) for key in keys}
    for key in keys:
        for place in cluster:
            outcomes = {key: place.domain(key)}
            domains = (
                {outcomes[key]}
                if outcomes[key] is not None
                else {one.get(key) for one in place.outcomes}
            )
            for domain in domains:
                if domain is not None:
                    found[key][domain].extend((pod, False) for pod in place.running)
                    found[key][domain].extend((pod, True) for pod in place.pods)
    return found


def _stated(
    pods: Iterable[tuple[Json, bool]], sort: str, key: str
) -> Iterator[tuple[tuple[Json, bool], Json]]:
    for pod, came in pods:
        if _leaving(pod):
            continue
        for term in _terms(pod, sort):
            if term["topologyKey"] == key:
                yield (pod, came), term


def _attraction(world: Json, cluster: Sequence[Place]) -> Iterator[str]:
    everyone = [pod for place in cluster for pod in place.everyone if not _leaving(pod)]
    starts: dict[str, set[str]] = defaultdict(set)
    for place in cluster:
        for pod in place.pods:
            for term in _terms(pod, "podAffinity"):
                domain = place.domain(term["topologyKey"])
                if domain is None:
                    yield f"{key_of(pod)} has no certain domain for its affinity"
                    continue
                near = [
                    one
                    for other in cluster
                    if other.domain(term["topologyKey"]) == domain
                    for one in other.everyone
                    if not _leaving(one) and _matches(world, term, pod, one)
                ]
                others = [one for one in near if one is not pod]
                alone = not any(
                    one is not pod and _matches(world, term, pod, one) for one in everyone
                )
                itself = _matches(world, term, pod, pod)
                if not others and not (itself and alone):
                    yield f"{key_of(pod)} has none of those near it that it needs"
                elif (
                    itself
                    and all(_terms(one, "podAffinity") for one in near)
                    and not any(one["spec"].get("nodeName") for one in near)
                ):
                    starts[repr((_namespace(pod), term))].add(domain)
    for stated, domains in starts.items():
        if len(domains) > 1:
            yield f"affinity {stated} started in several domains: {sorted(domains)}"


def _limits(world: Json, answer: Json) -> Iterator[str]:
    for pool in world.get("nodePools") or ():
        limits = pool["spec"].get("limits") or {}
        name = pool["metadata"]["name"]
        before = _sum(
            _drawn(node["status"]["capacity"])
            for node in world.get("nodes") or ()
            if (node["metadata"].get("labels") or {}).get(NODEPOOL) == name
        )
        drawn = before
        for node in answer["newNodes"]:
            if node["nodePool"] == name:
                most: dict[str, Fraction] = {}
                for kind in node["instanceTypes"]:
                    capacity = _drawn(_type(world, kind)["capacity"])
                    for resource, amount in capacity.items():
                        most[resource] = max(most.get(resource, Fraction(0)), amount)
                drawn = _sum([drawn, most])
        for resource, limit in limits.items():
            now = drawn.get(resource, Fraction(0))
            if now > before.get(resource, Fraction(0)) and now > quantity(limit):
                yield f"NodePool {name} is over its limit of {resource}"


def _drawn(capacity: Json) -> dict[str, Fraction]:
    return {"nodes": Fraction(1)} | {name: quantity(amount) for name, amount in capacity.items()}
