"""What is left in the network of a created cluster, and which controller created it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from infra.clusterapi import (
    ClusterApi,
    ClusterLocation,
    ClusterNotAbandonedError,
    ClusterUnreachableError,
)
from infra.lifecycle.networksweep import (
    NetworkInUseError,
    NotReleasedError,
    VpcContents,
    _NetworkSweepProvider,
    release,
    sweep,
)

REGION = "us-west-2"
HERE = ClusterLocation("joiner", REGION)
STACK = "organization/joiner/dev"
OF_CLUSTER = {"kubernetes.io/cluster/joiner": "owned"}
OURS = {"joiner.dev/installation": STACK}

pytestmark = pytest.mark.usefixtures("account")


def pairs(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def specification(kind: str, tags: dict[str, str]) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": pairs(tags)}] if tags else []


class Network:
    """A VPC of two subnets, and what may be in it."""

    def __init__(self) -> None:
        self.ec2 = boto3.client("ec2", REGION)
        self.elb = boto3.client("elb", REGION)
        self.elbv2 = boto3.client("elbv2", REGION)
        self.vpc = self.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.subnets = [
            self.ec2.create_subnet(
                VpcId=self.vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=f"{REGION}{zone}"
            )["Subnet"]["SubnetId"]
            for number, zone in enumerate("ab")
        ]

    def group(self, name: str, tags: dict[str, str]) -> str:
        return str(
            self.ec2.create_security_group(
                GroupName=name,
                Description=name,
                VpcId=self.vpc,
                TagSpecifications=specification("security-group", tags),
            )["GroupId"]
        )

    def admit(self, group: str, other: str) -> None:
        pairs = [{"GroupId": other}]
        rule = {"IpProtocol": "tcp", "FromPort": 1, "ToPort": 9, "UserIdGroupPairs": pairs}
        self.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])

    def balancer(self, name: str, tags: dict[str, str]) -> None:
        more = {"Tags": pairs(tags)} if tags else {}
        self.elbv2.create_load_balancer(Name=name, Subnets=self.subnets, Type="network", **more)
        self.elbv2.create_target_group(
            Name=name, Protocol="TCP", Port=80, VpcId=self.vpc, TargetType="ip", **more
        )

    def classic(self, name: str, tags: dict[str, str]) -> None:
        port = {"Protocol": "tcp", "LoadBalancerPort": 80, "InstancePort": 80}
        more = {"Tags": pairs(tags)} if tags else {}
        self.elb.create_load_balancer(
            LoadBalancerName=name,
            Listeners=[port],
            Subnets=self.subnets,
            SecurityGroups=[self.group(f"of-{name}", OURS)],
            **more,
        )

    def interface(self, description: str) -> str:
        return str(
            self.ec2.create_network_interface(SubnetId=self.subnets[0], Description=description)[
                "NetworkInterface"
            ]["NetworkInterfaceId"]
        )

    def endpoint(self, service: str, group: str) -> str:
        made = self.ec2.create_vpc_endpoint(
            VpcId=self.vpc,
            ServiceName=f"com.amazonaws.{REGION}.{service}",
            VpcEndpointType="Interface",
            SubnetIds=self.subnets,
            SecurityGroupIds=[group],
        )
        return str(made["VpcEndpoint"]["VpcEndpointId"])

    def contents(self, *of_eks: str) -> VpcContents:
        return VpcContents(HERE, self.vpc, STACK, frozenset(of_eks))


@pytest.fixture
def network(account: None) -> Network:
    return Network()


class Clock:
    """Advances the clock at once, `pace` times as far as it is asked to."""

    def __init__(self, pace: float = 1.0) -> None:
        self.now, self._pace = 0.0, pace

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += self._pace * seconds


def test_only_network_objects_of_the_clusters_controllers_are_deleted(network: Network) -> None:
    network.balancer("of-cluster", {"elbv2.k8s.aws/cluster": "joiner"})
    network.classic("classic-of-cluster", OF_CLUSTER)
    of_eks, ours = network.group("eks-cluster-sg", OF_CLUSTER), network.group("ours", OURS)
    of_balancer, another = network.group("k8s-elb-x", OF_CLUSTER), network.group("b", OURS)
    network.admit(of_eks, of_balancer)
    network.admit(of_eks, another)
    leaked = network.interface("aws-K8S-i-0123")
    kept = network.interface("by hand")
    elsewhere = Network()
    elsewhere.balancer("elsewhere", OF_CLUSTER)
    said: list[str] = []
    contents = network.contents(of_eks)
    assert [*contents.of_others()] == []

    sweep(contents, clock=Clock(), say=said.append)

    assert len(said) == 5
    assert [*contents.of_cluster()] == []
    interfaces = network.ec2.describe_network_interfaces()["NetworkInterfaces"]
    left = {one["NetworkInterfaceId"] for one in interfaces}
    assert kept in left
    assert leaked not in left
    wanted = [{"Name": "vpc-id", "Values": [network.vpc]}]
    groups = network.ec2.describe_security_groups(Filters=wanted)["SecurityGroups"]
    assert {one["GroupName"] for one in groups} == {
        "default",
        "eks-cluster-sg",
        "of-classic-of-cluster",
        "ours",
        "b",
    }
    (of_cluster,) = (one for one in groups if one["GroupId"] == of_eks)
    admitted = [p["GroupId"] for r in of_cluster["IpPermissions"] for p in r["UserIdGroupPairs"]]
    assert admitted == [another]
    balancers = network.elbv2.describe_load_balancers()["LoadBalancers"]
    assert [one["LoadBalancerName"] for one in balancers] == ["elsewhere"]
    assert ours


def things_of_others(network: Network) -> Iterator[str]:
    """Create foreign resources in the network; yield their names."""
    network.balancer("theirs", {"elbv2.k8s.aws/cluster": "another"})
    yield "load balancer arn:aws:elasticloadbalancing:.*/theirs/"
    network.classic("classic", {})
    yield "load balancer classic"
    yield f"security group {network.group('theirs', {})} (theirs)".replace("(", r"\(").replace(
        ")", r"\)"
    )
    yield f"network interface {network.interface('RDSNetworkInterface')} of RDS"
    made = network.ec2.run_instances(
        ImageId="ami-12c6146b", MinCount=1, MaxCount=1, SubnetId=network.subnets[0]
    )
    yield f"instance {made['Instances'][0]['InstanceId']}"
    endpoint = network.ec2.create_vpc_endpoint(
        VpcId=network.vpc, ServiceName=f"com.amazonaws.{REGION}.s3"
    )
    yield f"VPC endpoint {endpoint['VpcEndpoint']['VpcEndpointId']}"


def props(network: Network, *, retained: bool = False) -> dict[str, Any]:
    more = {"installation": STACK, "vpc": network.vpc, "retained": retained}
    return {**HERE.location, **more}


def test_foreign_network_objects_block_the_destroy_and_are_listed(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*things_of_others(network)]
    network.balancer("of-cluster", OF_CLUSTER)
    monkeypatch.setattr(ClusterApi, "find", lambda location: pytest.fail("it comes too late"))

    for word in words:
        with pytest.raises(NetworkInUseError, match=word):
            _NetworkSweepProvider().end(props(network))

    assert len(network.elbv2.describe_load_balancers()["LoadBalancers"]) == 2


def test_a_retained_network_is_not_swept(network: Network) -> None:
    network.balancer("of-cluster", OF_CLUSTER)

    _NetworkSweepProvider().end(props(network, retained=True))

    assert network.elbv2.describe_load_balancers()["LoadBalancers"]


def test_in_the_users_network_the_sweep_deletes_no_load_balancers(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[Any] = []
    monkeypatch.setattr(ClusterApi, "find", lambda location: location.cluster_name)
    monkeypatch.setattr("infra.lifecycle.networksweep.release", released.append)
    network.balancer("of-cluster", OF_CLUSTER)
    network.balancer("of-others", {})

    _NetworkSweepProvider().end({k: v for k, v in props(network).items() if k != "vpc"})

    assert released == ["joiner"]
    assert len(network.elbv2.describe_load_balancers()["LoadBalancers"]) == 2


def test_nothing_is_deleted_while_the_cluster_is_unreachable(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(location: ClusterLocation) -> ClusterApi:
        raise ClusterUnreachableError("no answer")

    monkeypatch.setattr(ClusterApi, "find", silent)
    network.balancer("of-cluster", OF_CLUSTER)

    with pytest.raises(ClusterNotAbandonedError):
        _NetworkSweepProvider().end(props(network))

    assert network.elbv2.describe_load_balancers()["LoadBalancers"]


def test_a_network_object_that_cannot_be_deleted_fails_the_destroy_with_a_message(
    network: Network,
) -> None:
    group = network.group("k8s-elb-x", OF_CLUSTER)
    said = {"Error": {"Code": "DependencyViolation", "Message": "has a dependent object"}}

    class InUse(VpcContents):
        def _delete_group(self, identity: str) -> None:
            raise ClientError(said, "DeleteSecurityGroup")

    contents, clock = InUse(HERE, network.vpc, STACK), Clock(pace=10)

    with pytest.raises(NotReleasedError, match=rf"security group {group}\. .*dependent object"):
        sweep(contents, clock=clock, say=lambda line: None)

    assert clock.now >= 600


class Cluster:
    """A cluster whose controllers remove what is deleted, or do not."""

    def __init__(self, *, is_alive: bool) -> None:
        self.is_alive = is_alive
        self.deleted: list[str] = []

    def list(self, path: str, **_query: str) -> list[dict[str, Any]]:
        def named(name: str, **more: Any) -> dict[str, Any]:
            return {"metadata": {"namespace": "web", "name": name}, **more}

        if path.endswith("services"):
            return [
                named("public", spec={"type": "LoadBalancer"}),
                named("inside", spec={"type": "ClusterIP"}),
            ]
        balanced = {"loadBalancer": {"ingress": [{"hostname": "x"}]}}
        return [named("shop", status=balanced), named("new", status={"loadBalancer": {}})]

    def get(self, path: str) -> dict[str, Any] | None:
        return None if self.is_alive and path in self.deleted else {}

    def delete(self, path: str) -> None:
        self.deleted.append(path)


@pytest.mark.parametrize("is_alive", [True, False])
def test_services_and_ingresses_are_deleted_while_their_controllers_run(
    is_alive: bool,
) -> None:
    cluster, clock = Cluster(is_alive=is_alive), Clock()

    release(cluster, clock=clock, say=lambda line: None)

    assert cluster.deleted == [
        "/api/v1/namespaces/web/services/public",
        "/apis/networking.k8s.io/v1/namespaces/web/ingresses/shop",
    ]
    assert clock.now == (0 if is_alive else 180)


def test_what_guardduty_adds_to_each_vpc_is_deleted_last(network: Network) -> None:
    of_balancer = network.group("k8s-elb-x", OF_CLUSTER)
    managed = network.group(f"GuardDutyManagedSecurityGroup-{network.vpc}", {})
    endpoint = network.endpoint("guardduty-data", managed)
    said: list[str] = []
    assert [*network.contents().of_others()] == []

    sweep(network.contents(), clock=Clock(), say=said.append)

    assert [*network.contents().of_cluster()] == []
    order = [one for one in said for name in (of_balancer, endpoint, managed) if name in one]
    assert managed in order[-1]
    assert len(order) == 3


def test_an_endpoint_of_another_service_stops_the_destroy(network: Network) -> None:
    endpoint = network.endpoint("ecr.api", network.group("ours", OURS))

    assert [*network.contents().of_others()] == [f"VPC endpoint {endpoint}"]
