"""Refuses names that are taken in AWS by resources that this installation did not create.

AWS does not always reject a name that is taken. CreateQueue returns an existing queue with the
same attributes, and PutRule changes an existing rule. A stack would later delete what it took over.
So the program tags everything it creates with its installation, and looks up each name first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC
from functools import cache, partial
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    InvalidRegionError,
)
from botocore.exceptions import ConnectionError as NotConnectedError

from controller.apis import labels
from infra import names
from infra.clusterapi import ClusterGoneError, ClusterLocation, describe_cluster
from infra.config.forms import ConfigError
from infra.guards.neededbynodes import running_nodes
from infra.interruption import EVENTS
from infra.lifecycle import removal
from infra.lifecycle.awsanswers import tags_in, unless_error
from infra.lifecycle.sharedobjects import POD_IDENTITY_AGENT
from infra.policies import Place

Tags = Mapping[str, str]
Logical = tuple[str, str]
"""Type and logical name of a resource."""

PathOf = Callable[[str], str | None]
"""Returns the IAM path of a role, None if the role does not exist."""

ADDON = "aws:eks/addon:Addon"
ASSOCIATION = "aws:eks/podIdentityAssociation:PodIdentityAssociation"
ENTRY = "aws:eks/accessEntry:AccessEntry"
POLICY = "aws:iam/policy:Policy"
PROFILE = "aws:iam/instanceProfile:InstanceProfile"
REPOSITORY = "aws:ecr/repository:Repository"
ROLE = "aws:iam/role:Role"

UNKNOWN_CREDENTIALS = frozenset(
    {"AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException"}
)

ABSENT_CODES = frozenset(
    {
        "AWS.SimpleQueueService.NonExistentQueue",
        # The cluster's authentication mode supports no access entries, so there is none. EKS
        # rejects the creation of one with its own message.
        "InvalidRequestException",
        "InvalidVpcID.NotFound",
        "NoSuchEntity",
        "QueueDoesNotExist",
        "RepositoryNotFoundException",
        "ResourceNotFoundException",
    }
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """The names that the program uses in AWS, and the optional resources that it creates.

    A stack's state stores it, so a field that is added later needs a default.
    """

    place: Place
    queue: str
    node_role: str
    controller_role: str
    repository: str | None = None
    namespace: str
    service_account: str
    access_entry: bool
    """Whether the program creates an access entry of the node role."""

    entry_types: Mapping[str, str] = field(default_factory=dict)
    """Types of the access entries, by "node" and "windows-node"."""

    association: bool
    """Whether the program creates a Pod Identity association of the service account."""

    agent: bool
    """Whether the program creates the add-on of the Pod Identity agent."""

    controller_policies: Mapping[str, str]
    """Names of the controller's policies, by title; logical names end with the title."""

    component: str = "joiner"
    """Prefix of the logical names of the program's resources."""

    windows_node_role: str | None = None
    iam_path: str = "/"
    existing: frozenset[str] = frozenset()
    """What the program names but does not create: any of "node role", "controller role", "queue"
    and "profile"."""

    @property
    def plain(self) -> dict[str, Any]:
        """The fields as a stack's state stores them.

        `component` is omitted: the program that reads the state may use other logical names.
        """
        kept = {key: value for key, value in asdict(self).items() if key != "component"}
        return {**kept, "existing": sorted(self.existing)}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Given:
        """Return the names that a resource stored with `plain`; unknown fields are ignored."""
        known = {member.name for member in fields(cls)} & plain.keys()
        values = {name: plain[name] for name in known}
        return cls(
            **values | {"place": Place(**plain["place"]), "existing": frozenset(plain["existing"])}
        )


@dataclass(frozen=True, slots=True)
class Name:
    """A name that the program is about to use, and how to find out whether it is taken."""

    kind: str
    name: str
    setting: str
    """Setting that chooses another name or avoids the resource."""

    tags: Callable[[], Tags | None]
    """Returns the resource's tags. Returns None, or raises a ClientError with one of
    `ABSENT_CODES`, if the resource does not exist."""

    delete: Callable[[], None]
    """Deletes the resource; raises AWS' error, also if it does not exist."""

    resource: Logical | None = None
    """The program's resource of this name, if AWS refuses to create a second one."""

    identity: str = ""
    """The ID for a Pulumi import. Empty if there is no such ID, or if AWS does not return all
    inputs of the resource."""

    is_replaced: Callable[[], bool] = bool
    """Whether the existing resource differs from the program's in a property that AWS cannot
    change: its path or type."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def found(self) -> Tags | None:
        """Return the tags of the resource, None if it does not exist."""
        return unless_error(ABSENT_CODES, self.tags)

    def remove(self) -> None:
        """Delete the resource if it exists."""
        unless_error(ABSENT_CODES, self.delete)


def refuse_missing_cluster(location: ClusterLocation) -> str:
    """Check that the cluster exists, before anything else happens.

    Returns:
        The creation time in ISO 8601, which distinguishes the cluster from a later one of the same
        name; empty if EKS does not return it.

    Raises:
        ConfigError: the cluster does not exist, or EKS does not describe it.

    """
    try:
        made = describe_cluster(location).get("createdAt")
    except ClusterGoneError as exc:
        raise ConfigError(
            f"joiner:clusterName={location.cluster_name!r}: No cluster found for name: "
            f"{location.cluster_name} in {location.region}, in the account of the current AWS "
            "credentials: check the name, the region (joiner:region) and the credentials (aws "
            "sts get-caller-identity)"
        ) from exc
    except (BotoCoreError, ClientError) as exc:
        raise ConfigError(_connection_problem(location, exc)) from exc
    return made.astimezone(UTC).isoformat(timespec="seconds") if made else ""


def _connection_problem(location: ClusterLocation, problem: BotoCoreError | ClientError) -> str:
    """Return why EKS did not describe the cluster, and which setting to check."""
    region = f"joiner:region={location.region!r}"
    if isinstance(problem, NotConnectedError | HTTPClientError | InvalidRegionError):
        return (
            f"{region}: EKS does not answer in this region: {problem}. Check the region's name "
            "(aws ec2 describe-regions lists them) and the network"
        )
    code = "" if isinstance(problem, BotoCoreError) else problem.response["Error"]["Code"]
    # A region that the account has not opted in to rejects all credentials of the account.
    opt_in = (
        f", and {region}: the account may not have opted in to that region"
        if code in UNKNOWN_CREDENTIALS
        else ""
    )
    return (
        f"joiner:clusterName={location.cluster_name!r}: EKS does not describe the cluster: "
        f"{problem}. Check the credentials (aws sts get-caller-identity shows whose they "
        f"are){opt_in}"
    )


def refuse_other_account(location: ClusterLocation, account: str) -> None:
    """Check that the current AWS credentials belong to the account of the cluster.

    Raises:
        ConfigError: they belong to another account, or STS does not answer.

    """
    try:
        ours = location.client("sts").get_caller_identity()["Account"]
    except (BotoCoreError, ClientError) as exc:
        raise ConfigError(
            f"STS does not return the account of the current AWS credentials: {exc}. Renew the "
            "credentials (aws sts get-caller-identity checks them) and run Pulumi again"
        ) from exc
    if ours != account:
        raise ConfigError(
            f"EKS cluster {location.cluster_name} is in the account {account}, but the current "
            f"AWS credentials belong to {ours}. The program's provider could create the "
            "stack, but `pulumi destroy` would fail. Export credentials of that account "
            "(AWS_PROFILE, AWS_ACCESS_KEY_ID …)"
        )


def refuse_taken(
    given: Given, *, location: ClusterLocation, installation: str, recorded: AbstractSet[Logical]
) -> dict[Logical, Name]:
    """Check that no other owner has a resource with a name that the program uses in AWS.

    Args:
        given: the names.
        location: the location of the cluster; gives the region and endpoint of the requests.
        installation: value of the tag on what the program created itself.
        recorded: the resources in the stack's state.

    Returns:
        The names of existing resources with the tag, by type and logical name in the program. The
        stack's state may not have them, after an `up` that was killed or if the state was lost.
        `identity` is empty if Pulumi cannot import the resource: it imports none that is in the
        state, and none that it would replace.

    Raises:
        ConfigError: other resources have some of the names; lists them, their tags, and what to
            set. Or nodes run that may use a resource that would be replaced without being in the
            state.

    """
    found = [
        (name, tags) for name in names_of(given, location) if (tags := name.found()) is not None
    ]
    problems = [
        f"{name} already exists, and this stack did not create it: its tags are "
        f"{described_tags(tags)}. Set {name.setting}. Or let this stack take it over, change it "
        f"and delete it on destroy: tag it {labels.TAG_INSTALLATION}={installation}"
        for name, tags in found
        if tags.get(labels.TAG_INSTALLATION) != installation
    ]
    ours = {name.resource: name for name, _ in found if name.resource}
    replaced = {resource for resource, name in ours.items() if name.is_replaced()}
    if lost := replaced - recorded:
        problems += _resources_in_use(
            location, installation, [ours[resource] for resource in sorted(lost)]
        )
    if problems:
        raise ConfigError(*problems)
    unimported = replaced | recorded
    return {
        resource: replace(name, identity="") if resource in unimported else name
        for resource, name in ours.items()
    }


def _resources_in_use(
    location: ClusterLocation, installation: str, lost: Sequence[Name]
) -> Iterator[str]:
    """Yield why resources that the state does not have are not replaced: nodes may use them."""
    if running := running_nodes(location, installation):
        for name in lost:
            yield (
                f"{name} has another path or type than the settings give it, the stack's state "
                f"does not have it, and {len(running)} nodes run that may depend on it: set "
                "joiner:iamPath and joiner:nodeAccess to their earlier values, or terminate the "
                "nodes first"
            )


def tags_of(key: str, name: str, location: ClusterLocation) -> Tags | None:
    """Return the tags of a resource that the program creates, None if it does not exist.

    Args:
        key: `cluster`, `network` or `queue`; any other key means a role.
        name: the name of the resource, or the ID of the network.
        location: gives the region and endpoint of the requests.

    """
    known = {"cluster": _of_cluster, "network": _of_network, "queue": _of_queue}
    look = known.get(key, _of_role)
    return unless_error(ABSENT_CODES, partial(look, location, name))


def described_tags(tags: Tags) -> str:
    """Return tags as text for a message."""
    return ", ".join(f"{key}={value}" for key, value in sorted(tags.items())) or "none"


def names_of(given: Given, location: ClusterLocation) -> Iterator[Name]:
    """Yield every name that the program uses in AWS."""
    path_of = cache(partial(_role_path, location))
    yield from _queue_and_rules(given, location)
    yield from _in_iam(given, location, path_of)
    if given.access_entry:
        yield from _access_entries(given, location, path_of)
    yield from _in_eks(given, location)
    if given.repository:
        yield Name(
            "a repository",
            given.repository,
            "joiner:image to an image that is built elsewhere",
            partial(_of_repository, location, given.repository),
            partial(removal.repository, location, given.repository),
            (REPOSITORY, f"{given.component}-image"),
        )


def _queue_and_rules(given: Given, location: ClusterLocation) -> Iterator[Name]:
    events = location.client("events")

    def of_rule(rule: str) -> Tags:
        arn = events.describe_rule(Name=rule)["Arn"]
        return tags_in(events.list_tags_for_resource(ResourceARN=arn))

    if "queue" in given.existing:
        return
    of_queue = partial(_of_queue, location, given.queue)
    delete_queue = partial(removal.queue, location, given.queue)
    yield Name("a queue", given.queue, "joiner:queueName to another name", of_queue, delete_queue)
    for event in EVENTS:
        rule = names.rule(given.queue, event)
        yield Name(
            "an EventBridge rule",
            rule,
            "joiner:queueName to another name",
            partial(of_rule, rule),
            partial(removal.rule, location, rule),
        )


def _in_iam(given: Given, location: ClusterLocation, path_of: PathOf) -> Iterator[Name]:
    def role(name: str, logical: str, setting: str) -> Name:
        def is_elsewhere() -> bool:
            return path_of(name) != given.iam_path

        tags, delete = partial(_of_role, location, name), partial(removal.role, location, name)
        return Name("a role", name, setting, tags, delete, (ROLE, logical), name, is_elsewhere)

    node = f"{given.component}-node"
    if "node role" not in given.existing:
        setting = "joiner:nodeRoleName to another name"
        yield role(given.node_role, node, setting)
    if "profile" not in given.existing:
        setting = "joiner:nodeRoleName to another name, or joiner:instanceProfileName to this name"
        yield _profile(location, given.node_role, given.iam_path, node, setting)
    if windows := given.windows_node_role:
        logical, setting = f"{given.component}-windows-node", "joiner:namePrefix to another prefix"
        yield role(windows, logical, setting)
        yield _profile(location, windows, given.iam_path, logical, setting)
    if "controller role" not in given.existing:
        controller = f"{given.component}-controller"
        setting = "joiner:controllerRoleName to another name"
        yield role(given.controller_role, controller, setting)
        yield from _policies(given, location, controller, path_of)


def _profile(location: ClusterLocation, name: str, path: str, logical: str, setting: str) -> Name:
    def profile() -> dict[str, Any]:
        answer = location.client("iam").get_instance_profile(InstanceProfileName=name)
        return dict(answer["InstanceProfile"])

    return Name(
        "an instance profile",
        name,
        setting,
        lambda: tags_in(profile()),
        partial(removal.profile, location, name),
        (PROFILE, logical),
        name,
        lambda: profile()["Path"] != path,
    )


def _policies(
    given: Given, location: ClusterLocation, controller: str, path_of: PathOf
) -> Iterator[Name]:
    iam, place = location.client("iam"), given.place

    def tags(arn: str) -> Tags:
        return tags_in(iam.get_policy(PolicyArn=arn)["Policy"])

    for path, is_moved in _paths(given, given.controller_role, path_of):
        for title, name in given.controller_policies.items():
            arn = f"arn:{place.partition}:iam::{place.account}:policy{path}{name}"
            yield Name(
                "a policy",
                name,
                "joiner:namePrefix to another prefix, or delete the policy if it is not needed",
                partial(tags, arn),
                partial(removal.policy, location, arn, given.controller_role),
                (POLICY, f"{controller}-{title}"),
                arn,
                partial(bool, is_moved),
            )


def _paths(
    given: Given, role: str, path_of: PathOf, *, is_created: bool = True
) -> Iterator[tuple[str, bool]]:
    """Yield where the policies or the access entry of a role may be, and whether Pulumi moves them.

    That is the path of the setting, and the role's own one. If the program creates the role, the
    two differ after an `up` that was killed while it moved the role.
    """
    actual = path_of(role) or given.iam_path
    if not is_created:
        yield actual, False
        return
    if actual != given.iam_path:
        yield actual, True
    yield given.iam_path, False


def _access_entries(given: Given, location: ClusterLocation, path_of: PathOf) -> Iterator[Name]:
    eks, place = location.client("eks"), given.place

    def entry(node_role: str) -> dict[str, Any]:
        answer = eks.describe_access_entry(clusterName=place.cluster_name, principalArn=node_role)
        return dict(answer["accessEntry"])

    def of_entry(node_role: str) -> Tags:
        tags: Tags = entry(node_role).get("tags", {})
        return tags

    def is_replaced(node_role: str, is_moved: bool, type_: str) -> bool:
        return is_moved or bool(entry(node_role)["type"] != type_)

    roles = {"node": given.node_role, "windows-node": given.windows_node_role or ""}
    for part, role in roles.items():
        is_created = part != "node" or "node role" not in given.existing
        paths = _paths(given, role, path_of, is_created=is_created) if role else ()
        for path, is_moved in paths:
            arn = f"arn:{place.partition}:iam::{place.account}:role{path}{role}"
            yield Name(
                "an access entry for",
                arn,
                "joiner:nodeAccess to none",
                partial(of_entry, arn),
                partial(removal.access_entry, location, arn),
                (ENTRY, f"{given.component}-{part}-access"),
                f"{place.cluster_name}:{arn}",
                partial(is_replaced, arn, is_moved, given.entry_types.get(part, "")),
            )


def _in_eks(given: Given, location: ClusterLocation) -> Iterator[Name]:
    eks, place = location.client("eks"), given.place
    cluster = {"clusterName": place.cluster_name}

    def of_association() -> Tags | None:
        associations = eks.list_pod_identity_associations(
            **cluster, namespace=given.namespace, serviceAccount=given.service_account
        )["associations"]
        if not associations:
            return None
        identity = associations[0]["associationId"]
        answer = eks.describe_pod_identity_association(**cluster, associationId=identity)
        tags: Tags = answer["association"].get("tags", {})
        return tags

    def of_addon() -> Tags:
        addon = eks.describe_addon(**cluster, addonName=POD_IDENTITY_AGENT)
        tags: Tags = addon["addon"].get("tags", {})
        return tags

    if given.association:
        yield Name(
            "a Pod Identity association for",
            f"{given.namespace}/{given.service_account}",
            "joiner:name to another name",
            of_association,
            partial(removal.association, location, given.namespace, given.service_account),
            (ASSOCIATION, f"{given.component}-controller"),
        )
        if given.agent:
            yield Name(
                "the add-on",
                POD_IDENTITY_AGENT,
                "joiner:podIdentityAgent to existing",
                of_addon,
                partial(removal.addon, location, POD_IDENTITY_AGENT),
                (ADDON, f"{given.component}-controller-agent"),
                f"{place.cluster_name}:{POD_IDENTITY_AGENT}",
            )


def _of_cluster(location: ClusterLocation, _name: str) -> Tags | None:
    try:
        tags: Tags = describe_cluster(location).get("tags") or {}
    except ClusterGoneError:
        return None
    return tags


def _of_network(location: ClusterLocation, vpc: str) -> Tags:
    (described,) = location.client("ec2").describe_vpcs(VpcIds=[vpc])["Vpcs"]
    return tags_in(described)


def _of_queue(location: ClusterLocation, name: str) -> Tags:
    sqs = location.client("sqs")
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    tags: Tags = sqs.list_queue_tags(QueueUrl=url).get("Tags", {})
    return tags


def _of_role(location: ClusterLocation, name: str) -> Tags:
    return tags_in(_described_role(location, name))


def _role_path(location: ClusterLocation, name: str) -> str | None:
    return unless_error(ABSENT_CODES, lambda: str(_described_role(location, name)["Path"]))


def _described_role(location: ClusterLocation, name: str) -> dict[str, Any]:
    return dict(location.client("iam").get_role(RoleName=name)["Role"])


def _of_repository(location: ClusterLocation, repository: str) -> Tags:
    ecr = location.client("ecr")
    (described,) = ecr.describe_repositories(repositoryNames=[repository])["repositories"]
    return tags_in(ecr.list_tags_for_resource(resourceArn=described["repositoryArn"]), "tags")
