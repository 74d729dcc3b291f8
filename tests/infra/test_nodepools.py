"""NodePools of a stack: from a folder, from typed Python, owned by name."""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.karpenter.validation import problems
from infra.config.forms import ConfigError
from infra.nodepools import KINDS, default_manifests, manifests_in, replace_placeholders
from testbed.environment import CHECKOUT

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
BUFFER = """
apiVersion: autoscaling.x-k8s.io/v1beta1
kind: CapacityBuffer
metadata: {name: web, namespace: shop}
spec: {podTemplateRef: {name: web}, replicas: 2}
"""
ODD: list[object] = [
    *(None, True, -1, 0, 1.5, float("nan"), float("inf"), 10**400, "", " ", "1x", "NaN", "1e999"),
    *("9" * 400, "١", [], {}, [None], [{}], {"a": None}, "a/b/c", "Never", "${X}", "\n"),
]
SAMPLES = [
    wire
    for path in sorted((CHECKOUT / "crds" / "samples").glob("*.yaml"))
    for wire in yaml.safe_load_all(path.read_text())
    if wire["kind"] in KINDS
]


@st.composite
def broken_manifests(draw: st.DrawFn) -> dict[str, object]:
    """A sample in which one value, anywhere, is another."""
    broken: dict[str, object] = copy.deepcopy(draw(st.sampled_from(SAMPLES)))
    within: object = broken
    while True:
        steps = list(within) if isinstance(within, dict) else range(len(_list(within)))
        step = draw(st.sampled_from(steps))
        inner = within[step]  # type: ignore[index]
        if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
            within[step] = draw(st.sampled_from(ODD) | st.text())  # type: ignore[index]
            return broken
        within = inner


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def test_the_files_of_a_folder_are_read_in_a_fixed_order(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(POOL)
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "a.yml").write_text(f"{CLASS}---\n---{POOL.replace('web', 'api')}")
    (tmp_path / "README.md").write_text("no YAML")

    order = [(w["kind"], w["metadata"]["name"]) for w in manifests_in(tmp_path)]

    assert order == [("NodePool", "web"), ("EC2NodeClass", "web"), ("NodePool", "api")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("apiVersion: v1\nkind: Secret\nmetadata: {name: x}", "unknown kind of object"),
        ("just: {a: map", "expected"),
        ("- a list", "unknown kind of object"),
        (POOL.replace("requirements: []", "requirements: 5"), "NodePool web: Expected `array`"),
        (
            POOL.replace("requirements: []", "requirements: [{key: a b, operator: Exists}]"),
            "is not a qualified name",
        ),
        (POOL.replace("karpenter.sh/v1", "karpenter.sh/v1beta1"), "unknown kind of object"),
        (POOL.replace("metadata: {name: web}", "metadata: web"), "a name is required"),
        (POOL.replace("name: web}\nspec", "name: A_b}\nspec"), "a name is required"),
        (POOL.replace("requirements: []", "expireAfter: 2024-13-45"), "not YAML"),
        ("[" * sys.getrecursionlimit(), "not YAML"),
    ],
)
def test_an_invalid_manifest_is_named_with_its_file(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "good.yaml").write_text(POOL)
    (tmp_path / "bad.yaml").write_text(text)

    with pytest.raises(ConfigError) as refused:
        manifests_in(tmp_path)

    assert "bad.yaml" in str(refused.value)
    assert why in str(refused.value)
    assert "good.yaml" not in str(refused.value)


def test_a_binary_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigError, match=r"bad\.yaml: not YAML"):
        manifests_in(tmp_path)


def test_a_duplicate_object_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POOL)
    (tmp_path / "b.yaml").write_text(POOL)

    with pytest.raises(ConfigError, match=r"b\.yaml: NodePool-web is in .*a\.yaml too"):
        manifests_in(tmp_path)


def test_buffers_of_one_name_in_two_namespaces_are_different_objects(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(BUFFER)
    (tmp_path / "b.yaml").write_text(BUFFER.replace("shop", "bank"))

    assert [w["metadata"]["namespace"] for w in manifests_in(tmp_path)] == ["shop", "bank"]


@given(broken=broken_manifests())
def test_a_manifest_with_one_invalid_value_never_causes_a_traceback(
    broken: dict[str, object],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "broken.yaml").write_text(yaml.safe_dump(broken))

        try:
            taken = manifests_in(Path(folder))
        except ConfigError as refused:
            messages = list(refused.problems)
        else:
            messages = [f"broken.yaml: {wire['metadata']['name']}" for wire in taken]
    assert messages
    assert all("broken.yaml: " in problem for problem in messages)


def test_placeholders_are_replaced_and_other_dollar_signs_kept() -> None:
    known = {"CLUSTER_NAME": "joiner", "NODE_ROLE": "NodeRole"}

    spec = replace_placeholders(yaml.safe_load(CLASS)["spec"], known)

    assert spec["role"] == "NodeRole"
    assert spec["subnetSelectorTerms"] == [{"tags": {"karpenter.sh/discovery": "joiner"}}]
    assert spec["userData"] == "echo ${HOME}"


def test_the_default_pool_is_valid_and_refers_to_the_default_class() -> None:
    node_class, pool = default_manifests()

    typed = msgspec.convert(pool, NodePool)

    assert problems(typed) == []
    assert typed.spec.template.spec.node_class_ref.name == node_class["metadata"]["name"]
    assert msgspec.convert(node_class, EC2NodeClass).spec.instance_profile == "${INSTANCE_PROFILE}"
