"""The content of `SCHEDULER_CONFIG`: the part of kube-scheduler's configuration that Joiner uses.

podTopologySpread:
  defaultConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from controller.apis.kubernetes.meta import Wire
from controller.apis.kubernetes.pods import TopologySpreadConstraint

Policy = Literal["Honor", "Ignore"]


class DefaultConstraint(Wire, forbid_unknown_fields=True):
    """A default spread constraint; each pod's own labels determine its selector."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    min_domains: int | None = None
    node_affinity_policy: Policy | None = None
    node_taints_policy: Policy | None = None


class PodTopologySpread(Wire, forbid_unknown_fields=True):
    """The default spread constraints of pods without constraints."""

    default_constraints: list[DefaultConstraint] = []


class SchedulerConfig(Wire, forbid_unknown_fields=True):
    """The content of `SCHEDULER_CONFIG`."""

    pod_topology_spread: PodTopologySpread = PodTopologySpread()


def document(setting: str) -> Any:
    """Return the parsed content of `SCHEDULER_CONFIG`; None if it is empty.

    The setting is a YAML or JSON document. If it is one line of plain text, it is the path of a
    file that contains the document.

    Raises:
        OSError: the file cannot be read.
        yaml.YAMLError: the document is not YAML.

    """
    content = yaml.safe_load(setting)
    return yaml.safe_load(Path(content).read_text()) if isinstance(content, str) else content


def default_constraints(content: Any) -> tuple[TopologySpreadConstraint, ...]:
    """Return the default spread constraints in the parsed content of `SCHEDULER_CONFIG`.

    The result is empty if `content` is None, as `document` returns it for an empty setting.

    Raises:
        ValueError: the content is invalid; the message names the field.

    """
    if content is None:
        return ()
    config = msgspec.convert(content, SchedulerConfig)
    constraints = config.pod_topology_spread.default_constraints
    for index, constraint in enumerate(constraints):
        where = f"podTopologySpread.defaultConstraints[{index}]"
        if constraint.max_skew < 1:
            raise ValueError(f"{where}.maxSkew: {constraint.max_skew}; allowed is at least 1")
        if constraint.min_domains is not None and (
            constraint.min_domains < 1 or constraint.when_unsatisfiable != "DoNotSchedule"
        ):
            raise ValueError(
                f"{where}.minDomains: {constraint.min_domains}; allowed is at least 1, and only "
                "with whenUnsatisfiable: DoNotSchedule"
            )
        if not constraint.topology_key:
            raise ValueError(f"{where}.topologyKey: required")
        if any(_identity(constraint) == _identity(other) for other in constraints[:index]):
            raise ValueError(
                f"{where}: topologyKey {constraint.topology_key} with whenUnsatisfiable "
                f"{constraint.when_unsatisfiable} is listed twice; remove one of them"
            )
    return tuple(
        msgspec.convert(msgspec.to_builtins(constraint), TopologySpreadConstraint)
        for constraint in constraints
    )


def _identity(constraint: DefaultConstraint) -> tuple[str, str]:
    return constraint.topology_key, constraint.when_unsatisfiable
