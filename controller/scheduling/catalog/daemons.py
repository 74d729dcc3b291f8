"""The resources that DaemonSets use on a new node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.apis.kubernetes.pods import Pod, PodSpec, Quantities
from controller.apis.kubernetes.taints import Toleration
from controller.apis.kubernetes.workloads import LimitRange
from controller.constraints import hostports, resources
from controller.constraints.hostports import HostPort
from controller.constraints.requirements import ValueSet
from controller.constraints.resources import Resources
from controller.constraints.taints import TOLERATE_PREFERENCES
from controller.scheduling.pods.nodeaffinity import required_alternatives
from controller.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Daemon:
    """One DaemonSet: the nodes that its pods run on, and the requests of one pod."""

    key: str
    alternatives: tuple[dict[str, ValueSet], ...]
    tolerations: tuple[Toleration, ...]
    requests: Resources
    ports: tuple[HostPort, ...]

    def with_requests_up_to(self, most: Resources) -> Daemon:
        """Return the DaemonSet without its requests above these amounts.

        If no instance type has what the DaemonSet requests, its pods run on no new node. If the
        request counted, one mistaken DaemonSet would stop all launches.
        """
        possible = {name: a for name, a in self.requests.items() if a <= most.get(name, 0)}
        return replace(self, requests=possible)


def daemons(snapshot: Snapshot) -> tuple[Daemon, ...]:
    """Return each DaemonSet as a `Daemon`, ordered by namespace and name.

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
        pod = newest.get(daemon_set.metadata.uid or daemon_set.metadata.key)
        spec = template if pod is None else pod.spec
        if pod is None:
            spec = with_defaults(spec, daemon_set.metadata.namespace, snapshot.limit_ranges)
            pod = Pod(metadata=daemon_set.metadata, spec=spec)
        try:
            requests = resources.pod_requests(pod)
        except ValueError:
            continue
        result.append(
            Daemon(
                key=daemon_set.metadata.key,
                alternatives=required_alternatives(template),
                tolerations=(*template.tolerations, *spec.tolerations, TOLERATE_PREFERENCES),
                requests=requests,
                ports=hostports.host_ports(spec),
            )
        )
    return tuple(result)


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
