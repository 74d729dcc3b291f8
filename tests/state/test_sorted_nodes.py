"""The sorted nodes after any changes are those of a mirror that read the cluster once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.apis import kinds
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kinds import Kind
from controller.apis.kubernetes.nodes import Node
from controller.apiserver.port import Change
from controller.state import cluster as clusters
from controller.state.cluster import Cluster
from controller.state.nodes import StateNode
from tests.builders import make_node, make_nodeclaim

NOW = datetime(2030, 1, 1, tzinfo=UTC)

NAMES = st.sampled_from(["a", "b", "c", "d"])
PROVIDER_IDS = st.sampled_from(["", "aws:///i-1", "aws:///i-2"])
CHANGES = st.lists(
    st.tuples(st.sampled_from([kinds.NODE, kinds.NODE_CLAIM]), NAMES, PROVIDER_IDS, st.booleans()),
    max_size=20,
)


@pytest.mark.parametrize(
    "joined_at_once", [1, 200], ids=["joined after each change", "joined by the query"]
)
@given(changes=CHANGES, marked=st.sets(NAMES), read_between=st.booleans())
def test_sorted_nodes_after_changes(
    joined_at_once: int,
    changes: list[tuple[Kind[Any], str, str, bool]],
    marked: set[str],
    read_between: bool,
) -> None:
    changed, stored = Cluster(), dict[tuple[str, str], tuple[Kind[Any], Any]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clusters, "JOINED_AT_ONCE", joined_at_once)
        for number, (kind, name, provider_id, is_deleted) in enumerate(changes):
            before = stored.pop((kind.plural, name), None)
            if is_deleted and before is not None:
                changed.apply(kind, Change("DELETED", before[1]))
            else:
                make: Any = make_node if kind == kinds.NODE else make_nodeclaim
                value = make(name, provider_id=provider_id, uid=f"uid-{number}")
                changed.apply(kind, Change("MODIFIED", value))
                stored[kind.plural, name] = (kind, value)
            if read_between:
                changed.state_nodes(NOW)
    fresh = Cluster()
    for kind, value in stored.values():
        fresh.apply(kind, Change("ADDED", value))
    for each in (changed, fresh):
        each.mark_for_deletion(*marked)

    nodes = changed.state_nodes(NOW)
    assert list(map(parts, nodes)) == list(map(parts, fresh.state_nodes(NOW)))
    assert changed.frozen_copy().state_nodes(NOW) == nodes
    for node in nodes:
        if node.node is not None:  # else its deletion may make the NodeClaim count as deleting
            names = {part.metadata.name for part in (node.node, node.claim) if part is not None}
            assert node.deleting == bool(names & marked)


def parts(node: StateNode) -> tuple[Node | None, NodeClaim | None]:
    return node.node, node.claim
