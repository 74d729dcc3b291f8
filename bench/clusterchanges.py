"""Change the settings of a stack that created its cluster, and audit cluster, network and nodes.

    python -m bench.clusterchanges --seeds 1-20

Each seed is one stack from its creation to its end, as in `bench.settingschanges`, which describes
the rules. The stack creates the EKS cluster with its VPC, beside another owner's VPC. The auditor
also checks that the cluster, its subnets and compute for the controller are there while nodes run.

Prints the findings with the sequence that led to each, and `N runs, F findings`. The exit code is 1
if there are any findings.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from bench.settingschanges import CHANGES, Run, main

CLUSTER = "joiner"

OF_CLUSTER: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "version": ({"kubernetesVersion": "1.37"}, {"kubernetesVersion": "1.36"}),
    "endpoint": ({"publicAccessCidrs": "none"}, {"publicAccessCidrs": "198.51.100.0/24"}),
    "logs": ({"controlPlaneLogs": "api, audit"},),
    "key": ({"secretsKey": "arn:aws:kms:us-west-2:123456789012:key/1234"},),
    "protection": ({"deletionProtection": "true"},),
    "support": ({"upgradePolicy": "STANDARD"}, {"upgradePolicy": "EXTENDED"}),
    "IP family": ({"ipFamily": "ipv6"},),
    "compute": ({"controllerCompute": "fargate", "identity": "irsa", "oidcProvider": "create"},),
    "controller nodes": (
        {"controllerInstanceTypes": "m7g.large"},
        {"controllerInstanceTypes": "m5.large"},
        {"controllerSize": "3"},
    ),
    "network": ({"vpcCidr": "10.64.0.0/16"}, {"natGateways": "zonal"}),
    "interface endpoints": ({"interfaceEndpoints": "ecr.api, ecr.dkr"},),
    "principals": (
        {
            "accessEntries": json.dumps(
                [
                    {
                        "principal": "arn:aws:iam::123456789012:role/of-others",
                        "policy": "AmazonEKSViewPolicy",
                    }
                ]
            )
        },
    ),
    "cluster": (
        {"cluster": "existing"},
        {"clusterName": "another"},
        {"confirmDelete": "cluster", "cluster": "existing"},
    ),
    **{
        name: CHANGES[name]
        for name in ("path", "prefix", "access", "windows", "identity", "tags", "boundary")
    },
}
"""Names of what changes, and the settings of each way to change it."""


@dataclass
class CreatedRun(Run):
    """One seed: a stack that creates its cluster, and the findings on the way to its end."""

    has_eks_cluster: ClassVar[bool] = False
    changes: ClassVar[Mapping[str, tuple[Mapping[str, str], ...]]] = OF_CLUSTER

    vpc: str = ""
    """ID of another owner's VPC. All instances of the run are launched in its subnet."""

    network: Any = None
    """The result of `_network` when the first node was launched; None while no node runs."""

    def __post_init__(self) -> None:
        self.stage.settings |= {
            "cluster": "create",
            "publicAccessCidrs": "203.0.113.0/24",
        }

    def _create_network(self) -> None:
        ec2 = self.stage.client("ec2")
        self.vpc = ec2.create_vpc(CidrBlock="172.20.0.0/16")["Vpc"]["VpcId"]
        ec2.create_subnet(VpcId=self.vpc, CidrBlock="172.20.0.0/20")

    def _delete_network(self) -> None:
        ec2 = self.stage.client("ec2")
        for subnet in self._subnets(self.vpc):
            ec2.delete_subnet(SubnetId=subnet)
        ec2.delete_vpc(VpcId=self.vpc)

    def _launch(self) -> None:
        super()._launch()
        if self.instances and self.network is None:
            self.network = self._network()

    def _end_nodes(self) -> None:
        super()._end_nodes()
        self.network = None

    def _end(self) -> None:
        if self.settings.get("deletionProtection") == "true":
            self._record("destroy with deletion protection", {})
            before = self._snapshot()
            self._expect(bool(self._operate(self.stage.destroy)), "the cluster was not protected")
            self._expect(self._snapshot() == before, "a refused destroy changed something")
            self._settle("unprotect", {**self.settings, "deletionProtection": "false"})
        super()._end()

    def _audit(self) -> None:
        super()._audit()
        if self.network is not None:
            self._expect(self._network() == self.network, "the cluster or its network was replaced")

    def _network(self) -> Any:
        """Return what identifies the cluster and its subnets, and whether it has compute.

        None if the cluster does not exist.
        """
        eks = self.stage.client("eks")
        try:
            cluster = eks.describe_cluster(name=CLUSTER)["cluster"]
        except eks.exceptions.ResourceNotFoundException:
            return None
        vpc = cluster["resourcesVpcConfig"]["vpcId"]
        groups = eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"]
        profiles = eks.list_fargate_profiles(clusterName=CLUSTER)["fargateProfileNames"]
        return {
            "cluster": (cluster["arn"], cluster["createdAt"], cluster["roleArn"]),
            "subnets": self._subnets(vpc),
            "has compute": bool(groups or profiles),
        }

    def _subnets(self, vpc: str) -> list[str]:
        """Return the IDs of a VPC's subnets, sorted."""
        within = [{"Name": "vpc-id", "Values": [vpc]}]
        found = self.stage.client("ec2").describe_subnets(Filters=within)["Subnets"]
        return sorted(subnet["SubnetId"] for subnet in found)


if __name__ == "__main__":
    sys.exit(main(CreatedRun, "bench.clusterchanges", __doc__))
