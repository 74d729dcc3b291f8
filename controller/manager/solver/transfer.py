"""Sends the nodes and running pods of a cluster to a solver's process, and then only changes.

Between two requests, few of thousands of nodes and tens of thousands of pods change. The process
keeps them, so that it has one cluster in memory instead of one for each request. The controller
keeps references to the objects that it sent, by node, and sends only those that are new or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from operator import attrgetter
from typing import Generic, TypeVar

import msgspec

from controller.apis.kubernetes.pods import Pod
from controller.state.nodes import StateNode
from controller.state.sharing import Replicas, Siblings

AT_ONCE = 500
"""The number of objects that are encoded together, which blocks the event loop for milliseconds."""

_Object = TypeVar("_Object")
_Groups = Mapping[str, tuple[_Object, ...]]
"""Objects by the name of their node."""

_node_of = attrgetter("spec.node_name")
_name_of = attrgetter("name")


class _Change(msgspec.Struct, Generic[_Object], frozen=True, array_like=True):
    """The objects that one node has now.

    `order` has an index for each of them: into the node's objects before the change, followed by
    `new`. It is empty if the node has none any more.
    """

    name: str
    order: Sequence[int]
    new: Sequence[_Object]


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    """Changes of some nodes.

    `number` is the number of earlier batches. The process forgets all it has before batch 0.
    """

    number: int
    nodes: Sequence[_Change[StateNode]] = ()
    pods: Sequence[_Change[Pod]] = ()


@dataclass(slots=True)
class ClusterSender:
    """Tracks which nodes and pods one process has received."""

    sent: int = 0
    """The number of batches so far; a process that has received fewer cannot answer requests."""

    _nodes: _Groups[StateNode] = field(default_factory=dict)
    _pods: _Groups[Pod] = field(default_factory=dict)

    def batches(self, nodes: Iterable[StateNode], pods: Iterable[Pod]) -> Iterator[bytes]:
        """Yield encoded batches, after which the process has exactly these nodes and pods."""
        nodes_by_name, pods_by_node = _group(nodes, _name_of), _group(pods, _node_of)
        if not self.sent:
            yield self._encode(_Batch(0))
        for node_changes in _in_portions(_changes(self._nodes, nodes_by_name)):
            yield self._encode(_Batch(self.sent, nodes=node_changes))
        for pod_changes in _in_portions(_changes(self._pods, pods_by_node)):
            yield self._encode(_Batch(self.sent, pods=pod_changes))
        self._nodes, self._pods = nodes_by_name, pods_by_node

    def _encode(self, batch: _Batch) -> bytes:
        self.sent += 1
        return msgspec.msgpack.encode(batch)


@dataclass(slots=True)
class ClusterReceiver:
    """The nodes and pods that this process has received and that the cluster still contains."""

    _received: int = 0
    _nodes: dict[str, tuple[StateNode, ...]] = field(default_factory=dict)
    _pods: dict[str, tuple[Pod, ...]] = field(default_factory=dict)
    _replicas: Replicas = field(default_factory=Replicas)
    _siblings: Siblings = field(default_factory=Siblings)

    def receive(self, encoded: bytes) -> None:
        """Decode a batch and apply its changes."""
        batch = msgspec.msgpack.decode(encoded, type=_Batch)
        if not batch.number:
            self._received, self._nodes, self._pods = 0, {}, {}
        if batch.number != self._received:
            return  # an earlier process received the batches before it, and has ended
        self._received += 1
        for nodes in batch.nodes:
            _apply(nodes, self._nodes, self._with_shared_parts)
        for pods in batch.pods:
            _apply(pods, self._pods, self._replicas.share)

    def contents(self, sent: int) -> tuple[tuple[StateNode, ...], tuple[Pod, ...]] | None:
        """Return the nodes and the pods, both sorted by the name of the node.

        None if this process has not received all of the `sent` batches: an earlier process, which
        has ended, received some of them.
        """
        if sent != self._received:
            return None
        return _flatten(self._nodes), _flatten(self._pods)

    def _with_shared_parts(self, node: StateNode) -> StateNode:
        share = self._siblings.share
        return replace(
            node,
            node=node.node and share(node.node),
            claim=node.claim and share(node.claim),
        )


def _group(
    objects: Iterable[_Object], name_of: Callable[[_Object], str]
) -> dict[str, tuple[_Object, ...]]:
    groups: dict[str, tuple[_Object, ...]] = {}
    for name, some in groupby(objects, name_of):  # a snapshot has them by node already
        groups[name] = (*groups.get(name, ()), *some)
    return groups


def _flatten(groups: _Groups[_Object]) -> tuple[_Object, ...]:
    return tuple(chain.from_iterable(groups[name] for name in sorted(groups)))


def _changes(before: _Groups[_Object], after: _Groups[_Object]) -> Iterator[_Change[_Object]]:
    for name in before.keys() - after.keys():
        yield _Change(name, (), ())
    for name, objects in after.items():
        known = before.get(name, ())
        if known == objects:
            continue
        indices = {id(each): index for index, each in enumerate(known)}
        new = [each for each in objects if id(each) not in indices]
        indices |= {id(each): index for index, each in enumerate(new, start=len(known))}
        yield _Change(name, [indices[id(each)] for each in objects], new)


def _in_portions(changes: Iterable[_Change[_Object]]) -> Iterator[list[_Change[_Object]]]:
    """Yield changes together that have `AT_ONCE` objects; a single change may have more."""
    portion: list[_Change[_Object]] = []
    size = 0
    for change in changes:
        portion.append(change)
        size += len(change.order)
        if size >= AT_ONCE:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _apply(
    change: _Change[_Object],
    groups: dict[str, tuple[_Object, ...]],
    share: Callable[[_Object], _Object],
) -> None:
    """Apply a change to the objects by node; `share` returns a new object with shared parts."""
    known = (*groups.pop(change.name, ()), *map(share, change.new))
    if change.order:
        groups[change.name] = tuple([known[index] for index in change.order])
