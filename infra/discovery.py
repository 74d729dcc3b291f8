"""Tags by which node classes find subnets and security groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.config import ConfigError


@dataclass(frozen=True, kw_only=True)
class DiscoveryTagsArgs:
    """What is tagged, and with what. Other tags of theirs stay as they are."""

    resource_ids: Sequence[str]
    tags: Mapping[str, str]


class DiscoveryTags(pulumi.ComponentResource):
    """One resource per tag, so that only these tags come and go with the stack."""

    def __init__(
        self, name: str, args: DiscoveryTagsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:DiscoveryTags", name, None, opts)
        for resource_id in args.resource_ids:
            for key, value in args.tags.items():
                aws.ec2.Tag(
                    f"{name}-{resource_id}-{key.rpartition('/')[2]}",
                    resource_id=resource_id,
                    key=key,
                    value=value,
                    opts=pulumi.ResourceOptions(parent=self),
                )
        self.register_outputs({"resourceIds": list(args.resource_ids)})


def refuse_clashes(args: DiscoveryTagsArgs, provider: aws.Provider) -> None:
    """Leave alone what somebody else has tagged otherwise.

    Raises:
        ConfigError: a resource bears one of the keys with another value.

    """
    faults = [
        f"{resource_id} is tagged {key}={held[key]} by somebody else, and would be tagged "
        f"{key}={value}: name others in joiner:subnetIds and joiner:securityGroupIds, or set "
        "joiner:discoveryTags to false"
        for resource_id in (args.resource_ids if args.tags else ())
        for held in [_tags_of(resource_id, provider)]
        for key, value in args.tags.items()
        if held.get(key, value) != value
    ]
    if faults:
        raise ConfigError(faults)


def _tags_of(resource_id: str, provider: aws.Provider) -> Mapping[str, str]:
    options = pulumi.InvokeOptions(provider=provider)
    if resource_id.startswith("sg-"):
        group = aws.ec2.get_security_group(id=resource_id, opts=options)
        return dict(group.tags)
    return dict(aws.ec2.get_subnet(id=resource_id, opts=options).tags)
