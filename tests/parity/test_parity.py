"""Both engines on ten generated worlds per constraint, and intended differences."""

from __future__ import annotations

from typing import Any

import pytest

from bench.parity import campaign, engines, generated
from bench.parity.comparison import Verdict, ours
from bench.parity.worlds import ARCH, ZONE, instance_type, node_pool, offering, pod, requirement
from tests.oracle.replay import findings

ROUNDS = 10
"""Worlds per constraint; `python -m bench.parity.campaign --seeds 3000` asks about more."""

FEATURES = len(generated.FEATURES)
TEAM = "example.com/team"


OPEN: dict[int, str] = {}
"""Worlds in which the engine still breaks a rule or leaves a pod over, by seed: debts, each to be
paid off. A world that is not in this list must not fail."""

DEARER_WORLDS = 3
"""So many of the worlds may still cost more than with Karpenter; issue 4 asks for none."""


@pytest.fixture(scope="module")
def karpenter() -> list[dict[str, Any]]:
    """Karpenter's answers, by seed."""
    return engines.karpenter_batch(generated.world(seed) for seed in range(ROUNDS * FEATURES))


@pytest.fixture(scope="module")
def verdicts(karpenter: list[dict[str, Any]]) -> list[Verdict]:
    """Joiner's answers, by seed."""
    return list(campaign.verdicts_in_parallel(range(len(karpenter)), karpenter))


@pytest.mark.parametrize(
    "first", range(FEATURES), ids=[feature.__name__ for feature in generated.FEATURES]
)
def test_no_constraint_is_broken_and_no_pod_stays_pending(
    verdicts: list[Verdict], first: int
) -> None:
    failures = {
        seed: [f for f in verdicts[seed].failures if not f.startswith("dearer")]
        for seed in range(first, len(verdicts), FEATURES)
        if seed not in OPEN
    }

    assert {seed: failed for seed, failed in failures.items() if failed} == {}


def test_few_worlds_cost_more_than_with_karpenter_and_their_sum_costs_far_less(
    verdicts: list[Verdict],
) -> None:
    dearer = [v for v in verdicts if any(f.startswith("dearer") for f in v.failures)]
    compared = [v for v in verdicts if v.cost_of_karpenter and not v.faults_of_karpenter]

    assert len(dearer) <= DEARER_WORLDS
    assert sum(v.cost for v in compared) < 0.5 * sum(v.cost_of_karpenter for v in compared)


def test_karpenter_answers_every_generated_world(karpenter: list[dict[str, Any]]) -> None:
    assert {seed: a["error"] for seed, a in enumerate(karpenter) if "error" in a} == {}


# Where we differ on purpose.


def simple_world(*pods: Any, **parts: Any) -> dict[str, Any]:
    kind = instance_type(
        "m6i.xlarge", cpu=4, memory_gib=16, pods=58, offerings=[offering("a", "on-demand", 0.2)]
    )
    return {
        "pods": list(pods),
        "nodePools": [node_pool()],
        "instanceTypes": [kind],
        **parts,
    }


def needing(*terms: Any) -> dict[str, Any]:
    chosen = {"nodeSelectorTerms": [{"matchExpressions": list(terms)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": chosen}}


@pytest.mark.needs("karpenter")
def test_a_label_without_a_pool_is_not_invented_if_another_pod_excludes_a_value() -> None:
    """Karpenter's node takes on `team NotIn [red]` from one pod, and then lets another make
    `team` black: whether a pod runs depends on the other pending pods. With Joiner it never does.
    """
    avoids = pod(
        "avoids", cpu=500, memory=100, affinity=needing(requirement(TEAM, "red", operator="NotIn"))
    )
    wants = pod("wants", cpu=100, memory=100, nodeSelector={TEAM: "black"})
    world = simple_world(avoids, wants)

    (their,) = engines.karpenter_batch([world])

    assert their["unschedulable"] == {}
    assert set(ours(world)["unschedulable"]) == {"default/wants"}


@pytest.mark.needs("karpenter")
def test_an_unsatisfiable_label_is_not_met_by_its_absence() -> None:
    """`arch In [amd64]` and `arch NotIn [amd64]` leave no value, which Karpenter's algebra reads
    as "must not be there"; Kubernetes never binds such a pod.
    """
    key = "example.com/absent"
    terms = (requirement(key, "x"), requirement(key, "x", operator="NotIn"))
    world = simple_world(pod("torn", cpu=100, memory=100, affinity=needing(*terms)))

    (their,) = engines.karpenter_batch([world])

    assert {finding.rule for finding in findings(world, their, world["instanceTypes"])} == {
        "node affinity"
    }
    assert set(ours(world)["unschedulable"]) == {"default/torn"}


# The oracle itself: it must detect wrong answers.


def wrong(world: dict[str, Any], **changes: Any) -> set[str]:
    """Return the rules that our answer to the world breaks, once it is changed, sums included."""
    answer = {**ours(world), "lowerBound": 0.0, **changes}
    answer["cost"] = sum(node["price"] for node in answer["newNodes"])
    return {finding.rule for finding in findings(world, answer, world["instanceTypes"])}


def test_the_oracle_finds_a_lost_pod() -> None:
    assert wrong(simple_world(pod("a", cpu=100, memory=100)), newNodes=[]) == {"conservation"}


def test_the_oracle_finds_a_too_small_node_and_a_wrong_price() -> None:
    world = simple_world(pod("a", cpu=3000, memory=100), pod("b", cpu=3000, memory=100))
    node = ours(world)["newNodes"][0]
    both = {**node, "pods": ["default/a", "default/b"]}

    assert wrong(world, newNodes=[both]) == {"resources"}
    assert "price" in wrong(world, newNodes=[{**both, "price": 0.1}])


def test_the_oracle_finds_unneeded_nodes_of_a_lower_weight_pool() -> None:
    cheap = instance_type(
        "cheap", cpu=4, memory_gib=16, pods=58, offerings=[offering("a", "on-demand", 0.1)]
    )
    little = instance_type(
        "little", cpu=2, memory_gib=8, pods=58, offerings=[offering("a", "on-demand", 0.05)]
    )
    red = pod("red", cpu=100, memory=100, nodeSelector={TEAM: "red"})
    world = simple_world(pod("a", cpu=1900, memory=100), red)
    dear = requirement("node.kubernetes.io/instance-type", "m6i.xlarge")
    world["nodePools"] = [
        node_pool("heavy", weight=10, requirements=[dear]),
        node_pool("light", labels={TEAM: "red"}),
    ]
    world["instanceTypes"] += [cheap, little]
    node = {
        "nodePool": "light",
        "requirements": [requirement(ZONE, "a"), requirement(ARCH, "amd64")],
    }
    small = {**node, "instanceTypes": ["little"], "price": 0.05}
    large = {**node, "instanceTypes": ["cheap"], "price": 0.1, "pods": ["default/a", "default/red"]}
    apart = [{**large, "pods": ["default/a"]}, {**small, "pods": ["default/red"]}]

    assert wrong(world) == set()
    assert wrong(world, newNodes=[large]) == {"order of pools"}
    assert wrong(world, newNodes=apart) == {"order of pools"}


def test_the_oracle_finds_broken_affinity_and_anti_affinity() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    for kind, together in (("podAffinity", False), ("podAntiAffinity", True)):
        pods = [
            pod(name, cpu=100, memory=100, labels={"app": "x"}, affinity={kind: required})
            for name in "ab"
        ]
        world = simple_world(*pods)
        node = {
            "nodePool": "default",
            "instanceTypes": ["m6i.xlarge"],
            "requirements": [requirement(ZONE, "a"), requirement(ARCH, "amd64")],
            "price": 0.2,
        }
        groups = [["default/a", "default/b"]] if together else [["default/a"], ["default/b"]]
        nodes = [{**node, "pods": group} for group in groups]

        assert wrong(world, newNodes=nodes, unschedulable={}) == {"topology"}
