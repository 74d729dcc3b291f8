"""Plans for a whole cluster: made by the arrays, confirmed by the engine.

A linear program and a search over arrays say which nodes had better go and where their pods find
room (see `relaxation`, `plan` and `search`); the engine buys the new nodes, and so proves what is
saved. Where the arrays find nothing, the engine is asked about nodes that they cannot judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from controller.disruption.model import ClusterModel
from controller.disruption.relaxation import RelaxedPlan, relaxed
from controller.disruption.search import promises, searched
from controller.disruption.sequencing import as_bound
from controller.disruption.simulation import Group, homes_of, names_of
from controller.disruption.weighing import ENGINE_TRIES, MANY_NODES, Weighing
from controller.scheduling.arrays import Mask, Vector


@dataclass(frozen=True, slots=True)
class ConfirmedPlan:
    """What goes, as far as the engine confirms it; the node that stays that each of the pods goes
    to, by its key; and what that saves, evictions paid, in $/h. Where it `is_proven`, the engine
    has found those nodes, and there is nothing to check.
    """

    groups: tuple[Group, ...]
    homes: Mapping[str, str]
    gain: float
    is_proven: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The names of the nodes that go."""
        return names_of(self.groups)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the arrays expect of a cluster: its `model`, in which new nodes may be bought for all
    classes that they may be bought for at all; what emptying each node costs, in $/h; and what
    the linear program makes of it.
    """

    model: ClusterModel
    evictions: Vector
    relaxation: RelaxedPlan

    @classmethod
    def of(cls, weighing: Weighing) -> Outlook | None:
        """Solve the linear program of a cluster; None where there are no arrays."""
        model = weighing.model
        if model is None:
            return None
        evictions = np.array([weighing.costs.get(name, 0.0) for name in model.names])
        worth_new = np.where(_buyable(weighing, model), model.worth_new, np.inf)
        freest = replace(model, worth_new=worth_new)
        return cls(freest, evictions, relaxed(freest, evictions))


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans that are worth it for a whole cluster, the `best` first, and what they were made
    of; without arrays the only one is that empty nodes go.
    """

    weighing: Weighing
    outlook: Outlook | None
    best: tuple[ConfirmedPlan, ...]

    @classmethod
    def of(cls, weighing: Weighing) -> Plans:
        """Make them."""
        outlook = Outlook.of(weighing)
        if outlook is not None:
            return cls(weighing, outlook, tuple(_best_first(weighing, outlook)))
        empty = [node for node in weighing.candidates.values() if not node.moving]
        groups = tuple(Group(leaving=(candidate,)) for candidate in empty)
        return cls(weighing, None, (ConfirmedPlan(groups, {}, 0.0),))


def alone(weighing: Weighing, names: Iterable[str]) -> ConfirmedPlan:
    """Return the first of some nodes, the dearest per eviction first, that the engine finds
    worth it alone.
    """
    candidates, disturbance = weighing.candidates, weighing.disturbance
    ranked = sorted(
        names, key=lambda name: (-candidates[name].price / (1.0 + disturbance[name]), name)
    )
    for name in ranked[:ENGINE_TRIES]:
        departure = None if weighing.expired() else weighing.simulation.without({name})
        good = as_bound(weighing, weighing.approved(departure)) if departure is not None else []
        if good and departure is not None:
            homes = homes_of(departure.results.existing_nodes)
            return ConfirmedPlan(tuple(good), homes, departure.saving, is_proven=True)
    return ConfirmedPlan((), {}, 0.0)


def _best_first(weighing: Weighing, outlook: Outlook) -> list[ConfirmedPlan]:
    """Return the plans in which new nodes are bought, and that in which none are."""
    freest, relaxation = outlook.model, outlook.relaxation
    ways = [freest]
    if np.isfinite(freest.worth_new).any():
        ways.insert(0, replace(freest, worth_new=np.full_like(freest.worth_new, np.inf)))
    plans: list[ConfirmedPlan] = []
    is_large = len(freest.names) > MANY_NODES
    for way in reversed(ways) if is_large else ways:
        if not promises(freest, relaxation) or (is_large and any(p.groups for p in plans)):
            break
        own = relaxation if way is freest else relaxed(way, outlook.evictions)
        plans.append(_confirmed(weighing, way, outlook.evictions, own))
    plans.sort(key=lambda plan: -plan.gain)
    if not any(plan.groups for plan in plans):
        return [_by_engine(weighing, freest)]
    return plans


def _confirmed(
    weighing: Weighing, model: ClusterModel, evictions: Vector, relaxation: RelaxedPlan
) -> ConfirmedPlan:
    """Return the best plan by the arrays, as far as the engine confirms it."""
    plan = searched(model, evictions, relaxation, expired=weighing.expired)
    going = np.flatnonzero(plan.leaving).tolist()
    names = frozenset(model.names[place] for place in going)
    homes = plan.homes(last=_spot_nodes(weighing, model))
    departure = weighing.simulation.carried_out(names, homes)
    if departure is None:
        candidates = weighing.candidates
        stay = frozenset(
            name for name in names for pod in candidates[name].moving if pod.key not in homes
        )
        departure = weighing.simulation.carried_out(names - stay, homes)
    good = weighing.approved(departure) if departure is not None else []
    return ConfirmedPlan(tuple(good), homes, sum(map(weighing.net, good)))


def _by_engine(weighing: Weighing, model: ClusterModel) -> ConfirmedPlan:
    """Return a node that the engine finds worth it alone, of those that arrays cannot judge."""
    odd = model.present[:, model.intricate].any(axis=1)
    return alone(
        weighing, (model.names[place] for place in np.flatnonzero(odd & model.candidate).tolist())
    )


def _buyable(weighing: Weighing, model: ClusterModel) -> Mask:
    """Mark the classes that new nodes may be bought for: where spot is not exchanged for spot,
    those of which some are on other nodes.
    """
    if weighing.problem.settings.spot_to_spot:
        return np.isfinite(model.worth_new)
    others = model.present[~_spot_nodes(weighing, model)].any(axis=0)
    buyable: Mask = others & np.isfinite(model.worth_new)
    return buyable


def _spot_nodes(weighing: Weighing, model: ClusterModel) -> Mask:
    candidates = weighing.candidates
    spot = [name in candidates and candidates[name].is_spot for name in model.names]
    return np.array(spot, dtype=np.bool_)
