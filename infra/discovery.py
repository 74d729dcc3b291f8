"""Tags by which EC2NodeClasses select subnets and security groups.

A tag has no owner. So a second tag, the marker, records which installation set it. A tag that
existed before is neither adopted nor deleted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from controller.apis import labels
from infra.config.forms import ConfigError
from infra.inputs import are_known, then


@dataclass(frozen=True, kw_only=True)
class DiscoveryTagsArgs:
    """The resources to tag, the tags, and the installation. Other tags are not changed."""

    resource_ids: Sequence[pulumi.Input[str]]
    """IDs of subnets and security groups."""

    cluster_name: pulumi.Input[str]
    installation: str
    discovery: bool = True
    """Whether to tag the resources `karpenter.sh/discovery: <cluster>`."""

    discovery_key: str = labels.TAG_DISCOVERY
    """The key of the tag that `discovery` sets. Clusters that share subnets need different keys."""

    of_cluster: bool = False
    """Whether to tag the resources `kubernetes.io/cluster/<cluster>: shared`."""

    left_alone: frozenset[tuple[str, str]] = frozenset()
    """Resource ID and key of tags that exist and suffice: EKS itself tags its own resources
    `owned`."""

    @property
    def marker(self) -> pulumi.Input[str]:
        """Key of the marker tag; its value is the installation that set the other tags."""
        return then(self.cluster_name, lambda name: f"joiner.dev/discovery/{name}")

    @property
    def tags(self) -> Mapping[str, tuple[pulumi.Input[str], pulumi.Input[str]]]:
        """Key and value of each tag, by the end of the logical name of its Pulumi resource."""
        name = self.cluster_name
        tags: dict[str, tuple[pulumi.Input[str], pulumi.Input[str]]] = {}
        if self.discovery:
            tags["discovery"] = self.discovery_key, name
        if self.of_cluster:
            title = name if isinstance(name, str) else "cluster"
            tags[title] = then(name, labels.tag_cluster_owned), "shared"
        return tags


class DiscoveryTags(pulumi.ComponentResource):
    """One Pulumi resource per tag, so that the stack creates and deletes only these tags."""

    def __init__(
        self, name: str, args: DiscoveryTagsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:DiscoveryTags", name, None, opts)
        for index, resource_id in enumerate(args.resource_ids if args.tags else ()):
            # The ID of a resource that does not exist yet is unknown, so its index names it.
            title = resource_id if isinstance(resource_id, str) else index
            marker = aws.ec2.Tag(
                f"{name}-{title}-marker",
                resource_id=resource_id,
                key=args.marker,
                value=args.installation,
                opts=pulumi.ResourceOptions(parent=self),
            )
            for tag, (key, value) in args.tags.items():
                if (resource_id, key) in args.left_alone:
                    continue
                aws.ec2.Tag(
                    f"{name}-{title}-{tag}",
                    resource_id=resource_id,
                    key=key,
                    value=value,
                    # The marker is created first, so that none of our tags is ever without it.
                    opts=pulumi.ResourceOptions(parent=self, depends_on=[marker]),
                )
        self.register_outputs({"resourceIds": list(args.resource_ids)})


def check_existing_tags(
    args: DiscoveryTagsArgs, options: pulumi.InvokeOptions
) -> DiscoveryTagsArgs:
    """Check the existing tags of the resources, and leave out tags of the cluster that exist.

    Resources whose IDs are not known yet are not checked.

    Returns:
        The arguments with `left_alone` set: the tags `kubernetes.io/cluster/<cluster>` that exist
        with the value `owned` or `shared`, and that this installation did not set.

    Raises:
        ConfigError: a resource cannot be read, or has a tag that this installation did not set,
            with a key that the program is about to set.

    """
    if not are_known(args.cluster_name):
        return args
    held: dict[str, Mapping[str, str]] = {}
    unreadable: list[str] = []
    for resource_id in args.resource_ids if args.tags else ():
        if isinstance(resource_id, str):
            try:
                held[resource_id] = _tags_of(resource_id, options)
            except Exception as error:
                # Pulumi raises no narrower class for a failed function of a provider.
                unreadable.append(_unreadable(resource_id, error))
    if unreadable:
        raise ConfigError(*unreadable)
    of_cluster = labels.tag_cluster_owned(str(args.cluster_name))
    left_alone = frozenset(
        (resource_id, of_cluster)
        for resource_id, tags in held.items()
        if tags.get(of_cluster) in ("owned", "shared")
        and tags.get(str(args.marker)) != args.installation
    )
    args = dataclasses.replace(args, left_alone=left_alone)
    faults = [
        fault for resource_id, tags in held.items() for fault in _faults(args, resource_id, tags)
    ]
    if faults:
        raise ConfigError(*faults)
    return args


def _faults(args: DiscoveryTagsArgs, resource_id: str, held: Mapping[str, str]) -> Iterator[str]:
    marker = str(args.marker)
    tagger = held.get(marker, "another tool")
    for key, value in _plain_tags(args).items():
        if (resource_id, key) in args.left_alone:
            continue
        if held.get(key, value) != value:
            yield (
                f"{resource_id} has the tag {key}={held[key]}, set by {tagger}, and this stack "
                f"would change it to {value}: set joiner:subnetIds and joiner:securityGroupIds "
                f"to other resources, set {_setting(args, key)} to false, or set "
                "joiner:discoveryTagKey to a key that no other cluster uses"
            )
        elif key in held and tagger != args.installation:
            yield (
                f"{resource_id} already has the tag {key}={value}, set by {tagger}, and `pulumi "
                f"destroy` would remove it: set {_setting(args, key)} to false and tag the other "
                f"resources yourself. Or let this stack take the tag over: add the tag "
                f"{marker}={args.installation}"
            )


def _plain_tags(args: DiscoveryTagsArgs) -> Mapping[str, str]:
    return {str(key): str(value) for key, value in args.tags.values()}


def _setting(args: DiscoveryTagsArgs, key: str) -> str:
    return "joiner:discoveryTags" if key == args.discovery_key else "joiner:clusterTags"


def _unreadable(resource_id: str, error: Exception) -> str:
    is_group = resource_id.startswith("sg-")
    setting = "joiner:securityGroupIds" if is_group else "joiner:subnetIds"
    kind = "security group" if is_group else "subnet"
    why = " ".join(str(error).split())
    return (
        f"{setting}: {kind} {resource_id} cannot be read: correct the ID, or give the ID of a "
        f"{kind} in the cluster's VPC ({why})"
    )


def _tags_of(resource_id: str, options: pulumi.InvokeOptions) -> Mapping[str, str]:
    if resource_id.startswith("sg-"):
        group = aws.ec2.get_security_group(id=resource_id, opts=options)
        return dict(group.tags)
    return dict(aws.ec2.get_subnet(id=resource_id, opts=options).tags)
