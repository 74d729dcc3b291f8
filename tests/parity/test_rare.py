"""Both engines on worlds with rare features: see `generated.RARE`."""

from __future__ import annotations

from typing import Any

import pytest

from bench.parity import campaign, engines, generated
from bench.parity.comparison import Verdict
from bench.parity.generated import RARE, RARE_FROM

ROUNDS = 10

SEEDS = range(RARE_FROM, RARE_FROM + ROUNDS * len(RARE))


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


@pytest.mark.parametrize("first", range(len(RARE)), ids=[feature.__name__ for feature in RARE])
def test_no_constraint_is_broken_no_pod_stays_pending_and_no_cost_rises(
    verdicts: dict[int, Verdict], first: int
) -> None:
    failures = {seed: verdicts[seed].failures for seed in SEEDS[first :: len(RARE)]}

    assert {seed: failed for seed, failed in failures.items() if failed} == {}


def test_karpenter_answers_every_world(karpenter: dict[int, dict[str, Any]]) -> None:
    assert {seed: a["error"] for seed, a in karpenter.items() if "error" in a} == {}
