"""What `SCHEDULER_CONFIG` says: the part of kube-scheduler's configuration that matters here.

podTopologySpread:
defaultConstraints:
- maxSkew: 1
topologyKey: topology.kubernetes.io/zone
whenUnsatisfiable: ScheduleAnyway
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from controller.apis.meta import Wire
from controller.apis.pods import TopologySpreadConstraint

Policy = Literal["Honor", "Ignore"]


class DefaultConstraint(Wire, forbid_unknown_fields=True):
    """A spread constraint without a selector: whom it counts follows from each pod."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    min_domains: int | None = None
    node_affinity_policy: Policy | None = None
    node_taints_policy: Policy | None = None


class PodTopologySpread(Wire, forbid_unknown_fields=True):
    """How pods spread that say nothing of it themselves."""

    default_constraints: list[DefaultConstraint] = []


class SchedulerConfig(Wire, forbid_unknown_fields=True):
    """The whole of it."""

    pod_topology_spread: PodTopologySpread = PodTopologySpread()


def default_constraints(content: Any) -> tuple[TopologySpreadConstraint, ...]:
    """Read the constraints from plain Python, such as parsed YAML; None is nothing.

    Raises:
        ValueError: it is malformed; the message names the field.

    """
    if content is None:
        return ()
    config = msgspec.convert(content, SchedulerConfig)
    constraints = config.pod_topology_spread.default_constraints
    for place, constraint in enumerate(constraints):
        where = f"podTopologySpread.defaultConstraints[{place}]"
        if constraint.max_skew < 1:
            raise ValueError(f"{where}.maxSkew: {constraint.max_skew} is not at least 1")
        if constraint.min_domains is not None and (
            constraint.min_domains < 1 or constraint.when_unsatisfiable != "DoNotSchedule"
        ):
            raise ValueError(f"{where}.minDomains: must be at least 1, and only with DoNotSchedule")
        if not constraint.topology_key:
            raise ValueError(f"{where}.topologyKey: required")
        if any(_identity(constraint) == _identity(other) for other in constraints[:place]):
            raise ValueError(
                f"{where}: {constraint.topology_key} {constraint.when_unsatisfiable} is there twice"
            )
    return tuple(
        msgspec.convert(msgspec.to_builtins(constraint), TopologySpreadConstraint)
        for constraint in constraints
    )


def _identity(constraint: DefaultConstraint) -> tuple[str, str]:
    return constraint.topology_key, constraint.when_unsatisfiable
