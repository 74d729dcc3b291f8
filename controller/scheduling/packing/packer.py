"""Pack pods onto the cheapest new nodes: vector bin packing guided by dual prices.

The fluid program (a linear program that buys nodes in fractions) prices the resources of every node
type and gives every class of pods a value. The packer fills a node by repeatedly adding the class
whose shape is nearest to the node's remaining capacity, so that the node's resources run out
together. It opens the node type with the lowest price per value, then prices the remaining pods
again.

If one node holds all pods and costs no more than the most expensive of them alone, it is the
answer, and no program is solved. For 50 to 10,000 pods, `firstfit` gives a first packing before the
program is solved.

Axes: see `problem`.

The constants minimize the cost of the mixed, priced and Karpenter benchmark clusters (`make race`).
Running time is the second criterion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Vector
from controller.scheduling.packing.columns import column_generation
from controller.scheduling.packing.firstfit import FirstFit
from controller.scheduling.packing.greedy import fill
from controller.scheduling.packing.localsearch import MAX_PODS
from controller.scheduling.packing.pricing import MANY_PAIRS, DualPrices, PriceModel
from controller.scheduling.packing.problem import SLACK, PackingProblem
from controller.scheduling.packing.redistribution import Redistribution
from controller.scheduling.reporter import SILENT, Reporter

FIRST_BATCH = 8
"""Number of node types in the first batch that is filled to find the next node: the node types with
the lowest price per value when they were last filled."""

PRICE_TOLERANCE = 0.001
"""Node types within this share of the best price per value count as equal. Of these the packer
prefers the node type that holds the most value, so that there are fewer nodes."""

FILLS_WELL, FILLS_BADLY = (1.08, 1.12), (1.2, 1.25)
"""Highest price per value at which the packer opens a node type without filling more node types,
for small and for large problems. 1 is the price per value of the fluid program. `FILLS_WELL`
applies to the node types that the program bought, `FILLS_BADLY` to them and their siblings."""

NEAR_BEST, MAX_MORE = 1.02, 8
"""One step opens the best node type and further ones whose price per value is at most this multiple
of the best; and the greatest number of further ones."""

TINY = 1e-7
"""Purchases of the fluid program below this fraction of a node count as none. HiGHS, the solver of
linear programs, has the same tolerance."""

WORST_SCORE = 1e30
"""The price per value of a node that holds no pods; greater than any other."""

LARGE = 20_000
"""Number of pairs of class and node type above which a problem is large."""

FEW_PAIRS = 2_000
"""Number of pairs of class and node type up to which whole nodes are tried as columns."""

LAST_NODES = 4
"""If the remaining pods are worth less than this number of typical nodes, the packer fills every
node type that any of them may use. The last node may be half empty, so a node type that the program
did not buy may be cheapest."""

GOOD_ENOUGH = 1.01
"""The search ends when the cost is at most this multiple of the lower bound."""

REFINED_SHARES, MAX_FAILED_TURNS = (0.3, 0.5, 0.15, 0.7), 3
"""Shares of the nodes, the least value per dollar first, that successive ruin-and-recreate turns
remove; and the number of consecutive turns without improvement after which the search ends."""

FIRST_FIT, MAX_CLASSES = range(50, 10_001), 1_000
"""Numbers of pods, and greatest number of classes, for which first fit runs before the quick
packing. Fewer pods are packed in milliseconds by the quick packing too, and cheaper. With more pods
or classes both take equally long."""

OTHERS_EVERY = 7
"""Ruin and recreate also removes every n-th of the other nodes, different ones in each turn,
because pods that would complete a badly filled node may be on a well filled one."""


@dataclass(frozen=True, slots=True)
class OpenedNodes:
    """Equal new nodes: `copies` nodes of one type, each with `pods` (units per class)."""

    node_type: int
    pods: Indices
    copies: int = 1


@dataclass(slots=True)
class Packing:
    """A solution: the new nodes, the pods without a node, and the remaining limits.

    `left`: units per class without a node. `bound`: a lower bound on the cost, in $/h. `cost`: the
    price of the nodes, in $/h. `headroom`: the remaining amount of each limit. `is_cheapest`: no
    other nodes of the problem hold the demand and cost less.
    """

    opened: list[OpenedNodes] = field(default_factory=list)
    left: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    bound: float = 0.0
    cost: float = 0.0
    headroom: Vector = field(default_factory=lambda: np.zeros(0))
    is_cheapest: bool = False

    @property
    def rank(self) -> tuple[int, float]:
        """The sort key of solutions: pods without a node, then cost; lower is better."""
        return int(self.left.sum()), self.cost


@dataclass(slots=True)
class _Progress:
    """Reports the first packing, and each later one that is better than all before."""

    reporter: Reporter
    best: tuple[int, float] | None = None

    def report(self, packing: Packing) -> None:
        """Report a packing if it is the first or better than all before."""
        if self.best is None or packing.rank < self.best:
            self.best = packing.rank
            self.reporter.nodes_packed(
                nodes=sum(node.copies for node in packing.opened),
                cost=packing.cost,
                bound=packing.bound,
                pods_left=int(packing.left.sum()),
            )


def pack(
    problem: PackingProblem,
    *,
    refinements: int,
    expired: Callable[[], bool],
    reporter: Reporter = SILENT,
) -> Packing:
    """Return the best of several packings of the demand.

    The quickest methods run first, and the best result is kept, so more time never gives a worse
    one. The search ends early when a packing is proven to be within `GOOD_ENOUGH` of the bound.
    After `expired` returns true, no further method starts.

    Args:
        problem: the packing problem.
        refinements: the greatest number of ruin-and-recreate turns.
        expired: returns true when the time for the solve is up.
        reporter: receives the first packing and every better one.

    """
    possible = np.asarray(problem.allowed.any(axis=1))
    if not problem.demand[possible].sum():
        return Packing(left=problem.demand.copy(), headroom=problem.headroom.copy())
    progress = _Progress(reporter)
    if (cheapest := _one_node(problem, possible)) is not None:
        progress.report(cheapest)
        return cheapest
    first = None
    if int(problem.demand.sum()) in FIRST_FIT and len(problem.demand) <= MAX_CLASSES:
        first = _first_fit(problem)
        if first.left[possible].any():
            first = None  # Which pods limits leave out is decided by price.
        else:
            progress.report(first)
            if expired():
                return first
    model = PriceModel(problem, hurried=True)
    quickest = _pack(problem, model, possible, model.balances(problem.demand)[0], True)
    progress.report(quickest)
    if expired():
        return _better_of(quickest, first)
    # A program continues from its last solution. The thorough packings start from a new one, so
    # that their results do not depend on the quick packing.
    model = PriceModel(problem)
    best = _best_of_balances(problem, model, possible, expired)
    progress.report(best)
    for packing in (best, quickest) if quickest.rank < best.rank else (best,):
        if not packing.left[possible].any():
            _improve(problem, model, packing, refinements, expired, progress)
    cheapest = _better_of(min(quickest, best, key=lambda packing: packing.rank), first)
    # For fewer pods, the local search after all purchases finds cheaper nodes without it.
    many = int(problem.demand.sum()) > MAX_PODS
    if many and not (cheapest.left[possible].any() or expired() or _is_good_enough(cheapest)):
        _redistribute(problem, model, cheapest, expired)
        progress.report(cheapest)
    return cheapest


def _one_node(problem: PackingProblem, possible: Mask) -> Packing | None:
    """Return one node for all pods that costs no more than one for the most expensive pod alone.

    No other nodes cost less, so the price is also the lower bound. Returns None if there is no such
    node.
    """
    demand = np.where(possible, problem.demand, 0)
    allowed = problem.allowed[demand > 0]
    fits = allowed.all(axis=0) & (problem.capacity >= demand @ problem.sizes - SLACK).all(axis=1)
    fits &= (problem.consumption <= problem.headroom + SLACK).all(axis=1)
    price = np.where(fits, problem.prices, np.inf)
    node_type = int(price.argmin())
    least = float(np.where(allowed, problem.prices, np.inf).min(axis=1).max())
    if price[node_type] > least or not problem.rules.allow(demand):
        return None
    return Packing(
        opened=[OpenedNodes(node_type, demand)],
        left=problem.demand - demand,
        bound=least,
        cost=least,
        headroom=problem.headroom - problem.consumption[node_type],
        is_cheapest=True,
    )


def _better_of(packing: Packing, first: Packing | None) -> Packing:
    """Return the packing, or the first-fit packing if that is better.

    The first-fit packing leaves no pod without a node, so the bound of the other packing holds for
    it too.
    """
    if first is None or packing.rank <= first.rank:
        return packing
    return replace(first, bound=packing.bound)


def _first_fit(problem: PackingProblem) -> Packing:
    """Return the first-fit packing, without bound; each node has the cheapest type for its pods."""
    first_fit = FirstFit.of(problem)
    equal: defaultdict[tuple[int, bytes], list[Indices]] = defaultdict(list)
    for node_type, pods in zip(first_fit.node_type.tolist(), first_fit.pods, strict=True):
        equal[node_type, pods.tobytes()].append(pods)
    packing = Packing(
        opened=[
            OpenedNodes(node_type, nodes[0], len(nodes)) for (node_type, _), nodes in equal.items()
        ],
        left=first_fit.left,
        headroom=first_fit.headroom,
    )
    _exchange(problem, packing)
    return packing


def _best_of_balances(
    problem: PackingProblem, model: PriceModel, possible: Mask, expired: Callable[[], bool]
) -> Packing:
    """Return the best packing of several weightings of shapes.

    No further weighting is tried once a packing is good enough. A large problem gets only one.
    """
    balances = model.balances(problem.demand)
    first, *others = balances if problem.allowed.size <= MANY_PAIRS else balances[:1]
    best = _pack(problem, model, possible, first, False)
    for balance in others:
        if expired() or _is_good_enough(best):
            break
        best = min(best, _pack(problem, model, possible, balance, False), key=lambda p: p.rank)
    return best


def _improve(
    problem: PackingProblem,
    model: PriceModel,
    packing: Packing,
    refinements: int,
    expired: Callable[[], bool],
    progress: _Progress,
) -> None:
    """Improve a packing in place by ruin and recreate, then by column generation.

    The packing never gets worse. Large problems get fewer turns, because each turn takes longer.
    """
    work, failed_turns = problem.allowed.size, 0
    for turn in range(min(refinements, 2 * MANY_PAIRS // work)):
        if expired() or _is_good_enough(packing) or failed_turns == MAX_FAILED_TURNS:
            break
        failed_turns = 0 if _refine(problem, model, packing, turn) else failed_turns + 1
        progress.report(packing)
    if work <= FEW_PAIRS and not _is_good_enough(packing) and not expired():
        _generate_columns(problem, model, packing, expired)
        progress.report(packing)


def _generate_columns(
    problem: PackingProblem, model: PriceModel, best: Packing, expired: Callable[[], bool]
) -> None:
    """Improve a packing in place by column generation over whole nodes, if that is cheaper.

    The pods that remain after rounding are packed as usual.
    """
    dual_prices = model.dual_prices(problem.demand, balance=0.0)
    patterns = [(node.node_type, node.pods) for node in best.opened]
    served = replace(problem, demand=problem.demand - best.left)
    opened = [
        OpenedNodes(*pattern)
        for pattern in column_generation(served, dual_prices, patterns, expired=expired)
    ]
    if expired():
        # A run that was cut short can be cheaper than a complete one. Keeping it would let more
        # time give a worse packing.
        return
    demand = served.demand - sum(node.pods * node.copies for node in opened)
    consumed = sum(problem.consumption[node.node_type] * node.copies for node in opened)
    rest = replace(problem, demand=demand, headroom=problem.headroom - consumed)
    packing = Packing(left=demand, headroom=rest.headroom)
    if demand.any():
        packing = _pack(rest, model, demand > 0, 0.0, False)
    cost = packing.cost + sum(
        float(problem.prices[node.node_type]) * node.copies for node in opened
    )
    if not packing.left.any() and cost < best.cost - SLACK:
        best.opened = [*opened, *packing.opened]
        best.headroom, best.cost = packing.headroom, cost


def _redistribute(
    problem: PackingProblem, model: PriceModel, packing: Packing, expired: Callable[[], bool]
) -> None:
    """Improve a packing in place by redistributing the pods of single nodes."""
    nodes = [(node.node_type, node.pods) for node in packing.opened for _ in range(node.copies)]
    redistribution = Redistribution(problem, nodes, packing.headroom)
    redistribution.run(model.dual_prices(problem.demand, balance=0.0).values, expired)
    packing.opened = [OpenedNodes(*node) for node in redistribution.nodes()]
    packing.headroom = redistribution.headroom
    packing.cost = float(redistribution.price.sum())


def _is_good_enough(packing: Packing) -> bool:
    """Whether the cost is proven to be within `GOOD_ENOUGH` of the lower bound."""
    return packing.cost <= packing.bound * GOOD_ENOUGH


def _refine(problem: PackingProblem, model: PriceModel, best: Packing, turn: int) -> bool:
    """Pack the pods of the worst nodes and of some others again; return whether that is cheaper.

    If it is not, the packing is unchanged. This is ruin and recreate (Schrimpf, Schneider,
    Stamm-Wilbrandt and Dueck, 2000), but only improvements are accepted.
    """
    nodes = [
        OpenedNodes(node.node_type, node.pods) for node in best.opened for _ in range(node.copies)
    ]
    values = model.dual_prices(problem.demand, balance=0.0).values
    # A node's waste is the negative of the value that its pods have per dollar of its price.
    waste = [-float(node.pods @ values) / float(problem.prices[node.node_type]) for node in nodes]
    order = np.argsort(-np.array(waste), kind="stable")
    worst = order[: max(2, int(len(nodes) * REFINED_SHARES[turn % len(REFINED_SHARES)]))]
    others = order[len(worst) + turn % OTHERS_EVERY :: OTHERS_EVERY]
    chosen = {*worst.tolist(), *others.tolist()}
    demand = np.sum([nodes[index].pods for index in chosen], axis=0)
    # The limits that these nodes use are available again to their replacements.
    consumed = sum(problem.consumption[nodes[index].node_type] for index in chosen)
    part = replace(problem, demand=demand, headroom=best.headroom + consumed)
    balances = model.balances(demand)
    balance = balances[turn % len(balances)]
    packing = _pack(part, model, np.ones(len(demand), dtype=np.bool_), balance, False)
    before = sum(float(problem.prices[nodes[index].node_type]) for index in chosen)
    cheaper = not packing.left.any() and packing.cost < before - SLACK
    if cheaper:
        kept = [node for index, node in enumerate(nodes) if index not in chosen]
        best.opened = [*kept, *packing.opened]
        best.headroom = packing.headroom
        best.cost += packing.cost - before
    return cheaper


def _pack(
    problem: PackingProblem, model: PriceModel, possible: Mask, balance: float, hurried: bool
) -> Packing:
    """Return a packing within limits; each node is the cheapest node type that holds its pods."""
    packing = _open_nodes(problem, model, possible, balance, hurried)
    _exchange(problem, packing)
    further = packing
    while further.opened and packing.left[possible].any() and len(problem.headroom):
        # A cheaper node type may use less of the limits. Other pods can use the difference.
        rest = replace(problem, demand=packing.left, headroom=packing.headroom)
        further = _open_nodes(rest, model, possible, balance, hurried)
        _exchange(rest, further)
        packing.opened += further.opened
        packing.left, packing.headroom = further.left, further.headroom
        packing.cost += further.cost
    return packing


def _open_nodes(
    problem: PackingProblem, model: PriceModel, possible: Mask, balance: float, hurried: bool
) -> Packing:
    """Open nodes in sweeps, each with new dual prices, until no further pod gets a node."""
    # The program leaves out the pods that no node type can hold; `left` gets them back at the end.
    packing = Packing(left=np.where(possible, problem.demand, 0), headroom=problem.headroom.copy())
    proof: DualPrices | None = None
    while packing.left.sum():
        dual_prices = model.dual_prices(packing.left, balance=balance)
        proof = proof or dual_prices
        before = int(packing.left.sum())
        _sweep(problem, packing, dual_prices, model, hurried)
        if int(packing.left.sum()) == before:
            break
    assert proof is not None
    # Only the first prices are for the whole demand. Their values are a feasible dual, so they
    # bound the cost of any subset of it: here the pods that got a node.
    packed = np.where(possible, problem.demand, 0) - packing.left
    packing.bound = max(float(packed @ proof.values + proof.limit_value), 0.0)
    packing.left = packing.left + np.where(possible, 0, problem.demand)
    return packing


def _exchange(problem: PackingProblem, packing: Packing) -> None:
    """Replace the type of each node by the cheapest that holds its pods, in place; set the cost.

    The new node type may use no more of any limit than the old one.
    """
    cost = 0.0
    for index, opened in enumerate(packing.opened):
        used = opened.pods > 0
        load = opened.pods @ problem.sizes
        fits = problem.allowed[used].all(axis=0) & (problem.capacity >= load - SLACK).all(axis=1)
        consumed = problem.consumption[opened.node_type]
        fits &= (problem.consumption <= consumed).all(axis=1)
        node_type = int(np.where(fits, problem.prices, np.inf).argmin())
        packing.headroom += (consumed - problem.consumption[node_type]) * opened.copies
        packing.opened[index] = OpenedNodes(node_type, opened.pods, opened.copies)
        cost += float(problem.prices[node_type]) * opened.copies
    packing.cost = cost


def _sweep(
    problem: PackingProblem,
    packing: Packing,
    dual_prices: DualPrices,
    model: PriceModel,
    hurried: bool,
) -> None:
    """Open nodes, by ascending price per value, until a share of the remaining value is packed.

    If `hurried`, all of it is packed with these dual prices. Otherwise the caller prices the
    remaining pods again, because the prices of the whole demand suit the last nodes badly.
    """
    total = float(packing.left @ dual_prices.values)
    target = total * (1.0 if hurried else model.share)
    packed = 0.0
    spend = Spend(dual_prices, problem, model.family)
    fill_cache = FillCache.empty(problem)
    while packing.left.sum():
        filled_nodes = _filled_nodes(
            problem, packing, spend, dual_prices, total - packed, fill_cache
        )
        if filled_nodes is None:
            return
        # `_open_best` assigns a new array if it opens a node.
        before = packing.left
        packed = _open_best(problem, packing, spend, filled_nodes, model.share, packed)
        if packing.left is before or packed >= target:
            return


def _open_best(
    problem: PackingProblem,
    packing: Packing,
    spend: Spend,
    filled_nodes: FilledNodes,
    share: float,
    packed: float,
) -> float:
    """Open the nodes with the lowest price per value.

    Of each node type a share of the program's purchase is opened. Returns the value packed in this
    sweep: `packed` plus the value of the new nodes.
    """
    opened, best = 0, filled_nodes.score.min()
    # Of node types with about the same price per value take the one that holds the most value:
    # fewer nodes to run.
    score_class = np.floor((filled_nodes.score / best - 1) / PRICE_TOLERANCE)
    for index in np.lexsort((filled_nodes.node_types, -filled_nodes.value, score_class)):
        if opened and (filled_nodes.score[index] > best * NEAR_BEST or opened > MAX_MORE):
            break
        node_type, pods = int(filled_nodes.node_types[index]), filled_nodes.filled[index]
        # Only a share of the purchase: each equal node uses up the pods that complete each other,
        # so after many of them another mix of pods, or another node type, is better.
        wanted = max(1, int(spend.nodes(node_type) * share))
        copies = min(wanted, _possible(problem, packing, node_type, pods))
        if copies <= 0:
            continue
        packing.opened.append(OpenedNodes(node_type, pods.copy(), copies))
        packing.left = packing.left - pods * copies
        packing.headroom -= problem.consumption[node_type] * copies
        spend.subtract(node_type, copies)
        packed += float(filled_nodes.value[index]) * copies
        opened += 1
    return packed


class Spend:
    """The fluid program's remaining budget for each family of node types, in $/h.

    Node types of a family are in the same domains and have a similar ratio of CPU to memory. Sizes
    of a family cost about the same per unit. So the sizes that the program bought matter little,
    but the amount that it spent on the family matters.
    """

    def __init__(self, dual_prices: DualPrices, problem: PackingProblem, family: Indices) -> None:
        """Start with the program's purchase; `family` is the family of each node type."""
        self._family = family
        self._prices = problem.prices
        self._left = np.bincount(self._family, weights=dual_prices.bought * problem.prices)
        self._bought = dual_prices.bought.copy()
        self._worthy = dual_prices.tight | (dual_prices.bought > TINY)
        prices = problem.prices[dual_prices.bought > TINY]
        self.typical_price = median(prices.tolist()) if len(prices) else 0.0

    def open(self, *, siblings: bool) -> Mask:
        """Mark the node types of which the program bought nodes that are not opened yet.

        With `siblings`, mark instead the node types that are worth their price at the dual prices,
        in families with a remaining budget.
        """
        if not siblings:
            return np.asarray(self._bought > TINY)
        return np.asarray((self._left > TINY)[self._family] & self._worthy)

    def nodes(self, node_type: int) -> float:
        """Return the number of nodes of a node type that remain to be bought.

        That is the program's remaining purchase of the node type; if there is none, the number of
        nodes that the family's remaining budget pays for. The number may be fractional.
        """
        of_family = self._left[self._family[node_type]] / self._prices[node_type]
        return float(self._bought[node_type] if self._bought[node_type] > TINY else of_family)

    def subtract(self, node_type: int, copies: int) -> None:
        """Subtract the price of `copies` nodes of a node type from the budget of its family."""
        self._left[self._family[node_type]] -= copies * self._prices[node_type]
        self._bought[node_type] -= copies


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledNodes:
    """One filled node of each of some node types.

    `filled`: node types × classes, units on the node. `value`: node types, their value. `score`:
    node types, price per value.
    """

    node_types: Indices
    filled: Indices
    value: Vector
    score: Vector


@dataclass(frozen=True, slots=True)
class FillCache:
    """How a node of each node type was filled last.

    `filled`: node types × classes, units on the node. `score`: node types, the price of the node
    divided by the value of its pods at the dual prices, 1 being the best; 0 if the node type has
    not been filled yet.
    """

    filled: Indices
    score: Vector

    @classmethod
    def empty(cls, problem: PackingProblem) -> FillCache:
        """Return a cache in which no node type has been filled."""
        node_types = len(problem.prices)
        return cls(
            np.zeros((node_types, len(problem.demand)), dtype=np.int64), np.zeros(node_types)
        )


def _filled_nodes(
    problem: PackingProblem,
    packing: Packing,
    spend: Spend,
    dual_prices: DualPrices,
    rest: float,
    fill_cache: FillCache,
) -> FilledNodes | None:
    """Return filled nodes of the node types to choose from; None if none holds a remaining pod.

    First the node types that the program bought are filled. If none fills well, their siblings are
    filled too, then all node types that a remaining pod may use. For the last few nodes only the
    last step is done.
    """
    serves = np.asarray(problem.allowed[packing.left > 0].any(axis=0))
    usable = serves & np.asarray((problem.consumption <= packing.headroom + SLACK).all(axis=1))
    choices = [(usable, WORST_SCORE)]
    large = problem.allowed.size > LARGE
    if rest >= LAST_NODES * spend.typical_price:
        choices.insert(0, (usable & spend.open(siblings=True), FILLS_BADLY[large]))
        choices.insert(0, (usable & spend.open(siblings=False), FILLS_WELL[large]))
    for chosen, enough in choices:
        node_types = np.flatnonzero(chosen)
        if len(node_types):
            filled_nodes = _fill_best(problem, node_types, packing.left, dual_prices, fill_cache)
            if filled_nodes.score.min() < enough:
                return filled_nodes
    return None


def _fill_best(
    problem: PackingProblem,
    node_types: Indices,
    left: Indices,
    dual_prices: DualPrices,
    fill_cache: FillCache,
) -> FilledNodes:
    """Return filled nodes of the node types that filled best before.

    Stops when no other node type had a lower price per value last time. Demand only shrinks, so a
    node type seldom fills better than before, and its last price per value is a good estimate of
    its least one. Filling starts with the previous pods of the node type that still need a node.
    """
    last_score = fill_cache.score
    order = node_types[np.argsort(last_score[node_types], kind="stable")]
    # Node types that were never filled have score 0, sort first and are all filled in the first
    # batch.
    width = max(FIRST_BATCH, int((last_score[node_types] == 0).sum()))
    done, best, parts = 0, WORST_SCORE, []
    while done < len(order) and (not done or best > last_score[order[done]]):
        batch = order[done : done + width]
        filled = fill(problem, batch, np.minimum(fill_cache.filled[batch], left), left, dual_prices)
        fill_cache.filled[batch] = filled
        # The values are a feasible dual: the pods of a node are worth at most its price. So 1 is
        # the best score, and a score of 1.1 means that a tenth more is paid than the program pays.
        value = filled @ dual_prices.values
        score = np.where(value > 0, problem.prices[batch] / np.maximum(value, SLACK), WORST_SCORE)
        last_score[batch] = score
        best = min(best, float(score.min()))
        parts.append(FilledNodes(node_types=batch, filled=filled, value=value, score=score))
        done, width = done + len(batch), 2 * width
    if len(parts) == 1:
        return parts[0]
    return FilledNodes(
        node_types=np.concatenate([part.node_types for part in parts]),
        filled=np.concatenate([part.filled for part in parts]),
        value=np.concatenate([part.value for part in parts]),
        score=np.concatenate([part.score for part in parts]),
    )


def _possible(problem: PackingProblem, packing: Packing, node_type: int, pods: Indices) -> int:
    """Return the number of equal nodes that the remaining pods and the limits allow."""
    used = pods > 0
    possible = int((packing.left[used] // pods[used]).min()) if used.any() else 0
    consumed = problem.consumption[node_type] > 0
    if consumed.any():
        headroom = (packing.headroom[consumed] + SLACK) // problem.consumption[node_type][consumed]
        possible = min(possible, int(headroom.min()))
    return possible
