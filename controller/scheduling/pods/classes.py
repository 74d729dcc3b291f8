"""Pod classes: pods that are equal for placement.

A pod class holds everything about its pods that matters to placement, and the keys of the pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.apis.kubernetes.pods import Pod, PodSpec
from controller.apis.kubernetes.workloads import PodDisruptionBudget
from controller.constraints import resources
from controller.constraints.hostports import HostPort
from controller.constraints.resources import Resources
from controller.scheduling.pods.devicerequests import DeviceRequests
from controller.scheduling.pods.signatures import PodSignature, PodSignatures
from controller.scheduling.pods.volumes import NO_VOLUMES, Volumes
from controller.state.evictions import EvictionGuards, permanent_obstacle


@dataclass(eq=False, slots=True)
class PodClass:
    """A class of equal pods. `keys` are the pods' keys, oldest first.

    Pod classes with the same `placement_key` differ only in their requests, not in their
    constraints. `device_requests` describes the devices that the pods claim, if any. `pins_node`
    says whether the pods must not be evicted, so that their node stays until they end.
    `request_error` says why the requests are malformed; empty if they are not.
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
    pins_node: bool = False
    request_error: str = ""

    @property
    def priority(self) -> int:
        """The pods' priority; 0 if they have none."""
        return self.spec.priority or 0


def pod_classes(
    pods: Sequence[Pod],
    *,
    signatures: PodSignatures | None = None,
    lifted: bool = False,
    budgets: Sequence[PodDisruptionBudget] = (),
) -> list[PodClass]:
    """Return pods grouped into pod classes, in the order in which they are placed.

    The order is priority (highest first), then the larger request of CPU, then of memory, then the
    name.

    Args:
        pods: The pods to group.
        signatures: A cache of pod signatures from earlier solves.
        lifted: Whether the pods' present nodes are ignored. Otherwise pods on different nodes are
            in different classes.
        budgets: The PodDisruptionBudgets. Pods whose budget never allows an eviction pin their
            node.

    """
    guards = EvictionGuards(budgets)
    signatures = signatures or PodSignatures()
    groups: dict[tuple[PodSignature, str], list[Pod]] = {}
    for pod in pods:
        node = "" if lifted else pod.spec.node_name
        groups.setdefault((signatures.of(pod), node), []).append(pod)
    classes = [_pod_class(signature, equal, guards) for (signature, _), equal in groups.items()]
    classes.sort(key=_order)
    for index, pod_class in enumerate(classes):
        pod_class.index = index
    return classes


def _pod_class(signature: PodSignature, pods: list[Pod], guards: EvictionGuards) -> PodClass:
    if len(pods) > 1:
        pods.sort(key=_age)
    return PodClass(
        index=0,
        placement_key=signature.placement_key,
        namespace=signature.namespace,
        labels=signature.labels,
        spec=signature.spec,
        requests=signature.requests,
        ports=signature.ports,
        keys=[pod.key for pod in pods],
        pins_node=signature.is_protected or any(map(permanent_obstacle, guards.of(pods[0]))),
        request_error=signature.request_error,
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
