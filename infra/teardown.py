"""The end: nodes are drained before the controller goes, and nothing is left after it.

Two resources do their work when they are deleted. `Drain` depends on all others, so it
goes first, while the controller still runs. `NothingLeft` is the last thing made before
the controller, so it goes right after it: a stack that never had a controller has made
no node, and what bears Karpenter's tags is somebody else's. Creating the two makes nothing.

A NodePool that Flux or Argo CD applies would be back as soon as it is deleted: it is taken out
of service by a condition instead, which no manifest says anything of, and goes with its kind.

Of NodePools, NodeClaims and Nodes only those of an EC2NodeClass are ours to end: EKS Auto
Mode has some of its own beside them.

A stack is destroyed by what its state says: a changed setting counts after the next
`pulumi up`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import pulumi
from pulumi.dynamic import Resource

from controller.apis import labels
from controller.apis.appliers import STACK, appliers
from controller.apis.kinds import EC2_NODE_CLASS, NODE, NODE_CLAIM, NODE_POOL, Kind
from controller.apis.nodepool import IN_SERVICE
from infra.clusterapi import (
    ApiError,
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    ClusterUnreachableError,
    Objects,
    Wire,
    require_given_up,
)
from infra.ekscluster import EksCluster
from infra.leftovers import Leftovers, Remains, describe
from infra.statefulprovider import MADE_AT, StatefulProvider
from infra.waiting import Clock, say

STACK_ANNOTATION = STACK
LOOK_SECONDS = 2.0
PROGRESS_SECONDS = 15.0
"""How often progress is said when nothing changes."""

CONTROLLER_GRACE_SECONDS = 60.0
"""How long no controller may be ready before it counts as gone; a rolling update takes less."""

PATIENCE_SECONDS = 60.0
"""How long a silent API server is waited for; one that is being replaced comes back sooner."""

OUT_OF_SERVICE_SECONDS = 60.0
"""How often a pool is said to be out of service; the controller believes it for some minutes."""

NODE_CLASS_SECONDS = 60.0
PROOF_SECONDS = 600.0
"""How long AWS may take to remove what it was asked to; an instance takes a minute or two."""


class ForeignNodePoolsError(Exception):
    """There are NodePools that no stack owns, and nobody said they may go."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"no stack owns these NodePools: {', '.join(names)}. Their nodes would go with the "
            "controller. Delete them where they are applied, or set "
            "joiner:deleteForeignNodePools to true, run `pulumi up`, then `pulumi destroy` again. "
            "Nothing has been deleted."
        )


class StillThereError(Exception):
    """AWS did not remove what it was asked to in time."""

    def __init__(self, remains: Remains, seconds: float) -> None:
        super().__init__(f"still there after {seconds:.0f} s: {describe(remains)}")


class Cluster(Objects, Protocol):
    """What draining asks of the cluster."""

    def merge(self, path: str, change: Wire) -> None:
        """Change an object."""


class Cloud(Protocol):
    """What the end asks of AWS."""

    def instances(self) -> list[str]:
        """Instances that are not terminated."""

    def terminate(self, instances: list[str]) -> list[str]:
        """Terminate instances; return those that are not the cluster's to end."""

    def remains(self) -> Remains:
        """Everything there is."""

    def remove(self, remains: Remains) -> None:
        """Ask for everything to go."""


@dataclass(kw_only=True)
class Draining:
    """One draining of one cluster, while its controller still runs."""

    cluster: Cluster
    cloud: Cloud
    deployment: str
    """Path of the controller's Deployment."""

    timeout_seconds: float
    delete_foreign: bool
    clock: Clock = field(default_factory=lambda: time)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    say: Callable[[str], None] = say
    _closed: dict[str, float] = field(default_factory=dict, init=False)
    """When each pool was last said to be out of service, by the clock."""

    def run(self) -> None:
        """Take the NodePools away, let every node drain and end, then the node classes.

        Raises:
            ForeignNodePoolsError: it may not; nothing has been deleted.

        """
        deadline = self.clock.monotonic() + self.timeout_seconds
        self._delete_pools()
        trouble = self._wait_for_nodes(deadline)
        if trouble:
            self._force(trouble)
        self._delete_node_classes(stuck=bool(trouble))

    def _delete_pools(self) -> None:
        pools = self._pools()
        foreign = sorted(_described(pool) for pool in pools if not _owner(pool))
        if foreign and not self.delete_foreign:
            raise ForeignNodePoolsError(foreign)
        self._close_pools(pools)
        for pool in pools:
            if not _restorer(pool):
                self.say(f"deleting NodePool {_name(pool)} of {_owner(pool) or 'nobody'}")
                self.cluster.delete(_path(NODE_POOL, pool))

    def _close_pools(self, pools: Sequence[Wire]) -> None:
        """Take out of service what would be back if it were deleted."""
        for pool in pools:
            name, restorer = _name(pool), _restorer(pool)
            last = self._closed.get(name)
            if not restorer or (
                last is not None
                and self.clock.monotonic() - last < OUT_OF_SERVICE_SECONDS
                and _is_closed(pool)
            ):
                continue
            if last is None:
                self.say(f"taking NodePool {name} out of service; {restorer} keeps it there")
            try:
                self.cluster.merge(f"{_path(NODE_POOL, pool)}/status", self._closing(pool))
            except ApiError as exc:
                if exc.status != 409:
                    raise
                continue  # The controller has written meanwhile: the next look is soon.
            self._closed[name] = self.clock.monotonic()

    def _closing(self, pool: Wire) -> Wire:
        condition = {
            "type": IN_SERVICE,
            "status": "False",
            "reason": "Draining",
            "message": "the stack of the controller is being destroyed: no node is added, and "
            "those there are drained",
            # What the controller goes by: a destroy that ended says it no more.
            "lastTransitionTime": f"{self.now():%Y-%m-%dT%H:%M:%SZ}",
        }
        others = [c for c in _conditions(pool) if c["type"] != IN_SERVICE]
        version = {"resourceVersion": pool["metadata"].get("resourceVersion")}
        return {"metadata": version, "status": {"conditions": [*others, condition]}}

    def _wait_for_nodes(self, deadline: float) -> str:
        """Wait until no node is left; say what stands in the way when that does not happen."""
        last_said, last_line = float("-inf"), ""
        gone_since: float | None = None
        while True:
            now = self.clock.monotonic()
            self._close_pools(self._pools())
            claims, nodes = self._claims(), self._nodes()
            instances = self.cloud.instances()
            if not (claims or nodes or instances):
                self.say("every node is gone")
                return ""
            for claim in claims:
                if "deletionTimestamp" not in claim["metadata"]:
                    self.cluster.delete(_path(NODE_CLAIM, claim))
            line = (
                f"draining: {len(nodes)} nodes, {len(claims)} NodeClaims, "
                f"{len(instances)} instances to go"
            )
            if line != last_line or now - last_said >= PROGRESS_SECONDS:
                self.say(line)
                last_said, last_line = now, line
            deployment = self.cluster.get(self.deployment)
            if deployment is None:
                return "the controller is gone"
            gone_since = None if _ready_replicas(deployment) else gone_since or now
            if gone_since is not None and now - gone_since >= CONTROLLER_GRACE_SECONDS:
                return f"no controller has been ready for {now - gone_since:.0f} s"
            if now >= deadline:
                return f"nodes are not drained after {self.timeout_seconds:.0f} s"
            self.clock.sleep(LOOK_SECONDS)

    def _force(self, trouble: str) -> None:
        """Do without the controller: terminate by tag, and take its finalizers off."""
        claims = self._claims()
        instances = sorted({*self.cloud.instances(), *map(_instance, claims)} - {""})
        self.say(f"{trouble}: terminating {len(instances)} instances by their tags and claims")
        left = self.cloud.terminate(instances)
        if left:
            self.say(
                f"left alone though NodeClaims name them: {', '.join(left)}; their tags do not say "
                "that they are this cluster's and this stack's"
            )
        for claim in claims:
            self._release(_path(NODE_CLAIM, claim))
        for node in self._nodes():
            self._release(_path(NODE, node))

    def _delete_node_classes(self, *, stuck: bool) -> None:
        deadline = self.clock.monotonic() + NODE_CLASS_SECONDS
        for node_class in self._node_classes():
            self.cluster.delete(_path(EC2_NODE_CLASS, node_class))
        while left := self._node_classes():
            deployment = self.cluster.get(self.deployment)
            nobody = deployment is None or not _ready_replicas(deployment)
            if stuck or nobody or self.clock.monotonic() >= deadline:
                for node_class in left:
                    self.say(f"taking the finalizer off EC2NodeClass {_name(node_class)}")
                    self._release(_path(EC2_NODE_CLASS, node_class))
                return
            self.clock.sleep(LOOK_SECONDS)

    def _release(self, path: str) -> None:
        _let_go(self.cluster, path)
        self.cluster.delete(path)

    def _pools(self) -> list[Wire]:
        return [
            pool
            for pool in self.cluster.list(_collection(NODE_POOL))
            if _is_ours(pool["spec"]["template"]["spec"])
        ]

    def _node_classes(self) -> list[Wire]:
        """All but those that would be back, which go with their kind."""
        every = self.cluster.list(_collection(EC2_NODE_CLASS))
        return [node_class for node_class in every if not _restorer(node_class)]

    def _claims(self) -> list[Wire]:
        claims = self.cluster.list(_collection(NODE_CLAIM))
        return [claim for claim in claims if _is_ours(claim["spec"])]

    def _nodes(self) -> list[Wire]:
        return self.cluster.list(_collection(NODE), labelSelector=labels.EC2NODECLASS)


def let_go(cluster: Cluster) -> None:
    """Take the finalizers off what is left once the controller is gone, and nobody else would."""
    for kind in (NODE_CLAIM, EC2_NODE_CLASS):
        for wire in cluster.list(_collection(kind)):
            is_ours = kind is EC2_NODE_CLASS or _is_ours(wire["spec"])
            if is_ours and wire["metadata"].get("finalizers"):
                _let_go(cluster, _path(kind, wire))


def prove_nothing_is_left(
    cloud: Cloud,
    *,
    clock: Clock = time,
    say: Callable[[str], None] = say,
) -> None:
    """Remove by tag whatever is left of the installation, until a look finds nothing.

    Raises:
        StillThereError: AWS did not remove it in time.

    """
    deadline = clock.monotonic() + PROOF_SECONDS
    last_line = ""
    while remains := cloud.remains():
        line = f"left behind, removing by tag: {describe(remains)}"
        if line != last_line:
            say(line)
            last_line = line
        if clock.monotonic() >= deadline:
            raise StillThereError(remains, PROOF_SECONDS)
        cloud.remove(remains)
        clock.sleep(LOOK_SECONDS)
    say("nothing is left: no instance, volume, network interface, launch template or profile")


def drain(
    location: ClusterLocation,
    *,
    installation: str,
    deployment: str,
    timeout_seconds: float,
    delete_foreign: bool,
) -> None:
    """Drain the cluster; without it, terminate its instances by tag where that was asked for.

    Raises:
        ForeignNodePoolsError: it may not; nothing has been deleted.
        NotGivenUpError: there is no way to the cluster, and nobody has given it up.

    """
    cloud = Leftovers(location, installation)
    patience = min(timeout_seconds, PATIENCE_SECONDS)
    try:
        Draining(
            cluster=ClusterApi.find(location, patience_seconds=patience, say=say),
            cloud=cloud,
            deployment=deployment,
            timeout_seconds=timeout_seconds,
            delete_foreign=delete_foreign,
        ).run()
    except (ClusterGoneError, ClusterUnreachableError) as exc:
        require_given_up(location, exc)
        instances = cloud.instances()
        say(f"{exc}: terminating {len(instances)} instances by their tags")
        cloud.terminate(instances)
    # The controller deletes them with their classes; where it could not, the role would stay.
    cloud.remove_profiles()


class _DrainProvider(StatefulProvider):
    """Drains when it is deleted."""

    kind = "drain"

    def end(self, props: dict[str, Any]) -> None:
        drain(
            ClusterLocation.of(props),
            installation=props["installation"],
            deployment=props["deployment"],
            timeout_seconds=float(props["timeout_seconds"]),
            delete_foreign=bool(props["delete_foreign"]),
        )


class _NothingLeftProvider(StatefulProvider):
    """Proves that nothing is left when it is deleted."""

    kind = "nothing-left"

    def end(self, props: dict[str, Any]) -> None:
        location = ClusterLocation.of(props)
        try:
            let_go(ClusterApi.find(location))  # the drain has waited for it already
        except (ClusterGoneError, ClusterUnreachableError) as exc:
            require_given_up(location, exc)
        prove_nothing_is_left(Leftovers(location, props["installation"]))


@dataclass(frozen=True, kw_only=True)
class DrainArgs:
    """Where to drain, how long, and what may go."""

    cluster: EksCluster
    installation: str
    namespace: pulumi.Input[str]
    deployment: pulumi.Input[str]
    timeout_seconds: float
    delete_foreign_node_pools: bool


class Drain(Resource):
    """Goes first: deletes the cluster's NodePools and waits until every node is gone."""

    def __init__(
        self, name: str, args: DrainArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        path = pulumi.Output.format(
            "/apis/apps/v1/namespaces/{0}/deployments/{1}", args.namespace, args.deployment
        )
        super().__init__(
            _DrainProvider(),
            name,
            {
                **args.cluster.location,
                "installation": args.installation,
                "deployment": path,
                "timeout_seconds": args.timeout_seconds,
                "delete_foreign": args.delete_foreign_node_pools,
            },
            opts,
        )


class NothingLeft(Resource):
    """Goes after the controller: proves by tags that nothing of its nodes is left in AWS."""

    def __init__(
        self,
        name: str,
        cluster: EksCluster,
        installation: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {**cluster.location, "installation": installation}
        super().__init__(_NothingLeftProvider(), name, props, opts)


class Installation(Resource):
    """Comes first: says what the stack is of, and refuses to let it become another's.

    A program that makes the providers of its cluster itself makes this before them, and has
    them depend on it.
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
        """Say it.

        Args:
            name: of the resource.
            location: of the cluster.
            installation: what the tag `joiner.dev/installation` says.
            opts: of the resource.
            made_at: when a cluster was made that is none of the stack's, so that another one of
                its name is noticed; empty where nobody knows.

        """
        self.title = installation
        """What the tag `joiner.dev/installation` says."""
        known = {MADE_AT: made_at} if made_at else {}
        props = {**location.location, "installation": installation, **known}
        super().__init__(StatefulProvider(), name, props, opts)


def _collection(kind: Kind[Any]) -> str:
    return f"{kind.root}/{kind.plural}"


def _path(kind: Kind[Any], wire: Wire) -> str:
    return f"{_collection(kind)}/{_name(wire)}"


def _name(wire: Wire) -> str:
    return str(wire["metadata"]["name"])


def _is_ours(spec: Wire) -> bool:
    reference = spec.get("nodeClassRef", {})
    named = (reference.get("group"), reference.get("kind"))
    return named == (EC2_NODE_CLASS.group, EC2_NODE_CLASS.name)


def _instance(claim: Wire) -> str:
    """Return EC2's id of a claim's instance, empty where none is known."""
    identity = str(claim.get("status", {}).get("providerID", "")).rpartition("/")[2]
    return identity if identity.startswith("i-") else ""


def _ready_replicas(deployment: Wire) -> int:
    return int(deployment.get("status", {}).get("readyReplicas", 0))


def _owner(pool: Wire) -> str:
    return str(pool["metadata"].get("annotations", {}).get(STACK_ANNOTATION, ""))


def _let_go(cluster: Cluster, path: str) -> None:
    cluster.merge(path, {"metadata": {"finalizers": None}})


def _restorer(wire: Wire) -> str:
    """Return who puts the object back when it is deleted; empty where nobody does."""
    metadata = wire["metadata"]
    found = appliers(metadata.get("labels") or {}, metadata.get("annotations") or {})
    return next((one.name for one in found if one.restores), "")


def _described(pool: Wire) -> str:
    restorer = _restorer(pool)
    return f"{_name(pool)} ({restorer})" if restorer else _name(pool)


def _conditions(wire: Wire) -> list[Wire]:
    return list(wire.get("status", {}).get("conditions") or [])


def _is_closed(pool: Wire) -> bool:
    return any(c["type"] == IN_SERVICE and c["status"] == "False" for c in _conditions(pool))
