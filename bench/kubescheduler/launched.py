"""Many pending pods: Joiner's whole answer is carried out, and judged pod after pod.

A hypothetical node is launched for each NodeClaim, of a type and offering that it leaves open. Some
order of binding must bring every pod to its planned node. A pod that is left over must be refused
by every existing node and by every node that could be launched for it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.kubescheduler import generated
from bench.kubescheduler.judge import Addition, KubeScheduler, Plan, Verdicts
from bench.kubescheduler.stage import Stage
from bench.parity import generated as parity
from bench.parity.comparison import ours
from bench.parity.livecluster import node as node_object
from bench.parity.overlaying import with_overlays
from tests.oracle.nodeinfos import HOSTNAME, Choice, NodeInfo
from tests.oracle.replay import Replay

World = dict[str, Any]

LAUNCHES = 2
"""Number of random launches to judge, in addition to the cheapest."""

ALONE = 40
"""Maximum number of nodes to launch for pods that are left over."""


def world(seed: int, judge: KubeScheduler) -> World:
    """Return the world of a seed: of the parity campaign if it is even, of this one if odd."""
    return parity.world(seed // 2) if seed % 2 == 0 else generated.crowd(seed // 2, judge)


def features(seed: int) -> tuple[str, ...]:
    """Return what the world of a seed is about."""
    half = seed // 2
    return parity.features(half) if seed % 2 == 0 else generated.features_of_crowd(half)


def differences(world: World, judge: KubeScheduler) -> Iterator[str]:
    """Yield how Joiner's answer differs from what kube-scheduler admits."""
    answer = ours(world)
    replay = Replay(world, answer, with_overlays(world))
    choices = [replay.choices(index) for index in range(len(answer["newNodes"]))]
    if not all(choices):
        yield "launch: no available offering meets the requirements of a NodeClaim"
        return
    stage = Stage(world, judge)
    alone = _alone(replay, choices, stage) if answer["unschedulable"] else []
    bind = {key: name for name, keys in answer["existingNodes"].items() for key in keys}
    for index, new in enumerate(answer["newNodes"]):
        bind |= dict.fromkeys(new["pods"], f"new-{index}")
    chance = random.Random(0)
    for attempt in range(1 + LAUNCHES if choices else 1):
        chosen = [chance.choice(ways) if attempt else ways[0] for ways in choices]
        nodes = [
            replay.launched(answer["newNodes"][index], f"new-{index}", choice, chance)
            for index, choice in enumerate(chosen)
        ]
        launched = stage.with_daemons([node_object(node) for node in nodes])
        plan = Plan(bind, replace(launched, csi_nodes=[_csi_node(node) for node in nodes]))
        result = judge.replay(stage.world, plan, [] if attempt else alone)
        found = [f"refused: {key} on {bind[key]}: {why}" for key, why in result.refused.items()]
        found += _left_over(answer["unschedulable"], result.verdicts)
        yield from sorted(found)
        if found:
            return


def _csi_node(node: NodeInfo) -> World:
    """Return the CSINode of a node, once its drivers have reported how many volumes they attach."""
    drivers = [
        {"name": name, "nodeID": node.name, "topologyKeys": [], "allocatable": {"count": count}}
        for name, count in node.attachable.items()
    ]
    return {"metadata": {"name": node.name}, "spec": {"drivers": drivers}}


def _left_over(unschedulable: Mapping[str, Sequence[str]], verdicts: Verdicts) -> Iterator[str]:
    """Yield the pods that are left over although an existing node, or one of their own, admits."""
    for key, causes in unschedulable.items():
        # Which of its types a planned node gets is not known yet, so it may be too small.
        admitting = [
            name
            for name, why in sorted(verdicts.get(key, {}).items())
            if not why and not name.startswith("new-")
        ]
        if admitting:
            yield f"left over: {key}, which {admitting[0]} would admit: {'; '.join(causes)}"


def _alone(replay: Replay, choices: Sequence[Sequence[Choice]], stage: Stage) -> list[Addition]:
    """Return nodes that could be launched for pods that are left over, each by itself."""
    chance, drawn = random.Random(0), replay.drawn(choices)
    nodes = [node for name in replay.pools for node in replay.launchable(name, drawn, chance)]
    sample = chance.sample(nodes, min(ALONE, len(nodes)))
    named = [{**node_object(node)} for node in sample]
    for number, node in enumerate(named):
        name = f"alone-{number}"
        node["metadata"] = {**node["metadata"], "name": name}
        node["metadata"]["labels"] = {**node["metadata"]["labels"], HOSTNAME: name}
    return stage.each_with_daemons(named)
