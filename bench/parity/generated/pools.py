"""Features about NodePools."""

from __future__ import annotations

from bench.parity.generated.draft import CPU, SIZE, TYPE, Draft, pool
from bench.parity.worlds import ARCH, CAPACITY_TYPE, FAMILY, ZONE, ZONES, requirement


def weights(draft: Draft) -> None:
    """Add NodePools with different instance types, ordered by weight."""
    chance = draft.chance
    draft.pools(
        pool(
            "spot",
            requirements=[requirement(CAPACITY_TYPE, "spot")],
            weight=chance.randint(1, 100),
        ),
        pool(
            "graviton",
            requirements=[requirement(ARCH, "arm64"), requirement(CAPACITY_TYPE, "on-demand")],
            weight=chance.randint(1, 100),
        ),
        pool(
            "large",
            requirements=[requirement(CPU, "7", operator="Gt")],
            weight=chance.randint(1, 100),
        ),
    )
    draft.group()
    draft.group({"nodeSelector": {CAPACITY_TYPE: "on-demand"}})
    draft.group({"nodeSelector": {ARCH: "amd64"}})


def limits(draft: Draft) -> None:
    """Add NodePools whose limits may be lower than what the pods need."""
    chance = draft.chance
    draft.pools(
        pool("first", limits={"cpu": str(chance.choice((4, 8, 20)))}, weight=50),
        pool("second", limits={"memory": f"{chance.choice((16, 64))}Gi"}, weight=10),
    )
    if chance.random() < 0.5:
        draft.pools(pool("unlimited"))
    draft.group(number=draft.number(2, 8))


def min_values(draft: Draft) -> None:
    """Add requirements with `minValues` on instance types, families or sizes."""
    chance = draft.chance
    key, least = chance.choice(((TYPE, 5), (FAMILY, 3), (SIZE, 2), (TYPE, 12)))
    term = {**requirement(key, operator="Exists"), "minValues": least}
    draft.pools(pool("flexible", requirements=[term]))
    if chance.random() < 0.5:
        draft.settings["MIN_VALUES_POLICY"] = chance.choice(("BestEffort", "Strict"))
    draft.group()
    draft.group({"nodeSelector": {FAMILY: "m6i"}}, number=2)


def pool_requirements(draft: Draft) -> None:
    """Add NodePools that require `In`, `NotIn`, `Gt` and `Lt`, and one that allows no offering."""
    chance = draft.chance
    draft.pools(
        pool("not-c", requirements=[requirement(FAMILY, "c6i", "c7g", operator="NotIn")]),
        pool(
            "middle",
            requirements=[
                requirement(CPU, "2", operator="Gt"),
                requirement(CPU, "16", operator="Lt"),
                requirement(ARCH, "amd64"),
            ],
            weight=chance.randint(1, 100),
        ),
        pool("none", requirements=[requirement(ZONE, "us-west-2z")], weight=100),
    )
    draft.group()
    draft.group({"nodeSelector": {ZONE: chance.choice(ZONES)}})
    draft.group({"nodeSelector": {FAMILY: "c6i"}}, number=2)
