"""What `advise` predicts comes true: a simulated cluster follows the advice until it is at rest.

The simulator has what a forecast has not: time, budgets, drains one after the other, pods that
become ready late, and kube-scheduler's own choice of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest

from bench.trace.cluster import Cluster, moment
from bench.trace.sides import Joiner, Move
from bench.trace.simulator import Simulator, TraceEvent
from bench.trace.traces import HOUR, TRACES
from bench.trace.workloads import Workload
from controller.apis.labels import DO_NOT_DISRUPT
from controller.disruption.advice.advising import Advice, Question, advise
from controller.offline.disrupt import problem_of
from controller.offline.world import load

SHRINK = next(trace for trace in TRACES if trace.name == "shrink")
SCALE = 0.05
"""About 120 pods on 26 nodes; 48 of the pods are left when the advice is asked for."""

ASKED, AT_REST = HOUR, 3 * HOUR


@dataclass
class Late(Joiner):
    """Joiner, installed once its advice was asked for; until then, nothing is disrupted."""

    installed: bool = False

    def disrupt(self, cluster: Cluster) -> Sequence[Move]:
        return Joiner.disrupt(self, cluster) if self.installed else ()


class Advised:
    """A cluster of on-demand nodes whose Deployments shrank; every fourth is protected."""

    def __init__(self, seed: int, *, follows: bool) -> None:
        self.cluster, self.side = SHRINK.cluster(seed), Late()
        self._follows = follows
        events = [each for each in SHRINK.events_of(seed, SCALE) if each.at < ASKED]
        simulator = Simulator(self.cluster, self.side, length=AT_REST)
        simulator.run([*events, TraceEvent(ASKED, self._asked)])

    @property
    def realised(self) -> float:
        """The saving in $/h, once nothing is disrupted any more."""
        return self.before - self.cluster.rate

    def _asked(self, simulator: Simulator) -> None:
        protected = list(self.cluster.workloads.values())[::4]
        for workload in protected:
            _annotate(workload, {DO_NOT_DISRUPT: "true"})
        self.before, self.advice = self.cluster.rate, self._advice()
        if self._follows:
            self.cluster.node_pools = dict(self.advice.pools)
            for workload in protected:
                _annotate(workload, {})
        self.side.installed = True
        self.cluster.revision += 1

    def _advice(self) -> Advice:
        problem = problem_of(
            load(self.cluster.world()), now=moment(self.cluster.now), with_eviction_cost=True
        )
        question = Question(problem=problem)
        return advise(question, steady=question.forecast(), most=12)


def _annotate(workload: Workload, annotations: dict[str, str]) -> None:
    workload.protected = bool(annotations)
    for member in workload.pods.values():
        member.see(metadata=msgspec.structs.replace(member.seen.metadata, annotations=annotations))


def test_a_cluster_saves_what_was_predicted_for_its_node_pools() -> None:
    cluster = Advised(2, follows=False)

    predicted = cluster.before - cluster.advice.steady.cost
    assert predicted > 0.1 * cluster.before
    assert cluster.realised == pytest.approx(predicted, rel=0.05)


@pytest.mark.long
def test_a_cluster_that_follows_the_advice_saves_what_was_predicted() -> None:
    cluster = Advised(1, follows=True)

    advice = cluster.advice
    assert {finding.obstacle.kind for finding in advice.findings} == {
        "CapacityType",
        "DoNotDisrupt",
    }
    predicted = cluster.before - advice.together.cost
    assert predicted > cluster.before - advice.steady.cost
    assert cluster.realised == pytest.approx(predicted, rel=0.05)
