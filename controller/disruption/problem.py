"""The input of a disruption decision: the cluster at a point in time, and the settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.pods import Pod
from controller.cloudprovider.provider import RepairPolicy
from controller.options import Options
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot

PodChange = Callable[[Pod], Pod]

DEFAULT_EVICTION_PRICE = 0.01
"""Cost in $ of evicting one ordinary pod. It is the on-demand cost of the capacity of a pod with 1
CPU for about 15 minutes: the pod restarts and warms up while its old capacity is still paid for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionSettings:
    """The cost of disruption, and which disruptions are allowed."""

    eviction_price: float = DEFAULT_EVICTION_PRICE
    """The price in $ of evicting one pod of ordinary eviction cost; 0: evictions are free."""

    horizon: timedelta = timedelta(hours=2)
    """The longest time within which a saving must exceed the cost of the evictions. If the workload
    of an evicted pod is younger, its age applies."""

    cool_down: timedelta = timedelta(minutes=10)
    """The time after a pod's start in which its eviction costs more, up to three times as much.
    A saving counts for at least this time, however young the workload is."""

    image_soak: timedelta = timedelta(minutes=10)
    """How long the first node of a NodePool with a new AMI must run before other nodes follow; 0
    lets all nodes follow as fast as budgets allow."""

    surge: bool = False
    """Whether Deployments with one replica whose pod has the annotation `joiner.dev/surge` are
    restarted instead of evicted, so that a PodDisruptionBudget does not block the node."""

    instalments: bool = True
    """Whether a group that saves only as a whole may be disrupted in instalments if the budgets do
    not allow all its nodes at once. The first instalment launches a replacement that the pods of
    later ones move to."""

    spot_to_spot: bool = False
    """`FEATURE_GATES` SpotToSpotConsolidation: whether spot nodes may be replaced by spot nodes."""

    terminate_first_drift: bool = False
    terminate_first_repair: bool = False
    """`FEATURE_GATES` TerminateFirstDrift and TerminateFirstRepair: whether a node is terminated
    before its replacement is launched, if there is no capacity for both."""

    writes_deletion_costs: bool = False
    """`FEATURE_GATES` PodDeletionCostManagement: whether Joiner writes the pods' deletion costs.
    Then they do not count as eviction costs."""


def settings_of(options: Options) -> DisruptionSettings:
    """Return the disruption settings from the controller's options."""
    gates = options.feature_gates
    return DisruptionSettings(
        eviction_price=options.disruption_eviction_price,
        horizon=options.disruption_horizon,
        cool_down=options.disruption_cool_down,
        image_soak=options.disruption_image_soak,
        surge=options.surge_single_replicas,
        spot_to_spot=gates.spot_to_spot_consolidation,
        terminate_first_drift=gates.terminate_first_drift,
        terminate_first_repair=gates.terminate_first_repair,
        writes_deletion_costs=gates.pod_deletion_cost_management,
    )


EVICTIONS_FREE = DisruptionSettings(eviction_price=0.0, image_soak=timedelta(0), instalments=False)
"""Settings under which every saving counts, however many pods it evicts, and each node counts by
itself, as in Karpenter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionProblem:
    """A cluster at a point in time, with the settings for its disruption.

    `snapshot` has the nodes, the running pods and the dynamic NodePools that are ready.
    `node_pools` are all NodePools, by name. `pending` pods have no node: the provisioner launches
    nodes for them, so simulations only reserve capacity for them.

    The disruption of `backed_off` nodes failed within the last minute, so they are not candidates.
    `with_bound` requests a lower bound on the cost (see `Decision`).
    `pending_replacements` maps nodes to the replacements that an earlier leader launched for them.
    `kept` maps nodes that must stay to the reason. `workload_start_times` has the start time of
    each workload by its owner's UID, because a pod that was moved is younger than its workload.
    `repair_policies` say which conditions are unhealthy; without any, no node is repaired.
    """

    snapshot: Snapshot
    node_pools: Mapping[str, NodePool]
    now: datetime
    pending: tuple[Pod, ...] = ()
    scheduling: Settings = field(default_factory=Settings)
    settings: DisruptionSettings = field(default_factory=DisruptionSettings)
    backed_off: frozenset[str] = frozenset()
    with_bound: bool = False
    pending_replacements: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    workload_start_times: Mapping[str, datetime] = field(default_factory=dict)
    repair_policies: tuple[RepairPolicy, ...] = ()

    def without(self, names: Collection[str]) -> DisruptionProblem:
        """Return the problem with these nodes marked as being deleted."""
        return replace(self, snapshot=self.snapshot.fork(closed=names))

    def with_pods(self, keys: Collection[str], changed: PodChange) -> DisruptionProblem:
        """Return the problem in which these running pods are changed."""
        pods = tuple(changed(pod) if pod.key in keys else pod for pod in self.snapshot.pods)
        return replace(self, snapshot=replace(self.snapshot, pods=pods))
