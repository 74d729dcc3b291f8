"""Pods that are equal to placement are one class.

A pod class is everything about a pod that matters to placement. It is found by
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
from controller.scheduling.pods.devicerequests import DeviceRequests
from controller.scheduling.pods.volumes import NO_VOLUMES, Volumes


@dataclass(eq=False, slots=True)
class PodClass:
    """Equal pods; `keys` are their names, oldest first.

    Pod classes of one `placement_key` differ in what they ask for alone, not in where they may go
    or whom they look for. `device_requests` is the devices they claim, if any.
    `flaw` says why what they ask for cannot be read, if it cannot.
    """

    index: int
    placement_key: bytes
    namespace: str
    labels: Mapping[str, str]
    spec: PodSpec
    requests: Resources
    ports: tuple[HostPort, ...]
    keys: list[str]
    volumes: Volumes = NO_VOLUMES
    device_requests: DeviceRequests | None = None
    flaw: str = ""

    @property
    def priority(self) -> int:
        """The pods' priority; none is zero."""
        return self.spec.priority or 0


def pod_classes(pods: Sequence[Pod]) -> list[PodClass]:
    """Group pods into pod classes, in the order in which scarce room is given out.

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
    classes = []
    # Many pod classes ask for the same, and quantities take their time to read.
    asked: dict[bytes, tuple[Resources, str]] = {}
    for row in rows.values():
        ports = hostports.host_ports(row[0].spec)
        asking = encode(_asking(row[0]))
        if asking not in asked:
            asked[asking] = _requests(row[0])
        classes.append(
            _pod_class(row, ports, encode(_placement_key(row[0], ports)), *asked[asking])
        )
    classes.sort(key=_order)
    for index, pod_class in enumerate(classes):
        pod_class.index = index
    return classes


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


def _placement_key(pod: Pod, ports: tuple[HostPort, ...]) -> tuple[object, ...]:
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


def _pod_class(
    pods: list[Pod],
    ports: tuple[HostPort, ...],
    placement_key: bytes,
    requests: Resources,
    flaw: str,
) -> PodClass:
    first = pods[0]
    if len(pods) > 1:
        pods.sort(key=_age)
    return PodClass(
        index=0,
        placement_key=placement_key,
        namespace=first.metadata.namespace,
        labels=first.metadata.labels,
        spec=first.spec,
        requests=requests,
        ports=ports,
        keys=[pod.key for pod in pods],
        flaw=flaw,
    )


def _order(pod_class: PodClass) -> tuple[int, int, int, str]:
    return (
        -pod_class.priority,
        -pod_class.requests.get(resources.CPU, 0),
        -pod_class.requests.get(resources.MEMORY, 0),
        pod_class.keys[0],
    )


def _age(pod: Pod) -> tuple[float, str]:
    created = pod.metadata.creation_timestamp
    return (created.timestamp() if created is not None else 0.0, pod.metadata.name)
