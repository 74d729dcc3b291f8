"""A resource with the program's name and the installation's tag is imported if possible."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from infra.clusterapi import ClusterLocation
from infra.config.forms import ConfigError
from infra.guards import ownership
from infra.guards.neededbynodes import RunningNode
from infra.guards.ownership import ENTRY, POLICY, PROFILE, ROLE, Given, refuse_taken
from tests.infra.knownaws import Entries
from tests.infra.test_removalproof import HERE, MADE, OURS, PAIRS, STACK, make_everything

NODE_ROLE = "arn:aws:iam::123456789012:role/nodes"
LINUX = replace(MADE, entry_types={"node": "EC2_LINUX"})


@pytest.fixture(autouse=True)
def left(entries: Entries) -> None:
    """Create in AWS everything that an `up` creates."""
    make_everything(PAIRS)
    entries.tags[NODE_ROLE] = OURS


def test_created_objects_are_found_with_their_import_id() -> None:
    found = refuse_taken(LINUX, location=HERE, installation=STACK, recorded=frozenset())

    assert {logical: name.identity for logical, name in found.items() if name.identity} == {
        (ROLE, "joiner-node"): "nodes",
        (PROFILE, "joiner-node"): "nodes",
        (ROLE, "joiner-controller"): "controller",
        (POLICY, "joiner-controller-NodeLifecycle"): "arn:aws:iam::123456789012:policy/lifecycle",
        (ENTRY, "joiner-node-access"): f"joiner:{NODE_ROLE}",
    }


@pytest.mark.parametrize(
    "changed",
    [replace(LINUX, iam_path="/team/"), replace(LINUX, entry_types={"node": "EC2_WINDOWS"})],
    ids=["another path", "another type"],
)
def test_a_resource_that_pulumi_would_replace_is_removed_first(
    monkeypatch: pytest.MonkeyPatch, changed: Given
) -> None:
    monkeypatch.setattr(ownership, "running_nodes", lambda *_: [])

    found = refuse_taken(changed, location=HERE, installation=STACK, recorded=frozenset())

    moved = (ROLE, "joiner-node") if changed.iam_path == "/team/" else (ENTRY, "joiner-node-access")
    assert not found[moved].identity


def test_a_resource_that_nodes_may_use_is_not_replaced_without_being_in_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ownership, "running_nodes", lambda *_: [RunningNode("i-1")])
    changed = replace(LINUX, iam_path="/team/")

    with pytest.raises(ConfigError, match="a role nodes has another path") as refused:
        refuse_taken(changed, location=HERE, installation=STACK, recorded=frozenset())

    assert "1 nodes run that may depend on it: set joiner:iamPath" in str(refused.value)
    in_state = frozenset(
        refuse_taken(LINUX, location=HERE, installation=STACK, recorded=frozenset())
    )
    assert refuse_taken(changed, location=HERE, installation=STACK, recorded=in_state)


def test_the_path_of_each_role_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    described, read = ownership._described_role, Counter[str]()

    def counted(location: ClusterLocation, name: str) -> dict[str, Any]:
        read[name] += 1
        return described(location, name)

    monkeypatch.setattr(ownership, "_described_role", counted)

    refuse_taken(LINUX, location=HERE, installation=STACK, recorded=frozenset())

    assert read == {"nodes": 2, "controller": 2}, "once for the tags, once for the path"


def test_a_resource_in_the_state_is_not_imported() -> None:
    found = refuse_taken(
        LINUX, location=HERE, installation=STACK, recorded=frozenset({(ROLE, "joiner-node")})
    )

    assert not found[ROLE, "joiner-node"].identity
    assert found[PROFILE, "joiner-node"].identity
