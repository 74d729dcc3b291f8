"""Place every pod: on a node that exists, on one that is coming, or on one to be made.

1. Pods become shapes, what can be bought becomes a market.
2. Shape by shape, topology chooses domains, and nodes that exist are filled.
3. What is left is packed onto new nodes by price.
4. Pods that found no place give up a preference and try again; those that have
   nothing left to give up come back with causes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from controller.apis.pods import Pod
from controller.scheduling.encoding.encoding import Catalog
from controller.scheduling.encoding.encoding import catalog as encoded
from controller.scheduling.encoding.nodes import Nodes
from controller.scheduling.encoding.preferences import required
from controller.scheduling.encoding.wishes import Portion, Wish
from controller.scheduling.packing.posing import Poser
from controller.scheduling.packing.proof import Standing, whole_bound
from controller.scheduling.question import Question, along
from controller.scheduling.results import Results
from controller.scheduling.retrying import closed, level
from controller.scheduling.settings import Settings
from controller.scheduling.solving import Solve
from controller.state.snapshot import Snapshot


def never() -> bool:
    """Say that there is no hurry."""
    return False


def schedule(
    pods: Sequence[Pod],
    *,
    snapshot: Snapshot,
    settings: Settings | None = None,
    catalog: Catalog | None = None,
    expired: Callable[[], bool] = never,
) -> Results:
    """Place every pod that waits.

    `catalog` is `encoding.catalog(snapshot)`, kept by callers that ask often about the
    same pools and types. `expired` turns true when time is up: from then on the
    quickest complete answer is taken.
    """
    settings, catalog = settings or Settings(), catalog or encoded(snapshot)

    def asked(world: Snapshot, catalog: Catalog) -> tuple[Solve, Results]:
        question = Question(pods, snapshot=world, settings=settings, catalog=catalog)
        solve = Solve(question, expired)
        return solve, solve.run()

    solve, results = asked(snapshot, catalog)
    if (in_the_way := solve.in_the_way()) and not expired():
        world = closed(snapshot, in_the_way)
        _, again = asked(world, encoded(world))
        if again.unschedulable.keys() < results.unschedulable.keys():
            # What bounds the cost of fewer pods, wherever their nodes are, bounds that of more.
            results = replace(again, lower_bound=min(results.lower_bound, again.cost))
    if solve.lacks_limits() and not expired():
        world = level(snapshot)
        _, again = asked(world, encoded(world))
        if _behind(pods, again) < _behind(pods, results):
            results = again
    return results


def _behind(pods: Sequence[Pod], results: Results) -> list[int]:
    """Return the priorities of the pods that are left over, greatest first."""
    return sorted(
        (pod.spec.priority or 0 for pod in pods if pod.key in results.unschedulable), reverse=True
    )


def least_cost(
    pods: Sequence[Pod],
    *,
    snapshot: Snapshot,
    settings: Settings | None = None,
    catalog: Catalog | None = None,
    expired: Callable[[], bool] = never,
) -> float:
    """Return what no answer that places all these pods costs less than, in $/h.

    Whatever domains it chooses for them, whatever nodes that exist it puts them on, and whatever
    preferences it grants. It takes longer than an answer does; `expired` turns true when
    time is up.
    """
    settings, catalog = settings or Settings(), catalog or encoded(snapshot)
    question = Question(pods, snapshot=snapshot, settings=settings, catalog=catalog)
    portions = []
    for shape, demand in question.demands:
        wish = question.reader.wish(shape, required(demand), shape.keys)
        portions.append(Portion(wish, (), wish.keys, wish.reading.possible))
    if not portions:
        return 0.0
    nodes, market = question.nodes, question.market
    poser = Poser(
        market,
        question.groups,
        room=along(nodes.names, catalog)[market.row_of],
        consumption=question.consumption,
        limit_units=question.limit_units,
    )
    classes = poser.classes(portions)
    problem, _ = poser.problem(classes, question.left, keep=np.arange(len(market.price)))
    problem = replace(problem, prices=market.price)
    welcome = [any(_has_node(nodes, one.wish) for one in alike) for alike in classes]
    open_ = (nodes.room >= 0).all(axis=1)
    standing = Standing(nodes.room[open_], np.array(welcome, dtype=np.bool_))
    return whole_bound(problem, standing, expired=expired)


def _has_node(nodes: Nodes, wish: Wish) -> bool:
    """Whether some node that exists would let such a pod in and has room for it."""
    return bool((wish.reading.nodes & (nodes.holds(wish.size) > 0)).any())
