"""What is there already, and whose: nothing that somebody else made is taken over.

AWS does not always say that a name is taken. CreateQueue answers with the queue that is
there if it is alike, PutRule changes the rule that is there; and what a stack has once
taken for its own goes with it. So everything that the program makes bears the tag of its
installation, and each name is looked up before anything is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from controller.apis import labels
from infra import names
from infra.clusterapi import ClusterGoneError, ClusterLocation, described
from infra.config import ConfigError
from infra.iam import POD_IDENTITY_AGENT
from infra.interruption import EVENTS
from infra.policies import Place

Tags = Mapping[str, str]

ABSENT_CODES = frozenset(
    {
        "AWS.SimpleQueueService.NonExistentQueue",
        # A cluster that takes no access entries has none; EKS says so when one is to be made.
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
    """The names that the program gives in AWS, and what it makes that has no name of its own."""

    place: Place
    queue: str
    node_role: str
    controller_role: str
    repository: str | None
    namespace: str
    service_account: str
    access_entry: bool
    """Of the node role."""

    association: bool
    """Of the service account, with Pod Identity."""

    agent: bool
    """The add-on of Pod Identity."""

    controller_policies: Sequence[str]
    windows_node_role: str | None = None
    iam_path: str = "/"
    existing: frozenset[str] = frozenset()
    """What is named and not made: of "node role", "controller role", "queue" and "profile"."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name that the program is about to give, and how to learn whether it is taken."""

    kind: str
    name: str
    setting: str
    """What to set for another name, or to do without."""

    tags: Callable[[], Tags | None]
    """Tags of what bears the name; None, or one of `ABSENT_CODES`, where nothing does."""


def refuse_missing_cluster(location: ClusterLocation) -> str:
    """Look whether there is such a cluster, before anything else happens.

    Returns:
        When it was made, in ISO 8601, which tells it from another of its name; empty where EKS
        does not say.

    Raises:
        ConfigError: there is none, or AWS does not tell.

    """
    try:
        made = described(location).get("createdAt")
    except ClusterGoneError as exc:
        raise ConfigError(
            [
                f"joiner:clusterName={location.cluster_name!r}: No cluster found of this name in "
                f"{location.region}, in the account of the credentials at hand"
            ]
        ) from exc
    except (BotoCoreError, ClientError) as exc:
        raise ConfigError(
            [
                f"joiner:clusterName={location.cluster_name!r}: AWS does not tell of it: {exc}; "
                "name credentials by which it does (aws sts get-caller-identity shows whose "
                "they are)"
            ]
        ) from exc
    return made.astimezone(UTC).isoformat(timespec="seconds") if made else ""


def refuse_other_account(location: ClusterLocation, account: str) -> None:
    """Look whether the credentials at hand, by which a stack ends, are of the cluster's account.

    Raises:
        ConfigError: they are not, or AWS does not tell.

    """
    try:
        ours = location.client("sts").get_caller_identity()["Account"]
    except (BotoCoreError, ClientError) as exc:
        raise ConfigError([f"AWS does not tell whose the credentials at hand are: {exc}"]) from exc
    if ours != account:
        raise ConfigError(
            [
                f"the cluster {location.cluster_name} is in the account {account}, and the "
                f"credentials at hand are of {ours}: the stack could be made with the program's "
                "provider, but not be taken down. Export credentials of that account "
                "(AWS_PROFILE, AWS_ACCESS_KEY_ID …)"
            ]
        )


def refuse_taken(given: Given, *, location: ClusterLocation, installation: str) -> None:
    """Look up every name that the program gives in AWS.

    Args:
        given: the names.
        location: of the cluster; its region and endpoint are where one looks.
        installation: value of the tag on what the program has made itself.

    Raises:
        ConfigError: some are taken by what this installation did not make; names all of them,
            whose they seem to be, and what to set.

    """
    problems = [
        f"there is {name.kind} {name.name} already, and this stack did not make it: it is tagged "
        f"{described_tags(tags)}. Set {name.setting}; or, if it is to be this stack's, which then "
        f"changes and in the end deletes it, tag it {labels.TAG_INSTALLATION}={installation}"
        for name in _names(given, location)
        if (tags := _looked_up(name.tags)) is not None
        and tags.get(labels.TAG_INSTALLATION) != installation
    ]
    if problems:
        raise ConfigError(problems)


def tags_of(key: str, name: str, location: ClusterLocation) -> Tags | None:
    """Return the tags of a thing that the program makes, None where there is no such thing.

    Args:
        key: of the setting that says whether it is made, such as `nodeRole`; or `network`.
        name: of the thing; the ID of a network.
        location: where to look.

    """
    known = {"cluster": _of_cluster, "network": _of_network, "queue": _of_queue}
    look = known.get(key, _of_role)
    return _looked_up(partial(look, location, name))


def _looked_up(tags: Callable[[], Tags | None]) -> Tags | None:
    try:
        return tags()
    except ClientError as exc:
        if exc.response["Error"]["Code"] in ABSENT_CODES:
            return None
        raise


def described_tags(tags: Tags) -> str:
    """Return tags in words."""
    return ", ".join(f"{key}={value}" for key, value in sorted(tags.items())) or "with nothing"


def _names(given: Given, location: ClusterLocation) -> Iterator[Name]:
    yield from _queue_and_rules(given, location)
    yield from _in_iam(given, location)
    yield from _in_eks(given, location)
    if given.repository:
        yield Name(
            "a repository",
            given.repository,
            "joiner:image",
            partial(_of_repository, location, given.repository),
        )


def _queue_and_rules(given: Given, location: ClusterLocation) -> Iterator[Name]:
    events = location.client("events")

    def of_rule(rule: str) -> Tags:
        arn = events.describe_rule(Name=rule)["Arn"]
        return _pairs(events.list_tags_for_resource(ResourceARN=arn)["Tags"])

    if "queue" in given.existing:
        return
    of_queue = partial(_of_queue, location, given.queue)
    yield Name("a queue", given.queue, "joiner:queueName to another name", of_queue)
    for event in EVENTS:
        rule = names.rule(given.queue, event)
        yield Name(
            "an EventBridge rule",
            rule,
            "joiner:queueName to another name",
            partial(of_rule, rule),
        )


def _in_iam(given: Given, location: ClusterLocation) -> Iterator[Name]:
    iam, place = location.client("iam"), given.place

    of_role = partial(_of_role, location)

    def of_profile(name: str) -> Tags:
        profile = iam.get_instance_profile(InstanceProfileName=name)
        return _pairs(profile["InstanceProfile"].get("Tags", []))

    def of_policy(name: str) -> Tags:
        arn = f"arn:{place.partition}:iam::{place.account}:policy{given.iam_path}{name}"
        return _pairs(iam.get_policy(PolicyArn=arn)["Policy"].get("Tags", []))

    if "node role" not in given.existing:
        setting = "joiner:nodeRoleName to another name"
        yield Name("a role", given.node_role, setting, partial(of_role, given.node_role))
    if "profile" not in given.existing:
        setting = "joiner:nodeRoleName to another name, or joiner:instanceProfileName to this one"
        profile = given.node_role
        yield Name("an instance profile", profile, setting, partial(of_profile, profile))
    if windows := given.windows_node_role:
        setting = "joiner:namePrefix to another one"
        yield Name("a role", windows, setting, partial(of_role, windows))
        yield Name("an instance profile", windows, setting, partial(of_profile, windows))
    if "controller role" in given.existing:
        return
    setting = "joiner:controllerRoleName to another name"
    yield Name("a role", given.controller_role, setting, partial(of_role, given.controller_role))
    for policy in given.controller_policies:
        setting = "joiner:namePrefix to another one; or delete it if nobody needs it"
        yield Name("a policy", policy, setting, partial(of_policy, policy))


def _in_eks(given: Given, location: ClusterLocation) -> Iterator[Name]:
    eks, place = location.client("eks"), given.place
    cluster = {"clusterName": place.cluster_name}

    def of_entry(node_role: str) -> Tags:
        entry = eks.describe_access_entry(**cluster, principalArn=node_role)
        tags: Tags = entry["accessEntry"].get("tags", {})
        return tags

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

    roles = [given.node_role, given.windows_node_role] if given.access_entry else []
    for role in filter(None, roles):
        arn = f"arn:{place.partition}:iam::{place.account}:role{given.iam_path}{role}"
        setting = "joiner:nodeAccess to none"
        yield Name("an access entry of", arn, setting, partial(of_entry, arn))
    if given.association:
        yield Name(
            "a Pod Identity association of",
            f"{given.namespace}/{given.service_account}",
            "joiner:name to another",
            of_association,
        )
        if given.agent:
            yield Name(
                "the add-on", POD_IDENTITY_AGENT, "joiner:podIdentityAgent to existing", of_addon
            )


def _of_cluster(location: ClusterLocation, _name: str) -> Tags | None:
    try:
        tags: Tags = described(location).get("tags") or {}
    except ClusterGoneError:
        return None
    return tags


def _of_network(location: ClusterLocation, vpc: str) -> Tags:
    (described,) = location.client("ec2").describe_vpcs(VpcIds=[vpc])["Vpcs"]
    return _pairs(described.get("Tags", []))


def _of_queue(location: ClusterLocation, name: str) -> Tags:
    sqs = location.client("sqs")
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    tags: Tags = sqs.list_queue_tags(QueueUrl=url).get("Tags", {})
    return tags


def _of_role(location: ClusterLocation, name: str) -> Tags:
    role = location.client("iam").get_role(RoleName=name)["Role"]
    return _pairs(role.get("Tags", []))


def _of_repository(location: ClusterLocation, repository: str) -> Tags:
    ecr = location.client("ecr")
    (described,) = ecr.describe_repositories(repositoryNames=[repository])["repositories"]
    return _pairs(ecr.list_tags_for_resource(resourceArn=described["repositoryArn"])["tags"])


def _pairs(tags: list[dict[str, Any]]) -> Tags:
    return {tag["Key"]: tag["Value"] for tag in tags}
