"""What disruption is asked: a cluster at a moment, and how far it may go."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controller.apis.nodepool import NodePool
from controller.apis.pods import Pod
from controller.options import Options
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot

CALM_EVICTION_PRICE = 0.01
"""$ that moving one ordinary pod costs: what a pod of one CPU takes of a node on demand in some
fifteen minutes, for it starts anew and warms up while its old place is still paid for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionSettings:
    """How dear a disruption is, and what is allowed at all."""

    eviction_price: float = CALM_EVICTION_PRICE
    """$ for moving one pod of ordinary eviction cost; 0 counts savings alone."""

    horizon: timedelta = timedelta(hours=2)
    """How long a saving is expected to last at most: what a move costs must come back within it.
    It lasts as long as the workloads that move have run, where that is shorter."""

    cool_down: timedelta = timedelta(minutes=10)
    """For how long after its start moving a pod again costs more, up to three times as much; and
    how long a saving is expected to last at least, however young a workload is."""

    image_soak: timedelta = timedelta(minutes=10)
    """For how long the first node of a pool that runs a new machine image is watched before others
    follow it; 0 lets all follow as fast as budgets allow."""

    surge: bool = False
    """Whether Deployments of a single pod are rolled where they ask for it: no
    PodDisruptionBudget stands in the way of that."""

    instalments: bool = True
    """Whether nodes whose going together pays may go one after the other where budgets do not let
    all of them go at once: what is to take in all their pods comes with the first."""

    spot_to_spot: bool = False
    """`FEATURE_GATES` SpotToSpotConsolidation: whether spot nodes may be replaced by spot nodes."""


def settings_of(options: Options) -> DisruptionSettings:
    """Return what the controller's settings say of it."""
    return DisruptionSettings(
        eviction_price=options.disruption_eviction_price,
        horizon=options.disruption_horizon,
        cool_down=options.disruption_cool_down,
        image_soak=options.disruption_image_soak,
        surge=options.surge_single_replicas,
        spot_to_spot=options.feature_gates.spot_to_spot_consolidation,
    )


UNCALM = DisruptionSettings(eviction_price=0.0, image_soak=timedelta(0), instalments=False)
"""Every saving counts, whatever it moves, and each by itself: what Karpenter does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionProblem:
    """A cluster at a moment.

    `snapshot` has the nodes, the pods that run, and the dynamic pools that are ready;
    `node_pools` are all of them, by name. `pending` pods wait for a node, and get one from
    somebody else: here they only take room. `resting` nodes could not be disrupted a moment ago,
    and are let stay for a while; so are those that are `awaiting` what an earlier controller made
    in their place, by the names of both, and those that are `kept`, each for the reason told.
    `begun` is when workloads began to run, by their owner's UID, as far as that is remembered: pods
    that have been moved do not tell.
    """

    snapshot: Snapshot
    node_pools: Mapping[str, NodePool]
    now: datetime
    pending: tuple[Pod, ...] = ()
    scheduling: Settings = field(default_factory=Settings)
    settings: DisruptionSettings = field(default_factory=DisruptionSettings)
    resting: frozenset[str] = frozenset()
    with_bound: bool = False
    awaiting: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    begun: Mapping[str, datetime] = field(default_factory=dict)

    def without(self, names: Collection[str]) -> DisruptionProblem:
        """Return the cluster with these nodes on their way out."""
        nodes = tuple(
            replace(node, deleting=True) if node.name in names else node
            for node in self.snapshot.nodes
        )
        return replace(self, snapshot=replace(self.snapshot, nodes=nodes))
