"""Lower bounds on what disruption can reach, with whole nodes: an integer program.

The engine's bound buys, for every pod that may move, its share of the cheapest node. Here each
candidate node stays or is removed as a whole, at its price. Pods of removed nodes move to nodes
that stay or to new nodes. New nodes are also whole, but all new nodes of one type pool their
capacity. Of the rules between pods, the program includes only those that limit how many a node
takes. Of budgets, it asks only whether they let any node of the NodePool go. The program relaxes
the real problem, so no sequence of commands ends below its result.

The same program gives the fewest evictions after which the cost is at most a given amount.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import highspy
import numpy as np

from controller.apis.karpenter.nodeclaim import DRIFTED
from controller.apis.kubernetes import conditions
from controller.disruption import candidates
from controller.disruption.budgets import allowed_disruptions, consumption
from controller.disruption.commands import Candidate, Reason
from controller.disruption.methods.consolidation import method as consolidation
from controller.disruption.methods.emptiness import should_disrupt
from controller.disruption.model import ClusterModel
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Simulation
from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.packing.fluid import empty_program
from controller.scheduling.settings import IGNORE
from controller.scheduling.topology.rules import further

GAP = 1e-3
"""Relative gap between the proven bound and the best solution at which the solver stops."""


@dataclass(frozen=True, slots=True)
class Reachable:
    """What the program proves about every course, that is, every sequence of commands.

    No course ends below `cost`, in $/h. No course ends below `keeping_spot` unless it launches new
    nodes for pods that all run on spot nodes. A course that ends at `reached` $/h or less, the
    argument of `reachable`, evicts at least `evictions` pods.
    """

    cost: float
    keeping_spot: float
    evictions: float


def reachable(problem: DisruptionProblem, *, reached: float, seconds: float) -> Reachable:
    """Return the bounds on the cost and the evictions of every course.

    `reached` is the cost in $/h for which the evictions are bounded. `seconds` limits each of the
    three proofs. A proof that runs out of time gives a weaker bound.
    """
    # The scheduler drops preferences of pods that fit nowhere else, so they cannot be constraints.
    ignoring = replace(problem.scheduling, preference_policy=IGNORE)
    problem = replace(problem, scheduling=ignoring)
    survey = candidates.survey(problem).admitted
    open_ = [candidate for candidate in survey if candidate.price and _may_go(candidate, problem)]
    staying = candidates.cost(problem) - sum(candidate.price for candidate in open_)
    model = Simulation(problem, survey).model([candidate.name for candidate in open_])
    if model is None:
        return Reachable(staying, staying, 0.0)
    spot = {candidate.name for candidate in open_ if candidate.is_spot}
    elsewhere = np.array([name not in spot for name in model.names], dtype=np.bool_)
    all_classes = np.ones(len(model.sizes), dtype=np.bool_)
    others: Mask = model.present[elsewhere & model.candidate].sum(axis=0) > 0
    program = _Program(model, all_classes)
    return Reachable(
        staying + program.least_cost(seconds),
        staying + _Program(model, others).least_cost(seconds),
        program.fewest_evictions(reached - staying, seconds),
    )


def _may_go(candidate: Candidate, problem: DisruptionProblem) -> bool:
    """Whether some method may disrupt the node, now or after other nodes are removed."""
    reasons = set()
    if consolidation.obstacle(candidate, problem.now) is None:
        reasons.add(Reason.UNDERUTILIZED)
    if should_disrupt(candidate):
        reasons.add(Reason.EMPTY)
    if conditions.is_true(candidate.claim.status.conditions, DRIFTED):
        reasons.add(Reason.DRIFTED)
    total, _ = consumption(problem.snapshot.nodes)
    pool, nodes = candidate.node_pool, total[candidate.pool]
    return any(
        allowed_disruptions(pool, reason, nodes=nodes, consuming=0, now=problem.now)
        for reason in reasons
    )


class _Program:
    """The integer program over nodes, classes of equal pods and new node types.

    Columns: whether a candidate node stays; how many pods of a class move to a node that stays; how
    many new nodes of a type are launched; how many pods of a class go to them.
    """

    def __init__(self, model: ClusterModel, bought_for: Mask) -> None:
        """Build the program; new nodes may be launched for the classes in `bought_for`."""
        self._model = model
        self._cost: list[float] = []
        self._upper: list[float] = []
        self._whole: list[bool] = []
        self._rows: list[tuple[list[int], list[float], float]] = []
        self._candidates = np.flatnonzero(model.candidate).tolist()
        self._kept = {
            node: self._column(float(model.price[node]), upper=1.0) for node in self._candidates
        }
        self._total = model.present[model.candidate].sum(axis=0)
        self._moved: list[list[int]] = [[] for _ in self._total]
        for node in np.flatnonzero(model.takes).tolist():
            self._take_in(node)
        packing = model.packing
        buyable = packing.allowed & bought_for[:, None]
        for kind in np.flatnonzero(buyable.any(axis=0)).tolist():
            self._buy(kind, np.flatnonzero(buyable[:, kind]))
        for number, moved in enumerate(self._moved):
            homes = {
                self._kept[node]: float(model.present[node, number])
                for node in self._candidates
                if model.present[node, number]
            }
            # Every pod of a class is on its own node if that stays, on another node that stays, or
            # on a new one. Without this row, removing all nodes would cost nothing.
            self._at_most(
                [*moved, *homes],
                [-1.0] * len(moved) + [-count for count in homes.values()],
                -float(self._total[number]),
            )

    def _column(self, cost: float, *, upper: float = np.inf, whole: bool = True) -> int:
        self._cost.append(cost)
        self._upper.append(upper)
        self._whole.append(whole)
        return len(self._cost) - 1

    def _at_most(self, columns: list[int], amounts: list[float], most: float) -> None:
        self._rows.append((columns, amounts, most))

    def _take_in(self, node: int) -> None:
        """Add columns for pods that move to this node, as long as it stays."""
        model, free = self._model, np.maximum(self._model.free[node], 0.0)
        fits = (model.sizes <= free + 1e-9).all(axis=1) & model.allowed[node]
        classes = np.flatnonzero(fits & (self._total > 0))
        most = np.minimum(_times(model.sizes[classes], free), self._total[classes])
        for place, number in enumerate(classes.tolist()):
            for rule in model.rules[number].owned:
                if rule.is_local:
                    # Pods on the node keep others out. They leave only if the node is removed, and
                    # then it takes no pods at all, so they count for the whole program.
                    counts = rule.population(model.present)
                    left = further(rule.group, counts, own=number in rule.members)[node]
                    most[place] = min(most[place], left)
        columns = [self._column(0.0, upper=float(many)) for many in most]
        for number, column in zip(classes.tolist(), columns, strict=True):
            self._moved[number].append(column)
        stays = self._kept.get(node)
        self._share(columns, model.sizes[classes], free, stays)
        if stays is not None:
            for column, many in zip(columns, most.tolist(), strict=True):
                self._at_most([column, stays], [1.0, -many], 0.0)

    def _buy(self, kind: int, classes: Indices) -> None:
        """Add a column for new nodes of a type, and columns for pods of these classes on them."""
        packing = self._model.packing
        capacity, sizes = packing.capacity[kind], packing.sizes[classes]
        bought = self._column(float(packing.prices[kind]))
        columns = [self._column(0.0, whole=False) for _ in classes]
        for number, column in zip(classes.tolist(), columns, strict=True):
            self._moved[number].append(column)
        self._share(columns, sizes, capacity, bought)
        most = np.minimum(_times(sizes, capacity), self._total[classes])
        for column, many in zip(columns, most.tolist(), strict=True):
            self._at_most([column, bought], [1.0, -many], 0.0)
        rules = packing.rules
        both = rules.owned[:, classes] & rules.counted[:, classes]
        for group in np.flatnonzero(~rules.repels & both.any(axis=1)).tolist():
            some = [columns[place] for place in np.flatnonzero(both[group]).tolist()]
            self._at_most([*some, bought], [1.0] * len(some) + [-float(rules.limit[group])], 0.0)

    def _share(
        self, columns: Sequence[int], sizes: Matrix, capacity: Vector, there: int | None
    ) -> None:
        """Add capacity rows: pods share a node, or as many nodes as the column `there` says."""
        scale = np.maximum(self._model.capacity.max(axis=0, initial=0.0), 1.0)[: len(capacity)]
        for resource in np.flatnonzero(sizes.any(axis=0)).tolist():
            amounts = (sizes[:, resource] / scale[resource]).tolist()
            most = float(capacity[resource] / scale[resource])
            if there is None:
                self._at_most(list(columns), amounts, most)
            else:
                self._at_most([*columns, there], [*amounts, -most], 0.0)

    def least_cost(self, seconds: float) -> float:
        """Return the least cost of the candidates that stay and of the new nodes, in $/h."""
        return self._proven(np.array(self._cost), self._rows, seconds)

    def fewest_evictions(self, cost: float, seconds: float) -> float:
        """Return the fewest evictions after which these nodes cost at most `cost`, in $/h."""
        pods = self._model.present[self._candidates].sum(axis=1)
        saved = np.zeros(len(self._cost))
        saved[list(self._kept.values())] = -pods
        priced = [column for column, price in enumerate(self._cost) if price]
        limit = (priced, [self._cost[column] for column in priced], cost * (1 + 1e-9))
        return float(pods.sum()) + self._proven(saved, [*self._rows, limit], seconds)

    def _proven(
        self,
        cost: Vector,
        rows: Sequence[tuple[list[int], list[float], float]],
        seconds: float,
    ) -> float:
        """Return the solver's proven lower bound after at most `seconds`."""
        program = empty_program()
        program.setOptionValue("time_limit", seconds)
        program.setOptionValue("mip_rel_gap", GAP)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(cost), len(rows)
        lp.col_cost_, lp.col_lower_ = cost, np.zeros(len(cost))
        lp.col_upper_ = np.minimum(self._upper, highspy.kHighsInf)
        lp.row_lower_ = np.full(len(rows), -highspy.kHighsInf)
        lp.row_upper_ = np.array([most for _, _, most in rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lengths = [len(columns) for columns, _, _ in rows]
        lp.a_matrix_.start_ = np.cumsum([0, *lengths]).astype(np.int32)
        lp.a_matrix_.index_ = np.concatenate([columns for columns, _, _ in rows]).astype(np.int32)
        lp.a_matrix_.value_ = np.concatenate([amounts for _, amounts, _ in rows])
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in self._whole]
        program.passModel(lp)
        program.run()
        return float(program.getInfo().mip_dual_bound)


def _times(sizes: Matrix, capacity: Vector) -> Vector:
    """Return how many pods of each class fit into the capacity."""
    asked = np.where(sizes > 0, sizes, 1.0)
    holds: Vector = np.where(sizes > 0, capacity / asked, np.inf).min(axis=1)
    return np.floor(holds + 1e-9)
