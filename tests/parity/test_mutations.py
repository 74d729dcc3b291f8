"""Every mutation still finds its line, so that a rewrite cannot disable it unnoticed."""

from __future__ import annotations

import pytest

from bench.kubescheduler import mutate as judged
from bench.parity import mutate as engine
from tests.disruption import mutate as disruption
from tests.mutations import CHECKOUT, Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *engine.MUTATIONS,
    *judged.MUTATIONS,
    *disruption.MUTATIONS,
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_line_to_mutate_exists_once(mutation: Mutation) -> None:
    assert (CHECKOUT / mutation.file).read_text().count(mutation.old) == 1
