"""Separate the virtual pods of CapacityBuffers from the real pods in the results of a solve.

A buffer's virtual pods stand for the capacity that it keeps free; they are not in the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.apis.kubernetes.pods import Pod
from controller.scheduling.results import Results
from controller.state.buffers import buffer_of


@dataclass(frozen=True, slots=True)
class Fill:
    """Numbers of a buffer's pods on existing nodes, on new nodes and without a node (`nowhere`).

    `causes` say why the first of the pods without a node is unschedulable.
    """

    existing: int = 0
    new: int = 0
    nowhere: int = 0
    causes: tuple[str, ...] = ()


def split_fills(results: Results, virtual: Sequence[Pod]) -> tuple[Results, Mapping[str, Fill]]:
    """Return the results for real pods alone, and each buffer's `Fill` by `namespace/name`.

    All new nodes stay, even those that hold only buffers' pods.
    """
    if not virtual:
        return results, {}
    buffers = {pod.key: buffer_of(pod) for pod in virtual}

    def real(keys: Collection[str]) -> tuple[str, ...]:
        return tuple(key for key in keys if key not in buffers)

    existing = [key for keys in results.existing_nodes.values() for key in keys]
    new = [key for node in results.new_nodes for key in node.pods]
    fills = {
        name: Fill(
            existing=sum(buffers.get(key) == name for key in existing),
            new=sum(buffers.get(key) == name for key in new),
            nowhere=sum(buffers.get(key) == name for key in results.unschedulable),
            causes=next(
                (
                    reasons
                    for key, reasons in results.unschedulable.items()
                    if buffers.get(key) == name
                ),
                (),
            ),
        )
        for name in sorted(set(buffers.values()))
    }
    without_buffers = replace(
        results,
        new_nodes=tuple(replace(node, pods=real(node.pods)) for node in results.new_nodes),
        existing_nodes={
            name: left for name, keys in results.existing_nodes.items() if (left := real(keys))
        },
        unschedulable={
            key: causes for key, causes in results.unschedulable.items() if key not in buffers
        },
    )
    return without_buffers, fills


def hosts(results: Results, claims: Sequence[str], virtual: Sequence[Pod]) -> frozenset[str]:
    """Return the names of the nodes and NodeClaims that hold virtual pods.

    `claims` are the names of the NodeClaims of the results' new nodes, in order.
    """
    keys = {pod.key for pod in virtual}
    placements = [
        *results.existing_nodes.items(),
        *zip(claims, (node.pods for node in results.new_nodes), strict=True),
    ]
    return frozenset(name for name, pods in placements if not keys.isdisjoint(pods))
