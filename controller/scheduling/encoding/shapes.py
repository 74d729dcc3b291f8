"""Pods of one shape are one row.

A shape is everything about a pod that matters to placement. It is found by
encoding the pod's spec, labels and namespace, so equal pods meet in one look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from controller.apis.pods import Pod, PodSpec
from controller.constraints import hostports, resources
from controller.constraints.hostports import HostPort
from controller.constraints.resources import Resources
from controller.scheduling.devices.allocation import Equipment
from controller.scheduling.encoding.volumes import NO_VOLUMES, Volumes


@dataclass(eq=False, slots=True)
class Shape:
    """Equal pods; `keys` are their names, oldest first.

    Shapes of one `character` differ in what they ask for alone, not in where they may go
    or whom they look for. `equipment` is the devices they claim, if any.
    `flaw` says why what they ask for cannot be read, if it cannot.
    """

    index: int
    character: bytes
    namespace: str
    labels: Mapping[str, str]
    spec: PodSpec
    requests: Resources
    ports: tuple[HostPort, ...]
    keys: list[str]
    volumes: Volumes = NO_VOLUMES
    equipment: Equipment | None = None
    flaw: str = ""

    @property
    def priority(self) -> int:
        """The pods' priority; none is zero."""
        return self.spec.priority or 0


def shapes(pods: Sequence[Pod]) -> list[Shape]:
    """Group pods into shapes, in the order in which scarce room is given out.

    Priority first, then the larger request of CPU, of memory, then the name.
    """
    encode = msgspec.msgpack.Encoder(order="deterministic").encode
    rows: dict[bytes, list[Pod]] = {}
    for pod in pods:
        key = encode((pod.metadata.namespace, pod.metadata.labels, pod.spec, _resized(pod)))
        row = rows.get(key)
        if row is None:
            rows[key] = [pod]
        else:
            row.append(pod)
    found = []
    # Many shapes ask for the same, and quantities take their time to read.
    asked: dict[bytes, tuple[Resources, str]] = {}
    for row in rows.values():
        ports = hostports.host_ports(row[0].spec)
        asking = encode(_asking(row[0]))
        if asking not in asked:
            asked[asking] = _requests(row[0])
        found.append(_shape(row, ports, encode(_character(row[0], ports)), *asked[asking]))
    found.sort(key=_order)
    for index, shape in enumerate(found):
        shape.index = index
    return found


def _resized(pod: Pod) -> Mapping[str, Resources] | None:
    runs = pod.status.container_statuses or pod.status.init_container_statuses
    return resources.in_resize(pod) if runs else None


def _asking(pod: Pod) -> tuple[object, ...]:
    """Return all that decides what a pod asks for."""
    spec = pod.spec
    return spec.containers, spec.init_containers, spec.resources, spec.overhead, _resized(pod)


def _requests(pod: Pod) -> tuple[Resources, str]:
    """Return what a pod asks for, or nothing and why that cannot be told."""
    try:
        return resources.pod_requests(pod), ""
    except ValueError as malformed:
        return {}, f"asks for {malformed}"


def _character(pod: Pod, ports: tuple[HostPort, ...]) -> tuple[object, ...]:
    spec = pod.spec
    return (
        pod.metadata.namespace,
        pod.metadata.labels,
        spec.node_selector,
        spec.affinity,
        spec.tolerations,
        spec.topology_spread_constraints,
        spec.volumes,
        ports,
    )


def _shape(
    pods: list[Pod],
    ports: tuple[HostPort, ...],
    character: bytes,
    requests: Resources,
    flaw: str,
) -> Shape:
    first = pods[0]
    if len(pods) > 1:
        pods.sort(key=_age)
    return Shape(
        index=0,
        character=character,
        namespace=first.metadata.namespace,
        labels=first.metadata.labels,
        spec=first.spec,
        requests=requests,
        ports=ports,
        keys=[pod.key for pod in pods],
        flaw=flaw,
    )


def _order(shape: Shape) -> tuple[int, int, int, str]:
    return (
        -shape.priority,
        -shape.requests.get(resources.CPU, 0),
        -shape.requests.get(resources.MEMORY, 0),
        shape.keys[0],
    )


def _age(pod: Pod) -> tuple[float, str]:
    created = pod.metadata.creation_timestamp
    return (created.timestamp() if created is not None else 0.0, pod.metadata.name)
