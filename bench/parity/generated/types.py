"""The instance types: 27 in three zones."""

from __future__ import annotations

import random

from bench.parity.generated.draft import CPU, FAMILIES, SIZE, SIZES
from bench.parity.worlds import FAMILY, ZONES, Object, instance_type, offering


def types(chance: random.Random) -> list[Object]:
    """Return 27 instance types in three zones; some offerings are missing or unavailable."""
    kinds = []
    for family, ratio, per_cpu, arch in FAMILIES:
        for size, cpu in SIZES:
            offerings = offerings_of(chance, per_cpu * cpu)
            kind = instance_type(
                f"{family}.{size}",
                cpu=cpu,
                memory_gib=cpu * ratio,
                pods=10 if cpu <= 2 else 29 if cpu <= 8 else 58,
                arch=arch,
                offerings=offerings,
                **{FAMILY: family, SIZE: size, CPU: str(cpu)},
            )
            kind["capacity"]["ephemeral-storage"] = "20Gi"
            kinds.append(kind)
    for size, cpu, count in (("xlarge", 4, 1), ("12xlarge", 48, 4)):
        kind = instance_type(
            f"g5.{size}",
            cpu=cpu,
            memory_gib=cpu * 4,
            pods=58,
            offerings=offerings_of(chance, 0.25 * cpu),
            **{FAMILY: "g5", SIZE: size, CPU: str(cpu)},
        )
        kind["capacity"] |= {"nvidia.com/gpu": str(count), "ephemeral-storage": "20Gi"}
        kinds.append(kind)
    return kinds


def offerings_of(chance: random.Random, price: float) -> list[Object]:
    offerings = []
    for zone in ZONES:
        if chance.random() < 0.04:
            continue
        cheap = price * chance.uniform(0.3, 0.6)
        offerings.append(offering(zone, "on-demand", price, available=chance.random() > 0.03))
        offerings.append(offering(zone, "spot", cheap, available=chance.random() > 0.15))
    return offerings or [offering(ZONES[0], "on-demand", price)]
