"""What is there already, and whose: nothing that somebody else made is taken over.

AWS does not always say that a name is taken. CreateQueue answers with the queue that is
there if it is alike, PutRule changes the rule that is there; and what a stack has once
taken for its own goes with it. So everything that the program makes bears the tag of its
installation, and each name is looked up before anything is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from controller.apis import labels
from infra import names
from infra.clusterapi import ClusterGoneError, ClusterLocation, described
from infra.config import ConfigError, StackConfig
from infra.iam import POD_IDENTITY_AGENT, controller_policies
from infra.interruption import EVENTS
from infra.policies import Place

Tags = Mapping[str, str]

ABSENT_CODES = frozenset(
    {
        "AWS.SimpleQueueService.NonExistentQueue",
        # A cluster that takes no access entries has none; EKS says so when one is to be made.
        "InvalidRequestException",
        "NoSuchEntity",
        "QueueDoesNotExist",
        "RepositoryNotFoundException",
        "ResourceNotFoundException",
    }
)


@dataclass(frozen=True, slots=True)
class Name:
    """A name that the program is about to give, and how to learn whether it is taken."""

    kind: str
    name: str
    setting: str
    """What to set for another name, or to do without."""

    tags: Callable[[], Tags | None]
    """Tags of what bears the name; None, or one of `ABSENT_CODES`, where nothing does."""


def refuse_missing_cluster(location: ClusterLocation) -> None:
    """Look whether there is such a cluster, before anything else happens.

    Raises:
        ConfigError: there is none, or AWS does not tell.

    """
    try:
        described(location)
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


def refuse_taken(
    config: StackConfig, *, location: ClusterLocation, place: Place, installation: str
) -> None:
    """Look up every name that the program gives in AWS.

    Raises:
        ConfigError: some are taken by what this installation did not make; names all of them,
            whose they seem to be, and what to set.

    """
    problems = [
        f"there is {name.kind} {name.name} already, and this stack did not make it: it is tagged "
        f"{_describe(tags)}. Set {name.setting}; or, if it is to be this stack's, which then "
        f"changes and in the end deletes it, tag it {labels.TAG_INSTALLATION}={installation}"
        for name in _names(config, location, place)
        if (tags := _looked_up(name)) is not None
        and tags.get(labels.TAG_INSTALLATION) != installation
    ]
    if problems:
        raise ConfigError(problems)


def _looked_up(name: Name) -> Tags | None:
    try:
        return name.tags()
    except ClientError as exc:
        if exc.response["Error"]["Code"] in ABSENT_CODES:
            return None
        raise


def _describe(tags: Tags) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(tags.items())) or "with nothing"


def _names(config: StackConfig, location: ClusterLocation, place: Place) -> Iterator[Name]:
    yield from _queue_and_rules(config, location)
    yield from _in_iam(config, location, place)
    yield from _in_eks(config, location, place)
    if config.image is None:
        repository = names.repository(config.cluster_name)
        yield Name(
            "a repository",
            repository,
            "joiner:image",
            partial(_of_repository, location, repository),
        )


def _queue_and_rules(config: StackConfig, location: ClusterLocation) -> Iterator[Name]:
    sqs, events = location.client("sqs"), location.client("events")

    def of_queue() -> Tags:
        url = sqs.get_queue_url(QueueName=config.queue)["QueueUrl"]
        tags: Tags = sqs.list_queue_tags(QueueUrl=url).get("Tags", {})
        return tags

    def of_rule(rule: str) -> Tags:
        arn = events.describe_rule(Name=rule)["Arn"]
        return _pairs(events.list_tags_for_resource(ResourceARN=arn)["Tags"])

    yield Name("a queue", config.queue, "joiner:queueName to another name", of_queue)
    for event in EVENTS:
        rule = names.rule(config.queue, event)
        yield Name(
            "an EventBridge rule",
            rule,
            "joiner:queueName to another name",
            partial(of_rule, rule),
        )


def _in_iam(config: StackConfig, location: ClusterLocation, place: Place) -> Iterator[Name]:
    iam = location.client("iam")

    def of_role(role: str) -> Tags:
        return _pairs(iam.get_role(RoleName=role)["Role"].get("Tags", []))

    def of_profile() -> Tags:
        profile = iam.get_instance_profile(InstanceProfileName=config.node_role)
        return _pairs(profile["InstanceProfile"].get("Tags", []))

    def of_policy(name: str) -> Tags:
        arn = f"arn:{place.partition}:iam::{place.account}:policy/{name}"
        return _pairs(iam.get_policy(PolicyArn=arn)["Policy"].get("Tags", []))

    yield Name(
        "a role",
        config.node_role,
        "joiner:nodeRoleName to another name",
        partial(of_role, config.node_role),
    )
    yield Name(
        "an instance profile", config.node_role, "joiner:nodeRoleName to another name", of_profile
    )
    yield Name(
        "a role",
        config.controller_role,
        "joiner:controllerRoleName to another name",
        partial(of_role, config.controller_role),
    )
    for title in controller_policies(zonal_shift=config.options.enable_zonal_shift):
        policy = names.controller_policy(title, config.cluster_name, config.region)
        yield Name(
            "a policy",
            policy,
            "nothing but another cluster's name would give it another name: delete it if nobody "
            "needs it",
            partial(of_policy, policy),
        )


def _in_eks(config: StackConfig, location: ClusterLocation, place: Place) -> Iterator[Name]:
    eks = location.client("eks")
    cluster = {"clusterName": config.cluster_name}
    node_role = f"arn:{place.partition}:iam::{place.account}:role/{config.node_role}"

    def of_entry() -> Tags:
        entry = eks.describe_access_entry(**cluster, principalArn=node_role)
        tags: Tags = entry["accessEntry"].get("tags", {})
        return tags

    def of_association() -> Tags | None:
        associations = eks.list_pod_identity_associations(
            **cluster, namespace=config.namespace, serviceAccount=config.name
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

    if config.node_access in ("EC2_LINUX", "EC2_WINDOWS"):
        yield Name("an access entry of", node_role, "joiner:nodeAccess to none", of_entry)
    if config.identity == "pod-identity":
        account = f"{config.namespace}/{config.name}"
        yield Name(
            "a Pod Identity association of", account, "joiner:name to another", of_association
        )
        if config.pod_identity_agent == "create":
            yield Name(
                "the add-on", POD_IDENTITY_AGENT, "joiner:podIdentityAgent to existing", of_addon
            )


def _of_repository(location: ClusterLocation, repository: str) -> Tags:
    ecr = location.client("ecr")
    (described,) = ecr.describe_repositories(repositoryNames=[repository])["repositories"]
    return _pairs(ecr.list_tags_for_resource(resourceArn=described["repositoryArn"])["tags"])


def _pairs(tags: list[dict[str, Any]]) -> Tags:
    return {tag["Key"]: tag["Value"] for tag in tags}
