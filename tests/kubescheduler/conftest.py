"""Fixtures of the tests that ask kube-scheduler's plugins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.kubescheduler.judge import KubeScheduler, kube_scheduler


@pytest.fixture(scope="module")
def judge() -> Iterator[KubeScheduler]:
    with kube_scheduler() as started:
        yield started
