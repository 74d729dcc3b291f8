"""A small part of the campaign: Joiner answers as kube-scheduler's own plugins do."""

from __future__ import annotations

import pytest

from bench.kubescheduler.campaign import FAMILIES, cases
from bench.kubescheduler.generated import FEATURES
from bench.kubescheduler.judge import KubeScheduler

SEEDS = {"existing": range(5 * len(FEATURES)), "launched": range(1, 41), "disrupted": range(1, 20)}
"""The seeds of each family; the small worlds alone, so that the test takes seconds."""


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_joiner_agrees_with_kube_scheduler(family: str, judge: KubeScheduler) -> None:
    differing = [case for case in cases(family, SEEDS[family], judge) if case.differences]

    assert differing == []
