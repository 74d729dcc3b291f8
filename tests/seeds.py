"""Seeds of tests that replay generated worlds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def seeds(few: Iterable[int], *, of: Iterable[int]) -> list[Any]:
    """Return the parameters of a test: a `few` seeds for the unit tests, and the others as `long`.

    `make unit` replays the few; `make test` and CI replay all.
    """
    quick, every = set(few), list(of)
    assert quick <= set(every), "the unit tests replay some of all seeds"
    return [seed if seed in quick else pytest.param(seed, marks=pytest.mark.long) for seed in every]
