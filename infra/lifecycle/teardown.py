"""Destroy: drains all nodes before the controller is deleted, and proves that nothing is left.

Two kinds of resources act when they are deleted. A `Drain` is deleted first, while the controller
still runs. It takes the NodePools out of service by a condition and deletes none, so that the state
has what the cluster has: after an interrupted destroy, `up` puts them back into service. The engine
then deletes the stack's NodePools and EC2NodeClasses, and a second `Drain` those of others.
`NothingLeft` is created right before the controller, so it is
deleted right after it: a stack that never had a controller launched no node, and resources with
Karpenter's tags belong to another installation. Creating the two does nothing.

Flux or Argo CD would create a NodePool again as soon as it is deleted. Such a NodePool stays out of
service, and is deleted with its CRD.

Only NodePools, NodeClaims and Nodes of an EC2NodeClass are deleted. Others belong to EKS Auto Mode.

A destroy uses the settings in the state: a changed setting takes effect after the next
`pulumi up`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import pulumi
from pulumi.dynamic import DiffResult, UpdateResult

from controller.apis import labels
from controller.apis.appliers import STACK, appliers
from controller.apis.karpenter.nodepool import IN_SERVICE
from controller.apis.kinds import (
    EC2_NODE_CLASS,
    NODE,
    NODE_CLAIM,
    NODE_POOL,
    POD,
    POD_DISRUPTION_BUDGET,
    Kind,
)
from controller.apis.wording import with_count
from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import (
    CLUSTER_ERRORS,
    ApiError,
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    ClusterNotAbandonedError,
    ClusterUnreachableError,
    Objects,
    Wire,
    require_abandoned,
    unless_abandoned,
)
from infra.lifecycle.destroying import ancestors, is_partial, protected_resources, refuse_ahead
from infra.lifecycle.leftovers import Leftovers, Remains, describe
from infra.lifecycle.registeredresource import RegisteredResource
from infra.lifecycle.statefulprovider import MADE_AT, StatefulProvider
from infra.lifecycle.waiting import Clock, say

STACK_ANNOTATION = STACK
POLL_SECONDS = 2.0
PROGRESS_SECONDS = 15.0
"""How often progress is printed when nothing changes."""

SHOWN_BLOCKERS = 5
"""The number of objects of a kind that a line of progress names."""

CONTROLLER_GRACE_SECONDS = 60.0
"""How long the controller may have no ready pod; a rolling update takes less."""

PATIENCE_SECONDS = 60.0
"""How long the destroy waits for an API server that does not answer."""

OUT_OF_SERVICE_SECONDS = 60.0
"""How often a NodePool's condition `joiner.dev/InService` is set to False again.

The controller ignores the condition some minutes after the last write.
"""

NODE_CLASS_SECONDS = 60.0
PROOF_SECONDS = 600.0
"""How long AWS may take to delete resources; an instance takes one or two minutes."""


class ForeignNodePoolsError(Exception):
    """NodePools that do not belong to the stack exist, and no setting allows their deletion."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(" ".join([*problems, "Nothing has been deleted."]))


class PartialDestroyError(Exception):
    """A destroy with `--target` would drain all nodes, though the rest of the stack stays."""

    def __init__(self) -> None:
        super().__init__(
            "this destroy has --target, and would drain all nodes, because what it deletes is "
            "needed by the controller. Nothing has been deleted. Destroy the whole stack, or "
            "remove the resource by a setting and `pulumi up`"
        )


class ProtectedResourcesError(Exception):
    """The state protects resources, so the destroy would fail after it had drained all nodes."""

    def __init__(self, urns: Sequence[str]) -> None:
        super().__init__(
            f"the state protects {', '.join(urns)}, so this destroy would fail after it had "
            "drained all nodes. Nothing has been deleted. To delete them too, run `pulumi state "
            "unprotect` with each URN. To keep them, run `pulumi destroy --exclude-protected`"
        )


class DrainInterruptedError(Exception):
    """The engine ended during the drain, so no more nodes may be terminated."""

    def __init__(self) -> None:
        super().__init__(
            "the drain ends, because Pulumi's engine ended: run `pulumi cancel` and `pulumi "
            "destroy` again, or `pulumi up` to keep the stack"
        )


class ResourcesRemainError(Exception):
    """AWS did not delete resources in time."""

    def __init__(self, remains: Remains, seconds: float) -> None:
        super().__init__(
            f"AWS did not delete these within {seconds:.0f} s: {describe(remains)}. Run `pulumi "
            "destroy` again"
        )


class Cluster(Objects, Protocol):
    """The requests of a drain to the cluster."""

    def merge(self, path: str, change: Wire) -> None:
        """Change an object by a JSON merge patch."""


class Cloud(Protocol):
    """The requests of a destroy to AWS."""

    def instances(self) -> list[str]:
        """Return the IDs of instances that are not terminated."""

    def terminate(self, instances: list[str]) -> list[str]:
        """Terminate instances; return those that do not belong to the installation."""

    def remains(self) -> Remains:
        """Return the IDs of all resources of the installation, by kind."""

    def remove(self, remains: Remains) -> None:
        """Request the deletion of these resources."""


@dataclass(kw_only=True)
class Draining:
    """Drains all nodes of one cluster while its controller still runs."""

    cluster: Cluster
    cloud: Cloud
    deployment: str
    """Path of the controller's Deployment."""

    timeout_seconds: float
    delete_foreign: bool
    stack: str = ""
    """organization/project/stack, the owner of the NodePools; empty if it is unknown."""

    delete_others: bool = False
    """Whether NodePools of other stacks may be deleted too."""

    deletes: bool = True
    """Whether to delete NodePools and EC2NodeClasses, or to leave them to the engine."""

    engine: Callable[[], object] = tuple
    """Returns what identifies the engine that waits for the drain."""

    clock: Clock = field(default_factory=lambda: time)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    say: Callable[[str], None] = say
    _closed: dict[str, float] = field(default_factory=dict, init=False)
    """When the condition of each NodePool was last renewed, by the clock."""

    def run(self) -> None:
        """Take the NodePools out of service, and wait until all nodes are drained.

        If `deletes`, delete the NodePools, and the EC2NodeClasses at the end. After
        `timeout_seconds`, or if no controller runs, terminate the remaining instances.

        Raises:
            ForeignNodePoolsError: NodePools of others exist; nothing has been deleted.
            DrainInterruptedError: the engine ended.

        """
        deadline = self.clock.monotonic() + self.timeout_seconds
        self._end_pools()
        trouble = self._wait_for_nodes(deadline)
        if trouble:
            self._force(trouble)
        if self.deletes:
            self._delete_node_classes(stuck=bool(trouble))
        elif trouble or not self._has_controller():
            for node_class in self._node_classes():
                # The engine deletes it next, and no controller would remove the finalizer.
                _let_go(self.cluster, EC2_NODE_CLASS, node_class)

    def reopen(self) -> None:
        """Put the NodePools back into service that an interrupted destroy took out of it."""
        for pool in self._pools():
            if _is_closed(pool):
                self.say(f"putting NodePool {_name(pool)} back into service")
                self._write_conditions(pool)

    def closed_pools(self) -> list[str]:
        """Return the names of the NodePools that a destroy took out of service."""
        return sorted(_name(pool) for pool in self._pools() if _is_closed(pool))

    def refusals(self, pools: Sequence[Wire] | None = None) -> list[str]:
        """Return why the NodePools may not be deleted; empty if they may.

        `pools` are all NodePools of the cluster; if None, they are read from it.
        """
        pools = self._pools() if pools is None else pools
        foreign = sorted(_pool_text(pool) for pool in pools if not _owner(pool))
        others = sorted(
            f"{_name(pool)} ({_owner(pool)})"
            for pool in pools
            if self.stack and _owner(pool) not in ("", self.stack)
        )
        problems = []
        if foreign and not self.delete_foreign:
            problems.append(
                f"no stack owns these NodePools: {', '.join(foreign)}. Their nodes would be "
                "terminated with the controller. Delete these NodePools where they are applied, or "
                "set joiner:deleteForeignNodePools to true, run `pulumi up`, then `pulumi destroy` "
                "again."
            )
        if others and not self.delete_others:
            problems.append(
                f"other stacks own these NodePools: {', '.join(others)}. Their nodes would be "
                "terminated with the controller. Destroy these stacks first, or add nodePools to "
                "joiner:confirmDelete, run `pulumi up`, then `pulumi destroy` again."
            )
        return problems

    def _end_pools(self) -> None:
        pools = self._pools()
        if problems := self.refusals(pools):
            raise ForeignNodePoolsError(problems)
        self._close_pools(pools)
        for pool in pools if self.deletes else ():
            if not _restorer(pool):
                owner = f"stack {_owner(pool)}" if _owner(pool) else "no stack"
                self.say(f"deleting NodePool {_name(pool)} (owner: {owner})")
                self.cluster.delete(_path(NODE_POOL, pool))

    def _close_pools(self, pools: Sequence[Wire]) -> None:
        """Take NodePools out of service that the engine deletes later, or never."""
        for pool in pools:
            name, restorer = _name(pool), _restorer(pool)
            last = self._closed.get(name)
            if (self.deletes and not restorer) or (
                last is not None
                and self.clock.monotonic() - last < OUT_OF_SERVICE_SECONDS
                and _is_closed(pool)
            ):
                continue
            if last is None:
                why = f", because {restorer} would create it again" if restorer else " yet"
                self.say(f"draining NodePool {name} without deleting it{why}")
            if self._write_conditions(pool, self._draining_condition()):
                self._closed[name] = self.clock.monotonic()

    def _draining_condition(self) -> Wire:
        return {
            "type": IN_SERVICE,
            "status": "False",
            "reason": "Draining",
            "message": "The controller's stack is being destroyed: no nodes are launched and "
            "existing nodes are drained",
            # The controller ignores an old condition, so that of an aborted destroy expires.
            "lastTransitionTime": f"{self.now():%Y-%m-%dT%H:%M:%SZ}",
        }

    def _write_conditions(self, pool: Wire, *added: Wire) -> bool:
        """Replace the condition `joiner.dev/InService`; returns whether the pool was unchanged."""
        others = [c for c in _conditions(pool) if c["type"] != IN_SERVICE]
        version = {"resourceVersion": pool["metadata"].get("resourceVersion")}
        patch = {"metadata": version, "status": {"conditions": [*others, *added]}}
        try:
            self.cluster.merge(f"{_path(NODE_POOL, pool)}/status", patch)
        except ApiError as exc:
            if exc.status != 409:
                raise
            return False  # The controller changed it; the caller tries again.
        return True

    def _wait_for_nodes(self, deadline: float) -> str:
        """Wait until no node is left; return why that did not happen, or an empty text."""
        last_said, last_line = float("-inf"), ""
        gone_since: float | None = None
        engine = self.engine()
        while True:
            if self.engine() != engine:
                raise DrainInterruptedError
            now = self.clock.monotonic()
            self._close_pools(self._pools())
            claims, nodes = self._claims(), self._nodes()
            instances = self.cloud.instances()
            if not (claims or nodes or instances):
                self.say("all nodes are drained and terminated")
                return ""
            for claim in claims:
                if "deletionTimestamp" not in claim["metadata"]:
                    self.cluster.delete(_path(NODE_CLAIM, claim))
            line = (
                f"draining: {with_count(len(nodes), 'node')}, "
                f"{with_count(len(claims), 'NodeClaim')} and "
                f"{with_count(len(instances), 'instance')} remaining"
            )
            if line != last_line or now - last_said >= PROGRESS_SECONDS:
                self.say(line + (self._blockers(nodes) if line == last_line else ""))
                last_said, last_line = now, line
            deployment = self.cluster.get(self.deployment)
            if deployment is None:
                return "the controller's Deployment does not exist"
            gone_since = None if _ready_replicas(deployment) else gone_since or now
            if gone_since is not None and now - gone_since >= CONTROLLER_GRACE_SECONDS:
                return f"the controller has had no ready pod for {now - gone_since:.0f} s"
            if now >= deadline:
                seconds = f"{self.timeout_seconds:.0f} s"
                return f"nodes were not drained within {seconds} (joiner:drainTimeout)"
            self.clock.sleep(POLL_SECONDS)

    def _blockers(self, nodes: Sequence[Wire]) -> str:
        """Return what prevents evictions now, as the end of a line of progress.

        Only the pods of the first few nodes are read.
        """
        try:
            budgets = self.cluster.list(POD_DISRUPTION_BUDGET.collection)
            pods = [
                pod
                for node in nodes[:SHOWN_BLOCKERS]
                for pod in self.cluster.list(
                    POD.collection, fieldSelector=f"spec.nodeName={_name(node)}"
                )
            ]
        except ApiError:
            return ""  # A drain needs no right to read them.
        exhausted = [
            budget
            for budget in budgets
            if (status := budget.get("status", {})).get("expectedPods")
            and not status.get("disruptionsAllowed")
        ]
        kept = [
            pod for pod in pods if labels.DO_NOT_DISRUPT in pod["metadata"].get("annotations", {})
        ]
        return _enumeration(
            "PodDisruptionBudgets that allow no eviction now", exhausted
        ) + _enumeration(f"pods with {labels.DO_NOT_DISRUPT}", kept)

    def _force(self, trouble: str) -> None:
        """Terminate instances by their tags and remove the controller's finalizers."""
        claims = self._claims()
        instances = sorted({*self.cloud.instances(), *map(_instance, claims)} - {""})
        self.say(
            f"{trouble}: terminating {with_count(len(instances), 'instance')} found by tags and "
            "NodeClaims"
        )
        left = self.cloud.terminate(instances)
        if left:
            self.say(
                f"not terminating instances without the tags of this cluster and installation, "
                f"though NodeClaims name them: {', '.join(left)}"
            )
        for claim in claims:
            self._release(NODE_CLAIM, claim)
        for node in self._nodes():
            self._release(NODE, node)

    def _delete_node_classes(self, *, stuck: bool) -> None:
        deadline = self.clock.monotonic() + NODE_CLASS_SECONDS
        for node_class in self._node_classes():
            self.cluster.delete(_path(EC2_NODE_CLASS, node_class))
        while left := self._node_classes():
            if stuck or not self._has_controller() or self.clock.monotonic() >= deadline:
                for node_class in left:
                    self.say(f"removing the finalizer of EC2NodeClass {_name(node_class)}")
                    self._release(EC2_NODE_CLASS, node_class)
                return
            self.clock.sleep(POLL_SECONDS)

    def _has_controller(self) -> bool:
        deployment = self.cluster.get(self.deployment)
        return deployment is not None and _ready_replicas(deployment) > 0

    def _release(self, kind: Kind[Any], wire: Wire) -> None:
        _let_go(self.cluster, kind, wire)
        self.cluster.delete(_path(kind, wire))

    def _pools(self) -> list[Wire]:
        return [
            pool
            for pool in self.cluster.list(NODE_POOL.collection)
            if is_ours(pool["spec"]["template"]["spec"])
        ]

    def _node_classes(self) -> list[Wire]:
        """Return the EC2NodeClasses, except those that another tool would create again."""
        every = self.cluster.list(EC2_NODE_CLASS.collection)
        return [node_class for node_class in every if not _restorer(node_class)]

    def _claims(self) -> list[Wire]:
        claims = self.cluster.list(NODE_CLAIM.collection)
        return [claim for claim in claims if is_ours(claim["spec"])]

    def _nodes(self) -> list[Wire]:
        return self.cluster.list(NODE.collection, labelSelector=labels.EC2NODECLASS)


def let_go(cluster: Cluster) -> None:
    """Remove the finalizers of NodeClaims and EC2NodeClasses left after the controller's end."""
    for kind in (NODE_CLAIM, EC2_NODE_CLASS):
        for wire in cluster.list(kind.collection):
            may_go = kind is EC2_NODE_CLASS or is_ours(wire["spec"])
            if may_go and wire["metadata"].get("finalizers"):
                _let_go(cluster, kind, wire)


def prove_nothing_is_left(
    cloud: Cloud,
    *,
    clock: Clock = time,
    say: Callable[[str], None] = say,
) -> None:
    """Delete by tag what is left of the installation, until nothing is found.

    Raises:
        ResourcesRemainError: AWS did not delete it within `PROOF_SECONDS`.

    """
    deadline = clock.monotonic() + PROOF_SECONDS
    last_line = ""
    while remains := cloud.remains():
        line = f"deleting remaining resources, found by tags: {describe(remains)}"
        if line != last_line:
            say(line)
            last_line = line
        if clock.monotonic() >= deadline:
            raise ResourcesRemainError(remains, PROOF_SECONDS)
        cloud.remove(remains)
        clock.sleep(POLL_SECONDS)
    say(
        "nothing is left: no instance, volume, network interface, launch template or instance "
        "profile"
    )


def drain(props: Mapping[str, Any]) -> None:
    """Drain the cluster, or terminate its instances by tag if it cannot be reached.

    Args:
        props: as `Drain` records them.

    Raises:
        ForeignNodePoolsError: NodePools of others exist; nothing has been deleted.
        ClusterNotAbandonedError: the cluster does not exist or does not answer, and the user did
            not allow a destroy without it.

    """
    location = ClusterLocation.of(props)
    cloud = Leftovers(location, props["installation"])
    try:
        _make_draining(props, cloud).run()
    except (ClusterGoneError, ClusterUnreachableError) as exc:
        require_abandoned(location, exc)
        instances = cloud.instances()
        say(f"{exc}: terminating {with_count(len(instances), 'instance')} found by tags")
        cloud.terminate(instances)
    # The controller deletes profiles with their EC2NodeClasses. A remaining one keeps the role.
    cloud.remove_profiles()


def drain_refusals(props: Mapping[str, Any]) -> list[str]:
    """Return why a drain would be refused; empty if it would not. Nothing is changed.

    `props` are the properties that `Drain` records.
    """
    location = ClusterLocation.of(props)
    try:
        with unless_abandoned(location):
            return _draining_of(props).refusals()
    except ClusterNotAbandonedError as refused:
        return [str(refused)]
    return []


def _closed_pools(props: Mapping[str, Any]) -> list[str]:
    try:
        return _draining_of(props).closed_pools()
    except CLUSTER_ERRORS:
        return []  # The next change to the cluster reports the failure.


def _draining_of(props: Mapping[str, Any]) -> Draining:
    return _make_draining(props, Leftovers(ClusterLocation.of(props), props["installation"]))


def _make_draining(props: Mapping[str, Any], cloud: Leftovers) -> Draining:
    timeout = float(props["timeout_seconds"])
    patience = min(timeout, PATIENCE_SECONDS)
    return Draining(
        cluster=ClusterApi.find(ClusterLocation.of(props), patience_seconds=patience, say=say),
        cloud=cloud,
        deployment=props["deployment"],
        timeout_seconds=timeout,
        delete_foreign=bool(props["delete_foreign"]),
        stack=props["stack"],
        delete_others=bool(props["delete_others"]),
        deletes=bool(props.get("deletes", True)),  # the state of an earlier version has no such
        engine=lambda: [*ancestors()],
    )


class _DrainProvider(StatefulProvider):
    """Drains all nodes when it is deleted. On each `up`, it undoes an interrupted drain."""

    kind = "drain"

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        found = super().diff(_id, olds, news)
        # The other drain is deleted earlier, so the state has this one for longer.
        if news["deletes"] and (closed := _closed_pools(olds)):
            say(
                f"an earlier destroy began: it took these NodePools out of service, and `pulumi "
                f"up` puts them back: {', '.join(closed)}"
            )
            found.changes = True
        return found

    def update(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        if news["deletes"]:
            with contextlib.suppress(*CLUSTER_ERRORS):  # The next change to the cluster reports it.
                _draining_of(news).reopen()
        return super().update(_id, olds, news)

    def end(self, props: dict[str, Any]) -> None:
        if is_partial():
            raise PartialDestroyError
        if protected := protected_resources():
            raise ProtectedResourcesError(protected)
        drain(props)


class _NothingLeftProvider(StatefulProvider):
    """Proves that nothing is left when it is deleted."""

    kind = "nothing-left"

    def end(self, props: dict[str, Any]) -> None:
        location = ClusterLocation.of(props)
        with unless_abandoned(location):
            let_go(ClusterApi.find(location))  # The drain has waited for the API server already.
        prove_nothing_is_left(Leftovers(location, props["installation"]))


@dataclass(frozen=True, kw_only=True)
class DrainArgs:
    """The cluster to drain, how long the drain may take, and what may be deleted."""

    cluster: EksCluster
    installation: str
    namespace: pulumi.Input[str]
    deployment: pulumi.Input[str]
    timeout_seconds: float
    delete_foreign_node_pools: bool
    stack: str
    """organization/project/stack, whose NodePools may be deleted."""

    delete_other_node_pools: bool
    """Whether NodePools of other stacks may be deleted too."""

    deletes: bool
    """Whether it deletes NodePools and EC2NodeClasses: after the engine has deleted the stack's."""

    nodes_stay: bool = False
    """Whether the nodes stay when the stack is destroyed; then nothing is drained."""


class Drain(RegisteredResource, module="joiner", name="Drain"):
    """A resource that a destroy deletes before the controller.

    Its deletion takes the cluster's NodePools out of service, and waits until no node is left.
    """

    def __init__(
        self, name: str, args: DrainArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        path = pulumi.Output.format(
            "/apis/apps/v1/namespaces/{0}/deployments/{1}", args.namespace, args.deployment
        )
        props: dict[str, Any] = {
            **args.cluster.location,
            "installation": args.installation,
            "deployment": path,
            "timeout_seconds": args.timeout_seconds,
            "delete_foreign": args.delete_foreign_node_pools,
            "stack": args.stack,
            "delete_others": args.delete_other_node_pools,
            "deletes": args.deletes,
        }
        keys = list(props)
        super().__init__(_DrainProvider(), name, props, opts)
        if not args.nodes_stay:
            refuse_ahead(self, keys, drain_refusals)


class NothingLeft(RegisteredResource, module="joiner", name="NothingLeft"):
    """The resource that a destroy deletes right after the controller.

    Its deletion proves by tags that nothing of the controller's nodes is left in AWS.
    """

    def __init__(
        self,
        name: str,
        cluster: EksCluster,
        installation: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {**cluster.location, "installation": installation}
        super().__init__(_NothingLeftProvider(), name, props, opts)


class Installation(RegisteredResource, module="joiner", name="Installation"):
    """Records cluster, region and installation, and refuses to change them.

    A program that creates its own providers creates this resource first, and lets the providers
    depend on it.
    """

    def __init__(
        self,
        name: str,
        location: ClusterLocation | EksCluster,
        installation: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        made_at: str = "",
    ) -> None:
        """Record the installation.

        Args:
            name: the name of the resource.
            location: the location of the cluster.
            installation: value of the tag `joiner.dev/installation`.
            opts: the options of the resource.
            made_at: creation time of an existing cluster, to detect that it was created again;
                empty if it is unknown.

        """
        self.title = installation
        """Value of the tag `joiner.dev/installation`."""
        known = {MADE_AT: made_at} if made_at else {}
        props = {**location.location, "installation": installation, **known}
        super().__init__(StatefulProvider(), name, props, opts)


def _enumeration(description: str, found: Sequence[Wire]) -> str:
    if not found:
        return ""
    names = sorted(f"{wire['metadata']['namespace']}/{_name(wire)}" for wire in found)
    more = f" and {len(names) - SHOWN_BLOCKERS} more" if names[SHOWN_BLOCKERS:] else ""
    return f"; {description}: {', '.join(names[:SHOWN_BLOCKERS])}{more}"


def _path(kind: Kind[Any], wire: Wire) -> str:
    return f"{kind.collection}/{_name(wire)}"


def _name(wire: Wire) -> str:
    return str(wire["metadata"]["name"])


def is_ours(spec: Wire) -> bool:
    """Whether the spec of a NodePool's template or a NodeClaim references an EC2NodeClass."""
    reference = spec.get("nodeClassRef", {})
    named = (reference.get("group"), reference.get("kind"))
    return named == (EC2_NODE_CLASS.group, EC2_NODE_CLASS.name)


def _instance(claim: Wire) -> str:
    """Return the instance ID of a NodeClaim, empty if it is unknown."""
    identity = str(claim.get("status", {}).get("providerID", "")).rpartition("/")[2]
    return identity if identity.startswith("i-") else ""


def _ready_replicas(deployment: Wire) -> int:
    return int(deployment.get("status", {}).get("readyReplicas", 0))


def _owner(pool: Wire) -> str:
    return str(pool["metadata"].get("annotations", {}).get(STACK_ANNOTATION, ""))


def _let_go(cluster: Cluster, kind: Kind[Any], wire: Wire) -> None:
    """Remove the finalizers of an object; of a Node only the controller's own."""
    kept = [
        finalizer
        for finalizer in wire["metadata"].get("finalizers", [])
        if kind is NODE and finalizer != labels.TERMINATION_FINALIZER
    ]
    cluster.merge(_path(kind, wire), {"metadata": {"finalizers": kept or None}})


def _restorer(wire: Wire) -> str:
    """Return the tool that creates the object again when it is deleted; empty if none does."""
    metadata = wire["metadata"]
    found = appliers(metadata.get("labels") or {}, metadata.get("annotations") or {})
    return next((one.name for one in found if one.restores), "")


def _pool_text(pool: Wire) -> str:
    restorer = _restorer(pool)
    return f"{_name(pool)} ({restorer})" if restorer else _name(pool)


def _conditions(wire: Wire) -> list[Wire]:
    return list(wire.get("status", {}).get("conditions") or [])


def _is_closed(pool: Wire) -> bool:
    return any(c["type"] == IN_SERVICE and c["status"] == "False" for c in _conditions(pool))
