"""NodePools of a stack: from a folder, from typed Python, owned by name."""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.karpenter.validation import problems
from infra.config.forms import ConfigError
from infra.nodepools import (
    KINDS,
    default_manifests,
    manifests_in,
    missing_objects,
    replace_placeholders,
)
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


class FakeObjects:
    """A cluster that has one NodePool."""

    def list(self, path: str, **_: str) -> list[dict[str, Any]]:
        return [{"metadata": {"name": "web"}}] if path.endswith("/nodepools") else []


def test_objects_that_the_cluster_does_not_have_are_named() -> None:
    manifests = [yaml.safe_load(text) for text in (POOL, CLASS)]

    assert missing_objects(FakeObjects(), manifests) == ["EC2NodeClass web"]  # type: ignore[arg-type]


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
        (
            POOL.replace("requirements: []", "requirements: 5"),
            "5 is not of type 'array'",
        ),
        (
            POOL.replace("requirements: []", "requirements: [{key: a b, operator: Exists}]"),
            "is not a qualified name",
        ),
        (POOL.replace("sh/v1", "sh/v1beta1"), "it must be karpenter.sh/v1"),
        ("apiVersion: karpenter.sh/v1alpha5\nkind: Provisioner", "in v1 it is a NodePool of"),
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


MISTAKES = {
    "limit: {cpu: 10}": "spec.limit: unknown field; did you mean limits?",
    "disruption: {expireAfter: 720h}": (
        "spec.disruption.expireAfter: unknown field; in v1 it is spec.template.spec.expireAfter"
    ),
    "disruption: {consolidationPolicy: WhenUnderutilized}": "did you mean WhenEmptyOrUnderutilized",
    "template: {spec: {kubelet: {maxPods: 20}}}": (
        "spec.template.spec.kubelet: unknown field; in v1 it is spec.kubelet of EC2NodeClass"
    ),
    "template: {spec: {nodeClassRef: {apiVersion: karpenter.k8s.aws/v1beta1}}}": (
        "nodeClassRef.apiVersion: unknown field; in v1 it is group"
    ),
    "template: {spec: {nodeClassRef: {group: null}}}": (
        "nodeClassRef.group: required. API group of the NodeClass: karpenter.k8s.aws."
    ),
    "template: {spec: {nodeClassRef: {group: karpenter.k8s.aws/v1}}}": (
        "nodeClassRef.group: 'karpenter.k8s.aws/v1' does not match"
    ),
    "disruption: {budgets: [{nodes: '0', schedule: '0 9 * * *'}]}": (
        "spec.disruption.budgets: 'schedule' must be set with 'duration'"
    ),
    "template: {spec: {requirements: [{key: x, operator: In, value: [a]}]}}": (
        "requirements[0].value: unknown field; did you mean values?"
    ),
    "template: {spec: {requirements: [{key: karpenter.k8s.aws/instance-generation, "
    "operator: In, values: [g6]}]}}": (
        "none of ['g6'] exists; the label's values are whole numbers"
    ),
}
"""Fields of Karpenter's earlier APIs and other mistakes of public NodePools, with the message."""


def _merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    both = {k: _merged(base[k], v) for k, v in change.items() if isinstance(v, dict) and k in base}
    return base | change | both


@pytest.mark.parametrize(("change", "message"), MISTAKES.items(), ids=lambda text: text[:40])
def test_a_mistake_in_a_node_pool_is_named_with_its_remedy(
    tmp_path: Path, change: str, message: str
) -> None:
    pool = _merged(yaml.safe_load(POOL), {"spec": yaml.safe_load(change)})
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(pool))

    with pytest.raises(ConfigError) as refused:
        manifests_in(tmp_path)

    assert message in str(refused.value)


def test_all_mistakes_of_a_node_pool_are_reported_at_once(tmp_path: Path) -> None:
    pool = yaml.safe_load(POOL)
    changes = [change for change in MISTAKES if "requirements" not in change]
    for change in changes:
        pool = _merged(pool, {"spec": yaml.safe_load(change)})
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(pool))

    with pytest.raises(ConfigError) as refused:
        manifests_in(tmp_path)

    message = str(refused.value)
    for expected in ("limits?", "template.spec.kubelet", "nodeClassRef.apiVersion", "'schedule'"):
        assert expected in message


def test_an_unknown_field_of_an_ec2_node_class_is_named(tmp_path: Path) -> None:
    (tmp_path / "class.yaml").write_text(f"{CLASS}  instanceProfile: other\n  amiSelector: {{}}\n")

    with pytest.raises(ConfigError) as refused:
        manifests_in(tmp_path)

    assert "spec.amiSelector: unknown field; in v1 it is amiSelectorTerms" in str(refused.value)
    assert "must specify exactly one of ['role', 'instanceProfile']" in str(refused.value)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda wire: wire["metadata"]["name"])
def test_the_samples_are_accepted(tmp_path: Path, sample: dict[str, object]) -> None:
    (tmp_path / "sample.yaml").write_text(yaml.safe_dump(sample))

    assert manifests_in(tmp_path) == [sample]


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
