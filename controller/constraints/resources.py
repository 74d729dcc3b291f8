"""Resource lists as integers, added and compared by resource name.

Amounts are in thousandths of the resource's unit: millicores, and thousandths of a byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from controller.apis.kubernetes import quantities as wire
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import (
    Container,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    Quantities,
)
from controller.apis.kubernetes.quantities import MILLI, parse

Resources = Mapping[str, int]
"""Amounts by resource name, in thousandths of the resource's unit: millicores, and thousandths of a
byte. The amount of an absent name is 0."""

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
EBS_ATTACHMENTS = "attachable-volumes-aws-ebs"
"""The EBS volumes that a node can attach for pods. No pod requests it: the scheduler counts it."""

EPHEMERAL_STORAGE = "ephemeral-storage"
NODES = "nodes"

WHOLE_POD = ""
"""The key of pod-level requests in a mapping of requests by container name."""


def parse_resources(quantities: Mapping[str, str | int | float]) -> dict[str, int]:
    """Return a resource list parsed from Kubernetes quantities, in thousandths of their unit.

    Raises:
        ValueError: one of the values is not a quantity.

    """
    return {name: parse(quantity) for name, quantity in quantities.items()}


def parsed_requests(quantities: Mapping[str, str | int | float]) -> dict[str, int]:
    """Return requests parsed from Kubernetes quantities, in thousandths of their unit.

    Raises:
        ValueError: one of the values is not a quantity, or negative; the message names the
            resource.

    """
    amounts = {}
    for name, quantity in quantities.items():
        try:
            amounts[name] = wire.amount(quantity)
        except ValueError as exc:
            raise ValueError(f"{name}: {exc}") from exc
    return amounts


def total(parts: Iterable[Resources]) -> dict[str, int]:
    """Return the sum of resource lists, by name."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def subtract(whole: Resources, part: Resources) -> dict[str, int]:
    """Return `whole` minus `part`, by name; amounts may be negative."""
    result = dict(whole)
    for name, amount in part.items():
        result[name] = result.get(name, 0) - amount
    return result


def largest(parts: Iterable[Resources]) -> dict[str, int]:
    """Return the largest amount of each resource."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = max(result.get(name, amount), amount)
    return result


def fits(requests: Resources, available: Resources) -> bool:
    """Whether the requests are available, by name. A request of zero or less always fits."""
    return all(amount <= available.get(name, 0) for name, amount in requests.items() if amount > 0)


def pod_requests(pod: Pod, resized: Mapping[str, Resources] | None = None) -> dict[str, int]:
    """Return the resources that a pod takes of a node, including its pod slot.

    Amounts are in thousandths of the resource's unit: millicores, and thousandths of a byte.

    `resized` is the result of `in_resize` for the pod, if the caller has it.

    Containers and sidecars run together. An init container runs beside the sidecars started before
    it. The larger of the two phases counts. Pod-level requests replace the sum of the containers
    for the resources they name. The pod's overhead is added.

    Raises:
        ValueError: a request is not a quantity, or negative.

    """
    spec = pod.spec
    changed = in_resize(pod) if resized is None else resized

    def _requests(container: Container) -> Resources:
        return changed.get(container.name) or parsed_requests(container.resources.requests)

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
        needed.update(changed.get(WHOLE_POD) or parsed_requests(spec.resources.requests))
    if spec.overhead:
        needed = total((needed, parsed_requests(spec.overhead)))
    needed[PODS] = MILLI
    return {name: amount for name, amount in needed.items() if amount}


def with_default_requests(spec: PodSpec, defaults: Quantities) -> PodSpec:
    """Return the spec of a pod template with the requests that the API server sets in its pods.

    A container with a limit but no request requests the limit. So does the pod as a whole, if no
    container requests the resource. `defaults` are the default requests of LimitRanges for a
    container with neither.
    """

    def _with_requests(container: Container) -> Container:
        own = container.resources
        requests = {**defaults, **own.limits, **own.requests}
        return with_fields(container, "resources", requests=requests)

    whole = spec.resources
    if whole is not None and whole.limits:
        requested = {
            name
            for container in (*spec.containers, *spec.init_containers)
            for name in (*container.resources.limits, *container.resources.requests)
        }
        own = {name: limit for name, limit in whole.limits.items() if name not in requested}
        whole = msgspec.structs.replace(whole, requests={**own, **whole.requests})
    return msgspec.structs.replace(
        spec,
        containers=list(map(_with_requests, spec.containers)),
        init_containers=list(map(_with_requests, spec.init_containers)),
        resources=whole,
    )


def in_resize(pod: Pod) -> dict[str, dict[str, int]]:
    """Return the effective requests of each container that is being resized in place, by name.

    Amounts are in thousandths of the resource's unit: millicores, and thousandths of a byte.
    Pod-level requests have the key `WHOLE_POD`. As in kube-scheduler, the largest of three amounts
    counts until all are equal: the requests of the spec, the requests that the kubelet has
    allocated, and the requests of the running container. If the kubelet reports the resize as
    infeasible, the requests of the spec do not count.
    """
    statuses = [*pod.status.container_statuses, *pod.status.init_container_statuses]
    reported = {
        status.name: amounts for status in statuses if (amounts := _reported_requests(status))
    }
    whole = pod.spec.resources
    if whole is not None and whole.requests and (amounts := _reported_requests(pod.status)):
        reported[WHOLE_POD] = amounts
    if not reported:
        return {}
    is_infeasible = any(
        condition.type == "PodResizePending"
        and condition.is_true
        and condition.reason == "Infeasible"
        for condition in pod.status.conditions
    )
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    requests = {container.name: container.resources.requests for container in containers}
    if whole is not None:
        requests[WHOLE_POD] = whole.requests
    resized = {}
    for name, written in requests.items():
        if actual := reported.get(name):
            desired = parse_resources(written)
            counted = actual if is_infeasible else largest((desired, actual))
            if counted != desired:
                resized[name] = counted
    return resized


def _reported_requests(status: ContainerStatus | PodStatus) -> dict[str, int]:
    """Return the larger of the allocated and the actual requests, empty if neither is reported."""
    running = status.resources.requests if status.resources is not None else {}
    return largest((parse_resources(status.allocated_resources), parse_resources(running)))


def times(amounts: Resources, count: int) -> dict[str, int]:
    """Return the resources of `count` equal pods."""
    return {name: amount * count for name, amount in amounts.items()}
