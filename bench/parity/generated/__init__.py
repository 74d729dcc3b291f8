"""Small and medium worlds over every constraint, generated from seeds.

Each world combines a few *features*. Each feature adds the objects it is about: groups of pods,
NodePools, nodes, volumes. `features(seed)` names them, so that a failing seed shows at once where
to look. The same seed gives the same world.
"""

from __future__ import annotations

import random

from bench.parity.generated.counting import (
    hosts_with_pods,
    minimums_of_offerings,
    narrow_zones,
    several_affinity_terms,
    terminating_neighbours,
)
from bench.parity.generated.draft import Draft, Feature, make_namespace, pool
from bench.parity.generated.existing import coming_nodes, existing_nodes, running_neighbours
from bench.parity.generated.nodes import (
    custom_labels,
    node_affinity,
    plain,
    preferred_node_affinity,
    selectors,
    taints,
)
from bench.parity.generated.pools import limits, min_values, pool_requirements, weights
from bench.parity.generated.rare import (
    best_effort_minimums,
    labels_of_started_nodes,
    overlays,
    ports_of_daemons,
    reservations,
    resizes,
    static_pools,
    volumes_made_before,
    weights_and_limits,
)
from bench.parity.generated.resources import (
    containers,
    daemons,
    host_ports,
    impossible,
    odd_resources,
)
from bench.parity.generated.topology import (
    anti_affinity,
    hostname_spread,
    ignored_preferences,
    match_label_keys,
    namespaces,
    other_spread,
    pod_affinity,
    preferred_pod_affinity,
    spread_of_others,
    taints_policy,
    zone_spread,
)
from bench.parity.generated.types import types
from bench.parity.generated.volumes import volume_limits, volume_rules, volumes, volumes_and_spread
from bench.parity.worlds import World

MANY = 12
"""One world in this many is a medium one, with a few hundred pods."""

FEATURES: tuple[Feature, ...] = (
    plain,
    selectors,
    node_affinity,
    preferred_node_affinity,
    custom_labels,
    taints,
    zone_spread,
    hostname_spread,
    other_spread,
    spread_of_others,
    match_label_keys,
    taints_policy,
    pod_affinity,
    preferred_pod_affinity,
    anti_affinity,
    namespaces,
    containers,
    odd_resources,
    host_ports,
    impossible,
    weights,
    limits,
    min_values,
    pool_requirements,
    daemons,
    ignored_preferences,
    existing_nodes,
    coming_nodes,
    running_neighbours,
    volumes,
    volume_limits,
    volumes_and_spread,
)


RARE: tuple[Feature, ...] = (
    reservations,
    static_pools,
    overlays,
    resizes,
    ports_of_daemons,
    volumes_made_before,
    best_effort_minimums,
    weights_and_limits,
)
"""Features that few clusters have.

They get worlds of their own, each next to a few other features.
"""

RARE_FROM = 1_000_000
"""The first seed of the worlds with rare features."""

FURTHER: tuple[Feature, ...] = (
    volume_rules,
    several_affinity_terms,
    terminating_neighbours,
    narrow_zones,
    hosts_with_pods,
    minimums_of_offerings,
    labels_of_started_nodes,
)
"""Further features that have worlds of their own; a new one leaves the worlds of `RARE` as is."""

FURTHER_FROM = 2_000_000
"""The first seed of the worlds with further features."""

SEPARATE = {FURTHER_FROM: FURTHER, RARE_FROM: RARE}
"""The features that have worlds of their own, by the first seed of these worlds, greatest first."""


def world(seed: int) -> World:
    """Return the world of a seed."""
    chance = random.Random(seed)
    draft = Draft(chance, scale=8 if seed % MANY == 0 else 1)
    draft.add("instanceTypes", *types(chance))
    draft.add("namespaces", *(make_namespace(name) for name in ("default", "kube-system")))
    for feature in _choose_features(seed):
        feature(draft)
    if chance.random() < 0.5:
        draft.group()
    if "nodePools" not in draft.world:
        draft.pools(pool("default"))
    for pod in draft.world["pods"]:
        for key, value in draft.on_every_pod.items():
            pod["spec"].setdefault(key, value)
    return {**draft.world, "settings": draft.settings}


def features(seed: int) -> tuple[str, ...]:
    """Return the names of the features in the world of a seed."""
    return tuple(feature.__name__ for feature in _choose_features(seed))


def _choose_features(seed: int) -> list[Feature]:
    """Return one feature in turn, so that each occurs, and random ones of `FEATURES`.

    These are up to three, and up to two beside a feature that has worlds of its own.
    """
    chance = random.Random(f"features of {seed}")
    for first_seed, separate in SEPARATE.items():
        if seed >= first_seed:
            own = separate[(seed - first_seed) % len(separate)]
            return [own, *chance.sample(FEATURES, chance.randint(0, 2))]
    first = FEATURES[seed % len(FEATURES)]
    others = [feature for feature in FEATURES if feature is not first]
    return [first, *chance.sample(others, chance.randint(0, 3))]
