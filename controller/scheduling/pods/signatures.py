"""The fields of a pod that placement reads, shared by pods that differ only in name, age and node.

Reading a pod takes longer than comparing signatures, and a `Pod` object never changes. A caller
that solves for the same pods again keeps a `PodSignatures`, so that each pod is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from controller.apis.kubernetes.pods import Pod, PodSpec
from controller.constraints import hostports, resources
from controller.constraints.hostports import HostPort
from controller.constraints.resources import Resources
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

    Signatures with the same `placement_key` differ only in their requests, not in their
    constraints. `is_protected` says whether `do-not-disrupt` protects the pods.
    `request_error` says why the requests are malformed; empty if they are not. `spec` has no node
    name.
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
            _in_resize(pod),
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
                pod, key[0], requests_key, is_protected
            )
        return signature

    def _signature(
        self, pod: Pod, constraints_key: bytes, requests_key: bytes, is_protected: bool
    ) -> PodSignature:
        if requests_key not in self._parsed_requests:
            self._parsed_requests[requests_key] = _requests(pod)
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


def _in_resize(pod: Pod) -> Mapping[str, Resources] | None:
    runs = pod.status.container_statuses or pod.status.init_container_statuses
    return resources.in_resize(pod) if runs else None


def _requests(pod: Pod) -> tuple[Resources, str]:
    """Return a pod's requests and an empty string; or no requests and why they are malformed."""
    try:
        return resources.pod_requests(pod), ""
    except ValueError as malformed:
        return {}, f"asks for {malformed}"
