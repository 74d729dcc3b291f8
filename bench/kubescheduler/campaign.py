"""Run a family of worlds and count those in which Joiner differs from kube-scheduler."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from bench.kubescheduler import disrupted, existing, launched
from bench.kubescheduler.judge import JudgeFailedError, KubeScheduler
from bench.parity.shrinking import shrink

FAMILIES: dict[str, ModuleType] = {
    "existing": existing,
    "launched": launched,
    "disrupted": disrupted,
}


@dataclass(frozen=True, slots=True)
class Case:
    """The world of a seed, and how Joiner differs from kube-scheduler in it."""

    seed: int
    features: tuple[str, ...]
    differences: tuple[str, ...]


def cases(family: str, seeds: Sequence[int], judge: KubeScheduler) -> Iterator[Case]:
    """Yield the case of each seed."""
    module = FAMILIES[family]
    for seed in seeds:
        found = differences(module, module.world(seed, judge), judge)
        yield Case(seed, module.features(seed), found)


def differences(module: ModuleType, world: dict[str, Any], judge: KubeScheduler) -> tuple[str, ...]:
    """Return the differences in a world; an exception of the engine is one."""
    try:
        return tuple(module.differences(world, judge))
    except JudgeFailedError:
        raise
    except Exception as exc:
        where = traceback.extract_tb(exc.__traceback__)[-1]
        return (f"broken down: {type(exc).__name__}: {exc} in {where.name}",)


def kinds(found: Sequence[str]) -> set[str]:
    """Return the kinds of differences, such as `refused`: the beginnings of their texts."""
    return {text.split(":")[0] for text in found}


def smallest(family: str, seed: int, judge: KubeScheduler) -> dict[str, Any]:
    """Return the smallest part of the world of a seed that shows the same kinds of differences."""
    module = FAMILIES[family]
    world = module.world(seed, judge)
    wanted = kinds(differences(module, world, judge))

    def shows(part: dict[str, Any]) -> bool:
        return wanted <= kinds(differences(module, part, judge))

    return shrink(world, shows)


@dataclass(slots=True)
class Totals:
    """Sums over the cases of a family."""

    worlds: int
    differing: int
    by_feature: Counter[str]

    @classmethod
    def none(cls) -> Totals:
        """Return the sums over no cases."""
        return cls(0, 0, Counter())

    def add(self, case: Case) -> None:
        """Add a case."""
        self.worlds += 1
        if case.differences:
            self.differing += 1
            self.by_feature.update(case.features)
