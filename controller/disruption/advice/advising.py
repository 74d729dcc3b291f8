"""Measures the cost of a cluster under Joiner, and how much each obstacle adds to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from controller.apis.karpenter.nodepool import NodePool
from controller.disruption.advice import nodepools
from controller.disruption.advice.forecast import Deadline, Forecast, forecast, no_deadline
from controller.disruption.advice.nodepools import Edit, Pools
from controller.disruption.advice.obstacles import Change, Obstacle, obstacles
from controller.disruption.methods.bounds import lower_bound
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import NO_NODES
from controller.scheduling.catalog.offerings import CatalogCache
from controller.scheduling.scheduler import never

NEGLIGIBLE = 0.002
"""The share of the cluster's cost below which an obstacle is not reported."""

MOST_LOSS = 0.9
"""The share of a saving that a narrower change of a NodePool must keep."""

TIME_LIMITS = 10
"""The time limit for all obstacles together, as a multiple of the time limit of one solve."""

MAX_OBSTACLES = 40
"""The maximum number of measured obstacles; `--obstacles` of the command overrides it."""

Report = Callable[[str, int, int], None]
"""Receives the text of the current step, the number of completed solves, and of all solves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The cluster that the advice is for.

    `leaving` names nodes that Joiner does not manage, which Joiner's nodes replace even if that
    costs more. `deadline` is called at the start of each solve. It returns a function that says
    whether the time limit of this solve is reached.
    """

    problem: DisruptionProblem
    leaving: frozenset[str] = NO_NODES
    deadline: Deadline = no_deadline
    catalogs: CatalogCache = field(default_factory=CatalogCache)
    """Cache of the catalog, from one forecast to the next."""

    def forecast(self, changes: Iterable[Change] = ()) -> Forecast:
        """Return the forecast of the cluster after some changes."""
        problem = reduce(lambda changed, change: change(changed), changes, self.problem)
        return forecast(
            problem, leaving=self.leaving, deadline=self.deadline, catalogs=self.catalogs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An obstacle, and the saving from its removal, in $/h.

    `is_last`: removing this obstacle saves only if the other obstacles are removed too.
    """

    obstacle: Obstacle
    saving: float
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The cost of a cluster after all disruption, and the obstacles to a lower cost.

    Costs are in $/h. `steady` is the forecast of the cluster as it is, `together` the forecast with
    every obstacle of `findings` removed. `pools` are the NodePools with the changes that save, and
    `with_pools` is the forecast with them. `untested` counts the obstacles that were not measured.
    """

    steady: Forecast
    lower_bound: float
    findings: Sequence[Finding]
    together: Forecast
    pools: Pools
    with_pools: Forecast
    untested: int = 0


def advise(
    question: Question,
    *,
    steady: Forecast,
    most: int,
    expired: Callable[[], bool] = never,
    report: Report = lambda *_: None,
) -> Advice:
    """Return the obstacles to a lower cost of a cluster.

    Args:
        question: the cluster.
        steady: the forecast of the cluster without any change.
        most: how many obstacles are measured, those of the most expensive nodes first.
        expired: returns true when no further obstacle is to be measured.
        report: receives the progress.

    """
    possible = obstacles(steady, question.problem.node_pools)
    tested = possible[:most]
    progress = _Progress(report, len(tested) + sum(each.edit is not None for each in tested) + 3)
    findings: list[Finding] = []
    silent: list[Obstacle] = []
    for number, obstacle in enumerate(tested):
        if expired():
            tested = tested[:number]
            break
        progress.next(obstacle.what)
        finding = _measure_obstacle(question, steady, (), obstacle)
        if finding is not None:
            findings.append(finding)
        elif obstacle.edit is not None:
            silent.append(obstacle)
    progress.next("all changes together")
    made = [finding.obstacle.made for finding in findings]
    together = question.forecast(made) if made else steady
    for obstacle in silent if findings else ():
        if expired():
            break
        progress.next(obstacle.what)
        finding = _measure_obstacle(question, together, made, obstacle)
        if finding is not None:
            findings.append(replace(finding, is_last=True))
            made.append(finding.obstacle.made)
            together = question.forecast(made)
    findings.sort(key=lambda finding: (-finding.saving, finding.obstacle.what))
    progress.next("the changed NodePools")
    edits = _edits(findings)
    edited = [partial(nodepools.with_edit, edit=edit) for edit in edits]
    with_pools = question.forecast(edited) if edited else steady
    progress.next("the lower bound")
    bound = lower_bound(steady.problem, expired=question.deadline())
    progress.end()
    return Advice(
        steady=steady,
        lower_bound=min(bound, steady.cost),
        findings=findings,
        together=together,
        pools=reduce(lambda changed, edit: edit(changed), edits, question.problem.node_pools),
        with_pools=with_pools,
        untested=len(possible) - len(tested),
    )


def _edits(findings: Sequence[Finding]) -> list[Edit]:
    """Return the changes of NodePools, those of existing ones first, so that copies have them."""
    changing = [finding.obstacle for finding in findings if finding.obstacle.edit is not None]
    changing.sort(key=lambda obstacle: not obstacle.pool)
    return [obstacle.edit for obstacle in changing if obstacle.edit is not None]


class _Progress:
    """Counts the solves, and reports the purpose of each."""

    def __init__(self, report: Report, solves: int) -> None:
        self._report, self._solves, self._done = report, solves, 0

    def next(self, what: str) -> None:
        """Report the solve that begins."""
        self._report(what, self._done, self._solves)
        self._done += 1

    def end(self) -> None:
        """Report that all solves are done."""
        self._report("", self._solves, self._solves)


def _measure_obstacle(
    question: Question, before: Forecast, changes: Sequence[Change], obstacle: Obstacle
) -> Finding | None:
    """Return the obstacle with the saving from its removal, or None if that is negligible.

    `before` is the forecast with `changes`.
    """
    after = question.forecast([*changes, obstacle.made])
    saving = before.cost - after.cost
    if saving <= NEGLIGIBLE * before.cost:
        return None
    finding = Finding(obstacle=obstacle, saving=saving)
    narrow = _narrow_obstacle(obstacle, question.problem.node_pools, after)
    if narrow is None:
        return finding
    saving = before.cost - question.forecast([*changes, narrow.made]).cost
    if saving < MOST_LOSS * finding.saving:
        return finding
    return Finding(obstacle=narrow, saving=saving)


def _narrow_obstacle(obstacle: Obstacle, pools: Pools, after: Forecast) -> Obstacle | None:
    """Return the obstacle with a change of its NodePool that allows only what `after` uses."""
    pool = pools.get(obstacle.pool)
    if pool is None:
        return None
    if obstacle.kind == "Limits":
        limits = nodepools.limits_of(pool, after.nodes)
        said = ", ".join(f"{name} {value}" for name, value in limits.items())
        changed = partial(nodepools.with_limits, limits=limits)
        return _with_change(obstacle, changed, f"raise the limits to {said}")
    values = nodepools.new_values(pool, obstacle.key, after.nodes) if obstacle.key else []
    if not values:
        return None
    changed = partial(nodepools.allow_values, key=obstacle.key, values=values)
    return _with_change(obstacle, changed, f"allow {', '.join(values)}")


def _with_change(
    obstacle: Obstacle, changed: Callable[[NodePool], NodePool], text: str
) -> Obstacle:
    edit = nodepools.pool_edit(obstacle.pool, changed)
    made = partial(nodepools.with_edit, edit=edit)
    return replace(obstacle, edit=edit, made=made, change=text)
