"""The resources that DaemonSets use on a new node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    Pod,
    PodSpec,
    Quantities,
)
from controller.apis.kubernetes.taints import Toleration
from controller.apis.kubernetes.workloads import LimitRange
from controller.constraints import hostports, requirements, resources
from controller.constraints.hostports import HostPort
from controller.constraints.requirements import ValueSet
from controller.constraints.resources import Resources
from controller.constraints.taints import TOLERATE_PREFERENCES, untolerated_taint
from controller.scheduling.pods.nodeaffinity import required_alternatives
from controller.state.pods import custom_daemon_controller
from controller.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Daemon:
    """One DaemonSet: the nodes that its pods run on, and the requests of one pod.

    A custom controller that binds pods as a DaemonSet does is one, too. `newest` is the key of the
    newest pod, empty if there is none.
    """

    key: str
    alternatives: tuple[dict[str, ValueSet], ...]
    tolerations: tuple[Toleration, ...]
    requests: Resources
    ports: tuple[HostPort, ...]
    newest: str = field(default="", compare=False)

    def with_requests_up_to(self, most: Resources) -> Daemon:
        """Return the DaemonSet without its requests above these amounts.

        If no instance type has what the DaemonSet requests, its pods run on no new node. If the
        request counted, one mistaken DaemonSet would stop all launches.
        """
        possible = {name: a for name, a in self.requests.items() if a <= most.get(name, 0)}
        return replace(self, requests=possible)

    def runs_on(self, node: Node) -> bool:
        """Return whether the DaemonSet's pods select the node and tolerate its taints."""
        return untolerated_taint(node.spec.taints, self.tolerations) is None and any(
            requirements.met_by_labels(alternative, node.metadata.labels)
            for alternative in self.alternatives
        )


def daemons(snapshot: Snapshot) -> tuple[Daemon, ...]:
    """Return each DaemonSet as a `Daemon`, ordered by namespace and name, then those like it.

    The requests are those of its newest pod, because admission may have changed them. Without a
    pod they are those of its template, with the defaults of LimitRanges. A DaemonSet with resource
    claims is left out if the cluster has no DeviceClass, and so is one whose requests are negative
    by a default of a LimitRange: the API server refuses its pods.
    """
    newest = _newest_pods(snapshot.pods)
    result = []
    for daemon_set in sorted(snapshot.daemon_sets, key=lambda daemon_set: daemon_set.metadata.key):
        template = daemon_set.spec.template.spec
        if template.resource_claims and not snapshot.device_classes:
            continue  # without DeviceClasses it runs nowhere
        metadata = daemon_set.metadata
        pod = newest.get(metadata.uid, newest.get(metadata.key))
        shown = pod
        if shown is None:
            spec = with_defaults(template, metadata.namespace, snapshot.limit_ranges)
            shown = Pod(metadata=metadata, spec=spec)
        result.append(_daemon(metadata.key, template, shown, is_running=pod is not None))
    return tuple(filter(None, (*result, *_custom_daemons(snapshot))))


def _daemon(key: str, template: PodSpec, pod: Pod, *, is_running: bool = True) -> Daemon | None:
    """Return a DaemonSet of which this is a pod; None if the API server refuses the pod."""
    try:
        requests = resources.pod_requests(pod)
    except ValueError:
        return None
    return Daemon(
        key=key,
        alternatives=required_alternatives(template),
        tolerations=(*template.tolerations, *pod.spec.tolerations, TOLERATE_PREFERENCES),
        requests=requests,
        ports=hostports.host_ports(pod.spec),
        newest=pod.key if is_running else "",
    )


def _custom_daemons(snapshot: Snapshot) -> Iterator[Daemon | None]:
    """Yield the workloads of custom controllers that run a pod on every node, by their pods.

    A controller may also bind a pod to a few nodes only, for example to maintain them. So a
    workload counts if its pods run on at least half of the nodes that its newest pod selects and
    tolerates; just after nodes joined, they lack their pods.
    """
    pods_of: dict[str, list[Pod]] = {}
    for pod in snapshot.pods:
        controller = custom_daemon_controller(pod)
        if controller is not None and pod.spec.node_name and not pod.metadata.is_deleting:
            pods_of.setdefault(f"{pod.metadata.namespace}/{controller.name}", []).append(pod)
    for key, pods in sorted(pods_of.items()):
        newest = max(pods, key=_age)
        daemon = _daemon(key, _without_node_name(newest.spec), newest)
        if daemon is not None and len(pods) * 2 >= sum(
            daemon.runs_on(node.node)
            for node in snapshot.nodes
            if node.node is not None and not node.deleting
        ):
            yield daemon


def _without_node_name(spec: PodSpec) -> PodSpec:
    """Return the spec of a daemon pod as its template has it: for any node."""
    affinity = spec.affinity or Affinity()
    nodes = affinity.node_affinity or NodeAffinity()
    terms = [
        msgspec.structs.replace(term, match_fields=[])
        for term in (nodes.required or NodeSelector()).node_selector_terms
    ]
    required = (
        NodeSelector(node_selector_terms=terms)
        if all(term.match_expressions for term in terms)
        else None
    )
    own = msgspec.structs.replace(nodes, required=required)
    return msgspec.structs.replace(
        spec, affinity=msgspec.structs.replace(affinity, node_affinity=own)
    )


def with_defaults(spec: PodSpec, namespace: str, limit_ranges: Sequence[LimitRange]) -> PodSpec:
    """Return the pod spec with the default requests that the API server and admission would set.

    Admission applies the defaults of the namespace's LimitRanges.
    """
    defaults: Quantities = {}
    for limit_range in limit_ranges:
        if limit_range.metadata.namespace == namespace:
            for item in limit_range.spec.limits or ():
                if item.type == "Container":
                    defaults |= item.default | item.default_request
    return resources.with_default_requests(spec, defaults)


def _newest_pods(pods: Sequence[Pod]) -> dict[str, Pod]:
    """Return the newest pod of each DaemonSet that is not being deleted, by UID or key."""
    newest: dict[str, Pod] = {}
    for pod in pods:
        for owner in pod.metadata.owner_references:
            if owner.kind == "DaemonSet" and not pod.metadata.is_deleting:
                name = owner.uid or f"{pod.metadata.namespace}/{owner.name}"
                if name not in newest or _age(pod) > _age(newest[name]):
                    newest[name] = pod
    return newest


def _age(pod: Pod) -> tuple[str, str]:
    created = pod.metadata.creation_timestamp
    return (created.isoformat() if created else "", pod.metadata.name)
