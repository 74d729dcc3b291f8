"""Labels that user data gives to nodes."""

from __future__ import annotations

from typing import Any

import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import SelectorTerm
from controller.apis.karpenter.nodepool import NodePool
from controller.aws.bootstrap.families import FAMILIES
from controller.aws.bootstrap.nodelabels import labels_of_user_data
from controller.aws.provider import AWSCloudProvider
from tests.aws.builders import ON_DEMAND, make_claim, ready, within
from tests.aws.conftest import Region
from tests.builders import changed, make_nodepool, make_pod, make_snapshot, needs
from tests.expectations import expect_nodes, expect_unschedulable, schedule_on

FLAGS = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  kubelet:
    flags:
      - --v=2
      - --node-labels=team=red,example.com/tier=web,node.kubernetes.io/lifecycle=normal
      # - --node-labels=old=1
"""
SCRIPT = """\
#!/bin/bash
# /etc/eks/bootstrap.sh --kubelet-extra-args '--node-labels=old=1'
/etc/eks/bootstrap.sh prod --kubelet-extra-args "--node-labels=team=red,id=$ID --v=2"
"""
SETTINGS = """\
[settings.kubernetes.node-labels]
team = "red"
"example.com/tier" = "web"
number = 7
"karpenter.sh/capacity-type" = "spot"
"""


@pytest.mark.parametrize(
    ("family", "text", "expected"),
    [
        (
            "AL2023",
            FLAGS,
            {"team": "red", "example.com/tier": "web", "node.kubernetes.io/lifecycle": "normal"},
        ),
        ("Custom", SCRIPT, {"team": "red"}),
        ("AL2", '--node-labels "team=red"', {"team": "red"}),
        ("Windows2022", "-KubeletExtraArgs '--node-labels=team=red'", {"team": "red"}),
        ("Bottlerocket", SETTINGS, {"team": "red", "example.com/tier": "web"}),
        ("Bottlerocket", "not = [toml", {}),
        ("Bottlerocket", "settings = 7", {}),
        ("AL2023", "--node-labels=karpenter.sh/registered=false,topology.kubernetes.io/zone=a", {}),
        ("AL2023", "--node-labels=kubernetes.io/role=web,kubernetes.io/hostname=a", {}),
        ("AL2023", "", {}),
    ],
)
def test_the_labels_of_user_data_are_read(family: str, text: str, expected: dict[str, str]) -> None:
    assert labels_of_user_data(FAMILIES[family], text) == expected


async def offered(provider: AWSCloudProvider, pool: NodePool, **spec: Any) -> set[str | None]:
    """Return the values of the label `team` of the instance types; None for those without."""
    types = await provider.instance_types(await ready(provider, **spec), pool)
    return {
        next((r.values[0] for r in kind.requirements if r.key == "team"), None) for kind in types
    }


async def test_nodes_have_the_labels_of_the_user_data(
    provider: AWSCloudProvider, region: Region
) -> None:
    assert await offered(provider, make_nodepool(), user_data=FLAGS) == {"red"}
    assert await offered(provider, make_nodepool()) == {None}
    bottlerocket = [SelectorTerm(alias="bottlerocket@latest")]
    assert await offered(
        provider, make_nodepool(), user_data=SETTINGS, ami_selector_terms=bottlerocket
    ) == {"red"}

    claim = make_claim(ON_DEMAND, within(labels.INSTANCE_TYPE, "m5.large"))
    launched = await provider.launch(
        changed(claim, metadata={"labels": {}}), await ready(provider, user_data=FLAGS)
    )

    assert launched.labels["team"] == "red"


@pytest.mark.parametrize(
    "pool",
    [
        make_nodepool(labels={"team": "blue"}),
        make_nodepool(requirements=[needs("team", "In", "blue", "green")]),
    ],
    ids=["label", "requirement"],
)
async def test_labels_of_the_nodepool_overwrite_those_of_the_user_data(
    provider: AWSCloudProvider, pool: NodePool
) -> None:
    assert await offered(provider, pool, user_data=FLAGS) == {None}


async def test_unchanged_types_with_labels_are_the_same_list(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider, user_data=FLAGS)

    first = await provider.instance_types(node_class, make_nodepool())

    assert await provider.instance_types(node_class, make_nodepool()) is first


async def test_pods_may_select_the_labels_of_the_user_data(provider: AWSCloudProvider) -> None:
    pool = make_nodepool()
    types = await provider.instance_types(await ready(provider, user_data=FLAGS), pool)
    snapshot = make_snapshot(pool, types=types)
    red, blue = (make_pod(node_selector={"team": team}) for team in ("red", "blue"))

    expect_nodes(schedule_on(snapshot, [red]), 1)
    expect_unschedulable(schedule_on(snapshot, [blue]), blue, "team In [blue]")
