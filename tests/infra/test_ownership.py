"""A resource with the program's name and the installation's tag is imported if possible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.guards.ownership import ENTRY, POLICY, PROFILE, ROLE, refuse_taken
from tests.infra.knownaws import Entries
from tests.infra.test_removalproof import HERE, MADE, OURS, PAIRS, STACK, make_everything

NODE_ROLE = "arn:aws:iam::123456789012:role/nodes"
LINUX = replace(MADE, entry_types={"node": "EC2_LINUX"})


@pytest.fixture(autouse=True)
def left(entries: Entries) -> None:
    """Have AWS hold all that an `up` made."""
    make_everything(PAIRS)
    entries.tags[NODE_ROLE] = OURS


def test_created_objects_are_found_with_their_import_id() -> None:
    found = refuse_taken(LINUX, location=HERE, installation=STACK)

    assert {logical: name.identity for logical, name in found.items() if name.identity} == {
        (ROLE, "joiner-node"): "nodes",
        (PROFILE, "joiner-node"): "nodes",
        (ROLE, "joiner-controller"): "controller",
        (POLICY, "joiner-controller-NodeLifecycle"): "arn:aws:iam::123456789012:policy/lifecycle",
        (ENTRY, "joiner-node-access"): f"joiner:{NODE_ROLE}",
    }


def test_an_object_that_pulumi_would_replace_is_not_imported() -> None:
    moved = replace(LINUX, iam_path="/team/")
    other_way = replace(LINUX, entry_types={"node": "EC2_WINDOWS"})

    assert not any(
        name.identity for name in refuse_taken(moved, location=HERE, installation=STACK).values()
    )
    found = refuse_taken(other_way, location=HERE, installation=STACK)
    assert (ENTRY, "joiner-node-access") not in found
    assert (ROLE, "joiner-node") in found
