"""Resources as integers in thousandths of their unit, added and compared by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.apis import quantities as wire
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
    """Read a resource list as written by a user.

    Raises:
        ValueError: one of them is not a quantity.

    """
    return {name: parse(quantity) for name, quantity in quantities.items()}


def asked(quantities: Mapping[str, str | int | float]) -> dict[str, int]:
    """Read what somebody asks for, which is nothing at least.

    Raises:
        ValueError: one of them is not such a quantity; the message names it.

    """
    amounts = {}
    for name, quantity in quantities.items():
        try:
            amounts[name] = wire.amount(quantity)
        except ValueError as exc:
            raise ValueError(f"{name}: {exc}") from exc
    return amounts


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
    started before it; the larger of the two phases counts. Pod-level requests replace the
    containers' sum for the resources they name; overhead comes on top.

    Raises:
        ValueError: a request is not a quantity, or negative.

    """
    spec = pod.spec
    resized = in_resize(pod)

    def _requests(container: Container) -> Resources:
        return resized.get(container.name) or asked(container.resources.requests)

    running = total(map(_requests, spec.containers))
    started: dict[str, int] = {}
    peaks: list[Resources] = []
    for container in spec.init_containers:
        own = _requests(container)
        if container.restart_policy == "Always":
            started = total((started, own))
            peaks.append(started)
        else:
            peaks.append(total((started, own)))
    needed = largest((total((running, started)), *peaks))
    if spec.resources is not None:
        needed.update(asked(spec.resources.requests))
    if spec.overhead:
        needed = total((needed, asked(spec.overhead)))
    needed[PODS] = MILLI
    return {name: amount for name, amount in needed.items() if amount}


def in_resize(pod: Pod) -> dict[str, dict[str, int]]:
    """Return what each container counts for whose size is being changed in place.

    The largest of what is asked, what the kubelet has granted and what runs counts until all
    are equal; a wish that the node can never meet does not count.
    """
    statuses = [*pod.status.container_statuses, *pod.status.init_container_statuses]
    held = {
        status.name: largest(
            (
                parsed(status.allocated_resources),
                parsed(status.resources.requests if status.resources is not None else {}),
            )
        )
        for status in statuses
        if status.allocated_resources or status.resources is not None
    }
    if not held:
        return {}
    is_refused = any(
        condition.type == "PodResizePending"
        and condition.is_true
        and condition.reason == "Infeasible"
        for condition in pod.status.conditions
    )
    resized = {}
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        if has := held.get(container.name):
            wanted = parsed(container.resources.requests)
            counted = has if is_refused else largest((wanted, has))
            if counted != wanted:
                resized[container.name] = counted
    return resized


def times(amounts: Resources, count: int) -> dict[str, int]:
    """Return the amounts of several equal pods."""
    return {name: amount * count for name, amount in amounts.items()}
