"""Disruption modes of a NodePool: act, recommend, or only observe."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from controller.apis import labels
from controller.apis.karpenter.annotations import DISRUPTION_MODES
from controller.apis.karpenter.nodepool import NodePool
from controller.disruption.problem import DisruptionProblem


class Mode(Enum):
    """What Joiner does with a decision: execute, recommend, or only log it (the strictest)."""

    ACT = "act"
    RECOMMEND = "recommend"
    OBSERVE = "observe"


_ORDER = tuple(Mode)


def mode_of(pool: NodePool, default: Mode) -> Mode:
    """Return the mode of a NodePool: its annotation or the controller's mode, the stricter one.

    An annotation that cannot be read counts as the strictest mode.
    """
    named = pool.metadata.annotations.get(labels.DISRUPTION_MODE)
    if named is None:
        return default
    own = Mode(named) if named in DISRUPTION_MODES else Mode.OBSERVE
    return max(own, default, key=_ORDER.index)


def by_mode(problem: DisruptionProblem, default: Mode) -> dict[Mode, DisruptionProblem]:
    """Return for each mode in use the problem in which nodes of NodePools in other modes stay.

    Each mode is decided separately, so that a decision that waits for approval does not delay one
    that needs none.
    """
    modes = {name: mode_of(pool, default) for name, pool in problem.node_pools.items()}
    return {
        mode: _keep_other_modes(problem, modes, mode) for mode in _ORDER if mode in modes.values()
    }


def _keep_other_modes(
    problem: DisruptionProblem, modes: dict[str, Mode], mine: Mode
) -> DisruptionProblem:
    others = {
        state.name: f"NodePool {state.node_pool} is in mode {modes[state.node_pool].value}"
        for state in problem.snapshot.nodes
        if modes.get(state.node_pool, mine) is not mine
    }
    return replace(problem, kept={**problem.kept, **others}) if others else problem
