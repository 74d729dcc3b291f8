"""Worlds of existing nodes and one pending pod, generated from seeds.

Each world combines a few *features*. Each feature is about one filter plugin of kube-scheduler, or
about several that depend on each other. The API server's own code stores the pods.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from bench.kubescheduler.generated import devices, neighbours, placement, resources, volumes
from bench.kubescheduler.generated.draft import NUMBER, RACK, Draft, Feature, make_node, make_pod
from bench.kubescheduler.judge import InvalidPodError, KubeScheduler
from bench.parity.generated.draft import pool
from bench.parity.generated.types import types
from bench.parity.worlds import ZONE, ZONES, Object, requirement

FEATURES: tuple[Feature, ...] = (
    placement.node_selector,
    placement.node_affinity,
    placement.taints,
    placement.unready_nodes,
    resources.tight,
    resources.init_containers,
    resources.overhead,
    resources.whole_pod,
    resources.limits_alone,
    resources.extended_resources,
    resources.number_of_pods,
    resources.ended_pods,
    resources.resized_pods,
    resources.host_ports,
    resources.best_effort,
    neighbours.spread,
    neighbours.spread_over_some_nodes,
    neighbours.spread_of_replicas,
    neighbours.affinity,
    neighbours.anti_affinity,
    neighbours.both_affinities,
    neighbours.anti_affinity_of_running_pods,
    neighbours.first_of_its_kind,
    volumes.bound_volume,
    volumes.in_tree_volume,
    volumes.local_volume,
    volumes.static_volumes,
    volumes.new_volume,
    volumes.claim_in_trouble,
    volumes.exclusive_claim,
    volumes.attachments,
    volumes.storage_capacity,
    volumes.volume_of_spec,
    devices.devices,
    devices.one_of_several_devices,
)


ATTEMPTS = 9
"""Drafts per seed: features are drawn independently, and the API server refuses some combinations.

One draft in a hundred is refused; a feature whose every draft is refused is a fault of its own.
"""


COMPANIONS = 6
"""One crowd in this many has leaders, and pods that must run beside one."""

SELECTED_NODE = "volume.kubernetes.io/selected-node"


def features(seed: int) -> tuple[str, ...]:
    """Return the names of the features in the world of a seed."""
    return tuple(feature.__name__ for feature in _choose_features(seed))


def features_of_crowd(seed: int) -> tuple[str, ...]:
    """Return the names of the features in the crowded world of a seed."""
    companions = () if seed % COMPANIONS else (neighbours.companions.__name__,)
    return (*features(seed), *companions)


def world(seed: int, judge: KubeScheduler) -> Object:
    """Return the world of a seed, with one pending pod and no NodePool.

    Raises:
        InvalidPodError: the API server refuses a pod of each draft.

    """
    return _stored_world(judge, lambda attempt: _draft(seed, attempt).world())


def crowd(seed: int, judge: KubeScheduler) -> Object:
    """Return the world of a seed with several groups of pending pods, and NodePools.

    Raises:
        InvalidPodError: the API server refuses a pod of each draft.

    """
    return _stored_world(judge, lambda attempt: _crowded_world(seed, attempt))


def _stored_world(judge: KubeScheduler, drafts: Callable[[int], Object]) -> Object:
    for attempt in range(ATTEMPTS):
        drafted = drafts(attempt)
        try:
            return {**drafted, "pods": judge.stored_pods(drafted["pods"])}
        except InvalidPodError as exc:
            reason = exc
    raise reason


def _crowded_world(seed: int, attempt: int) -> Object:
    draft = _draft(seed, attempt)
    chance = draft.chance
    groups: list[Object] = []
    world = {**draft.world(), "instanceTypes": types(chance)[::3]}
    world["nodes"] = chance.sample(draft.nodes, chance.randint(0, len(draft.nodes)))
    world["nodePools"] = [_pool(chance, number) for number in range(chance.randint(1, 2))]
    for number, feature in enumerate((None, *chance.sample(FEATURES, chance.randint(0, 2)))):
        if feature is not None:
            draft.pod = make_pod("pending", chance, cpu=chance.choice((100, 500, 1500)))
            # The features of the first group have their volumes; two groups of claims would clash.
            if feature.__module__ not in {volumes.__name__, devices.__name__}:
                feature(draft)
        for copy in range(chance.randint(1, 5)):
            pod = json.loads(json.dumps(draft.pod))
            pod["metadata"] |= {"name": f"g{number}-{copy}", "uid": f"uid-g{number}-{copy}"}
            groups.append(pod)
    if seed % COMPANIONS == 0:
        groups += neighbours.companions(chance)
    names = {node["metadata"]["name"] for node in world["nodes"]}
    running = [pod for pod in draft.running if pod["spec"]["nodeName"] in names]
    for claim in draft.others.get("persistentVolumeClaims", []):
        # The provisioner takes back the choice of a node that is gone.
        if claim["metadata"].get("annotations", {}).get(SELECTED_NODE, "") not in {"", *names}:
            del claim["metadata"]["annotations"]
    # A driver publishes the storage of a node to come once it runs there.
    return {**world, **draft.others, "csiDrivers": [], "pods": [*running, *groups]}


def _pool(chance: random.Random, number: int) -> Object:
    """Return a NodePool whose nodes have some of the labels that pods ask for."""
    terms = []
    if chance.random() < 0.6:
        terms.append(requirement(RACK, *chance.choice((("1",), ("1", "2")))))
    if chance.random() < 0.6:
        terms.append(requirement(NUMBER, *chance.choice((("5",), ("1", "10")))))
    if chance.random() < 0.3:
        terms.append(requirement(ZONE, *chance.sample(ZONES, 2)))
    taints = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
    return pool(f"pool-{number}", requirements=terms, taints=taints if number else [])


def _draft(seed: int, attempt: int) -> Draft:
    chance = random.Random(f"{seed} {attempt}")
    pod = make_pod("pending", chance, cpu=chance.choice((100, 500, 1000)))
    pod["status"] = {
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    }
    draft = Draft(chance, pod)
    draft.nodes += [make_node(f"n{number}", chance) for number in range(chance.randint(1, 5))]
    for feature in _choose_features(seed):
        feature(draft)
    return draft


def _choose_features(seed: int) -> list[Feature]:
    """Return one feature in turn, so that each occurs, and at times another one beside it."""
    chance = random.Random(f"features of {seed}")
    first = FEATURES[seed % len(FEATURES)]
    # Features of one module may write the same fields, and two modules' claims the same names.
    others = [feature for feature in FEATURES if feature.__module__ != first.__module__]
    return [first, *chance.sample(others, chance.choice((0, 0, 1)))]
