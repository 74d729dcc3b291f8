"""Features about constraints of pods on nodes."""

from __future__ import annotations

from bench.parity.generated.draft import (
    CPU,
    FAMILIES,
    RACK,
    SIZE,
    TEAM,
    TYPE,
    Draft,
    pool,
    preferring_nodes,
    required_affinity,
)
from bench.parity.worlds import ARCH, CAPACITY_TYPE, FAMILY, ZONE, ZONES, requirement


def plain(draft: Draft) -> None:
    """Add pods without constraints."""
    for _ in range(draft.chance.randint(1, 4)):
        draft.group()


def selectors(draft: Draft) -> None:
    """Add node selectors on labels of instance types and offerings."""
    chosen = draft.chance.sample(
        [
            {ZONE: draft.chance.choice(ZONES)},
            {ARCH: draft.chance.choice(("amd64", "arm64"))},
            {CAPACITY_TYPE: draft.chance.choice(("spot", "on-demand"))},
            {FAMILY: draft.chance.choice([family[0] for family in FAMILIES])},
            {TYPE: f"{draft.chance.choice(FAMILIES)[0]}.xlarge"},
            {ZONE: draft.chance.choice(ZONES), CAPACITY_TYPE: "on-demand", ARCH: "amd64"},
            {"failure-domain.beta.kubernetes.io/zone": draft.chance.choice(ZONES)},
            {"beta.kubernetes.io/arch": "arm64"},
        ],
        3,
    )
    for selector in chosen:
        draft.group({"nodeSelector": selector})


def node_affinity(draft: Draft) -> None:
    """Add required node affinity with every operator, and alternative terms."""
    chance = draft.chance
    expressions = [
        requirement(ZONE, chance.choice(ZONES), operator="NotIn"),
        requirement(FAMILY, *sorted(chance.sample([family[0] for family in FAMILIES], 2))),
        requirement(FAMILY, "c6i", "m7g", operator="NotIn"),
        requirement(CPU, str(chance.choice((4, 7, 16))), operator="Gt"),
        requirement(CPU, str(chance.choice((4, 9, 16))), operator="Lt"),
        requirement(SIZE, operator="Exists"),
        requirement("example.com/never", operator="DoesNotExist"),
        requirement(CAPACITY_TYPE, "spot", operator="NotIn"),
        requirement("example.com/unknown", "x"),
        requirement("example.com/unknown", "x", operator="NotIn"),
    ]
    for _ in range(chance.randint(1, 3)):
        terms = [
            chance.sample(expressions, chance.randint(1, 2)) for _ in range(chance.randint(1, 3))
        ]
        draft.group({"affinity": required_affinity(*terms)})


def preferred_node_affinity(draft: Draft) -> None:
    """Add preferences that can be met, cannot be met, or contradict each other."""
    chance = draft.chance
    wishes = [
        (chance.randint(1, 100), requirement(ZONE, zone)) for zone in (*ZONES, "us-west-2z")
    ] + [
        (chance.randint(1, 100), requirement(CAPACITY_TYPE, "on-demand")),
        (chance.randint(1, 100), requirement(ARCH, "arm64")),
        (chance.randint(1, 100), requirement("example.com/unknown", "x")),
    ]
    for _ in range(chance.randint(1, 3)):
        draft.group({"affinity": preferring_nodes(*chance.sample(wishes, chance.randint(1, 3)))})


def custom_labels(draft: Draft) -> None:
    """Add labels that only NodePools define: fixed, one of several, or any value."""
    chance = draft.chance
    draft.pools(
        pool("fixed", labels={TEAM: "red"}, weight=chance.randint(1, 100)),
        pool("several", requirements=[requirement(TEAM, "blue", "green")], weight=1),
        pool("any", requirements=[requirement(RACK, operator="Exists")], weight=2),
        pool("bounded", requirements=[requirement(RACK, "5", operator="Gt")], weight=3),
    )
    for chosen in chance.sample(
        [
            {TEAM: "red"},
            {TEAM: "blue"},
            {TEAM: "green"},
            {RACK: "a1"},
            {RACK: "7"},
            {RACK: "3"},
            {TEAM: "black"},
        ],
        3,
    ):
        draft.group({"nodeSelector": chosen})
    # The key is one that no pod requests by value. In Karpenter, one pod's NotIn can define a label
    # whose value another pod then sets; a separate test covers that.
    absent = requirement("example.com/absent", "x", operator="NotIn")
    draft.group({"affinity": required_affinity([absent])})
    draft.group({"affinity": required_affinity([requirement(RACK, operator="Exists")])})


def taints(draft: Draft) -> None:
    """Add tainted NodePools, startup taints, a soft taint, and every form of toleration."""
    chance = draft.chance
    team = {"key": "team", "value": "batch", "effect": "NoSchedule"}
    soft = {"key": "soft", "value": "yes", "effect": "PreferNoSchedule"}
    gone = {"key": "starting", "value": "up", "effect": "NoSchedule"}
    stays = {"key": "team", "value": "batch", "effect": "NoExecute"}
    draft.pools(
        pool("tainted", taints=[team], weight=chance.randint(1, 100)),
        pool("strict", taints=[stays], weight=chance.randint(1, 100)),
        pool("starting", startupTaints=[gone], taints=[soft], weight=chance.randint(1, 100)),
    )
    if chance.random() < 0.5:
        draft.pools(pool("open", weight=chance.randint(1, 100)))
    for tolerations in (
        [{"key": "team", "operator": "Equal", "value": "batch", "effect": "NoSchedule"}],
        [{"key": "team", "operator": "Exists"}],
        [{"operator": "Exists"}],
        [{"key": "team", "operator": "Equal", "value": "other"}],
        [],
    ):
        if chance.random() < 0.7:
            draft.group({"tolerations": tolerations})
