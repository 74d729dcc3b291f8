"""The cheapest nodes for what is left: vector bin packing guided by duals.

The fluid program prices resources on every kind of node and gives every class of
pods a value. A node is filled by adding, again and again, the class whose shape is
nearest to what the node has left, so that its resources run out together. The kind
with the least price per value filled is opened; then the rest is priced again.

From some dozens of pods to some thousands there is a first answer before anything is
priced (`firstfit`).

Axes: classes (pods that are equal here), kinds (types as they can be bought in one
place), resources, groups (rules about pods that share a node), pools × limits.

Constants are set by the cost of mixed and priced worlds and of Karpenter's own (`make race`);
time comes second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Vector
from controller.scheduling.packing.columns import column_generation
from controller.scheduling.packing.firstfit import FirstFit
from controller.scheduling.packing.greedy import fill
from controller.scheduling.packing.pricing import THOROUGH, DualPrices, PriceModel
from controller.scheduling.packing.problem import SLACK, PackingProblem
from controller.scheduling.reporter import SILENT, Reporter

LIKELY = 8
"""How many kinds, those that filled best before, are filled first to find the next node."""

ABOUT_AS_GOOD = 0.001
"""Within how much of the best price per value a larger node is preferred."""

FILLS_WELL, FILLS_BADLY = (1.08, 1.12), (1.2, 1.25)
"""Price per value up to which the kinds at hand will do, in small problems and in large; 1 is
as the program has it.
"""

AT_ONCE, MOST_AT_ONCE = 1.02, 8
"""Up to what multiple of the best price per value nodes are opened beside it, and how many."""

TINY = 1e-7
"""Up to how much of a node counts as none bought by the program; HiGHS has the same tolerance."""

MOST = 1e30
"""The price per value of what holds nobody: above any other."""

LARGE = 20_000
"""From how many pairs of class and kind on a problem is large."""

FEW_PAIRS = 2_000
"""Up to how many pairs whole nodes are combined by a program of their own."""

NEAR_THE_END = 4
"""When what is left is worth less than so many usual nodes, every kind that serves somebody is
looked at: a node that would come out half empty may be of any."""

GOOD_ENOUGH = 1.01
"""At what multiple of the bound the search ends."""

REFINED_SHARES, PATIENCE = (0.3, 0.5, 0.15, 0.7), 3
"""Which shares of the nodes, the worst first, are taken apart in turn; after how many turns
that brought nothing that ends.
"""

FIRST_FIT, MOST_CLASSES = range(50, 10_001), 1_000
"""For how many pods, of how many classes at most, first fit comes before the quick way: fewer
pods are packed in some milliseconds by that, too, and cheaper; more of them, or of their classes,
take as long by one as by the other."""

OTHERS_EVERY = 7
"""Beside the worst nodes every so many-th of the others is taken apart, in each turn other ones:
what the worst lack may be on a good one."""


@dataclass(frozen=True, slots=True)
class OpenedNodes:
    """`copies` equal nodes of a kind, each with `pods` (classes)."""

    kind: int
    pods: Indices
    copies: int = 1


@dataclass(slots=True)
class Packing:
    """The answer, what is left over (classes), and what is left of the limits."""

    opened: list[OpenedNodes] = field(default_factory=list)
    left: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    bound: float = 0.0
    cost: float = 0.0
    headroom: Vector = field(default_factory=lambda: np.zeros(0))

    @property
    def rank(self) -> tuple[int, float]:
        """What to compare by: pods left over, then cost."""
        return int(self.left.sum()), self.cost


@dataclass(slots=True)
class _Progress:
    """Tells of the first answer, and of each that is better than all before."""

    reporter: Reporter
    best: tuple[int, float] | None = None

    def tell(self, packing: Packing) -> None:
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
    """Open nodes for the demand, in several ways, and keep the best.

    The quickest ways come first, so that more time never gives a worse answer. One more is
    enough when it is proven to be about as good as any; none follows when `expired`.
    """
    possible = np.asarray(problem.allowed.any(axis=1))
    if not problem.demand[possible].sum():
        return Packing(left=problem.demand.copy(), headroom=problem.headroom.copy())
    progress = _Progress(reporter)
    first = None
    if int(problem.demand.sum()) in FIRST_FIT and len(problem.demand) <= MOST_CLASSES:
        first = _first_fit(problem)
        if first.left[possible].any():
            first = None  # Whom limits leave over is for prices to say.
        else:
            progress.tell(first)
            if expired():
                return first
    model = PriceModel(problem, hurried=True)
    quickest = _packed(problem, model, possible, model.balances(problem.demand)[0], True)
    progress.tell(quickest)
    if expired():
        return _better_of(quickest, first)
    # A program goes on from what it solved last: the other ways start afresh.
    model = PriceModel(problem)
    best = _best_of_balances(problem, model, possible, expired)
    progress.tell(best)
    for packing in (best, quickest) if quickest.rank < best.rank else (best,):
        if not packing.left[possible].any():
            _better(problem, model, packing, refinements, expired, progress)
    return _better_of(min(quickest, best, key=lambda packing: packing.rank), first)


def _better_of(packing: Packing, first: Packing | None) -> Packing:
    """Return the answer, or the first one if that is cheaper.

    That leaves nobody over, so that what bounds the cost of others bounds its own.
    """
    if first is None or packing.rank <= first.rank:
        return packing
    return replace(first, bound=packing.bound)


def _first_fit(problem: PackingProblem) -> Packing:
    """Open nodes by first fit, each as the cheapest kind that holds its pods; nothing is proven."""
    found = FirstFit.of(problem)
    equal: defaultdict[tuple[int, bytes], list[Indices]] = defaultdict(list)
    for kind, pods in zip(found.kind.tolist(), found.pods, strict=True):
        equal[kind, pods.tobytes()].append(pods)
    packing = Packing(
        opened=[OpenedNodes(kind, alike[0], len(alike)) for (kind, _), alike in equal.items()],
        left=found.left,
        headroom=found.headroom,
    )
    _exchange(problem, packing)
    return packing


def _best_of_balances(
    problem: PackingProblem, model: PriceModel, possible: Mask, expired: Callable[[], bool]
) -> Packing:
    """Pack with each way to weigh shapes, until that will do; a large problem with one."""
    balances = model.balances(problem.demand)
    first, *others = balances if problem.allowed.size <= THOROUGH else balances[:1]
    best = _packed(problem, model, possible, first, False)
    for balance in others:
        if expired() or _will_do(best):
            break
        best = min(best, _packed(problem, model, possible, balance, False), key=lambda p: p.rank)
    return best


def _better(
    problem: PackingProblem,
    model: PriceModel,
    packing: Packing,
    refinements: int,
    expired: Callable[[], bool],
    progress: _Progress,
) -> None:
    """Take nodes apart and put them together again as long as that brings something; it is
    never worse for it.
    """
    work, in_vain = problem.allowed.size, 0
    for turn in range(min(refinements, 2 * THOROUGH // work)):
        if expired() or _will_do(packing) or in_vain == PATIENCE:
            break
        in_vain = 0 if _refine(problem, model, packing, turn) else in_vain + 1
        progress.tell(packing)
    if work <= FEW_PAIRS and not _will_do(packing) and not expired():
        _combined(problem, model, packing, expired)
        progress.tell(packing)


def _combined(
    problem: PackingProblem, model: PriceModel, best: Packing, expired: Callable[[], bool]
) -> None:
    """Buy whole nodes by a program over patterns, and pack the rest; keep that if it is
    cheaper.
    """
    dual_prices = model.dual_prices(problem.demand, balance=0.0)
    patterns = [(node.kind, node.pods) for node in best.opened]
    served = replace(problem, demand=problem.demand - best.left)
    opened = [
        OpenedNodes(*pattern)
        for pattern in column_generation(served, dual_prices, patterns, expired=expired)
    ]
    if expired():
        return  # What was cut short may be better than what it would have come to.
    demand = served.demand - sum(node.pods * node.copies for node in opened)
    consumed = sum(problem.consumption[node.kind] * node.copies for node in opened)
    rest = replace(problem, demand=demand, headroom=problem.headroom - consumed)
    packing = Packing(left=demand, headroom=rest.headroom)
    if demand.any():
        packing = _packed(rest, model, demand > 0, 0.0, False)
    cost = packing.cost + sum(float(problem.prices[node.kind]) * node.copies for node in opened)
    if not packing.left.any() and cost < best.cost - SLACK:
        best.opened = [*opened, *packing.opened]
        best.headroom, best.cost = packing.headroom, cost


def _will_do(packing: Packing) -> bool:
    """Whether the answer is proven good enough."""
    return packing.cost <= packing.bound * GOOD_ENOUGH


def _refine(problem: PackingProblem, model: PriceModel, best: Packing, turn: int) -> bool:
    """Take the worst nodes apart, and some others with them, and pack their pods anew;
    keep that if it is cheaper. False if it is not.

    Ruin and recreate, after Schrimpf, Schneider, Stamm-Wilbrandt and Dueck (2000), which
    accepts only what is better.
    """
    nodes = [OpenedNodes(node.kind, node.pods) for node in best.opened for _ in range(node.copies)]
    values = model.dual_prices(problem.demand, balance=0.0).values
    waste = [-float(node.pods @ values) / float(problem.prices[node.kind]) for node in nodes]
    order = np.argsort(-np.array(waste), kind="stable")
    worst = order[: max(2, int(len(nodes) * REFINED_SHARES[turn % len(REFINED_SHARES)]))]
    others = order[len(worst) + turn % OTHERS_EVERY :: OTHERS_EVERY]
    chosen = {*worst.tolist(), *others.tolist()}
    demand = np.sum([nodes[place].pods for place in chosen], axis=0)
    consumed = sum(problem.consumption[nodes[place].kind] for place in chosen)
    part = replace(problem, demand=demand, headroom=best.headroom + consumed)
    balances = model.balances(demand)
    balance = balances[turn % len(balances)]
    packing = _packed(part, model, np.ones(len(demand), dtype=np.bool_), balance, False)
    before = sum(float(problem.prices[nodes[place].kind]) for place in chosen)
    cheaper = not packing.left.any() and packing.cost < before - SLACK
    if cheaper:
        kept = [node for place, node in enumerate(nodes) if place not in chosen]
        best.opened = [*kept, *packing.opened]
        best.headroom = packing.headroom
        best.cost += packing.cost - before
    return cheaper


def _packed(
    problem: PackingProblem, model: PriceModel, possible: Mask, balance: float, hurried: bool
) -> Packing:
    """Open nodes, each as the cheapest kind that holds its pods, as far as limits go."""
    packing = _opened(problem, model, possible, balance, hurried)
    _exchange(problem, packing)
    further = packing
    while further.opened and packing.left[possible].any() and len(problem.headroom):
        # A cheaper kind may draw less on the limits: what it leaves is there for others.
        rest = replace(problem, demand=packing.left, headroom=packing.headroom)
        further = _opened(rest, model, possible, balance, hurried)
        _exchange(rest, further)
        packing.opened += further.opened
        packing.left, packing.headroom = further.left, further.headroom
        packing.cost += further.cost
    return packing


def _opened(
    problem: PackingProblem, model: PriceModel, possible: Mask, balance: float, hurried: bool
) -> Packing:
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
    packed = np.where(possible, problem.demand, 0) - packing.left
    packing.bound = max(float(packed @ proof.values + proof.limit_value), 0.0)
    packing.left = packing.left + np.where(possible, 0, problem.demand)
    return packing


def _exchange(problem: PackingProblem, packing: Packing) -> None:
    """Turn every node into the cheapest kind that holds the same pods in the same places."""
    cost = 0.0
    for place, opened in enumerate(packing.opened):
        used = opened.pods > 0
        asked = opened.pods @ problem.sizes
        fits = problem.allowed[used].all(axis=0) & (problem.room >= asked - SLACK).all(axis=1)
        consumed = problem.consumption[opened.kind]
        fits &= (problem.consumption <= consumed).all(axis=1)
        kind = int(np.where(fits, problem.prices, np.inf).argmin())
        packing.headroom += (consumed - problem.consumption[kind]) * opened.copies
        packing.opened[place] = OpenedNodes(kind, opened.pods, opened.copies)
        cost += float(problem.prices[kind]) * opened.copies
    packing.cost = cost


def _sweep(
    problem: PackingProblem,
    packing: Packing,
    dual_prices: DualPrices,
    model: PriceModel,
    hurried: bool,
) -> None:
    """Open nodes until a share of the value is packed, kinds by price per value."""
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
    """Open the nodes that cost least per value, of each kind a share of what the program would
    buy; return the value `packed` before, and with them.
    """
    opened, best = 0, filled_nodes.score.min()
    # Of kinds about as good the one that takes most: fewer nodes to run.
    nearly = np.floor((filled_nodes.score / best - 1) / ABOUT_AS_GOOD)
    for place in np.lexsort((filled_nodes.kinds, -filled_nodes.value, nearly)):
        if opened and (filled_nodes.score[place] > best * AT_ONCE or opened > MOST_AT_ONCE):
            break
        kind, pods = int(filled_nodes.kinds[place]), filled_nodes.filled[place]
        wanted = max(1, int(spend.nodes(kind) * share))
        copies = min(wanted, _possible(problem, packing, kind, pods))
        if copies <= 0:
            continue
        packing.opened.append(OpenedNodes(kind, pods.copy(), copies))
        packing.left = packing.left - pods * copies
        packing.headroom -= problem.consumption[kind] * copies
        spend.draw(kind, copies)
        packed += float(filled_nodes.value[place]) * copies
        opened += 1
    return packed


class Spend:
    """What the program would spend on each family of kinds: same places, like shape.

    Within a family sizes cost about the same per unit, so which of them the program
    bought says little; how much of the family, a lot.
    """

    def __init__(self, dual_prices: DualPrices, problem: PackingProblem, family: Indices) -> None:
        """Start with the program's purchase; `family` (kinds) numbers the families."""
        self._family = family
        self._prices = problem.prices
        self._left = np.bincount(self._family, weights=dual_prices.bought * problem.prices)
        self._bought = dual_prices.bought.copy()
        self._worthy = dual_prices.tight | (dual_prices.bought > TINY)
        prices = problem.prices[dual_prices.bought > TINY]
        self.usual = float(np.median(prices)) if len(prices) else 0.0

    def open(self, *, siblings: bool) -> Mask:
        """Mark the kinds the program bought, or also their `siblings` that are worth their
        price, of families on which something is left to spend.
        """
        if not siblings:
            return np.asarray(self._bought > TINY)
        return np.asarray((self._left > TINY)[self._family] & self._worthy)

    def nodes(self, kind: int) -> float:
        """Return how many nodes of a kind are still to be bought, or would be for the rest
        of its family's spend.
        """
        of_family = self._left[self._family[kind]] / self._prices[kind]
        return float(self._bought[kind] if self._bought[kind] > TINY else of_family)

    def draw(self, kind: int, copies: int) -> None:
        """Spend."""
        self._left[self._family[kind]] -= copies * self._prices[kind]
        self._bought[kind] -= copies


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledNodes:
    """`kinds` with what each would be `filled` with (kinds × classes), the value of that, and
    the price per value, `score`.
    """

    kinds: Indices
    filled: Indices
    value: Vector
    score: Vector


@dataclass(frozen=True, slots=True)
class FillCache:
    """How kinds were filled last: with what (kinds × classes), at what price per value
    (kinds; 0 for those not filled yet).
    """

    filled: Indices
    score: Vector

    @classmethod
    def empty(cls, problem: PackingProblem) -> FillCache:
        """Start without any."""
        kinds = len(problem.prices)
        return cls(np.zeros((kinds, len(problem.demand)), dtype=np.int64), np.zeros(kinds))


def _filled_nodes(
    problem: PackingProblem,
    packing: Packing,
    spend: Spend,
    dual_prices: DualPrices,
    rest: float,
    fill_cache: FillCache,
) -> FilledNodes | None:
    """Fill the kinds that the program bought; if none fills well, more of them; near the
    end all that serve somebody.
    """
    serves = np.asarray(problem.allowed[packing.left > 0].any(axis=0))
    usable = serves & np.asarray((problem.consumption <= packing.headroom + SLACK).all(axis=1))
    choices = [(usable, MOST)]
    large = problem.allowed.size > LARGE
    if rest >= NEAR_THE_END * spend.usual:
        choices.insert(0, (usable & spend.open(siblings=True), FILLS_BADLY[large]))
        choices.insert(0, (usable & spend.open(siblings=False), FILLS_WELL[large]))
    for chosen, enough in choices:
        kinds = np.flatnonzero(chosen)
        if len(kinds):
            filled_nodes = _likeliest(problem, kinds, packing.left, dual_prices, fill_cache)
            if filled_nodes.score.min() < enough:
                return filled_nodes
    return None


def _likeliest(
    problem: PackingProblem,
    kinds: Indices,
    left: Indices,
    dual_prices: DualPrices,
    fill_cache: FillCache,
) -> FilledNodes:
    """Fill the kinds that filled best before, until no other was any better then.

    What is left only gets less, and so do the ways to fill a node well. What a kind was
    filled with before, as far as it is still there, it is filled with again.
    """
    known = fill_cache.score
    order = kinds[np.argsort(known[kinds], kind="stable")]
    width = max(LIKELY, int((known[kinds] == 0).sum()))
    done, best, parts = 0, MOST, []
    while done < len(order) and (not done or best > known[order[done]]):
        batch = order[done : done + width]
        filled = fill(problem, batch, np.minimum(fill_cache.filled[batch], left), left, dual_prices)
        fill_cache.filled[batch] = filled
        value = filled @ dual_prices.values
        score = np.where(value > 0, problem.prices[batch] / np.maximum(value, SLACK), MOST)
        known[batch] = score
        best = min(best, float(score.min()))
        parts.append(FilledNodes(kinds=batch, filled=filled, value=value, score=score))
        done, width = done + len(batch), 2 * width
    if len(parts) == 1:
        return parts[0]
    return FilledNodes(
        kinds=np.concatenate([part.kinds for part in parts]),
        filled=np.concatenate([part.filled for part in parts]),
        value=np.concatenate([part.value for part in parts]),
        score=np.concatenate([part.score for part in parts]),
    )


def _possible(problem: PackingProblem, packing: Packing, kind: int, pods: Indices) -> int:
    """Return how many equal nodes the pods that are left and the pool limits allow."""
    used = pods > 0
    possible = int((packing.left[used] // pods[used]).min()) if used.any() else 0
    consumed = problem.consumption[kind] > 0
    if consumed.any():
        headroom = (packing.headroom[consumed] + SLACK) // problem.consumption[kind][consumed]
        possible = min(possible, int(headroom.min()))
    return possible
