"""Tags by which node classes find subnets and security groups.

A tag has no owner. So a second one beside it says which installation has set it: what was
tagged before is neither taken over nor taken away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from controller.apis import labels
from infra.config import ConfigError


@dataclass(frozen=True, kw_only=True)
class DiscoveryTagsArgs:
    """What is tagged, with what, and by whom. Other tags of theirs stay as they are."""

    resource_ids: Sequence[str]
    tags: Mapping[str, str]
    cluster_name: str
    installation: str

    @property
    def marker(self) -> str:
        """Key of the tag whose value is the installation that has set the others."""
        return f"joiner.dev/discovery/{self.cluster_name}"


class DiscoveryTags(pulumi.ComponentResource):
    """One resource per tag, so that only these tags come and go with the stack."""

    def __init__(
        self, name: str, args: DiscoveryTagsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:DiscoveryTags", name, None, opts)
        for resource_id in args.resource_ids if args.tags else ():
            marker = aws.ec2.Tag(
                f"{name}-{resource_id}-marker",
                resource_id=resource_id,
                key=args.marker,
                value=args.installation,
                opts=pulumi.ResourceOptions(parent=self),
            )
            for key, value in args.tags.items():
                aws.ec2.Tag(
                    f"{name}-{resource_id}-{key.rpartition('/')[2]}",
                    resource_id=resource_id,
                    key=key,
                    value=value,
                    # There is never a tag of ours that does not say so.
                    opts=pulumi.ResourceOptions(parent=self, depends_on=[marker]),
                )
        self.register_outputs({"resourceIds": list(args.resource_ids)})


def refuse_clashes(args: DiscoveryTagsArgs, provider: aws.Provider) -> None:
    """Leave alone what somebody else has tagged.

    Raises:
        ConfigError: a resource bears one of the keys, and not from this installation.

    """
    faults = [
        fault
        for resource_id in (args.resource_ids if args.tags else ())
        for fault in _faults(args, resource_id, _tags_of(resource_id, provider))
    ]
    if faults:
        raise ConfigError(faults)


def _faults(args: DiscoveryTagsArgs, resource_id: str, held: Mapping[str, str]) -> Iterator[str]:
    tagger = held.get(args.marker, "somebody else")
    for key, value in args.tags.items():
        if held.get(key, value) != value:
            yield (
                f"{resource_id} is tagged {key}={held[key]} by {tagger}, and would be tagged "
                f"{key}={value}: name others in joiner:subnetIds and joiner:securityGroupIds, or "
                f"set {_setting(key)} to false"
            )
        elif key in held and tagger != args.installation:
            yield (
                f"{resource_id} is tagged {key}={value} already, by {tagger}, and `pulumi destroy` "
                f"would take that away: set {_setting(key)} to false and tag by hand what is not "
                "tagged yet; or tag it "
                f"{args.marker}={args.installation} too, and this stack takes it over"
            )


def _setting(key: str) -> str:
    return "joiner:discoveryTags" if key == labels.TAG_DISCOVERY else "joiner:clusterTags"


def _tags_of(resource_id: str, provider: aws.Provider) -> Mapping[str, str]:
    options = pulumi.InvokeOptions(provider=provider)
    if resource_id.startswith("sg-"):
        group = aws.ec2.get_security_group(id=resource_id, opts=options)
        return dict(group.tags)
    return dict(aws.ec2.get_subnet(id=resource_id, opts=options).tags)
