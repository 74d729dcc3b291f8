"""The mirror of the cluster: what every watch has said, joined into machines.

Fed from two sides. Watches say what is; reconcilers say what they have just written
(`observe`), so that the next pass does not wait for its own echo. A resource version
tells which of the two is newer, and an object that has gone never comes back.

A claim that was made but has not become a node yet is a machine like any other: the
next solve sees it and puts the pods that still wait on it again. So nothing stalls
while launches are under way, and no note is kept of which pod a claim was made for.

Pools and claims of other controllers never enter: whoever asks is told of ours alone, and
a node that came from one of theirs is unmanaged. Its room counts; nobody touches it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar, cast

from controller.apis import kinds, labels
from controller.apis.kinds import Kind, KubernetesObject, T
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodepool import NodePool
from controller.apis.nodes import Node
from controller.apis.ownership import bears_our_class, is_ours
from controller.apis.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType
from controller.state.evictions import budget_obstacle
from controller.state.nodes import StateNode
from controller.state.pods import (
    forbids_disruption,
    is_reschedulable,
    is_terminal,
)
from controller.state.relevance import matters
from controller.state.sharing import Replicas
from controller.state.snapshot import Snapshot
from controller.state.waiting import Waiting

MIRRORED: tuple[Kind[Any], ...] = (
    kinds.POD,
    kinds.NODE,
    kinds.NAMESPACE,
    kinds.PERSISTENT_VOLUME,
    kinds.PERSISTENT_VOLUME_CLAIM,
    kinds.LIMIT_RANGE,
    kinds.DAEMON_SET,
    kinds.POD_DISRUPTION_BUDGET,
    kinds.STORAGE_CLASS,
    kinds.CSI_NODE,
    kinds.VOLUME_ATTACHMENT,
    kinds.NODE_POOL,
    kinds.NODE_CLAIM,
    kinds.EC2_NODE_CLASS,
)
"""Every kind the mirror always follows; it is synced when all it follows were listed once."""

FINALIZED: tuple[Kind[Any], ...] = (
    kinds.NODE,
    kinds.NODE_POOL,
    kinds.NODE_CLAIM,
    kinds.EC2_NODE_CLASS,
)
"""Kinds that are gone at once when they are deleted and nothing in their metadata holds them."""

REMEMBERED_ENDS = 10_000
"""How many uids of objects that have gone are kept, so that a late echo revives none."""

ChangeListener = Callable[[Kind[Any], Any, Any], None]
"""Told of a change: the kind, the object before and after; None is not there."""

Seen_co = TypeVar("Seen_co", bound=KubernetesObject, covariant=True)


class WatchStep(Protocol[Seen_co]):
    """One step of a watch: RESET, ADDED, MODIFIED, DELETED or SYNCED, with its object."""

    @property
    def type(self) -> str:
        """What happened."""

    @property
    def object(self) -> Seen_co | None:
        """To which object; RESET and SYNCED have none."""


@dataclass(frozen=True, slots=True)
class _Nomination:
    """Pods as they were when a machine was nominated for them, and when it is over at last."""

    pods: tuple[Pod, ...]
    until: datetime


class Cluster:
    """All that is known of the cluster now. Belongs to one event loop; never waits."""

    def __init__(self, mirrored: Iterable[Kind[Any]] = MIRRORED) -> None:
        self._listener: ChangeListener = lambda kind, before, after: None
        self._mirrored = tuple(mirrored)
        self._objects: dict[Kind[Any], dict[str, Any]] = {kind: {} for kind in self._mirrored}
        self._listings: dict[Kind[Any], set[str]] = {}
        self._synced: set[Kind[Any]] = set()
        self._ended: dict[str, None] = {}
        self._replicas = Replicas()
        self._pods_by_node: dict[str, dict[str, Pod]] = {}
        self._waiting = Waiting()
        self._nodes_by_provider_id: dict[str, dict[str, Node]] = {}
        self._claims_by_provider_id: dict[str, dict[str, NodeClaim]] = {}
        self._claims_by_instance: dict[str, dict[str, NodeClaim]] = {}
        self._marked: set[str] = set()
        self._nominated: dict[str, _Nomination] = {}
        self._buffer_pods: dict[str, tuple[Pod, ...]] = {}
        self._buffered: frozenset[str] = frozenset()
        self.revision = 0
        """Grows whenever something changes that could make nodes superfluous, or needed."""

    def subscribe(self, listener: ChangeListener) -> None:
        """Tell `listener` of every change from now on, whoever brought it.

        Of a kind's first list nobody is told: what was there before us is not news.
        """
        self._listener = listener

    # What the watches and the reconcilers say.

    def apply(self, kind: Kind[T], change: WatchStep[T]) -> None:
        """Follow one step of a watch.

        Between RESET and SYNCED the mirror keeps what it had; at SYNCED it drops what
        the new list did not name.
        """
        if change.type == "RESET":
            self._listings[kind] = set()
        elif change.type == "SYNCED":
            named = self._listings.pop(kind, set())
            for key in [key for key in self._objects[kind] if key not in named]:
                self._remove(kind, key)
            self._synced.add(kind)
        elif change.object is not None:
            if change.type == "DELETED":
                self._end(kind, change.object)
            else:
                self.observe(kind, change.object)

    def observe(self, kind: Kind[T], value: T) -> None:
        """Take in an object as the API server returned it, unless something newer is known."""
        key = key_of(value)
        if not is_ours(value):
            if key in self._objects[kind]:  # the one of ours that bore this name has gone
                self._remove(kind, key)
            return
        before = self._objects[kind].get(key)
        metadata = value.metadata
        if kind in self._listings:
            self._listings[kind].add(key)
        if metadata.uid in self._ended or (before is not None and _is_no_news(value, before)):
            return
        if metadata.is_deleting and not metadata.finalizers and kind in FINALIZED:
            # The write that takes the last finalizer off answers with the object as it was.
            self._end(kind, value)
            return
        if kind == kinds.POD:
            value = cast("T", self._replicas.shared(cast(Pod, value)))
        if before is None or matters(kind, before, value):
            self.revision += 1
        if before is not None:
            self._unindex(kind, key, before)
        self._objects[kind][key] = value
        self._index(kind, key, value)
        if kind == kinds.POD:
            self._waiting.change(before, cast(Pod, value))
        self._notify(kind, before, value)

    def insert_claim(self, claim: NodeClaim) -> None:
        """Take in a claim that was just created, before its watch tells of it."""
        self.observe(kinds.NODE_CLAIM, claim)

    def mark_for_deletion(self, *names: str) -> None:
        """Hold machines, named by node or by claim, for gone in every snapshot from now on."""
        self._marked.update(names)
        self.revision += 1

    def unmark(self, *names: str) -> None:
        """Hold machines no longer for gone: they could not be deleted."""
        self._marked.difference_update(names)
        self.revision += 1

    def nominate(self, name: str, pods: Sequence[Pod], until: datetime) -> None:
        """Keep disruption off a machine, named by node or by claim: pods are on their way to it.

        It lasts while one of them is still where it was, and until that moment at most.
        """
        known = self._nominated.get(name)
        expected = {pod.key: pod for pod in (*(known.pods if known else ()), *pods)}
        last = max(until, known.until) if known else until
        self._nominated[name] = _Nomination(tuple(expected.values()), last)

    def withdraw(self, name: str, pods: Iterable[Pod]) -> None:
        """Take back that these pods are on their way to a machine."""
        known = self._nominated.get(name)
        if known is None:
            return
        gone = {pod.key for pod in pods}
        left = tuple(pod for pod in known.pods if pod.key not in gone)
        self._nominated[name] = _Nomination(left, known.until)

    def expect_in_buffer(self, name: str, pods: Sequence[Pod]) -> None:
        """Take in the pods that stand for a buffer's room; it is named `namespace/name`."""
        self._buffer_pods[name] = tuple(pods)

    def keep_for_buffers(self, names: Iterable[str]) -> None:
        """Note the machines, named by node or by claim, on which buffers have their room."""
        self._buffered = frozenset(names)

    # What is known.

    @property
    def mirrored(self) -> tuple[Kind[Any], ...]:
        """Every kind the mirror follows."""
        return self._mirrored

    @property
    def synced(self) -> bool:
        """Whether every mirrored kind has been listed once, so that nothing is missing."""
        return len(self._synced) == len(self._mirrored)

    @property
    def awaited(self) -> tuple[str, ...]:
        """The kinds that have not been listed yet, by plural name."""
        return tuple(kind.plural for kind in self._mirrored if kind not in self._synced)

    def get(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        """Return one object, or None."""
        key = f"{namespace}/{name}" if namespace else name
        return cast("T | None", self._objects[kind].get(key))

    def pod(self, key: str) -> Pod | None:
        """Return the pod of this `namespace/name`, or None."""
        return cast("Pod | None", self._objects[kinds.POD].get(key))

    def list(self, kind: Kind[T]) -> tuple[T, ...]:
        """Return all objects of a kind, by name; none of a kind that is not followed."""
        objects = self._objects.get(kind, {})
        return tuple(objects[key] for key in sorted(objects))

    def pods_on(self, node_name: str) -> tuple[Pod, ...]:
        """Return the pods bound to a node, those that have run to their end included."""
        return tuple(self._pods_by_node.get(node_name, {}).values())

    def pending_pods(self) -> tuple[Pod, ...]:
        """Return the pods that wait for a node somebody has to make, by name."""
        return self._waiting.all()

    def undecided_pods(self) -> tuple[Pod, ...]:
        """Return the pods that no scheduler has tried yet and that are not known to wait."""
        return self._waiting.undecided()

    def queued(self, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        """Return pods in the order in which a scheduler tries them: by priority, then by age.

        Age is when the mirror first saw them: creation times are whole seconds.
        """
        turn = {key: number for number, key in enumerate(self._objects[kinds.POD])}
        return tuple(
            sorted(pods, key=lambda p: (-(p.spec.priority or 0), turn.get(p.key, len(turn))))
        )

    def has_undecided_pods(self, now: datetime) -> bool:
        """Whether pods are still to be tried by a scheduler that has no nodes for others."""
        return self._waiting.has_undecided(now)

    def begins_to_wait(self, before: Pod | None, after: Pod | None) -> bool:
        """Whether a change that has been taken in makes a pod wait for a node."""
        return self._waiting.is_news(before, after)

    def replicas(self, owners: Container[str]) -> Counter[str]:
        """Return how many pods each of these workloads has, by the workload's uid."""
        pods: Iterable[Pod] = self._objects[kinds.POD].values()
        return Counter(
            owner.uid
            for pod in pods
            for owner in pod.metadata.owner_references
            if owner.uid in owners and not pod.metadata.is_deleting and not is_terminal(pod)
        )

    def buffer_pods(self) -> tuple[Pod, ...]:
        """Return the pods that stand for the room of buffers, by buffer."""
        return tuple(pod for name in sorted(self._buffer_pods) for pod in self._buffer_pods[name])

    def reschedulable_pods(self, now: datetime) -> tuple[Pod, ...]:
        """Return the pods on machines on their way out that will need another, by name.

        Those that may not be disrupted, and those that no budget lets go now, are not
        among them: they hold their node, and a home made for them would stand empty.
        """
        moving = [
            pod
            for state_node in self.state_nodes(now)
            if state_node.deleting and state_node.node is not None and self.manages(state_node.node)
            for pod in self.pods_on(state_node.node.metadata.name)
            if is_reschedulable(pod) and not forbids_disruption(pod, now)
        ]
        return tuple(sorted(filter(self._may_be_evicted, moving), key=lambda pod: pod.key))

    def claims_of(self, node_pool: str) -> tuple[NodeClaim, ...]:
        """Return the claims of a pool, by name."""
        return tuple(
            claim
            for claim in self.list(kinds.NODE_CLAIM)
            if claim.metadata.labels.get(labels.NODEPOOL) == node_pool
        )

    def owner_of(self, claim: NodeClaim) -> str | None:
        """Return the name of the pool that a claim was made for, if that is still the same."""
        pool = self.get(kinds.NODE_POOL, claim.metadata.labels.get(labels.NODEPOOL, ""))
        owners = {owner.uid for owner in claim.metadata.owner_references}
        return pool.metadata.name if pool is not None and pool.metadata.uid in owners else None

    def node_of(self, claim: NodeClaim) -> Node | None:
        """Return the node of a claim, or None while there is none.

        Found by provider ID, or by the name the claim's status gives.
        """
        nodes = self.nodes_of(claim)
        return nodes[0] if nodes else None

    def moving_from(self, claim: NodeClaim) -> int:
        """Return how many pods will need another node when the claim's goes."""
        return sum(
            is_reschedulable(pod)
            for node in self.nodes_of(claim)
            for pod in self.pods_on(node.metadata.name)
        )

    def nodes_of(self, claim: NodeClaim) -> tuple[Node, ...]:
        """Return every node that bears the claim's provider ID, by name; more than one is wrong."""
        nodes = self._nodes_by_provider_id.get(claim.status.provider_id, {})
        if claim.status.provider_id and nodes:
            return tuple(nodes[name] for name in sorted(nodes))
        named = self.get(kinds.NODE, claim.status.node_name) if claim.status.node_name else None
        return () if named is None else (named,)

    def nominated_for(self, name: str) -> tuple[Pod, ...]:
        """Return the pods that are on their way to a machine, named by node or by claim."""
        nomination = self._nominated.get(name)
        return nomination.pods if nomination is not None else ()

    def claim_of(self, node: Node) -> NodeClaim | None:
        """Return the claim a node came from, or None when somebody else made it."""
        claims = self._claims_by_provider_id.get(node.spec.provider_id, {})
        if node.spec.provider_id and claims:
            return claims[min(claims)]
        return next(
            (c for c in self._all_claims() if c.status.node_name == node.metadata.name), None
        )

    def claims_on(self, instance_id: str) -> tuple[NodeClaim, ...]:
        """Return the claims of an instance, by the cloud's short name of it (`i-…`)."""
        return tuple(self._claims_by_instance.get(instance_id, {}).values())

    def manages(self, node: Node) -> bool:
        """Whether a node is ours to act on: it has a claim of ours, or had one."""
        return bears_our_class(node) or self.claim_of(node) is not None

    def state_nodes(self, now: datetime) -> tuple[StateNode, ...]:
        """Return every machine: claims in flight, joined nodes and unmanaged nodes, by name."""
        self._nominated = {
            name: nomination
            for name, nomination in self._nominated.items()
            if nomination.until > now and any(map(self._is_where_it_was, nomination.pods))
        }
        return tuple(sorted(self._machines(), key=lambda machine: machine.name))

    def snapshot(
        self,
        instance_types: Mapping[str, Sequence[InstanceType]],
        node_pools: Sequence[NodePool],
        *,
        now: datetime,
    ) -> Snapshot:
        """Picture the world for a solve.

        `instance_types` are per pool name; `node_pools` are those that may be used. The
        picture shares the mirror's objects, which are frozen. Take it before asking for
        pending pods: a pod bound in between is then placed once, not twice.
        """
        return Snapshot(
            nodes=self.state_nodes(now),
            pods=tuple(
                pod
                for node_name in sorted(self._pods_by_node)
                for pod in self._pods_by_node[node_name].values()
                if not is_terminal(pod)
            ),
            node_pools=tuple(node_pools),
            instance_types={pool: tuple(types) for pool, types in instance_types.items()},
            daemon_sets=self.list(kinds.DAEMON_SET),
            namespaces=self.list(kinds.NAMESPACE),
            limit_ranges=self.list(kinds.LIMIT_RANGE),
            persistent_volumes=self.list(kinds.PERSISTENT_VOLUME),
            persistent_volume_claims=self.list(kinds.PERSISTENT_VOLUME_CLAIM),
            storage_classes=self.list(kinds.STORAGE_CLASS),
            csi_nodes=self.list(kinds.CSI_NODE),
            pod_disruption_budgets=self.list(kinds.POD_DISRUPTION_BUDGET),
            resource_slices=self.list(kinds.RESOURCE_SLICE),
            resource_claims=self.list(kinds.RESOURCE_CLAIM),
            device_classes=self.list(kinds.DEVICE_CLASS),
        )

    # How it is kept.

    def _all_claims(self) -> Iterable[NodeClaim]:
        claims: Mapping[str, NodeClaim] = self._objects[kinds.NODE_CLAIM]
        return claims.values()

    def _machines(self) -> Iterator[StateNode]:
        joined: set[str] = set()
        for claim in self._all_claims():
            node = self.node_of(claim)
            if node is not None:
                if node.metadata.name in joined:
                    continue
                joined.add(node.metadata.name)
            yield self._state_node(node, claim)
        for name, node in self._objects[kinds.NODE].items():
            if name not in joined:
                yield self._state_node(node, None)

    def _state_node(self, node: Node | None, claim: NodeClaim | None) -> StateNode:
        parts = [part.metadata for part in (node, claim) if part is not None]
        names = [part.name for part in parts]
        return StateNode(
            node=node,
            claim=claim,
            deleting=not self._marked.isdisjoint(names) or any(part.is_deleting for part in parts),
            nominated=not self._nominated.keys().isdisjoint(names),
            buffered=not self._buffered.isdisjoint(names),
        )

    def _is_where_it_was(self, pod: Pod) -> bool:
        known = self.get(kinds.POD, pod.metadata.name, pod.metadata.namespace)
        return (
            known is not None
            and known.metadata.uid == pod.metadata.uid
            and known.spec.node_name == pod.spec.node_name
            and not is_terminal(known)
        )

    def _may_be_evicted(self, pod: Pod) -> bool:
        budgets = self._objects[kinds.POD_DISRUPTION_BUDGET].values()
        return budget_obstacle(pod, budgets) is None

    def _end(self, kind: Kind[T], value: T) -> None:
        self._ended[value.metadata.uid] = None
        if len(self._ended) > REMEMBERED_ENDS:
            del self._ended[next(iter(self._ended))]
        key = key_of(value)
        known = self._objects[kind].get(key)
        if known is not None and known.metadata.uid == value.metadata.uid:
            self._remove(kind, key)

    def _remove(self, kind: Kind[Any], key: str) -> None:
        value = self._objects[kind].pop(key)
        self.revision += 1
        self._unindex(kind, key, value)
        if kind == kinds.POD:
            self._waiting.change(value, None)
        if kind in (kinds.NODE, kinds.NODE_CLAIM):
            self._marked.discard(key)
            self._nominated.pop(key, None)
        elif kind == kinds.CAPACITY_BUFFER:
            self._buffer_pods.pop(key, None)
        self._notify(kind, value, None)

    def _notify(self, kind: Kind[Any], before: Any, after: Any) -> None:
        if kind in self._synced:
            self._listener(kind, before, after)

    def _index(self, kind: Kind[Any], key: str, value: Any) -> None:
        if kind == kinds.POD:
            _put(self._pods_by_node, value.spec.node_name, key, value)
        elif kind == kinds.NODE:
            _put(self._nodes_by_provider_id, value.spec.provider_id, key, value)
        elif kind == kinds.NODE_CLAIM:
            _put(self._claims_by_provider_id, value.status.provider_id, key, value)
            _put(self._claims_by_instance, _instance_id(value), key, value)

    def _unindex(self, kind: Kind[Any], key: str, value: Any) -> None:
        if kind == kinds.POD:
            _drop(self._pods_by_node, value.spec.node_name, key)
        elif kind == kinds.NODE:
            _drop(self._nodes_by_provider_id, value.spec.provider_id, key)
        elif kind == kinds.NODE_CLAIM:
            _drop(self._claims_by_provider_id, value.status.provider_id, key)
            _drop(self._claims_by_instance, _instance_id(value), key)


def key_of(value: KubernetesObject) -> str:
    """Return `namespace/name`, or the name of a cluster-wide object."""
    metadata = value.metadata
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


def _instance_id(claim: NodeClaim) -> str:
    return claim.status.provider_id.rpartition("/")[2]


def _is_no_news(value: KubernetesObject, known: KubernetesObject) -> bool:
    """Whether a version of an object is the one we have, or came before it.

    Resource versions of one object are numbers that grow; a different uid is another
    object, and the watch that brings it knows best.
    """
    ours, theirs = known.metadata.resource_version, value.metadata.resource_version
    if known.metadata.uid != value.metadata.uid or not (ours.isdigit() and theirs.isdigit()):
        return False
    return int(theirs) <= int(ours)


def _put(index: dict[str, dict[str, Any]], group: str, key: str, value: Any) -> None:
    if group:
        index.setdefault(group, {})[key] = value


def _drop(index: dict[str, dict[str, Any]], group: str, key: str) -> None:
    members = index.get(group)
    if members is not None:
        members.pop(key, None)
        if not members:
            del index[group]
