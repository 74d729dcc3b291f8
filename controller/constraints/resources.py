"""Resources as integers in thousandths of their unit, added and compared by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.apis.pods import Container, Pod
from controller.apis.quantities import MILLI, parse

Resources = Mapping[str, int]
"""Resource name to thousandths of its unit; an absent name is zero."""

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
EPHEMERAL_STORAGE = "ephemeral-storage"
NODES = "nodes"

ONE_POD: Resources = {PODS: MILLI}
"""The slot every pod takes."""


def parsed(quantities: Mapping[str, str | int | float]) -> dict[str, int]:
    """Read a resource list as written by a user."""
    return {name: parse(quantity) for name, quantity in quantities.items()}


def total(parts: Iterable[Resources]) -> dict[str, int]:
    """Add resource lists name by name."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def less(whole: Resources, part: Resources) -> dict[str, int]:
    """Subtract name by name; results may be negative."""
    result = dict(whole)
    for name, amount in part.items():
        result[name] = result.get(name, 0) - amount
    return result


def largest(parts: Iterable[Resources]) -> dict[str, int]:
    """Return the largest amount of each name."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = max(result.get(name, amount), amount)
    return result


def fits(requests: Resources, available: Resources) -> bool:
    """Whether what is asked for is there, name by name; asking for nothing always fits."""
    return all(amount <= available.get(name, 0) for name, amount in requests.items() if amount > 0)


def pod_requests(pod: Pod) -> dict[str, int]:
    """Return what a pod takes of a node, its slot included.

    Containers and sidecars run together; an init container runs beside the sidecars
    started before it; the larger of the two phases counts. What the kubelet has
    granted already counts until a resize is done. Pod-level requests replace the
    containers' sum for the resources they name; overhead comes on top.
    """
    spec = pod.spec
    granted = _granted(pod)
    running = total(_asked(container, granted) for container in spec.containers)
    started: dict[str, int] = {}
    peaks: list[Resources] = []
    for container in spec.init_containers:
        asked = _asked(container, granted)
        if container.restart_policy == "Always":
            started = total((started, asked))
            peaks.append(started)
        else:
            peaks.append(total((started, asked)))
    needed = largest((total((running, started)), *peaks))
    if spec.resources is not None:
        needed.update(parsed(spec.resources.requests))
    if spec.overhead:
        needed = total((needed, parsed(spec.overhead)))
    needed[PODS] = MILLI
    return {name: amount for name, amount in needed.items() if amount}


def _granted(pod: Pod) -> dict[str, dict[str, int]]:
    statuses = [*pod.status.container_statuses, *pod.status.init_container_statuses]
    return {
        status.name: parsed(status.allocated_resources)
        for status in statuses
        if status.allocated_resources
    }


def _asked(container: Container, granted: Mapping[str, Resources]) -> dict[str, int]:
    asked = parsed(container.resources.requests)
    if container.name in granted:
        return largest((asked, granted[container.name]))
    return asked


def times(amounts: Resources, count: int) -> dict[str, int]:
    """Return the amounts of several equal pods."""
    return {name: amount * count for name, amount in amounts.items()}
