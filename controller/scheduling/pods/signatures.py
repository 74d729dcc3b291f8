"""What placement reads of a pod, shared by pods that differ only in name, age and node.

Reading a pod takes longer than comparing what was read, and a `Pod` object never changes. A caller
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

WHERE = (
    "node_selector",
    "affinity",
    "tolerations",
    "topology_spread_constraints",
    "volumes",
)
"""The fields of a spec that determine which nodes suit its pod, except host ports."""

HOW_MUCH = ("containers", "init_containers", "resources", "overhead")
"""The fields of a spec that determine what its pod requests, host ports included."""

_where, _how_much = attrgetter(*WHERE), attrgetter(*HOW_MUCH)
_rest = attrgetter(
    *(name for name in PodSpec.__struct_fields__ if name not in (*WHERE, *HOW_MUCH, "node_name"))
)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PodSignature:
    """What placement reads of a pod; equal pods share one.

    Pod signatures with the same `placement_key` differ only in their requests, not in the nodes
    that suit them or the pods they look for. `is_protected` says whether `do-not-disrupt` protects
    the pods. `flaw` says why the requests cannot be read; it is empty if they can. `spec` has no
    node name.
    """

    placement_key: bytes
    namespace: str
    labels: Mapping[str, str]
    spec: PodSpec
    requests: Resources
    ports: tuple[HostPort, ...]
    is_protected: bool
    flaw: str


class PodSignatures:
    """Cache of pod signatures. A pod is read once while the cache holds it."""

    def __init__(self) -> None:
        # By identity. An id stays unique because the cache keeps a reference to the pod.
        self._of: dict[int, tuple[Pod, PodSignature]] = {}
        self._known: dict[tuple[bytes, ...], PodSignature] = {}
        # Parts that many signatures share are kept once, to save memory. Requests are cached
        # because quantities are slow to parse.
        self._parts: dict[bytes, bytes] = {}
        self._asked: dict[bytes, tuple[Resources, str]] = {}
        self._encode = msgspec.msgpack.Encoder(order="deterministic").encode

    def of(self, pod: Pod) -> PodSignature:
        """Return the signature of a pod."""
        known = self._of.get(id(pod))
        if known is None:
            known = self._of[id(pod)] = pod, self._read(pod)
        return known[1]

    def keep(self, pods: Iterable[Pod]) -> None:
        """Remove all pods except these from the cache."""
        kept = {id(pod): known for pod in pods if (known := self._of.get(id(pod))) is not None}
        if len(kept) < len(self._of):
            left = {signature for _, signature in kept.values()}
            self._of, self._parts, self._asked = kept, {}, {}
            self._known = {
                key: signature for key, signature in self._known.items() if signature in left
            }

    def _read(self, pod: Pod) -> PodSignature:
        spec, resized, is_protected = pod.spec, _resized(pod), will_forbid_disruption(pod)
        where = self._encode((pod.metadata.namespace, pod.metadata.labels, *_where(spec)))
        asking = self._encode((*_how_much(spec), resized))
        key = (
            self._once(where),
            self._once(asking),
            self._once(self._encode((_rest(spec), is_protected))),
        )
        signature = self._known.get(key)
        if signature is None:
            signature = self._known[key] = self._signature(pod, key[0], asking, is_protected)
        return signature

    def _signature(self, pod: Pod, where: bytes, asking: bytes, is_protected: bool) -> PodSignature:
        if asking not in self._asked:
            self._asked[asking] = _requests(pod)
        requests, flaw = self._asked[asking]
        ports = hostports.host_ports(pod.spec)
        return PodSignature(
            placement_key=self._once(where + self._encode(ports)) if ports else where,
            namespace=pod.metadata.namespace,
            labels=pod.metadata.labels,
            spec=msgspec.structs.replace(pod.spec, node_name=""),
            requests=requests,
            ports=ports,
            is_protected=is_protected,
            flaw=flaw,
        )

    def _once(self, part: bytes) -> bytes:
        return self._parts.setdefault(part, part)


def _resized(pod: Pod) -> Mapping[str, Resources] | None:
    runs = pod.status.container_statuses or pod.status.init_container_statuses
    return resources.in_resize(pod) if runs else None


def _requests(pod: Pod) -> tuple[Resources, str]:
    """Return a pod's requests and an empty string; or no requests and why they cannot be read."""
    try:
        return resources.pod_requests(pod), ""
    except ValueError as malformed:
        return {}, f"asks for {malformed}"
