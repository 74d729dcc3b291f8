"""Pod classes: pods that are equal for placement.

A pod class has the signature that its pods share and the keys of the pods. The signature holds the
fields of a pod that placement reads, without name, age and node.

Reading a pod takes longer than comparing signatures, and a `Pod` object never changes. A caller
that solves for the same pods again keeps a `PodSignatures`, so that each pod is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec
import numpy as np

from controller.apis.kubernetes.pods import Pod, PodSpec
from controller.apis.kubernetes.quantities import MILLI
from controller.apis.kubernetes.workloads import PodDisruptionBudget
from controller.constraints import hostports, resources
from controller.constraints.hostports import HostPort
from controller.constraints.resources import Resources
from controller.scheduling.arrays import Vector
from controller.scheduling.pods.devicerequests import DeviceRequests
from controller.scheduling.pods.volumes import NO_VOLUMES, Volumes
from controller.state.evictions import EvictionGuards, permanent_obstacle
from controller.state.pods import will_forbid_disruption

CONSTRAINT_FIELDS = (
    "node_selector",
    "affinity",
    "tolerations",
    "topology_spread_constraints",
    "volumes",
)
"""The fields of a spec that hold the pod's constraints, except host ports."""

REQUEST_FIELDS = ("containers", "init_containers", "resources", "overhead")
"""The fields of a spec that determine the pod's requests and host ports."""

_constraint_fields, _request_fields = attrgetter(*CONSTRAINT_FIELDS), attrgetter(*REQUEST_FIELDS)
_rest = attrgetter(
    *(
        name
        for name in PodSpec.__struct_fields__
        if name not in (*CONSTRAINT_FIELDS, *REQUEST_FIELDS, "node_name")
    )
)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PodSignature:
    """The fields of a pod that placement reads; equal pods share one signature.

    Signatures with the same `placement_key` have the same constraints; they differ in their
    requests, priority or other fields. `is_protected` says whether `do-not-disrupt` protects the
    pods. `request_error` says why the requests are malformed; empty if they are not. `spec` has no
    node name.
    """

    placement_key: bytes
    namespace: str
    labels: Mapping[str, str]
    spec: PodSpec
    requests: Resources
    ports: tuple[HostPort, ...]
    is_protected: bool
    request_error: str


class PodSignatures:
    """Cache of pod signatures. A pod is read once while the cache holds it."""

    def __init__(self) -> None:
        # By identity. An id stays unique because the cache keeps a reference to the pod.
        self._by_pod: dict[int, tuple[Pod, PodSignature]] = {}
        self._signatures: dict[tuple[bytes, ...], PodSignature] = {}
        # Parts that many signatures share are kept once, to save memory. Requests are cached
        # because quantities are slow to parse.
        self._parts: dict[bytes, bytes] = {}
        self._parsed_requests: dict[bytes, tuple[Resources, str]] = {}
        self._encode = msgspec.msgpack.Encoder(order="deterministic").encode

    def of(self, pod: Pod) -> PodSignature:
        """Return the signature of a pod."""
        cached = self._by_pod.get(id(pod))
        if cached is None:
            cached = self._by_pod[id(pod)] = pod, self._read(pod)
        return cached[1]

    def keep(self, pods: Iterable[Pod]) -> None:
        """Remove all pods except these from the cache."""
        kept = {
            id(pod): cached for pod in pods if (cached := self._by_pod.get(id(pod))) is not None
        }
        if len(kept) < len(self._by_pod):
            used = {signature for _, signature in kept.values()}
            self._by_pod, self._parts, self._parsed_requests = kept, {}, {}
            self._signatures = {
                key: signature for key, signature in self._signatures.items() if signature in used
            }

    def _read(self, pod: Pod) -> PodSignature:
        spec, resized, is_protected = (
            pod.spec,
            resources.in_resize(pod),
            will_forbid_disruption(pod),
        )
        constraints_key = self._encode(
            (pod.metadata.namespace, pod.metadata.labels, *_constraint_fields(spec))
        )
        requests_key = self._encode((*_request_fields(spec), resized))
        key = (
            self._intern(constraints_key),
            self._intern(requests_key),
            self._intern(self._encode((_rest(spec), is_protected))),
        )
        signature = self._signatures.get(key)
        if signature is None:
            signature = self._signatures[key] = self._signature(
                pod, key[0], requests_key, resized, is_protected
            )
        return signature

    def _signature(
        self,
        pod: Pod,
        constraints_key: bytes,
        requests_key: bytes,
        resized: Mapping[str, Resources],
        is_protected: bool,
    ) -> PodSignature:
        if requests_key not in self._parsed_requests:
            self._parsed_requests[requests_key] = _requests(pod, resized)
        requests, request_error = self._parsed_requests[requests_key]
        ports = hostports.host_ports(pod.spec)
        return PodSignature(
            placement_key=self._intern(constraints_key + self._encode(ports))
            if ports
            else constraints_key,
            namespace=pod.metadata.namespace,
            labels=pod.metadata.labels,
            spec=msgspec.structs.replace(pod.spec, node_name=""),
            requests=requests,
            ports=ports,
            is_protected=is_protected,
            request_error=request_error,
        )

    def _intern(self, part: bytes) -> bytes:
        return self._parts.setdefault(part, part)


def _requests(pod: Pod, resized: Mapping[str, Resources]) -> tuple[Resources, str]:
    """Return a pod's requests and an empty string; or no requests and why they are malformed."""
    try:
        return resources.pod_requests(pod, resized), ""
    except ValueError as malformed:
        return {}, f"asks for {malformed}"


@dataclass(eq=False, slots=True)
class PodClass:
    """A class of equal pods. `keys` are the pods' keys, oldest first.

    `pins_node` says whether the pods must not be evicted, so that their node stays until they end.

    `size` holds the requests along the solve's axis of resources. It is empty until all classes of
    the solve are known, because the axis has the resources that any of them requests.
    `device_requests` describes the devices that the pods claim, if any. `attachments` is the number
    of EBS volumes that a new node must attach for one pod; 0 if no node can have too many.
    """

    signature: PodSignature
    keys: list[str]
    pins_node: bool
    index: int = 0
    size: Vector = field(default_factory=lambda: np.zeros(0))
    volumes: Volumes = NO_VOLUMES
    device_requests: DeviceRequests | None = None
    attachments: int = 0

    @property
    def placement_key(self) -> bytes:
        """The key of the pods' constraints, with the devices that they claim.

        Pod classes with the same key differ in their requests, priority or other fields.
        """
        claimed = self.device_requests.signature if self.device_requests is not None else b""
        return self.signature.placement_key + claimed

    @property
    def requests(self) -> Resources:
        """The requests of one pod, and the EBS volumes that it attaches."""
        if not self.attachments:
            return self.signature.requests
        attachments = {resources.EBS_ATTACHMENTS: self.attachments * MILLI}
        return {**self.signature.requests, **attachments}

    @property
    def priority(self) -> int:
        """The pods' priority; 0 if they have none."""
        return self.signature.spec.priority or 0


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
        signature=signature,
        keys=[pod.key for pod in pods],
        pins_node=signature.is_protected or any(map(permanent_obstacle, guards.of(pods[0]))),
    )


def _order(pod_class: PodClass) -> tuple[int, int, int, str]:
    requests = pod_class.signature.requests
    return (
        -pod_class.priority,
        -requests.get(resources.CPU, 0),
        -requests.get(resources.MEMORY, 0),
        pod_class.keys[0],
    )


def _age(pod: Pod) -> tuple[float, str]:
    created = pod.metadata.creation_timestamp
    return (created.timestamp() if created is not None else 0.0, pod.metadata.name)
