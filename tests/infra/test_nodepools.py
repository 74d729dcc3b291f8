"""NodePools of a stack: from a folder, from typed Python, owned by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from controller.apis.ec2nodeclass import EC2NodeClass
from controller.apis.nodepool import NodePool
from controller.apis.validation import problems
from infra.config import ConfigError
from infra.nodepools import default_manifests, filled, manifests_in

POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: web}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: web}
      requirements: []
"""
CLASS = """
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: web}
spec:
  role: ${NODE_ROLE}
  amiSelectorTerms: [{alias: al2023@latest}]
  subnetSelectorTerms: [{tags: {karpenter.sh/discovery: "${CLUSTER_NAME}"}}]
  securityGroupSelectorTerms: [{tags: {karpenter.sh/discovery: "${CLUSTER_NAME}"}}]
  userData: "echo ${HOME}"
"""


def test_every_file_of_a_folder_is_read_in_one_order(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(POOL)
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "a.yml").write_text(f"{CLASS}---\n---{POOL.replace('web', 'api')}")
    (tmp_path / "README.md").write_text("no YAML")

    found = [(w["kind"], w["metadata"]["name"]) for w in manifests_in(tmp_path)]

    assert found == [("NodePool", "web"), ("EC2NodeClass", "web"), ("NodePool", "api")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("apiVersion: v1\nkind: Secret\nmetadata: {name: x}", "this is none of"),
        ("just: {a: map", "expected"),
        ("- a list", "this is none of"),
        (POOL.replace("requirements: []", "requirements: 5"), "NodePool web: Expected `array`"),
        (
            POOL.replace("requirements: []", "requirements: [{key: a b, operator: Exists}]"),
            "is not a qualified name",
        ),
        (POOL.replace("karpenter.sh/v1", "karpenter.sh/v1beta1"), "this is none of"),
    ],
)
def test_what_cannot_work_is_named_with_its_file(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "good.yaml").write_text(POOL)
    (tmp_path / "bad.yaml").write_text(text)

    with pytest.raises(ConfigError) as refused:
        manifests_in(tmp_path)

    assert "bad.yaml" in str(refused.value)
    assert why in str(refused.value)
    assert "good.yaml" not in str(refused.value)


def test_placeholders_become_what_the_stack_knows_and_other_dollars_stay() -> None:
    known = {"CLUSTER_NAME": "joiner", "NODE_ROLE": "NodeRole"}

    spec = filled(yaml.safe_load(CLASS)["spec"], known)

    assert spec["role"] == "NodeRole"
    assert spec["subnetSelectorTerms"] == [{"tags": {"karpenter.sh/discovery": "joiner"}}]
    assert spec["userData"] == "echo ${HOME}"


def test_the_default_pool_can_work_and_refers_to_the_default_class() -> None:
    node_class, pool = default_manifests("joiner")

    typed = msgspec.convert(pool, NodePool)

    assert problems(typed) == []
    assert typed.spec.template.spec.node_class_ref.name == node_class["metadata"]["name"]
    assert msgspec.convert(node_class, EC2NodeClass).spec.role == "${NODE_ROLE}"
