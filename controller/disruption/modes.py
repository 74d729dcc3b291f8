"""How far disruption may go with the nodes of a pool: act, recommend, or only observe."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from controller.apis import labels
from controller.apis.nodepool import NodePool
from controller.disruption.problem import DisruptionProblem


class Mode(Enum):
    """What becomes of a decision, from the freest to the strictest."""

    ACT = "act"
    RECOMMEND = "recommend"
    OBSERVE = "observe"


_ORDER = tuple(Mode)


def mode_of(pool: NodePool, everywhere: Mode) -> Mode:
    """Return the mode of a pool: its own or that of all, whichever is stricter.

    An annotation that cannot be read counts as the strictest.
    """
    named = pool.metadata.annotations.get(labels.DISRUPTION_MODE)
    if named is None:
        return everywhere
    own = Mode(named) if is_mode(named) else Mode.OBSERVE
    return max(own, everywhere, key=_ORDER.index)


def is_mode(text: str) -> bool:
    """Whether a text names a mode."""
    return any(text == mode.value for mode in Mode)


def apart(problem: DisruptionProblem, everywhere: Mode) -> dict[Mode, DisruptionProblem]:
    """Return for each mode that some pool has the problem in which other pools' nodes stay.

    Each mode is thought about by itself: a decision that needs a person's word must not hold up
    one that does not.
    """
    modes = {name: mode_of(pool, everywhere) for name, pool in problem.node_pools.items()}
    return {mode: _kept(problem, modes, mode) for mode in _ORDER if mode in modes.values()}


def _kept(problem: DisruptionProblem, modes: dict[str, Mode], mine: Mode) -> DisruptionProblem:
    others = {
        state.name: f"NodePool {state.node_pool} is in the mode {modes[state.node_pool].value}"
        for state in problem.snapshot.nodes
        if modes.get(state.node_pool, mine) is not mine
    }
    return replace(problem, kept={**problem.kept, **others}) if others else problem
