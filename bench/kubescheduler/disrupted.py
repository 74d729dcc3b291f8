"""Disruption: each command is carried out, and the pods that it evicts are judged.

kube-scheduler must admit each evicted pod, in some order, on the existing or new node to which the
command moves it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from bench.kubescheduler import launched
from bench.kubescheduler.judge import KubeScheduler, Plan
from bench.kubescheduler.stage import Stage
from bench.parity import consolidation
from bench.parity.comparison import ours
from bench.parity.livecluster import node as node_object
from bench.parity.overlaying import with_overlays
from bench.parity.worlds import CAPACITY_TYPE, ZONE, Object
from controller.offline.disrupt import course_content, evaluate, new_course, problem_of
from controller.offline.world import load
from tests.disruption.clusters import conditions
from tests.oracle.nodeinfos import Choice
from tests.oracle.replay import Replay
from tests.oracle.rules import key_of

World = dict[str, Any]

NODES = (12, 24)
"""Smallest and largest number of nodes of a cluster of the consolidation campaign."""

LARGE = 20
"""One world in this many is a cluster of the consolidation campaign; the others are small."""

PASSES = 2
"""Maximum number of passes, each of which may decide on several commands."""

STAY = 0.6
"""Share of the pods that are left, so that their nodes are underutilized."""


def world(seed: int, judge: KubeScheduler) -> World:
    """Return the cluster of a seed: mostly one that Joiner launched, of which pods have ended."""
    if seed % LARGE == 0:
        return {**consolidation.cluster(seed // LARGE, *NODES)}
    return _populated_world(launched.world(seed, judge), random.Random(seed))


def features(seed: int) -> tuple[str, ...]:
    """Return what the cluster of a seed is about."""
    if seed % LARGE == 0:
        return (consolidation.category_of(seed // LARGE),)
    return launched.features(seed)


def _populated_world(world: World, chance: random.Random) -> World:
    """Return a world after Joiner's answer, with any of the types and offerings it leaves open."""
    answer = ours(world)
    replay = Replay(world, answer, with_overlays(world))
    node_of = {key: name for name, keys in answer["existingNodes"].items() for key in keys}
    nodes, claims = [], []
    for index, new in enumerate(answer["newNodes"]):
        node = node_object(
            replay.launched(new, f"launched-{index}", chance.choice(replay.choices(index)), chance)
        )
        node["metadata"]["labels"] |= dict.fromkeys(STARTED, "true")
        node["spec"]["providerID"] = f"aws:///zone/launched-{index}"
        nodes.append(node)
        claims.append(_claim(node))
        node_of |= dict.fromkeys(new["pods"], f"launched-{index}")
    unbound = {
        key_of(claim)
        for claim in world.get("persistentVolumeClaims", [])
        if not claim["spec"].get("volumeName")
    }
    pods = []
    for pod in world["pods"]:
        name = pod["spec"].get("nodeName") or node_of.get(key_of(pod))
        if name and chance.random() < STAY and not unbound & set(_claims_of(pod)):
            running = {**pod, "spec": {**pod["spec"], "nodeName": name}}
            pods.append(running if name == pod["spec"].get("nodeName") else running | RUNNING)
    pools = [
        {**pool, "spec": {**pool["spec"], "disruption": ANYTIME}} for pool in world["nodePools"]
    ]
    return {
        **world,
        "nodePools": pools,
        "pods": pods,
        "nodes": [*world.get("nodes", []), *nodes],
        "nodeClaims": [*world.get("nodeClaims", []), *claims],
    }


STARTED = ("karpenter.sh/registered", "karpenter.sh/initialized")
RUNNING = {"status": {"phase": "Running"}}
ANYTIME = {
    "consolidationPolicy": "WhenEmptyOrUnderutilized",
    "consolidateAfter": "0s",
    "budgets": [{"nodes": "100%"}],
}


def _claims_of(pod: Object) -> Iterator[str]:
    namespace = pod["metadata"].get("namespace", "default")
    for volume in pod["spec"].get("volumes") or []:
        if "persistentVolumeClaim" in volume:
            yield f"{namespace}/{volume['persistentVolumeClaim']['claimName']}"


def _claim(node: Object) -> Object:
    """Return the NodeClaim of a node that may be consolidated."""
    name, size = node["metadata"]["name"], node["status"]["allocatable"]
    started = ("Launched", "Registered", "Initialized", "Consolidatable", "Ready")
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": node["metadata"]["labels"]},
        "spec": {
            "nodeClassRef": {
                "group": "karpenter.k8s.aws",
                "kind": "EC2NodeClass",
                "name": "default",
            },
            "requirements": [],
            "taints": node["spec"]["taints"],
        },
        "status": {
            "providerID": node["spec"]["providerID"],
            "nodeName": name,
            "capacity": size,
            "allocatable": size,
            "conditions": conditions(started),
        },
    }


def differences(world: World, judge: KubeScheduler) -> Iterator[str]:
    """Yield the evicted pods that are refused where a command sends them."""
    problem = problem_of(load(world), now=consolidation.NOW, with_eviction_cost=False)
    course = new_course(problem)
    for _ in range(PASSES):
        if not evaluate(course, consolidation.PASS_SECONDS):
            break
    stage = Stage(world, judge)
    for command in course_content(course)["commands"]:
        refused = _refused_pods(stage, command, judge)
        yield from sorted(refused)
        if refused:
            return


def _refused_pods(stage: Stage, command: Mapping[str, Any], judge: KubeScheduler) -> list[str]:
    """Carry out a command on the stage; return the pods that are refused."""
    replay = Replay(stage.world, {"newNodes": command["newNodes"]}, stage.world["instanceTypes"])
    nodes = [node_object(_launched_node(replay, new)) for new in command["newNodes"]]
    bind = {key: name for name, keys in command["existingNodes"].items() for key in keys}
    for new in command["newNodes"]:
        bind |= dict.fromkeys(new["pods"], new["name"])
    gone = set(command["nodes"])
    staying = [n for n in stage.world["nodes"] if n["metadata"]["name"] not in gone]
    evicted = [pod for pod in stage.world["pods"] if key_of(pod) in bind]
    others = [
        pod
        for pod in stage.world["pods"]
        if key_of(pod) not in bind and pod["spec"].get("nodeName") not in gone
    ]
    addition = stage.with_daemons(nodes)
    question = {**stage.world, "nodes": staying, "pods": [*others, *map(_unbound_pod, evicted)]}
    result = judge.replay(question, Plan(bind, addition))
    stage.world["nodes"] = [*staying, *nodes]
    stage.world["pods"] = [
        *others,
        *addition.pods,
        *({**pod, "spec": {**pod["spec"], "nodeName": bind[key_of(pod)]}} for pod in evicted),
    ]
    return [f"refused: {key} on {bind[key]}: {why}" for key, why in result.refused.items()]


def _launched_node(replay: Replay, new: Object) -> Any:
    """Return the node that a command's NodeClaim becomes."""
    kind = replay.types[new["instanceType"]]
    place = {ZONE: new["zone"], CAPACITY_TYPE: new["capacityType"]}
    offering = next(o for o in kind["offerings"] if place.items() <= o["requirements"].items())
    return replay.launched(new, new["name"], Choice(kind, offering), random.Random(0))


def _unbound_pod(pod: Object) -> Object:
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {**pod, "spec": spec, "status": {}}
