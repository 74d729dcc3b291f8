"""Relax the constraints of unschedulable pods: first the tier of NodePools, then preferences.

The next tier has NodePools of lower weight. Preferences are dropped one by one.
"""

from __future__ import annotations

from controller.scheduling.catalog.launchoptions import LaunchOptions
from controller.scheduling.placement.eligibility import EligibilityReader
from controller.scheduling.pods.groups import Eligibility, PendingGroup
from controller.scheduling.pods.preferences import Relaxed, relaxed
from controller.scheduling.reporter import Reporter

HEAVIER_POOLS = "NodePools of greater weight"


class Relaxation:
    """Relaxes the constraints of pods step by step; equal constraints are relaxed once."""

    def __init__(
        self, *, reader: EligibilityReader, launch_options: LaunchOptions, reporter: Reporter
    ) -> None:
        """Start without relaxed constraints."""
        self._reader, self._launch_options, self._reporter = reader, launch_options, reporter
        self._known: dict[Eligibility, Relaxed | None] = {}

    def attainable(self, pending: PendingGroup) -> PendingGroup:
        """Return the pods without the preferences that no existing or new node can satisfy.

        So these pods are placed together with other pods and not after them.
        """
        while not len(
            self._launch_options.fitting_node_types(pending.eligibility.eligible, pending.size)
        ):
            weaker = self._weaker(pending) if not pending.eligibility.nodes.any() else None
            if weaker is None:
                break
            pending = weaker
        return pending

    def next(self, pending: PendingGroup) -> PendingGroup | None:
        """Return the pods with weaker constraints, or None if nothing is left to relax."""
        if self._reader.next_tier(pending):
            self._reporter.pods_relaxed(pods=pending.number, given_up=HEAVIER_POOLS)
            return pending
        weaker = self._weaker(pending)
        return self.attainable(weaker) if weaker is not None else None

    def _weaker(self, pending: PendingGroup) -> PendingGroup | None:
        """Return the pods with one preference less, or None if they have none."""
        if pending.eligibility not in self._known:
            self._known[pending.eligibility] = relaxed(pending.constraints)
        step = self._known[pending.eligibility]
        if step is None:
            return None
        self._reporter.pods_relaxed(pods=pending.number, given_up=step.given_up)
        return self._reader.pending(pending.pod_class, step.constraints, pending.keys)
