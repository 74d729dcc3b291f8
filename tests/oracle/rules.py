"""The requests of a pod, and whether a single node satisfies it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any

Object = Mapping[str, Any]
Labels = Mapping[str, str]
Amounts = dict[str, int]
"""Amounts by resource, in billionths, so that every quantity is an integer."""

Port = tuple[str, int, str]
"""Address, port, protocol."""

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

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
    """Return a quantity in billionths."""
    digits = text.rstrip("numkKMGTPEi")
    return ceil(Fraction(digits) * SUFFIXES[text[len(digits) :]] * ONE)


def amounts(given: Object | None) -> Amounts:
    """Return the amounts of a resource list."""
    return {name: amount(str(value)) for name, value in (given or {}).items()}


def plus(*parts: Amounts) -> Amounts:
    """Return the sum of resource lists."""
    total: Amounts = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


def most(*parts: Amounts) -> Amounts:
    """Return the maximum of each resource."""
    total: Amounts = {}
    for part in parts:
        for name, value in part.items():
            total[name] = max(total.get(name, value), value)
    return total


def requests(pod: Object) -> Amounts:
    """Return a pod's effective requests.

    Containers and sidecars are summed; init containers count as a maximum.

    Pod-level requests override the sum over containers. During a resize, the allocated resources
    count if they are larger.
    """
    spec = pod["spec"]
    allocated = {
        container["name"]: most(
            amounts(container.get("allocatedResources")),
            amounts(container["resources"].get("requests")),
        )
        for container in pod.get("status", {}).get("containerStatuses", [])
        if container.get("resources")
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
    return all(meets(labels.get(term["key"]), term) for term in terms)


def meets(value: str | None, term: Object) -> bool:
    """Whether a label's value, or its absence, meets an expression."""
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
    """Whether a label selector matches these labels; None matches nothing, an empty one all."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and matches(
        labels, selector.get("matchExpressions") or []
    )


def node_selected(pod: Object, labels: Labels, name: str) -> bool:
    """Whether a node meets the pod's node selector and required node affinity."""
    spec = pod["spec"]
    wanted = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    required = (spec.get("affinity") or {}).get("nodeAffinity", {}).get(REQUIRED)
    return required is None or any(
        node_term(term, labels, name) for term in required["nodeSelectorTerms"]
    )


def node_term(term: Object, labels: Labels, name: str) -> bool:
    """Whether a node meets a term; an empty term matches no node."""
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    return matches(labels, expressions) and matches({"metadata.name": name}, fields)


def tolerates(pod: Object, taints: Iterable[Object]) -> bool:
    """Whether a pod may be scheduled to, and stay on, a node with these taints."""
    tolerations = pod["spec"].get("tolerations") or []
    return all(
        any(_tolerates(toleration, taint) for toleration in tolerations)
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
    """Return the host ports of a pod."""
    spec = pod["spec"]
    sidecars = [c for c in spec.get("initContainers", []) if c.get("restartPolicy") == "Always"]
    containers = [*spec.get("containers", []), *sidecars]
    return tuple(
        (port.get("hostIP") or "0.0.0.0", port["hostPort"], port.get("protocol", "TCP"))
        for container in containers
        for port in container.get("ports", [])
        if port.get("hostPort")
    )


def clash(ours: Iterable[Port], theirs: Iterable[Port]) -> bool:
    """Whether two sets of host ports conflict on one node; 0.0.0.0 stands for every address."""
    return any(
        a[1:] == b[1:] and (a[0] == b[0] or "0.0.0.0" in (a[0], b[0])) for a in ours for b in theirs
    )


def key_of(pod: Object) -> str:
    """Return a pod's key, its namespace and name."""
    metadata = pod["metadata"]
    return f"{metadata.get('namespace', 'default')}/{metadata['name']}"
