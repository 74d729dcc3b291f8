"""The AWS provider's settings, and the boto3 clients made from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError

T = TypeVar("T")

ENDPOINT_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "events": ("eventbridge", "events", "cloudwatchevents"),
}
"""boto3's name of a service → its names in `endpoints`, where they differ."""

GONE_CODES: Final = frozenset(
    {
        "404",
        "AWS.SimpleQueueService.NonExistentQueue",
        "InvalidAllocationID.NotFound",
        "InvalidAssociationID.NotFound",
        "InvalidGroup.NotFound",
        "InvalidInternetGatewayID.NotFound",
        "InvalidLaunchTemplateId.NotFound",
        "InvalidRoute.NotFound",
        "InvalidRouteTableID.NotFound",
        "InvalidSecurityGroupID.NotFound",
        "InvalidSubnetID.NotFound",
        "InvalidVpcEndpointId.NotFound",
        "InvalidVpcID.NotFound",
        "NatGatewayNotFound",
        "NoSuchEntity",
        "NotFoundException",
        "QueueDoesNotExist",
        "RepositoryNotFoundException",
        "ResourceNotFoundException",
    }
)
"""Error codes with which AWS reports that a resource does not exist."""


def is_gone(error: ClientError) -> bool:
    """Return whether an error means that the resource does not exist."""
    return error.response["Error"]["Code"] in GONE_CODES


def unless_gone(read: Callable[[], T]) -> T | None:
    """Return what `read` returns, or None if AWS answers that the resource does not exist."""
    try:
        return read()
    except ClientError as error:
        if not is_gone(error):
            raise
        return None


@contextmanager
def translated() -> Iterator[None]:
    """Raise boto3's errors as a `ProviderError` with the same message."""
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        raise ProviderError(str(error)) from error


@dataclass
class Session:
    """Credentials, region, endpoints and tags from the provider's settings.

    boto3 reads missing settings from the environment, including `AWS_ENDPOINT_URL`.
    """

    settings: Bag
    region: str = field(init=False)
    default_tags: Mapping[str, str] = field(init=False)
    _boto: boto3.Session = field(init=False, repr=False)
    _clients: dict[tuple[str, str], Any] = field(init=False, repr=False, default_factory=dict)
    _lock: threading.Lock = field(init=False, repr=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._boto = boto3.Session(
            aws_access_key_id=self.settings.get("accessKey"),
            aws_secret_access_key=self.settings.get("secretKey"),
            aws_session_token=self.settings.get("token"),
            profile_name=self.settings.get("profile"),
            region_name=self.settings.get("region"),
        )
        if not self._boto.region_name:
            raise ProviderError(
                "no region: set aws:region, the region of the aws.Provider, or AWS_REGION"
            )
        self.region = self._boto.region_name
        self.default_tags = (self.settings.get("defaultTags") or {}).get("tags") or {}

    @property
    def partition(self) -> str:
        """The partition of the region, such as `aws` or `aws-cn`."""
        partition: str = self._boto.get_partition_for_region(self.region)
        return partition

    def client(self, service: str, region: str | None = None) -> Any:
        """Return the boto3 client of a service, by boto3's name for it."""
        key = (service, region or self.region)
        with self._lock:  # creating a client is not thread-safe, using one is
            if key not in self._clients:
                self._clients[key] = self._boto.client(
                    service,
                    region_name=key[1],
                    endpoint_url=self._endpoint(service),
                    config=Config(retries={"max_attempts": 5, "mode": "standard"}),
                )
            return self._clients[key]

    def _endpoint(self, service: str) -> str | None:
        given = {
            name: url
            for block in self.settings.get("endpoints") or []
            for name, url in block.items()
        }
        names = ENDPOINT_NAMES.get(service, (service,))
        return next((given[name] for name in names if given.get(name)), None)

    def validate(self) -> None:
        """Check credentials and account, unless the settings skip this. Raises `ProviderError`."""
        if self.settings.get("skipCredentialsValidation"):
            return
        with translated():
            account = self.client("sts").get_caller_identity()["Account"]
        allowed = self.settings.get("allowedAccountIds") or [account]
        if account not in allowed or account in (self.settings.get("forbiddenAccountIds") or []):
            raise ProviderError(f"AWS account {account} is not allowed by the provider's settings")

    def keeps_tag(self, key: str) -> bool:
        """Return whether a live tag is compared; `aws:` tags and ignored tags are not."""
        ignored = self.settings.get("ignoreTags") or {}
        prefixes = ("aws:", *(ignored.get("keyPrefixes") or []))
        return not key.startswith(prefixes) and key not in (ignored.get("keys") or [])
