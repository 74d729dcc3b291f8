"""A test cloud with a network and a role, and a cloud provider that calls it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import msgspec
import pytest

from controller.aws.batching import Batcher
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.options import Options
from testbed.cloud import Cloud, CloudControl
from testbed.cloud.state.world import Settings
from testbed.nodes.instances import Instance as NodeInstance
from testbed.nodes.instances import Listing
from tests import administrator
from tests.aws.builders import CLUSTER, QUEUE, ROLE, Clock, tag_network
from tests.virtualclock import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]

REGION = "us-west-2"


@dataclass(frozen=True)
class Region:
    """The test cloud, its controls, and an administrator's clients."""

    cloud: Cloud
    control: CloudControl

    def client(self, service: str) -> Any:
        return administrator.client(self.cloud.url, service)

    def instances(self) -> list[Any]:
        """Return the instances that are not terminating."""
        return [
            i
            for i in self.control.instances().instances
            if i.state not in ("shutting-down", "terminated")
        ]

    def terminate(self) -> None:
        """Terminate every instance."""
        if left := [instance.instance_id for instance in self.instances()]:
            self.client("ec2").terminate_instances(InstanceIds=left)

    def wait_until_terminated(self) -> None:
        """Wait until no instance is shutting down."""
        found = self.control.instances()
        while any(instance.state == "shutting-down" for instance in found.instances):
            found = self.control.instances(since=found.revision, timeout=10)

    def launch_template(self, instance: Any) -> Any:
        """Return the content of the launch template of an instance."""
        (version,) = self.client("ec2").describe_launch_template_versions(
            LaunchTemplateId=instance.tags["aws:ec2launchtemplate:id"], Versions=["$Latest"]
        )["LaunchTemplateVersions"]
        return version["LaunchTemplateData"]

    def as_kubelets_see_them(self) -> list[NodeInstance]:
        """Return every instance as its kubelet sees it."""
        with urllib.request.urlopen(f"{self.cloud.url}/testbed/instances") as answer:
            return msgspec.json.decode(answer.read(), type=Listing).instances


@pytest.fixture(scope="module")
def region() -> Iterator[Region]:
    settings = Settings(pending=0.0, shutting_down=0.0, terminated_visible=600.0)
    with Cloud(cluster_name=CLUSTER, settings=settings) as cloud:
        made = Region(cloud, CloudControl(cloud.url))
        _prepare(made)
        yield made


def _prepare(region: Region) -> None:
    """Create what the stack creates: discovery tags, the node role with its profile, the queue."""
    ec2, iam = region.client("ec2"), region.client("iam")
    tag_network(ec2)
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "ec2.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
    iam.create_role(RoleName=ROLE, AssumeRolePolicyDocument=json.dumps(trust))
    iam.create_instance_profile(
        InstanceProfileName=ROLE,
        Tags=[{"Key": f"kubernetes.io/cluster/{CLUSTER}", "Value": "owned"}],
    )
    iam.add_role_to_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)
    region.client("sqs").create_queue(QueueName=QUEUE)


SLOW = frozenset(
    {
        "describe_instance_types",
        "describe_instance_type_offerings",
        "describe_spot_price_history",
        "get_products",
    }
)
"""Operations whose answers have thousands of rows and are the same for every test."""


Catalogue = dict[str, list[dict[str, Any]]]
"""Answers of the operations in `SLOW`, by operation and parameters."""

CATALOGUE: Catalogue = {}
"""What every test cloud answers: all of them offer the same instance types at the same prices."""


FAMILIES = "c5 g4dn m5 m6g p4d t3"
"""Families of the instance types that most tests see: a controller that has just started computes
the offerings of each type, which takes 0.3 s for all 1,395 types.
"""

MANY_FAMILIES = (
    "a1 c5 c6a c7gn g4dn g5 g6 g6f gr6 gr6f inf1 inf2 is4gen m5 m5d m6g m7i-flex p4d p5 r5 t2 t3"
    " t4g trn1n vt1 x1e x2gd z1d"
)
"""Families of the instance types for tests that need some of every kind."""


class RememberingSession(Session):
    """A session that reads the test cloud's catalogue once for all controllers.

    Sessions that are given the same catalogue read it once together. With `families`, the session
    sees only the instance types of these families.
    """

    def __init__(
        self,
        *,
        catalogue: Catalogue | None = None,
        families: Collection[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._catalogue: Catalogue = {} if catalogue is None else catalogue
        self._families = families

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        if operation not in SLOW:
            return await super().pages(service, operation, key, **parameters)
        if self._families and service == "ec2":
            # Reading all types takes seconds.
            named = {"Name": "instance-type", "Values": [f"{name}.*" for name in self._families]}
            parameters = {**parameters, "Filters": [*parameters.get("Filters", ()), named]}
        question = json.dumps([operation, parameters], sort_keys=True, default=lambda _: "")
        if question not in self._catalogue:
            answer = await super().pages(service, operation, key, **parameters)
            self._catalogue[question] = answer
        if not self._families:
            return self._catalogue[question]
        of_families = f"{question} {sorted(self._families)}"
        if of_families not in self._catalogue:
            families = {None, *self._families}
            self._catalogue[of_families] = [
                row for row in self._catalogue[question] if _family(row) in families
            ]
        return self._catalogue[of_families]


def _family(row: Any) -> str | None:
    """Return the family of the instance type that a row is about, or None."""
    if isinstance(row, str):  # a product of the price list
        row = {"InstanceType": json.loads(row)["product"]["attributes"].get("instanceType", "")}
    return str(row["InstanceType"]).partition(".")[0] or None


@pytest.fixture(scope="module")
def families(request: pytest.FixtureRequest) -> Collection[str]:
    """Return the families of the instance types that tests see; empty means all.

    A module has a fixture of its own, or a test has a parameter, for other families than most.
    """
    given: str = getattr(request, "param", FAMILIES)
    return given.split()


@pytest.fixture(scope="module")
def session(region: Region, families: Collection[str]) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", region.cloud.url)
        environment.setenv("AWS_ACCESS_KEY_ID", "testing")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        made = RememberingSession(region=REGION, attempts=1, catalogue=CATALOGUE, families=families)
        yield made
        made.close()


@pytest.fixture
def options() -> Options:
    return Options(cluster_name=CLUSTER, interruption_queue=QUEUE)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(session: Session, options: Options, clock: Clock) -> Callable[[], AWSCloudProvider]:
    """Return a function that starts a new controller, as after a crash."""
    return lambda: AWSCloudProvider(options, aws=session, cluster_dns="10.100.0.10", clock=clock)


@pytest.fixture
def provider(start: Callable[[], AWSCloudProvider]) -> AWSCloudProvider:
    """Return a controller that has just started."""
    return start()


@pytest.fixture(autouse=True, scope="module")
def short_windows() -> Iterator[None]:
    """Send a batch soon: most tests make one request at a time, and would wait for others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batcher, "__init__", partialmethod(Batcher.__init__, idle=0.01))
        yield


@pytest.fixture(autouse=True)
def _reset(request: pytest.FixtureRequest) -> Iterator[None]:
    """Remove all faults, limits and instances after each test."""
    yield
    if "region" not in request.fixturenames:
        return
    region: Region = request.getfixturevalue("region")
    region.control.clear_faults()
    region.cloud.world.capacity.clear()
    region.cloud.world.capacity_errors.clear()
    region.terminate()
