"""Pods that are equal to placement are one class.

A pod class is everything about a pod that matters to placement: its kind, and who is of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.apis.pods import Pod, PodSpec
from controller.constraints import resources
from controller.constraints.hostports import HostPort
from controller.constraints.resources import Resources
from controller.scheduling.pods.devicerequests import DeviceRequests
from controller.scheduling.pods.kinds import PodKind, PodKinds
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


def pod_classes(
    pods: Sequence[Pod], *, kinds: PodKinds | None = None, lifted: bool = False
) -> list[PodClass]:
    """Group pods into pod classes, in the order in which scarce room is given out.

    Priority first, then the larger request of CPU, of memory, then the name. Pods that leave a node
    are told apart by that, unless all are `lifted` off theirs. `kinds` is what is known of pods
    from before.
    """
    kinds = kinds or PodKinds()
    alike: dict[tuple[PodKind, str], list[Pod]] = {}
    for pod in pods:
        node = "" if lifted else pod.spec.node_name
        alike.setdefault((kinds.of(pod), node), []).append(pod)
    classes = [_pod_class(kind, row) for (kind, _), row in alike.items()]
    classes.sort(key=_order)
    for index, pod_class in enumerate(classes):
        pod_class.index = index
    return classes


def _pod_class(kind: PodKind, pods: list[Pod]) -> PodClass:
    if len(pods) > 1:
        pods.sort(key=_age)
    return PodClass(
        index=0,
        placement_key=kind.placement_key,
        namespace=kind.namespace,
        labels=kind.labels,
        spec=kind.spec,
        requests=kind.requests,
        ports=kind.ports,
        keys=[pod.key for pod in pods],
        flaw=kind.flaw,
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
