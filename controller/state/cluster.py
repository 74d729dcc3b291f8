"""The mirror of the cluster: the objects of all watches, joined into nodes.

It has two sources. Watches report objects; reconcilers report the results of their writes
(`observe`), so that the next reconciliation does not wait for the watch. The resource version
decides which of the two is newer, and no later report restores a deleted object.

A NodeClaim whose node does not exist yet counts as a node: the next scheduling run can schedule
pods onto it, so provisioning does not stop during launches. `reconcilers.newnodes.plan` records
which pods are planned on it.

NodePools and NodeClaims of other controllers are not mirrored: queries return only Joiner's, and a
node of another controller's NodeClaim is unmanaged. Its capacity counts, but Joiner does not change
it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import INITIALIZED, REBOOTING, NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import Kind, T
from controller.apis.kubernetes.conditions import is_true
from controller.apis.kubernetes.meta import KubernetesObject
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import PodGroup, VolumeAttachment
from controller.apis.ownership import (
    has_our_class,
    has_unsupported_class,
    is_ours,
    node_pool_of,
)
from controller.cloudprovider.instancetypes import InstanceType
from controller.constraints.resources import Resources
from controller.state.evictions import EvictionGuards
from controller.state.gangs import gang_of
from controller.state.indices import Index
from controller.state.nodes import StateNode, is_closed
from controller.state.pendingpods import PendingPods
from controller.state.pods import (
    forbids_disruption,
    is_reschedulable,
    is_terminal,
)
from controller.state.relevance import affects_disruption
from controller.state.sharing import Replicas, Siblings
from controller.state.snapshot import Snapshot
from controller.state.usage import PoolUsage

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
    kinds.CSI_DRIVER,
    kinds.CSI_STORAGE_CAPACITY,
    kinds.VOLUME_ATTACHMENT,
    kinds.NODE_POOL,
    kinds.NODE_CLAIM,
    kinds.EC2_NODE_CLASS,
)
"""The kinds that are always mirrored; the mirror is synced when all of its kinds were listed once.
"""

FINALIZED: tuple[Kind[Any], ...] = (
    kinds.NODE,
    kinds.NODE_POOL,
    kinds.NODE_CLAIM,
    kinds.EC2_NODE_CLASS,
)
"""Kinds whose objects no longer exist once they are being deleted without a finalizer."""

JOINED_AT_ONCE = 200
"""The number of changed nodes at which each is joined with its NodeClaim, or with its running pods,
before a query needs it. Thousands of nodes change in the first list, or between two snapshots, and
one query should not have to join them all."""

CLOSED = "closed"
"""The index group of nodes that accept no pods yet."""

MAX_DELETED_UIDS = 10_000
"""The number of UIDs of deleted objects that are kept, so that late events do not restore them."""

ChangeListener = Callable[[Kind[Any], Any, Any], None]
"""A function called for each change with the kind and the object before and after; None if absent.
"""

Seen_co = TypeVar("Seen_co", bound=KubernetesObject, covariant=True)


_Entry = tuple[str, str, int, StateNode]
"""The name of a node, the provider ID, its number among that ID's nodes, and the node itself. The
first three are unique, so that sorting compares no nodes."""


class WatchStep(Protocol[Seen_co]):
    """One event of a watch: an object was ADDED, MODIFIED or DELETED, or a list began or ended.

    After RESET a new list of all objects follows, as ADDED; SYNCED ends it.
    """

    @property
    def type(self) -> str:
        """The type of the event."""

    @property
    def object(self) -> Seen_co | None:
        """The object; None for RESET and SYNCED."""


@dataclass(frozen=True, slots=True)
class _Nomination:
    """The pods for which a node was nominated, as they were at that time, and the expiry time."""

    pods: tuple[Pod, ...]
    until: datetime


class Cluster:
    """The present state of the cluster. Used on one event loop; no method waits."""

    def __init__(self, mirrored: Iterable[Kind[Any]] = MIRRORED, *, installation: str = "") -> None:
        self.installation = installation
        """Value of the annotation on claims whose instance this installation launched or adopted;
        empty if no claim needs it."""

        self._listener: ChangeListener = lambda kind, before, after: None
        self._mirrored = tuple(mirrored)
        self._objects: dict[Kind[Any], dict[str, Any]] = {kind: {} for kind in self._mirrored}
        self._listings: dict[Kind[Any], set[str]] = {}
        self._synced: set[Kind[Any]] = set()
        self._deleted_uids: dict[str, None] = {}
        self._replicas = Replicas()
        self._siblings = Siblings()
        self._pods_by_node = Index(kinds.POD, lambda pod: pod.spec.node_name)
        self._pods_by_gang = Index(kinds.POD, gang_of)
        self._pending = PendingPods()
        self._nodes_by_provider_id = Index(kinds.NODE, lambda node: node.spec.provider_id)
        self._nodes_by_pool = Index(kinds.NODE, node_pool_of)
        self._closed_nodes = Index(kinds.NODE, lambda node: CLOSED if is_closed(node) else "")
        self._claims_by_provider_id = Index(kinds.NODE_CLAIM, lambda c: c.status.provider_id)
        self._claims_by_instance = Index(kinds.NODE_CLAIM, _instance_id)
        self._claims_by_pool = Index(kinds.NODE_CLAIM, node_pool_of)
        self._opening_claims = Index(kinds.NODE_CLAIM, _pool_of_opening)
        self._claims_by_class = Index(kinds.NODE_CLAIM, lambda c: c.spec.node_class_ref.name)
        self._attachments = Index(kinds.VOLUME_ATTACHMENT, lambda a: a.spec.node_name)
        self._indices = _by_kind(
            self._pods_by_node,
            self._pods_by_gang,
            self._nodes_by_provider_id,
            self._nodes_by_pool,
            self._closed_nodes,
            self._claims_by_provider_id,
            self._claims_by_instance,
            self._claims_by_pool,
            self._opening_claims,
            self._claims_by_class,
            self._attachments,
        )
        self._replicas_of: Counter[str] = Counter()
        self._running_on: dict[str, tuple[Pod, ...]] = {}
        self._changed_pods_on: set[str] = set()
        self._nodes_by_instance: dict[str, tuple[StateNode, ...]] = {}
        self._sorted_nodes: list[_Entry] = []
        self._changed_instances: set[str] = set()
        self._leaving: set[str] = set()
        """Groups (`_group_of`) of nodes that are being deleted."""

        self._lost_nodes: set[str] = set()
        """Provider IDs of NodeClaims whose Node was deleted. The NodeClaim stays for a while, since
        kubelet may create the Node again, but kube-scheduler can bind no pod there."""

        self._usage = PoolUsage()
        self._marked: set[str] = set()
        self._nominated: dict[str, _Nomination] = {}
        self._buffer_pods: dict[str, tuple[Pod, ...]] = {}
        self._buffered: frozenset[str] = frozenset()
        self.revision = 0
        """Increases with each change that may change what disruption decides."""

    def subscribe(self, listener: ChangeListener) -> None:
        """Call `listener`, in place of the present one, for every change from now on.

        Changes come from watches and from reconcilers. The objects of a kind's first list are not
        reported: they are no changes.
        """
        self._listener = listener

    # Input from watches and reconcilers.

    def apply(self, kind: Kind[T], change: WatchStep[T]) -> None:
        """Apply one watch event.

        Between RESET and SYNCED the mirror keeps its objects; at SYNCED it removes the objects that
        the new list did not contain.
        """
        if change.type == "RESET":
            self._listings[kind] = set()
        elif change.type == "SYNCED":
            listed = self._listings.pop(kind, set())
            for key in [key for key in self._objects[kind] if key not in listed]:
                self._remove(kind, key)
            self._synced.add(kind)
        elif change.object is not None:
            if change.type == "DELETED":
                self._observe_deletion(kind, change.object)
            else:
                self.observe(kind, change.object)

    def observe(self, kind: Kind[T], value: T) -> None:
        """Store an object that the API server returned, unless a newer version is known."""
        key = key_of(value)
        if not is_ours(value) and not has_unsupported_class(value):
            if key in self._objects[kind]:  # Joiner's object with this name was deleted
                self._remove(kind, key)
            return
        before = self._objects[kind].get(key)
        metadata = value.metadata
        if kind in self._listings:
            self._listings[kind].add(key)
        if metadata.uid in self._deleted_uids or (before is not None and _is_stale(value, before)):
            return
        if metadata.is_deleting and not metadata.finalizers and kind in FINALIZED:
            # The write that removes the last finalizer returns the deleted object.
            self._observe_deletion(kind, value)
            return
        value = self._with_shared_parts(kind, value)
        if before is None or affects_disruption(kind, before, value):
            self.revision += 1
        if before is not None:
            self._unindex(kind, key, before)
        self._objects[kind][key] = value
        self._index(kind, key, value)
        if kind == kinds.POD:
            self._pending.change(before, cast(Pod, value))
        self._notify(kind, before, value)

    def insert_claim(self, claim: NodeClaim) -> None:
        """Store a NodeClaim that was just created, before its watch reports it."""
        self.observe(kinds.NODE_CLAIM, claim)

    def mark_for_deletion(self, *names: str) -> None:
        """Count nodes, given by node or NodeClaim name, as being deleted in every snapshot."""
        self._marked.update(names)
        self.revision += 1

    def unmark(self, *names: str) -> None:
        """Stop counting nodes as being deleted: their deletion failed."""
        self._marked.difference_update(names)
        self.revision += 1

    def nominate(self, name: str, pods: Sequence[Pod], until: datetime) -> None:
        """Nominate a node, given by node or NodeClaim name, for pods, so that it is not disrupted.

        The nomination ends at `until`, or when all of the pods have been bound, deleted or become
        terminal since.
        """
        known = self._nominated.get(name)
        expected = {pod.key: pod for pod in (*(known.pods if known else ()), *pods)}
        last = max(until, known.until) if known else until
        self._nominated[name] = _Nomination(tuple(expected.values()), last)

    def withdraw(self, name: str, pods: Iterable[Pod]) -> None:
        """Withdraw the nomination of a node for these pods."""
        known = self._nominated.get(name)
        if known is None:
            return
        gone = {pod.key for pod in pods}
        left = tuple(pod for pod in known.pods if pod.key not in gone)
        self._nominated[name] = _Nomination(left, known.until)

    def expect_in_buffer(self, name: str, pods: Sequence[Pod]) -> None:
        """Store the virtual pods of a buffer; `name` is its `namespace/name`."""
        self._buffer_pods[name] = tuple(pods)

    def keep_for_buffers(self, names: Iterable[str]) -> None:
        """Set which nodes, by node or NodeClaim name, hold virtual pods of buffers."""
        self._buffered = frozenset(names)

    # Queries.

    @property
    def mirrored(self) -> tuple[Kind[Any], ...]:
        """The mirrored kinds."""
        return self._mirrored

    @property
    def synced(self) -> bool:
        """Whether every mirrored kind has been listed once, so that no object is missing."""
        return len(self._synced) == len(self._mirrored)

    @property
    def awaited(self) -> tuple[str, ...]:
        """The plural names of the kinds that have not been listed yet."""
        return tuple(kind.plural for kind in self._mirrored if kind not in self._synced)

    def get(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        """Return one object, or None."""
        key = f"{namespace}/{name}" if namespace else name
        return cast("T | None", self._objects[kind].get(key))

    def pod(self, key: str) -> Pod | None:
        """Return the pod of this `namespace/name`, or None."""
        return cast("Pod | None", self._objects[kinds.POD].get(key))

    def list(self, kind: Kind[T]) -> tuple[T, ...]:
        """Return all objects of a kind, sorted by name; empty if the kind is not mirrored."""
        objects = self._objects.get(kind, {})
        return tuple(objects[key] for key in sorted(objects))

    def count(self, kind: Kind[T]) -> int:
        """Return the number of objects of a kind, without reading them."""
        return len(self._objects.get(kind, {}))

    def pods_on(self, node_name: str) -> tuple[Pod, ...]:
        """Return the pods bound to a node, including terminal ones."""
        return tuple(self._pods_by_node.of(node_name))

    def pods_of_gang(self, name: str) -> tuple[Pod, ...]:
        """Return the pods of a gang (`namespace/name`), also pending and terminal ones."""
        return self._pods_by_gang.sorted_by_name(name)

    def pod_groups(self) -> tuple[PodGroup, ...]:
        """Return the PodGroups of Kubernetes and those of the coscheduling plugin."""
        return (*self.list(kinds.POD_GROUP), *self.list(kinds.COSCHEDULING_POD_GROUP))

    def pending_pods(self) -> tuple[Pod, ...]:
        """Return the pending pods that need a new node, sorted by name."""
        return self._pending.all()

    def undecided_pods(self) -> tuple[Pod, ...]:
        """Return the pods that no scheduler has tried yet and that are not known to be pending."""
        return self._pending.undecided_pods()

    def in_queue_order(self, pods: Iterable[Pod]) -> tuple[Pod, ...]:
        """Return pods in the order in which kube-scheduler tries them: by priority, then by age.

        The age is measured from the pod's first watch event, because creation times are whole
        seconds. Bound pods are the last of their priority. Cost: O(n log n) of the given pods;
        others are not read.
        """
        return tuple(
            sorted(pods, key=lambda p: (-(p.spec.priority or 0), self._pending.position(p.key)))
        )

    def has_undecided_pods(self, now: datetime) -> bool:
        """Whether a scheduler that found no node for other pods still has pods to try."""
        return self._pending.has_undecided(now)

    def becomes_pending(self, before: Pod | None, after: Pod | None) -> bool:
        """Whether a pod is pending after a change.

        False if the change only confirms that an untried pod is unschedulable, as a report on an
        equal pod predicted. `before` and `after` are the pod before and after the change; None if
        it did not exist.
        """
        return self._pending.becomes_pending(before, after)

    def replicas(self, owners: Iterable[str]) -> Counter[str]:
        """Return the number of pods of each of these workloads, by the workload's UID."""
        return Counter({owner: self._replicas_of[owner] for owner in owners})

    def buffer_pods(self) -> tuple[Pod, ...]:
        """Return the virtual pods of buffers, in the order of the buffers."""
        return tuple(pod for name in sorted(self._buffer_pods) for pod in self._buffer_pods[name])

    def reschedulable_pods(self, now: datetime) -> tuple[Pod, ...]:
        """Return the pods on nodes being deleted that will need another node, sorted by name.

        Pods with `karpenter.sh/do-not-disrupt`, and pods whose PodDisruptionBudget allows no
        eviction now, are not included: they keep their node, so a new node would stay empty.
        """
        self._join_changes()
        marked = chain.from_iterable(map(self._entries_named, self._marked))
        deleting = filter(_is_deleting, chain.from_iterable(map(self._entries, self._leaving)))
        leaving = {(group, number): node.node for _, group, number, node in chain(deleting, marked)}
        moving = [
            pod
            for node in leaving.values()
            if node is not None and self.manages(node)
            for pod in self.pods_on(node.metadata.name)
            if is_reschedulable(pod) and not forbids_disruption(pod, now)
        ]
        guards = EvictionGuards(self._objects[kinds.POD_DISRUPTION_BUDGET].values())
        return tuple(
            sorted((p for p in moving if guards.obstacle(p) is None), key=lambda pod: pod.key)
        )

    def claims_of(self, node_pool: str) -> tuple[NodeClaim, ...]:
        """Return the NodeClaims of a pool, sorted by name."""
        return self._claims_by_pool.sorted_by_name(node_pool)

    def opening_claims_of(self, node_pool: str) -> Collection[NodeClaim]:
        """Return a pool's NodeClaims that are not yet initialized.

        Those that are being deleted or rebooted are left out.
        """
        return self._opening_claims.of(node_pool)

    def claims_of_class(self, node_class: str) -> tuple[NodeClaim, ...]:
        """Return the NodeClaims that refer to an EC2NodeClass, sorted by name."""
        return self._claims_by_class.sorted_by_name(node_class)

    def nodes_in(self, node_pool: str) -> tuple[Node, ...]:
        """Return the nodes with the label of a pool, sorted by name."""
        return self._nodes_by_pool.sorted_by_name(node_pool)

    def closed_nodes(self) -> tuple[Node, ...]:
        """Return the new Nodes that accept no pods yet, sorted by name (see `is_closed`)."""
        return self._closed_nodes.sorted_by_name(CLOSED)

    def attachments_to(self, node_name: str) -> tuple[VolumeAttachment, ...]:
        """Return the VolumeAttachments of a node, sorted by name."""
        return self._attachments.sorted_by_name(node_name)

    def usage_of(self, node_pool: str) -> Resources:
        """Return the capacity of a pool's nodes by resource name and, as `nodes`, their number.

        Amounts are in thousandths of the resource's unit; the number is in thousandths, too.

        It equals `usage` over all nodes. Cost: O(nodes that changed since the last call).
        """
        self._join_changes()
        return self._usage.of(node_pool)

    @property
    def node_count(self) -> int:
        """The number of nodes: NodeClaims in flight, registered nodes and unmanaged nodes."""
        self._join_changes()
        return self._usage.node_count

    def owner_of(self, claim: NodeClaim) -> str | None:
        """Return the name of the pool that owns a NodeClaim, or None if the pool is deleted."""
        pool = self.get(kinds.NODE_POOL, node_pool_of(claim))
        owners = {owner.uid for owner in claim.metadata.owner_references}
        return pool.metadata.name if pool is not None and pool.metadata.uid in owners else None

    def node_of(self, claim: NodeClaim) -> Node | None:
        """Return the node with the NodeClaim's provider ID, or None."""
        nodes = self.nodes_of(claim)
        return nodes[0] if nodes else None

    def moving_from(self, claim: NodeClaim) -> int:
        """Return the number of pods that need another node when the NodeClaim is deleted."""
        return sum(
            is_reschedulable(pod)
            for node in self.nodes_of(claim)
            for pod in self.pods_on(node.metadata.name)
        )

    def nodes_of(self, claim: NodeClaim) -> tuple[Node, ...]:
        """Return every node with the NodeClaim's provider ID, sorted by name.

        A NodeClaim with more than one cannot register. The node name in the NodeClaim's status is
        not used: EC2 reuses IP addresses, and with them node names.
        """
        return self._nodes_by_provider_id.sorted_by_name(claim.status.provider_id)

    def nominated_for(self, name: str) -> tuple[Pod, ...]:
        """Return the pods for which a node, given by node or NodeClaim name, is nominated."""
        nomination = self._nominated.get(name)
        return nomination.pods if nomination is not None else ()

    def claim_of(self, node: Node) -> NodeClaim | None:
        """Return Joiner's NodeClaim with the node's provider ID, or None."""
        claims = self._claims_by_provider_id.sorted_by_name(node.spec.provider_id)
        return next(filter(self.is_adopted, claims), None)

    def is_adopted(self, claim: NodeClaim) -> bool:
        """Whether this installation may manage a NodeClaim: it launched or adopted the instance.

        Any installation may manage a NodeClaim without an instance.
        """
        marks, provider_id = claim.metadata.annotations, claim.status.provider_id
        if not (self.installation and provider_id):
            return True
        # NodeClaims of earlier versions do not have the annotation with the provider ID.
        is_same = marks.get(labels.OWN_INSTANCE, provider_id) == provider_id
        return is_same and marks.get(labels.TAG_INSTALLATION) == self.installation

    def claims_on(self, instance_id: str) -> tuple[NodeClaim, ...]:
        """Return the NodeClaims of an instance, given by its EC2 ID (`i-…`)."""
        return tuple(self._claims_by_instance.of(instance_id))

    def manages(self, node: Node) -> bool:
        """Whether Joiner manages a node: it has, or had, one of Joiner's NodeClaims."""
        claims = self._claims_by_provider_id.sorted_by_name(node.spec.provider_id)
        return any(map(self.is_adopted, claims)) if claims else has_our_class(node)

    def state_nodes(self, now: datetime) -> tuple[StateNode, ...]:
        """Return every node by name: NodeClaims in flight, registered and unmanaged nodes."""
        self._prune_nominations(now)
        self._join_changes()
        nodes = [node for *_, node in self._sorted_nodes]
        for name in self._marked | self._nominated.keys() | self._buffered:
            for entry in self._entries_named(name):
                index = bisect_left(self._sorted_nodes, entry)
                nodes[index] = self._with_flags(entry[-1], _names_of(entry[-1]))
        return tuple(nodes)

    def state_node(self, name: str) -> StateNode | None:
        """Return a node, given by node or NodeClaim name, or None.

        It may still be marked as nominated though the nomination has expired.
        """
        self._join_changes()
        entry = next(self._entries_named(name), None)
        return None if entry is None else self._with_flags(entry[-1], _names_of(entry[-1]))

    def nodes_of_pool(self, node_pool: str, now: datetime) -> tuple[StateNode, ...]:
        """Return the nodes of `state_nodes` that have a NodeClaim of a pool.

        Cost: O(n log n) of the pool's NodeClaims.
        """
        self._prune_nominations(now)
        self._join_changes()
        claims = self._claims_by_pool.of(node_pool)
        groups = {_group_of(kinds.NODE_CLAIM, claim) for claim in claims}
        nodes = [each for group in groups for each in self._nodes_by_instance[group]]
        return tuple(
            self._with_flags(node, _names_of(node))
            for node in sorted(nodes, key=_name_of)
            if node.claim is not None
        )

    def snapshot(
        self,
        instance_types: Mapping[str, Sequence[InstanceType]],
        node_pools: Iterable[NodePool],
        *,
        now: datetime,
    ) -> Snapshot:
        """Return a snapshot for the engine.

        `instance_types` are per NodePool name. The snapshot has those of `node_pools` that have
        instance types. It shares the mirror's frozen objects. If the caller reads pending pods
        first, a pod that is bound in between is in both, and the engine counts it once, as pending.
        If the caller takes the snapshot first, it must not await before it reads them: a pod that
        is bound in between would be in neither.
        """
        return Snapshot(
            nodes=self.state_nodes(now),
            pods=self._running_pods(),
            node_pools=tuple(p for p in node_pools if p.metadata.name in instance_types),
            instance_types={pool: tuple(types) for pool, types in instance_types.items()},
            daemon_sets=self.list(kinds.DAEMON_SET),
            namespaces=self.list(kinds.NAMESPACE),
            limit_ranges=self.list(kinds.LIMIT_RANGE),
            persistent_volumes=self.list(kinds.PERSISTENT_VOLUME),
            persistent_volume_claims=self.list(kinds.PERSISTENT_VOLUME_CLAIM),
            storage_classes=self.list(kinds.STORAGE_CLASS),
            csi_nodes=self.list(kinds.CSI_NODE),
            csi_drivers=self.list(kinds.CSI_DRIVER),
            csi_storage_capacities=self.list(kinds.CSI_STORAGE_CAPACITY),
            volume_attachments=self.list(kinds.VOLUME_ATTACHMENT),
            pod_disruption_budgets=self.list(kinds.POD_DISRUPTION_BUDGET),
            resource_slices=self.list(kinds.RESOURCE_SLICE),
            resource_claims=self.list(kinds.RESOURCE_CLAIM),
            device_classes=self.list(kinds.DEVICE_CLASS),
            device_taint_rules=self.list(kinds.DEVICE_TAINT_RULE),
            pod_groups=self.pod_groups(),
        )

    def frozen_copy(self) -> Cluster:
        """Return a copy of the mirror for another thread; it does not change.

        Only `get`, `list`, `count`, `pods_on`, `claim_of`, `node_count` and `synced` may be used:
        the copy shares the frozen objects, and copies no more indices than these need.
        """
        self._join_changes()
        frozen = copy(self)
        frozen._objects = {kind: objects.copy() for kind, objects in self._objects.items()}
        frozen._pods_by_node = self._pods_by_node.copy()
        frozen._claims_by_provider_id = self._claims_by_provider_id.copy()
        frozen._changed_instances = set()
        frozen._running_on, frozen._changed_pods_on = {}, set()
        frozen._nodes_by_instance = self._nodes_by_instance.copy()
        frozen._sorted_nodes = self._sorted_nodes.copy()
        frozen._leaving = self._leaving.copy()
        frozen._usage = PoolUsage()
        frozen._usage.node_count = self._usage.node_count
        return frozen

    # Internals.

    def _with_shared_parts(self, kind: Kind[T], value: T) -> T:
        """Return an equal object that shares equal parts with stored ones."""
        if kind == kinds.POD:
            return cast("T", self._replicas.share(cast(Pod, value)))
        if kind == kinds.NODE:
            return cast("T", self._siblings.share(cast(Node, value)))
        if kind == kinds.NODE_CLAIM:
            return cast("T", self._siblings.share(cast(NodeClaim, value)))
        return value

    def _prune_nominations(self, now: datetime) -> None:
        self._nominated = {
            name: nomination
            for name, nomination in self._nominated.items()
            if nomination.until > now and any(map(self._is_still_nominated, nomination.pods))
        }

    def _with_flags(self, node: StateNode, names: Iterable[str]) -> StateNode:
        """Return the node with its marks and nominations."""
        return replace(
            node,
            deleting=node.deleting or not self._marked.isdisjoint(names),
            nominated=not self._nominated.keys().isdisjoint(names),
            buffered=not self._buffered.isdisjoint(names),
        )

    def _running_pods(self) -> tuple[Pod, ...]:
        """Return the bound pods that are not terminal, by node.

        The pods of a node are cached until one of them changes.
        """
        self._join_running_pods()
        names = sorted(self._running_on)
        return tuple(chain.from_iterable(self._running_on[name] for name in names))

    def _join_running_pods(self) -> None:
        """Find the running pods of the nodes whose pods changed since the last call."""
        for name in self._changed_pods_on:
            pods = self._pods_by_node.of(name)
            self._running_on[name] = tuple([pod for pod in pods if not is_terminal(pod)])
            if not self._running_on[name]:
                del self._running_on[name]
        self._changed_pods_on.clear()

    def _is_still_nominated(self, pod: Pod) -> bool:
        known = self.get(kinds.POD, pod.metadata.name, pod.metadata.namespace)
        return (
            known is not None
            and known.metadata.uid == pod.metadata.uid
            and known.spec.node_name == pod.spec.node_name
            and not is_terminal(known)
        )

    def _observe_deletion(self, kind: Kind[T], value: T) -> None:
        self._deleted_uids[value.metadata.uid] = None
        if len(self._deleted_uids) > MAX_DELETED_UIDS:
            del self._deleted_uids[next(iter(self._deleted_uids))]
        key = key_of(value)
        known = self._objects[kind].get(key)
        if known is not None and known.metadata.uid == value.metadata.uid:
            self._remove(kind, key)

    def _remove(self, kind: Kind[Any], key: str) -> None:
        value = self._objects[kind].pop(key)
        self.revision += 1
        self._unindex(kind, key, value)
        if kind == kinds.POD:
            self._pending.change(value, None)
        if kind in (kinds.NODE, kinds.NODE_CLAIM):
            self._marked.discard(key)
            self._nominated.pop(key, None)
            self._record_lost_node(kind, value)
        elif kind == kinds.CAPACITY_BUFFER:
            self._buffer_pods.pop(key, None)
        self._notify(kind, value, None)

    def _record_lost_node(self, kind: Kind[Any], removed: Node | NodeClaim) -> None:
        group = _group_of(kind, removed)
        if self._claims_by_provider_id.of(group) and not self._nodes_by_provider_id.of(group):
            self._lost_nodes.add(group)
        else:
            self._lost_nodes.discard(group)

    def _notify(self, kind: Kind[Any], before: Any, after: Any) -> None:
        if kind in self._synced:
            self._listener(kind, before, after)

    def _index(self, kind: Kind[Any], key: str, value: Any) -> None:
        for index in self._indices.get(kind, ()):
            index.add(key, value)
        self._record_instance_change(kind, value)
        if kind == kinds.NODE:
            self._lost_nodes.discard(value.spec.provider_id)
        if len(self._changed_instances) >= JOINED_AT_ONCE:
            self._join_changes()
        if kind == kinds.POD:
            self._record_pod_change(value)
            self._count_replica(value, 1)

    def _unindex(self, kind: Kind[Any], key: str, value: Any) -> None:
        for index in self._indices.get(kind, ()):
            index.discard(key, value)
        self._record_instance_change(kind, value)
        if kind == kinds.POD:
            self._record_pod_change(value)
            self._count_replica(value, -1)

    def _record_pod_change(self, pod: Pod) -> None:
        """Record that the pods of a pod's node changed; a pod without a node changes none."""
        if pod.spec.node_name:
            self._changed_pods_on.add(pod.spec.node_name)
        if len(self._changed_pods_on) >= JOINED_AT_ONCE and kinds.POD in self._synced:
            self._join_running_pods()

    def _count_replica(self, pod: Pod, change: int) -> None:
        """Count a pod for its owners, unless it is terminal or terminating."""
        if pod.metadata.is_deleting or is_terminal(pod):
            return
        for owner in pod.metadata.owner_references:
            self._replicas_of[owner.uid] += change
            if not self._replicas_of[owner.uid]:
                del self._replicas_of[owner.uid]

    def _record_instance_change(self, kind: Kind[Any], value: Any) -> None:
        """Record that a node changed: it is joined again at the next read."""
        if kind in (kinds.NODE, kinds.NODE_CLAIM):
            self._changed_instances.add(_group_of(kind, value))

    def _join_changes(self) -> None:
        """Join and count the nodes that changed since the last call."""
        if not self._changed_instances:
            return
        for group in self._changed_instances:
            for entry in self._entries(group):
                del self._sorted_nodes[bisect_left(self._sorted_nodes, entry)]
            nodes = self._state_nodes_of(group)
            self._nodes_by_instance[group] = nodes
            if not nodes:
                del self._nodes_by_instance[group]
            if any(node.deleting for node in nodes):
                self._leaving.add(group)
            else:
                self._leaving.discard(group)
            self._usage.replace(group, nodes)
            for entry in self._entries(group):
                insort(self._sorted_nodes, entry)
        self._changed_instances.clear()

    def _entries(self, group: str) -> Iterator[_Entry]:
        """Yield the entries of `_sorted_nodes` for the nodes of one provider ID."""
        for number, node in enumerate(self._nodes_by_instance.get(group, ())):
            yield node.name, group, number, node

    def _entries_named(self, name: str) -> Iterator[_Entry]:
        """Yield the entries of `_sorted_nodes` for a node, given by node or NodeClaim name."""
        for kind in (kinds.NODE, kinds.NODE_CLAIM):
            known = self._objects[kind].get(name)
            for entry in self._entries(_group_of(kind, known)) if known is not None else ():
                if name in _names_of(entry[-1]):
                    yield entry

    def _state_nodes_of(self, group: str) -> tuple[StateNode, ...]:
        """Return the nodes of one provider ID: the first Node is joined with its NodeClaim.

        An object without a provider ID has a group of its own: `node/<name>` or `claim/<name>`.
        """
        kind, _, name = group.partition("/")
        if kind == "node":
            node = self.get(kinds.NODE, name)
            return (_state_node(node, None),) if node and not node.spec.provider_id else ()
        if kind == "claim":
            claim = self.get(kinds.NODE_CLAIM, name)
            return (_state_node(None, claim),) if claim and not claim.status.provider_id else ()
        claims = self._claims_by_provider_id.sorted_by_name(group)
        nodes = self._nodes_by_provider_id.sorted_by_name(group)
        if not nodes:
            is_lost = group in self._lost_nodes
            return tuple(_state_node(None, claim, is_lost=is_lost) for claim in claims)
        first = _state_node(nodes[0], self.claim_of(nodes[0]))
        return (first, *(_state_node(node, None) for node in nodes[1:]))


def key_of(value: KubernetesObject) -> str:
    """Return `namespace/name`, or the name of a cluster-wide object."""
    metadata = value.metadata
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


def _group_of(kind: Kind[Any], value: Any) -> str:
    """Return the provider ID of a Node or NodeClaim, or `node/<name>` or `claim/<name>`."""
    if kind == kinds.NODE:
        return value.spec.provider_id or f"node/{key_of(value)}"
    return value.status.provider_id or f"claim/{key_of(value)}"


def _pool_of_opening(claim: NodeClaim) -> str:
    known = claim.status.conditions
    # A node that reboots is not initialized either, but no new node.
    if claim.metadata.is_deleting or is_true(known, INITIALIZED) or is_true(known, REBOOTING):
        return ""
    return node_pool_of(claim)


def _instance_id(claim: NodeClaim) -> str:
    return claim.status.provider_id.rpartition("/")[2]


def _is_stale(value: KubernetesObject, known: KubernetesObject) -> bool:
    """Whether a version of an object is the stored version or an older one.

    Resource versions of one object are increasing numbers. They are not compared if the UIDs
    differ.
    """
    ours, theirs = known.metadata.resource_version, value.metadata.resource_version
    if known.metadata.uid != value.metadata.uid or not (ours.isdigit() and theirs.isdigit()):
        return False
    return int(theirs) <= int(ours)


def _state_node(node: Node | None, claim: NodeClaim | None, *, is_lost: bool = False) -> StateNode:
    parts = [part.metadata for part in (node, claim) if part is not None]
    deleting = is_lost or any(part.is_deleting for part in parts)
    return StateNode(node=node, claim=claim, deleting=deleting)


def _names_of(node: StateNode) -> tuple[str, ...]:
    parts = (node.node, node.claim)
    return tuple(part.metadata.name for part in parts if part is not None)


def _is_deleting(entry: _Entry) -> bool:
    return entry[-1].deleting


_name_of = attrgetter("name")


def _by_kind(*indices: Index[Any]) -> dict[Kind[Any], list[Index[Any]]]:
    sorted_: dict[Kind[Any], list[Index[Any]]] = {}
    for index in indices:
        sorted_.setdefault(index.kind, []).append(index)
    return sorted_
