"""Objects of other owners, in and beside the cluster, are unchanged at the end.

The cluster has EKS Auto Mode and a Karpenter of another provider, with NodePools, NodeClaims, node
classes, nodes and running pods. The account has a Karpenter of another cluster, which shares the
subnets. The test deploys a stack, whose nodes launch, are consolidated and terminate, and destroys
it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.environment import CHECKOUT
from testbed.kube.client import KubeClient, Object
from tests import administrator
from tests.neighbours import NEIGHBOURS, TAINT, Neighbour
from tests.system.manifests import in_pool, need, node_class, node_pool
from tests.system.region import (
    DEFINITIONS,
    DEPLOYMENTS,
    FREE_EVICTIONS,
    NODE_CLAIMS,
    NODE_POOLS,
    NODES,
    PODS,
    Region,
    deployment,
    eventually,
    holds,
)

pytestmark = pytest.mark.system

SHARED_KINDS = ("nodepools.karpenter.sh", "nodeclaims.karpenter.sh")
"""Kinds that EKS Auto Mode installs."""

ANOTHER = "another"
"""The name of the other cluster, and of its Karpenter's resources in AWS."""

OUR_TAG = "joiner.example.com/discovery"
OF_KUBERNETES = "node.kubernetes.io/"
"""Prefix of the taints with which Kubernetes reports a node's condition."""


def as_they_left_it(wire: Object) -> Object:
    """Return a node or a pod without the fields that Kubernetes itself writes.

    Those are the fields of its kubelet and of Kubernetes' own controllers.
    """
    kept = copy.deepcopy({key: wire[key] for key in ("metadata", "spec")})
    for key in ("resourceVersion", "managedFields", "generation"):
        kept["metadata"].pop(key, None)
    kept["metadata"].get("annotations", {}).pop("node.alpha.kubernetes.io/ttl", None)
    taints = kept["spec"].get("taints") or []
    kept["spec"]["taints"] = [t for t in taints if not t["key"].startswith(OF_KUBERNETES)]
    return kept


@dataclass(frozen=True, slots=True)
class Account:
    """Everything in the account that does not belong to the stack."""

    region: Region
    kube: KubeClient

    def client(self, service: str) -> Any:
        """Return a client with administrator rights."""
        return administrator.client(self.region.cloud.url, service)

    # Initial state.

    async def create(self) -> None:
        """Create the objects and instances of other controllers."""
        for name in SHARED_KINDS:
            plural, _, group = name.partition(".")
            file = CHECKOUT / "crds" / f"{group}_{plural}.yaml"
            await self._define(yaml.safe_load(file.read_text()))
        self._create_another_cluster()
        for neighbour in NEIGHBOURS:
            await self._define(neighbour.definition())
            collection = f"/apis/{neighbour.class_group}/v1/{neighbour.class_plural}"
            await self.kube.create(collection, neighbour.node_class())
            for pool in neighbour.pools:
                await self.kube.create(NODE_POOLS, neighbour.node_pool(pool))
                await self._create_node(neighbour, pool)
        await eventually("all that others have runs", self._all_runs)

    async def _define(self, wire: Object) -> None:
        path = f"{DEFINITIONS}/{wire['metadata']['name']}"
        await self.kube.create(DEFINITIONS, wire)

        async def is_served() -> bool:
            return holds(await self.kube.get(path), "Established")

        await eventually(f"{path} is served", is_served)

    async def _create_node(self, neighbour: Neighbour, pool: str) -> None:
        claim = f"{pool}-1"
        instance, zone = self._launch(neighbour.tags("joiner", pool, claim))
        provider_id = f"aws:///{zone}/{instance}"
        wire = neighbour.claim(claim, pool, provider_id=provider_id, node=instance)
        await self.kube.create(NODE_CLAIMS, wire)
        status = {"status": wire["status"]}
        await self.kube.patch(f"{NODE_CLAIMS}/{claim}/status", status)
        node = neighbour.node(instance, pool, provider_id=provider_id)
        node["metadata"]["annotations"] = {"kwok.x-k8s.io/node": "fake"}
        await self.kube.create(NODES, node)
        tolerated = {"tolerations": [{"key": TAINT["key"], "operator": "Exists"}]}
        pods = deployment(f"theirs-{pool}", 1, **in_pool(pool), **tolerated)
        await self.kube.create(DEPLOYMENTS, pods)

    async def _all_runs(self) -> bool:
        pods, _ = await self.kube.list(PODS)
        wanted = sum(len(neighbour.pools) for neighbour in NEIGHBOURS)
        instances = self.region.instances()
        return (
            len(pods) == wanted
            and all(holds(pod, "Ready") for pod in pods)
            and all(instance.state == "running" for instance in instances)
        )

    def _launch(self, tags: Mapping[str, str]) -> tuple[str, str]:
        """Launch an instance with these tags; return its ID and its zone."""
        ec2 = self.client("ec2")
        (made,) = ec2.run_instances(
            ImageId=ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"],
            InstanceType="m5.large",
            SubnetId=self._shared()[0],
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[
                {"ResourceType": kind, "Tags": pairs(tags)} for kind in ("instance", "volume")
            ],
        )["Instances"]
        return made["InstanceId"], made["Placement"]["AvailabilityZone"]

    def _shared(self) -> list[str]:
        """Return the subnets and security groups in which both clusters have nodes."""
        ec2, cluster = self.client("ec2"), self.client("eks").describe_cluster(name="joiner")
        private = [{"Name": "tag:Name", "Values": ["joiner-private-*"]}]
        subnets = ec2.describe_subnets(Filters=private)["Subnets"]
        group = cluster["cluster"]["resourcesVpcConfig"]["clusterSecurityGroupId"]
        return [*sorted(subnet["SubnetId"] for subnet in subnets), group]

    def _create_another_cluster(self) -> None:
        """Create what Karpenter's guide creates for the other cluster, and a node."""
        ec2, iam, events = self.client("ec2"), self.client("iam"), self.client("events")
        discovery = {"karpenter.sh/discovery": ANOTHER}
        ec2.create_tags(Resources=self._shared(), Tags=pairs(discovery))
        trust = {"Version": "2012-10-17", "Statement": []}
        role = f"KarpenterNodeRole-{ANOTHER}"
        made = iam.create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(trust))
        role_arn = made["Role"]["Arn"]
        iam.create_instance_profile(
            InstanceProfileName=ANOTHER, Path=f"/karpenter/us-west-2/{ANOTHER}/default/"
        )
        iam.add_role_to_instance_profile(InstanceProfileName=ANOTHER, RoleName=role)
        arn = f"arn:aws:sqs:us-west-2:{role_arn.split(':')[4]}:{ANOTHER}"
        sending = {
            "Effect": "Allow",
            "Principal": {"Service": "events.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": arn,
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [sending]})
        self.client("sqs").create_queue(QueueName=ANOTHER, Attributes={"Policy": policy})
        events.put_rule(Name=ANOTHER, EventPattern=json.dumps({"source": ["aws.ec2"]}))
        events.put_targets(Rule=ANOTHER, Targets=[{"Id": "queue", "Arn": arn}])
        of_karpenter = NEIGHBOURS[-1].tags(ANOTHER, "default", "default-1")
        ec2.create_launch_template(
            LaunchTemplateName=f"karpenter.k8s.aws/{ANOTHER}",
            LaunchTemplateData={"InstanceType": "m5.large"},
            TagSpecifications=[{"ResourceType": "launch-template", "Tags": pairs(of_karpenter)}],
        )
        self._launch(of_karpenter)

    def _queue(self, url: str) -> Any:
        return self.client("sqs").get_queue_attributes(
            QueueUrl=url, AttributeNames=["QueueArn", "Policy", "CreatedTimestamp"]
        )

    # Current state.

    async def seen(self) -> Mapping[str, str]:
        """Return the serialized state of every foreign object and resource, by its name."""
        found: dict[str, Any] = {}
        for neighbour in NEIGHBOURS:
            classes = f"/apis/{neighbour.class_group}/v1/{neighbour.class_plural}/default"
            definition = neighbour.definition()["metadata"]["name"]
            for path in (classes, f"{DEFINITIONS}/{definition}"):
                found[path] = await self.kube.get(path)
            for pool in neighbour.pools:
                for path in (f"{NODE_POOLS}/{pool}", f"{NODE_CLAIMS}/{pool}-1"):
                    found[path] = await self.kube.get(path)
        for name in SHARED_KINDS:
            found[name] = await self.kube.get(f"{DEFINITIONS}/{name}")
        theirs = ", ".join(pool for neighbour in NEIGHBOURS for pool in neighbour.pools)
        nodes, _ = await self.kube.list(NODES, labelSelector=f"karpenter.sh/nodepool in ({theirs})")
        pods, _ = await self.kube.list(PODS)
        for wire in (*nodes, *pods):
            if not wire["metadata"]["name"].startswith("ours-"):
                found[f"{wire['metadata']['name']} in the cluster"] = as_they_left_it(wire)
        found |= self._in_aws()
        return {what: json.dumps(wire, default=str, sort_keys=True) for what, wire in found.items()}

    def _in_aws(self) -> dict[str, Any]:
        ec2, iam, events = self.client("ec2"), self.client("iam"), self.client("events")
        role = f"KarpenterNodeRole-{ANOTHER}"
        found: dict[str, Any] = {
            f"tags of {identity}": self._their_tags(identity) for identity in self._shared()
        }
        tagged = [{"Name": "tag-key", "Values": ["karpenter.sh/nodepool"]}]
        for reservation in ec2.describe_instances(Filters=tagged)["Reservations"]:
            for instance in reservation["Instances"]:
                tags = {tag["Key"] for tag in instance["Tags"]}
                if "joiner.dev/installation" not in tags:
                    found[f"{instance['InstanceId']} in EC2"] = instance
        templates = ec2.describe_launch_templates(
            LaunchTemplateNames=[f"karpenter.k8s.aws/{ANOTHER}"]
        )
        url = self.client("sqs").get_queue_url(QueueName=ANOTHER)["QueueUrl"]
        return found | {
            "template": templates["LaunchTemplates"],
            "queue": self._queue(url)["Attributes"],
            "rule": answered(events.describe_rule(Name=ANOTHER)),
            "targets": events.list_targets_by_rule(Rule=ANOTHER)["Targets"],
            "role": iam.get_role(RoleName=role)["Role"],
            "profile": iam.get_instance_profile(InstanceProfileName=ANOTHER)["InstanceProfile"],
        }

    def _their_tags(self, identity: str) -> list[tuple[str, str]]:
        filters = [{"Name": "resource-id", "Values": [identity]}]
        tags = self.client("ec2").describe_tags(Filters=filters)["Tags"]
        ours = ("joiner.", OUR_TAG)
        return sorted((t["Key"], t["Value"]) for t in tags if not t["Key"].startswith(ours))


def pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in the form of EC2."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def answered(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return AWS's answer without its response metadata."""
    return {key: value for key, value in answer.items() if key != "ResponseMetadata"}


@pytest.fixture
async def account(region: Region, kube: KubeClient) -> Account:
    """Return an account with the objects of other controllers."""
    made = Account(region, kube)
    await made.create()
    return made


@pytest.fixture
def pools(tmp_path: Path) -> str:
    """Return a folder with a NodePool of small nodes that can be consolidated together.

    Its node class selects subnets and security groups by the stack's discovery tag.
    """
    ours = [{"tags": {"${DISCOVERY_TAG}": "${CLUSTER_NAME}"}}]
    requirements = [
        need("node.kubernetes.io/instance-type", "In", "m5.large"),
        need("karpenter.sh/capacity-type", "In", "on-demand"),
    ]
    disruption = {"consolidateAfter": "1s", "budgets": [{"nodes": "100%"}]}
    wires = [
        node_class("default", subnetSelectorTerms=ours, securityGroupSelectorTerms=ours),
        node_pool("default", requirements=requirements, disruption=disruption),
    ]
    folder = tmp_path / "pools"
    folder.mkdir()
    (folder / "pools.yaml").write_text(yaml.safe_dump_all(wires))
    return str(folder)


async def test_foreign_resources_are_unchanged_by_any_stack_operation(
    account: Account, region: Region, kube: KubeClient, pools: str
) -> None:
    before = await account.seen()

    async def expect_untouched() -> None:
        now = await account.seen()
        assert now.keys() == before.keys()
        assert [what for what in now if now[what] != before[what]] == []

    async def ours() -> int:
        claims, _ = await kube.list(NODE_CLAIMS, labelSelector="karpenter.sh/nodepool=default")
        return len(claims)

    async def running(pods: int) -> bool:
        held, _ = await kube.list(PODS, labelSelector="app=ours")
        return len(held) == pods and all(holds(pod, "Ready") for pod in held)

    region.up(
        existingCrds=json.dumps(SHARED_KINDS),
        discoveryTagKey=OUR_TAG,
        nodePools=pools,
        settings=json.dumps({**FREE_EVICTIONS, "BATCH_IDLE_DURATION": "200ms"}),
    )
    await expect_untouched()

    await kube.create(DEPLOYMENTS, deployment("ours", 9, **in_pool("default")))
    await eventually("our pods run", lambda: running(9))
    most = await ours()
    assert most > 1
    await expect_untouched()

    await kube.patch(f"{DEPLOYMENTS}/ours", {"spec": {"replicas": 2}})

    async def is_consolidated() -> bool:
        return await running(2) and await ours() == 1

    await eventually("our pods share one node", is_consolidated)
    await expect_untouched()

    region.destroy()
    await expect_untouched()
    nodes, _ = await kube.list(NODES, labelSelector="karpenter.k8s.aws/ec2nodeclass")
    assert nodes == []
    assert region.cloud.denied_calls() == []
    assert region.cloud.unimplemented_calls() == {}
