"""A problem is a value: a solve does not change it."""

from __future__ import annotations

import pytest

from controller.scheduling.catalog import variants
from controller.scheduling.catalog.offerings import catalog
from controller.scheduling.problem import scheduling_problem
from controller.scheduling.scheduler import never, schedule
from controller.scheduling.settings import Settings
from controller.scheduling.solver import Solver
from tests.builders import by_hostname, make_node, make_nodepool, make_pods, make_snapshot, spread
from tests.scheduling.devices import GPU, gpu_type, gpus, make_slice, replicas, request

WEB, ALONE = {"app": "web"}, {"app": "alone"}


def test_solving_a_problem_twice_gives_the_same_answer() -> None:
    claiming, claims = replicas(5, request())
    pods = [
        *make_pods(7, labels=WEB, spreads=[spread(WEB)]),
        *make_pods(3, labels=ALONE, anti_affinity=[by_hostname(ALONE)]),
        *make_pods(9, cpu="900m"),
        *claiming,
    ]
    snapshot = make_snapshot(
        make_nodepool(limits={"cpu": "40"}),
        types=[gpu_type(3, price=2.0, cpu="16")],
        nodes=[make_node("n1", cpu="4", memory="16Gi")],
        resource_slices=(make_slice(gpus(3), node="n1"),),
        resource_claims=claims,
        device_classes=(GPU,),
    )
    problem = scheduling_problem(
        pods,
        snapshot=snapshot,
        settings=Settings(ignore_dra_requests=False),
        catalog=catalog(snapshot),
    )

    first, second = Solver(problem, never).run(), Solver(problem, never).run()

    assert first == second
    assert first.existing_nodes
    assert first.new_nodes


def test_more_combinations_of_labels_than_fit_into_a_number_change_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot = make_snapshot(make_nodepool("a", weight=10), make_nodepool("b"))
    pods = make_pods(9, labels=WEB, spreads=[spread(WEB)])
    results = schedule(pods, snapshot=snapshot)

    monkeypatch.setattr(variants, "MAX_CODES", 1)

    assert schedule(pods, snapshot=snapshot) == results
