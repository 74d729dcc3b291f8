"""An in-memory AWS that keeps AWS's documented guarantees, and no others.

CreateFleet with a known client token repeats its first answer, and refuses different parameters. A
new instance is listed only seconds later. Instances take time to start and to terminate. The module
implements the operations that `controller.aws` calls; any other operation raises.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from controller.aws.errors import AwsError

NAME = "us-west-2"
ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
CLUSTER = "joiner"
QUEUE = "joiner"
ROLE = "nodes"
IMAGE = "ami-0123456789abcdef0"

PENDING, SHUTTING_DOWN = 4.0, 8.0
"""Seconds that an instance is pending, and shutting down."""

MOST_UNLISTED = 12.0
"""Maximum seconds until a new instance is in EC2's lists."""


@dataclass(frozen=True, slots=True)
class Size:
    """An instance type: vCPUs, GiB, on-demand $/h. Its spot price is 0.4 of that."""

    name: str
    cpus: int
    gib: int
    price: float


SIZES = (
    Size("c5.large", 2, 4, 0.085),
    Size("m5.large", 2, 8, 0.096),
    Size("m5.xlarge", 4, 16, 0.192),
    Size("c5.2xlarge", 8, 16, 0.34),
    Size("m5.2xlarge", 8, 32, 0.384),
    Size("r5.2xlarge", 8, 64, 0.504),
    Size("m5.4xlarge", 16, 64, 0.768),
)
SPOT_SHARE = 0.4


@dataclass(slots=True)
class Instance:
    """An instance with its state; times are seconds of the loop."""

    id: str
    type: str
    zone: str
    spot: bool
    launched_at: float
    listed_at: float
    tags: dict[str, str]
    image: str = IMAGE
    groups: tuple[str, ...] = ("sg-1",)
    ended_at: float | None = None
    stopped: bool = False
    touched_by_hand: bool = False
    hostname: str = ""
    """Its private DNS name, under which its Node registers.

    The name is made from the address, which EC2 gives to another instance once this one is
    terminated.
    """

    def __post_init__(self) -> None:
        """Give the instance an address of its own, unless it reuses another's."""
        self.hostname = self.hostname or f"{self.id}.{NAME}.compute.internal"

    def state(self, now: float) -> str:
        """Return the instance state in EC2's terms."""
        if self.ended_at is not None:
            return "terminated" if now >= self.ended_at + SHUTTING_DOWN else "shutting-down"
        if self.stopped:
            return "stopped"
        return "running" if now >= self.launched_at + PENDING else "pending"

    @property
    def provider_id(self) -> str:
        """The instance's provider ID in Kubernetes."""
        return f"aws:///{self.zone}/{self.id}"


@dataclass(slots=True)
class Message:
    """A message in the queue."""

    body: str
    receipt: str
    visible_at: float = 0.0


@dataclass
class Region:
    """The whole AWS account of the cluster; `epoch` is the time at which the loop's clock was 0."""

    epoch: datetime
    chance: random.Random
    instances: dict[str, Instance] = field(default_factory=dict)
    templates: dict[str, dict[str, Any]] = field(default_factory=dict)
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    announced: set[str] = field(default_factory=set)
    """IDs of the instances that a message has named."""

    closed: set[tuple[str, str]] = field(default_factory=set)
    """Instance type and capacity type without capacity now; `*` stands for all."""

    refuses_with: str = "InsufficientInstanceCapacity"
    """The code with which EC2 refuses what is in `closed`."""

    most_at_once: int = 1000
    """The greatest number of instances that a fleet gets now."""

    reuses_addresses: bool = False
    """Whether a fleet's instance gets the address of a terminated one, if there is one."""

    _fleets: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    _arrival: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: int = 0

    def now(self) -> float:
        """Return the loop's time in seconds."""
        return asyncio.get_running_loop().time()

    # Changes that no call of the controller causes.

    def launch(
        self,
        size: str,
        zone: str,
        tags: Mapping[str, str],
        *,
        spot: bool = False,
        hostname: str = "",
    ) -> Instance:
        """Start and return an instance.

        `hostname` is the private DNS name of a terminated instance that the new one reuses. If it
        is empty, the instance gets a name of its own.
        """
        self._numbers += 1
        now = self.now()
        instance = Instance(
            id=f"i-{self._numbers:017x}",
            type=size,
            zone=zone,
            spot=spot,
            launched_at=now,
            listed_at=now + self.chance.uniform(0.0, MOST_UNLISTED),
            tags=dict(tags),
            hostname=hostname,
        )
        self.instances[instance.id] = instance
        return instance

    def free_hostnames(self) -> list[str]:
        """Return the private DNS names of terminated instances that no other instance has."""
        now = self.now()
        ended = {m.hostname: m.state(now) == "terminated" for m in self.instances.values()}
        for instance in self.instances.values():
            ended[instance.hostname] &= instance.state(now) == "terminated"
        return [name for name, is_free in ended.items() if is_free]

    def add_profile(
        self, name: str, *, path: str, tags: Sequence[Mapping[str, str]], roles: Sequence[str]
    ) -> None:
        """Create an instance profile in IAM."""
        self.profiles[name] = {
            "InstanceProfileName": name,
            "Path": path,
            "Tags": list(tags),
            "Roles": [{"RoleName": role} for role in roles],
            "CreateDate": self.epoch + timedelta(seconds=self.now()),
        }

    def announce(self, instance_id: str, state: str) -> None:
        """Send EventBridge's message about an instance's state to the queue."""
        self.send(
            {
                "version": "0",
                "source": "aws.ec2",
                "detail-type": "EC2 Instance State-change Notification",
                "detail": {"instance-id": instance_id, "state": state},
            }
        )

    def send(self, body: Mapping[str, Any] | str) -> None:
        """Send a message to the queue."""
        self._numbers += 1
        text = body if isinstance(body, str) else json.dumps(body)
        self.announced.update(known for known in self.instances if known in text)
        self.messages.append(Message(text, f"receipt-{self._numbers}"))
        self._arrival.set()

    # Calls of the controller.

    async def answer(self, operation: str, parameters: Mapping[str, Any]) -> Any:
        """Answer a call; for a paginated operation the answer is the items of all pages."""
        handler: Callable[[Mapping[str, Any]], Any] = getattr(self, operation)
        if operation == "receive_message":
            await self._messages_or(float(parameters["WaitTimeSeconds"]))
        return handler(parameters)

    def describe_instance_types(self, _: Mapping[str, Any]) -> Any:
        return [
            {
                "InstanceType": size.name,
                "ProcessorInfo": {"SupportedArchitectures": ["x86_64"], "Manufacturer": "Intel"},
                "SupportedUsageClasses": ["on-demand", "spot"],
                "VCpuInfo": {"DefaultVCpus": size.cpus},
                "MemoryInfo": {"SizeInMiB": size.gib * 1024},
                "Hypervisor": "nitro",
                "NetworkInfo": {
                    "EnaSupport": "required",
                    "Ipv4AddressesPerInterface": 15,
                    "MaximumNetworkInterfaces": 4,
                    "NetworkCards": [{"NetworkCardIndex": 0, "MaximumNetworkInterfaces": 4}],
                },
            }
            for size in SIZES
        ]

    def describe_instance_type_offerings(self, _: Mapping[str, Any]) -> Any:
        return [{"InstanceType": size.name, "Location": zone} for size in SIZES for zone in ZONES]

    def describe_spot_price_history(self, _: Mapping[str, Any]) -> Any:
        return [
            {
                "InstanceType": size.name,
                "AvailabilityZone": zone,
                "SpotPrice": str(size.price * SPOT_SHARE),
                "Timestamp": self.epoch,
            }
            for size in SIZES
            for zone in ZONES
        ]

    def get_products(self, _: Mapping[str, Any]) -> Any:
        return [
            {
                "product": {"attributes": {"instanceType": size.name}},
                "terms": {
                    "OnDemand": {
                        "a": {"priceDimensions": {"b": {"pricePerUnit": {"USD": str(size.price)}}}}
                    }
                },
            }
            for size in SIZES
        ]

    def describe_cluster(self, _: Mapping[str, Any]) -> Any:
        cluster = {
            "name": CLUSTER,
            "endpoint": "https://cluster",
            "certificateAuthority": {"data": "Y2E="},
            "version": "1.37",
            "kubernetesNetworkConfig": {"serviceIpv4Cidr": "10.100.0.0/16", "ipFamily": "ipv4"},
        }
        return {"cluster": cluster}

    def describe_subnets(self, _: Mapping[str, Any]) -> Any:
        return [
            {
                "SubnetId": f"subnet-{zone[-1]}",
                "AvailabilityZone": zone,
                "AvailabilityZoneId": f"usw2-az{index}",
                "AvailableIpAddressCount": 8000,
            }
            for index, zone in enumerate(ZONES, 1)
        ]

    def describe_security_groups(self, _: Mapping[str, Any]) -> Any:
        return [{"GroupId": "sg-1", "GroupName": "nodes"}]

    def get_parameter(self, parameters: Mapping[str, Any]) -> Any:
        if "/x86_64/standard/" not in parameters["Name"]:
            raise refusal("ParameterNotFound", "get_parameter")
        return {"Parameter": {"Value": IMAGE}}

    def describe_images(self, _: Mapping[str, Any]) -> Any:
        return [
            {
                "ImageId": IMAGE,
                "Name": "al2023",
                "Architecture": "x86_64",
                "CreationDate": "2026-11-01T00:00:00.000Z",
            }
        ]

    def get_instance_profile(self, parameters: Mapping[str, Any]) -> Any:
        return {"InstanceProfile": self._profile(parameters)}

    def list_instance_profiles(self, parameters: Mapping[str, Any]) -> Any:
        return [
            {name: value for name, value in profile.items() if name != "Tags"}
            for profile in self.profiles.values()
            if profile["Path"].startswith(parameters["PathPrefix"])
        ]

    def create_instance_profile(self, parameters: Mapping[str, Any]) -> Any:
        name = parameters["InstanceProfileName"]
        if name in self.profiles:
            raise refusal("EntityAlreadyExists", "create_instance_profile")
        self.add_profile(name, path=parameters["Path"], tags=parameters["Tags"], roles=())
        return {"InstanceProfile": self.profiles[name]}

    def add_role_to_instance_profile(self, parameters: Mapping[str, Any]) -> Any:
        profile = self._profile(parameters)
        if profile["Roles"]:
            raise refusal("LimitExceeded", "add_role_to_instance_profile")
        profile["Roles"] = [{"RoleName": parameters["RoleName"]}]
        return {}

    def remove_role_from_instance_profile(self, parameters: Mapping[str, Any]) -> Any:
        self._profile(parameters)["Roles"] = []
        return {}

    def delete_instance_profile(self, parameters: Mapping[str, Any]) -> Any:
        profile = self._profile(parameters)
        if profile["Roles"]:
            raise refusal("DeleteConflict", "delete_instance_profile")
        del self.profiles[profile["InstanceProfileName"]]
        return {}

    def _profile(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        name = parameters["InstanceProfileName"]
        if name not in self.profiles:
            raise refusal("NoSuchEntity", name)
        return self.profiles[name]

    def describe_instance_status(self, _: Mapping[str, Any]) -> Any:
        return []

    def describe_capacity_reservations(self, _: Mapping[str, Any]) -> Any:
        return []

    def describe_placement_groups(self, _: Mapping[str, Any]) -> Any:
        return []

    def create_launch_template(self, parameters: Mapping[str, Any]) -> Any:
        name = parameters["LaunchTemplateName"]
        if name in self.templates:
            raise refusal(
                "InvalidLaunchTemplateName.AlreadyExistsException", "create_launch_template"
            )
        (tagged,) = parameters["TagSpecifications"]
        self.templates[name] = {
            "LaunchTemplateName": name,
            "Tags": tagged["Tags"],
            "content": parameters["LaunchTemplateData"],
        }
        return {}

    def describe_launch_templates(self, parameters: Mapping[str, Any]) -> Any:
        every = [(t, _tags(t["Tags"])) for t in self.templates.values()]
        return [t for t, tags in every if _is_selected(parameters["Filters"], {}, tags)]

    def delete_launch_template(self, parameters: Mapping[str, Any]) -> Any:
        if self.templates.pop(parameters["LaunchTemplateName"], None) is None:
            raise refusal("InvalidLaunchTemplateName.NotFoundException", "delete_launch_template")
        return {}

    def create_fleet(self, parameters: Mapping[str, Any]) -> Any:
        token = parameters["ClientToken"]
        asked = json.dumps(parameters, sort_keys=True)
        if token in self._fleets:
            before, answer = self._fleets[token]
            if before != asked:
                raise refusal("IdempotentParameterMismatch", "create_fleet")
            return answer
        answer = self._launch(parameters)
        self._fleets[token] = asked, answer
        return answer

    def _launch(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        target = parameters["TargetCapacitySpecification"]["DefaultTargetCapacityType"]
        errors, possible = [], []
        for config in parameters["LaunchTemplateConfigs"]:
            specification = config["LaunchTemplateSpecification"]
            for override in config["Overrides"]:
                shown = {"LaunchTemplateSpecification": specification, "Overrides": override}
                if specification["LaunchTemplateName"] not in self.templates:
                    errors.append(
                        _fleet_error("InvalidLaunchTemplateName.NotFoundException", shown)
                    )
                elif self.closed & {(override["InstanceType"], target), ("*", target), ("*", "*")}:
                    errors.append(_fleet_error(self.refuses_with, shown))
                else:
                    possible.append(shown)
        if not possible:
            return {"Errors": errors, "Instances": []}
        prices = {size.name: size.price for size in SIZES}
        possible.sort(key=lambda s: prices[s["Overrides"]["InstanceType"]])
        wanted = parameters["TargetCapacitySpecification"]["TotalTargetCapacity"]
        count = min(wanted, self.most_at_once)
        if count < wanted:
            errors.append(_fleet_error("InsufficientInstanceCapacity", possible[0]))
        # As EC2 does, take the instances of one call from more than one pool.
        shares = [len(range(first, count, 2)) for first in range(2)]
        return {
            "Errors": errors,
            "Instances": [
                self._launched_of(shown, share, parameters)
                for shown, share in zip((possible[0], possible[:2][-1]), shares, strict=True)
                if share
            ],
        }

    def _launched_of(
        self, shown: Mapping[str, Any], count: int, parameters: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Launch instances of one override, and return their part of the answer."""
        override = shown["Overrides"]
        target = parameters["TargetCapacitySpecification"]["DefaultTargetCapacityType"]
        tags = next(
            _tags(t["Tags"]) for t in parameters["TagSpecifications"]
            if t["ResourceType"] == "instance"
        )  # fmt: skip
        instances = []
        for _ in range(count):
            free = self.free_hostnames() if self.reuses_addresses else []
            instance = self.launch(
                override["InstanceType"],
                override["AvailabilityZone"],
                dict(tags),
                spot=target == "spot",
                hostname=free[-1] if free else "",
            )
            instances.append(instance)
        return {
            "InstanceIds": [instance.id for instance in instances],
            "InstanceType": override["InstanceType"],
            "LaunchTemplateAndOverrides": shown,
        }

    def describe_instances(self, parameters: Mapping[str, Any]) -> Any:
        now = self.now()
        return [
            {"Instances": [self._describe(instance, now)]}
            for instance in self.instances.values()
            if instance.listed_at <= now
            and _is_selected(
                parameters["Filters"],
                {"instance-id": instance.id, "instance-state-name": instance.state(now)},
                instance.tags,
            )
        ]

    def _describe(self, instance: Instance, now: float) -> dict[str, Any]:
        return {
            "InstanceId": instance.id,
            "InstanceType": instance.type,
            "ImageId": instance.image,
            "LaunchTime": self.epoch + timedelta(seconds=instance.launched_at),
            "Placement": {"AvailabilityZone": instance.zone},
            "State": {"Name": instance.state(now)},
            "PrivateDnsName": instance.hostname,
            "SubnetId": f"subnet-{instance.zone[-1]}",
            "SecurityGroups": [{"GroupId": group} for group in instance.groups],
            "Tags": [{"Key": key, "Value": value} for key, value in instance.tags.items()],
            **({"InstanceLifecycle": "spot"} if instance.spot else {}),
        }

    def terminate_instances(self, parameters: Mapping[str, Any]) -> Any:
        now = self.now()
        found = [self._of(each) for each in parameters["InstanceIds"]]
        for instance in found:
            if instance.ended_at is None:
                instance.ended_at = now
                self.announce(instance.id, "shutting-down")
        return {}

    def create_tags(self, parameters: Mapping[str, Any]) -> Any:
        for each in parameters["Resources"]:
            self._of(each).tags.update(_tags(parameters["Tags"]))
        return {}

    def get_queue_url(self, _: Mapping[str, Any]) -> Any:
        return {"QueueUrl": f"https://sqs/{QUEUE}"}

    def receive_message(self, parameters: Mapping[str, Any]) -> Any:
        now = self.now()
        ready = [m for m in self.messages if m.visible_at <= now]
        taken = ready[: parameters["MaxNumberOfMessages"]]
        for message in taken:
            message.visible_at = now + parameters["VisibilityTimeout"]
        sent = str(int((self.epoch + timedelta(seconds=now)).timestamp() * 1000))
        return {
            "Messages": [
                {
                    "Body": m.body,
                    "ReceiptHandle": m.receipt,
                    "MessageId": m.receipt,
                    "Attributes": {"SentTimestamp": sent},
                }
                for m in taken
            ]
        }

    def delete_message_batch(self, parameters: Mapping[str, Any]) -> Any:
        gone = {entry["ReceiptHandle"] for entry in parameters["Entries"]}
        self.messages = [m for m in self.messages if m.receipt not in gone]
        return {"Successful": [{"Id": entry["Id"]} for entry in parameters["Entries"]]}

    async def _messages_or(self, seconds: float) -> None:
        if any(m.visible_at <= self.now() for m in self.messages):
            return
        self._arrival.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._arrival.wait()
        except TimeoutError:
            return

    def _of(self, instance_id: str) -> Instance:
        instance = self.instances.get(instance_id)
        if instance is None or instance.state(self.now()) == "terminated":
            raise refusal("InvalidInstanceID.NotFound", instance_id)
        return instance


def refusal(code: str, operation: str, message: str = "") -> AwsError:
    """Return AWS's error as the controller's error type."""
    return AwsError(f"{operation}: {message or code} ({code})", code=code, operation=operation)


def _fleet_error(code: str, shown: Mapping[str, Any]) -> dict[str, Any]:
    return {"ErrorCode": code, "ErrorMessage": code, "LaunchTemplateAndOverrides": shown}


def _tags(listed: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in listed}


def _is_selected(
    filters: Iterable[Mapping[str, Any]], attributes: Mapping[str, str], tags: Mapping[str, str]
) -> bool:
    for one in filters:
        name, values = one["Name"], one["Values"]
        if name == "tag-key":
            holds = any(value in tags for value in values)
        elif name.startswith("tag:"):
            holds = tags.get(name.removeprefix("tag:")) in values
        else:
            holds = attributes[name] in values
        if not holds:
            return False
    return True
