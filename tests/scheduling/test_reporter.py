"""A reporter receives a solve's stages and decisions in order, and changes nothing."""

from __future__ import annotations

from itertools import pairwise

from controller.apis import labels
from controller.scheduling.reporter import Reporter
from controller.scheduling.results import Results
from controller.scheduling.scheduler import schedule
from tests.builders import (
    make_nodepool,
    make_pod,
    make_pods,
    make_snapshot,
    make_type,
    make_types,
    needs,
    spread,
)


class Heard(Reporter):
    """Records what it receives."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.packed: list[tuple[int, float, float]] = []
        self.given_up: list[tuple[int, str]] = []
        self.worlds: list[str] = []
        self.results: Results | None = None

    def problem_read(self, *, pods: int, classes: int, node_types: int, nodes: int) -> None:
        self.stages.append(
            f"{pods} pods, {classes} classes, {node_types} node types, {nodes} nodes"
        )

    def nodes_packed(self, *, nodes: int, cost: float, bound: float, pods_left: int) -> None:
        self.stages.append("packed")
        self.packed.append((pods_left, cost, bound))

    def pods_relaxed(self, *, pods: int, given_up: str) -> None:
        self.given_up.append((pods, given_up))

    def solved_again(self, world: str) -> None:
        self.worlds.append(world)

    def done(self, results: Results) -> None:
        self.stages.append("done")
        self.results = results


def test_the_first_answer_is_reported_and_then_only_better_ones() -> None:
    snapshot = make_snapshot(make_nodepool(), types=make_types(2, 4, 8, 16))
    pods = [pod for n in range(1, 9) for pod in make_pods(5, cpu=f"{300 * n}m", memory=f"{n}Gi")]
    heard = Heard()

    results = schedule(pods, snapshot=snapshot, reporter=heard)

    assert heard.stages[0].startswith("40 pods, 8 classes, ")
    assert heard.stages[-1] == "done"
    assert heard.results == results == schedule(pods, snapshot=snapshot)
    assert all(later[:2] < earlier[:2] for earlier, later in pairwise(heard.packed))
    left, cost, bound = heard.packed[-1]
    assert left == 0
    assert bound <= results.cost <= cost + 1e-9


def test_dropped_preferences_are_reported_with_the_number_of_pods() -> None:
    wish = (1, [needs("example.com/unheard-of", "In", "x")])
    pods = [make_pod(preferred_nodes=[wish], labels={"app": "web"}) for _ in range(3)]
    heard = Heard()

    schedule(pods, snapshot=make_snapshot(make_nodepool()), reporter=heard)

    assert heard.given_up == [(3, "a preferred node affinity")]


def test_a_solve_for_pods_short_of_limits_is_reported() -> None:
    first = make_nodepool("first", weight=10, limits={"cpu": "4"})
    second = make_nodepool("second", limits={"memory": "8Gi"})
    lean = make_type("lean", cpu="8", memory="8Gi")
    snapshot = make_snapshot(first, second, types=[*make_types(4), lean])
    pods = [*make_pods(2, cpu="1500m", memory="7Gi"), *make_pods(7, cpu="1", memory="1Gi")]
    heard = Heard()

    schedule(pods, snapshot=snapshot, reporter=heard)

    assert heard.worlds == [
        "new nodes first for pods that limits left unschedulable",
        "equal weights of all NodePools",
    ]


def test_a_solve_without_zones_that_only_count_is_reported() -> None:
    web = {"app": "web"}
    within = [[needs(labels.ZONE, "In", "zone-a", "zone-b")]]
    counting = spread(web, nodeAffinityPolicy="Ignore")
    pods = make_pods(6, labels=web, node_affinity=within, spreads=[counting])
    types = [make_type("four", cpu="4", memory="16Gi")]
    heard = Heard()

    schedule(
        [*make_pods(4, cpu="3500m"), *pods],
        snapshot=make_snapshot(make_nodepool(), types=types),
        reporter=heard,
    )

    assert heard.worlds == ["no new nodes in zone-c"]
