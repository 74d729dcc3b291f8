"""Host ports of pods. Two pods that use the same host port cannot share a node.

The same holds for an EBS volume that a pod's spec names itself, so it counts as a host port.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from controller.apis.kubernetes.pods import PodSpec

EVERY_ADDRESS = "0.0.0.0"  # noqa: S104  a wildcard to compare with, not to bind


class HostPort(NamedTuple):
    """One port on one address of the node."""

    ip: str
    port: int
    protocol: str


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """Return the host ports of a pod's containers and sidecars, and its EBS volumes, sorted.

    With `hostNetwork`, every container port is a host port. The API server writes that into pods,
    but not into the pod templates of DaemonSets.
    """
    sidecars = [part for part in spec.init_containers if part.restart_policy == "Always"]
    return tuple(
        sorted(
            {
                HostPort(port.host_ip or EVERY_ADDRESS, number, port.protocol or "TCP")
                for container in [*spec.containers, *sidecars]
                for port in container.ports
                if (number := port.host_port or (spec.host_network and port.container_port))
            }
            | {HostPort(EVERY_ADDRESS, 0, volume_id) for volume_id in own_volumes(spec)}
        )
    )


def own_volumes(spec: PodSpec) -> tuple[str, ...]:
    """Return the IDs of the EBS volumes that a pod's spec names without a claim."""
    return tuple(
        volume.aws_elastic_block_store.volume_id
        for volume in spec.volumes
        if volume.aws_elastic_block_store is not None
    )


def conflict(one: Iterable[HostPort], other: Iterable[HostPort]) -> bool:
    """Whether two pods use the same host port.

    Host ports are the same if port and protocol are equal, and if the addresses are equal or one of
    them is `EVERY_ADDRESS`.
    """
    others = tuple(other)
    return any(
        mine.port == theirs.port
        and mine.protocol == theirs.protocol
        and (mine.ip == theirs.ip or EVERY_ADDRESS in {mine.ip, theirs.ip})
        for mine in one
        for theirs in others
    )
