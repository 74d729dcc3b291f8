"""How nodes are let in, next to whom else the cluster lets in."""

from __future__ import annotations

import yaml

from infra.access import with_mapping, without_mapping

OURS = "arn:aws:iam::123456789012:role/KarpenterNodeRole-joiner"
OTHERS = """
- rolearn: arn:aws:iam::123456789012:role/admin
  username: admin
  groups: [system:masters]
"""


def test_the_node_role_joins_those_who_are_mapped_already() -> None:
    entries = yaml.safe_load(with_mapping(OTHERS, OURS))

    assert entries[0]["username"] == "admin"
    assert entries[1] == {
        "rolearn": OURS,
        "username": "system:node:{{EC2PrivateDNSName}}",
        "groups": ["system:bootstrappers", "system:nodes"],
    }


def test_mapping_twice_is_mapping_once() -> None:
    assert with_mapping(with_mapping(OTHERS, OURS), OURS) == with_mapping(OTHERS, OURS)


def test_unmapping_leaves_the_others_as_they_were() -> None:
    mapped = with_mapping(OTHERS, OURS)

    assert yaml.safe_load(without_mapping(mapped, OURS)) == yaml.safe_load(OTHERS)
    assert yaml.safe_load(without_mapping("", OURS)) == []
